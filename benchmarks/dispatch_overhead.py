"""What the dispatcher adds to a call: a sending that does nothing, 64 at a time.

    python benchmarks/dispatch_overhead.py

Beside it the least that one would write instead: a semaphore around the sending.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from xyreward.dispatch import Attempts, Dispatcher, Limits
from xyreward.judges.calls import Reply

CALLS = 5_000
ROUNDS = 5
REPLY = Reply("yes")


async def send(_timeout: float) -> Reply:
    await asyncio.sleep(0)
    return REPLY


class Plain(Attempts):
    def reserve(self) -> None: ...
    def received(self, reply: Reply) -> None: ...
    def released(self) -> None: ...
    def lost(self) -> None: ...


class Async(Attempts):
    async def reserve(self) -> None: ...
    async def received(self, reply: Reply) -> None: ...
    async def released(self) -> None: ...
    async def lost(self) -> None: ...


def semaphore() -> Callable[[], Awaitable[Reply]]:
    places = asyncio.Semaphore(64)

    async def one() -> Reply:
        async with places:
            return await send(120)

    return one


def dispatcher(
    attempts: Attempts | None = None, per_minute: float | None = None
) -> Callable[[], Awaitable[Reply]]:
    limits = Limits(
        start_concurrency=64, requests_per_minute=per_minute, tokens_per_minute=per_minute
    )
    ours = Dispatcher(limits)
    return lambda: ours.run(send, tokens=5, attempts=attempts)


async def microseconds(one: Callable[[], Awaitable[Reply]]) -> float:
    # Workers and not one task per call: the memory of thousands of waiting tasks is not the question.
    async def worker(calls: int) -> None:
        for _ in range(calls):
            await one()

    began = time.process_time()  # nothing waits here, and it is fairer on a busy machine
    await asyncio.gather(*(worker(CALLS // 64) for _ in range(64)))
    return (time.process_time() - began) / (CALLS // 64 * 64) * 1e6


def main() -> None:
    cases: dict[str, Callable[[], Callable[[], Awaitable[Reply]]]] = {
        "semaphore": semaphore,
        "dispatcher": dispatcher,
        "with a ledger of plain methods": lambda: dispatcher(Plain()),
        "with a ledger of coroutines": lambda: dispatcher(Async()),
        "with limits per minute, out of reach": lambda: dispatcher(per_minute=1e12),
    }

    async def timed(make: Callable[[], Callable[[], Awaitable[Reply]]]) -> float:
        return await microseconds(make())

    results: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(ROUNDS):  # in turns, so that a slow moment of the machine hits all
        for name, make in cases.items():
            results[name].append(asyncio.run(timed(make)))
    bare = statistics.median(results["semaphore"])
    print(
        f"microseconds of CPU per call, median of {ROUNDS} rounds (range), and above the semaphore"
    )
    for name, values in results.items():
        middle = statistics.median(values)
        span = f"({min(values):.0f}-{max(values):.0f})"
        print(f"{name:40}{middle:6.0f} {span:12}{middle - bare:+6.0f}")


if __name__ == "__main__":
    main()
