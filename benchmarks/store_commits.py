"""What a commit per verdict costs the event loop that obtains the verdicts.

    python benchmarks/store_commits.py             64 calls at a time, 100 ms each, for 3,200 verdicts

Side by side in one run: a bare asyncio loop of sleeps; the same with `put` inside the loop; with
`put` in a thread; and reserve + claim + put, as a budgeted run does. Then the warm store: 8,115
verdicts read back. A record holds 2.5 kB of text.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from splits import machine

from xyreward.store import StoredVerdict, VerdictStore
from xyreward.verdict import Usage

Step = Callable[[StoredVerdict], Awaitable[None]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=3_200)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--latency", type=float, default=0.1, help="seconds of one call")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    print(machine())
    with tempfile.TemporaryDirectory() as folder, VerdictStore.open(Path(folder, "v")) as store:

        async def bare(record: StoredVerdict) -> None:
            pass

        async def in_the_loop(record: StoredVerdict) -> None:
            store.put(record)

        async def in_a_thread(record: StoredVerdict) -> None:
            await asyncio.to_thread(store.put, record)

        async def with_budget(record: StoredVerdict) -> None:
            store.claim([record.key])
            reservation = store.ledger.reserve("run", 0.01, 1e6)
            store.put(record, reservation=reservation)

        steps: dict[str, Step] = {
            "bare loop": bare,
            "put in the loop": in_the_loop,
            "put in a thread": in_a_thread,
            "claim, reserve, put": with_budget,
        }
        rates: dict[str, list[float]] = {name: [] for name in steps}
        cpu: dict[str, list[float]] = {name: [] for name in steps}
        numbers = itertools.count()
        for _ in range(args.rounds):
            for name, step in steps.items():
                started = time.process_time()
                rates[name].append(asyncio.run(rate(args, step, numbers)))
                cpu[name].append((time.process_time() - started) / args.calls * 1e3)
        for name, found in rates.items():
            share = statistics.median(found) / statistics.median(rates["bare loop"])
            print(
                f"{name:20} {statistics.median(found):6.1f}/s  {share:6.1%} of the bare loop, "
                f"{statistics.median(cpu[name]):.3f} ms of CPU per verdict"
            )

        keys = [made(next(numbers)) for _ in range(8_115)]
        store.add_many(keys)
        seconds = []
        for _ in range(5):
            started = time.perf_counter()
            assert len(store.get_many([record.key for record in keys])) == 8_115
            seconds.append(time.perf_counter() - started)
        print(f"8,115 verdicts read back in {statistics.median(seconds):.3f} s   (aim: under 0.25)")


async def rate(args: argparse.Namespace, step: Step, numbers: itertools.count[int]) -> float:
    """Verdicts per second."""
    todo = iter([made(next(numbers)) for _ in range(args.calls)])

    async def work() -> None:
        for record in todo:
            await asyncio.sleep(args.latency)
            await step(record)

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(args.concurrency)))
    return float(args.calls) / (time.perf_counter() - started)


def made(number: int) -> StoredVerdict:
    return StoredVerdict(
        key=hashlib.sha256(str(number).encode()).hexdigest(),
        kind="verdict",
        identity={
            "judge": "anthropic:claude-sonnet-5-5",
            "model": "claude-sonnet-5-5",
            "rubric_version": "xy-1-0123456789ab",
            "query_hash": "q" * 64,
            "answer_hash": "a" * 64,
            "vote": "1",
        },
        payload='"' + "p" * 998 + '"',
        raw_text="r" * 1_000,
        usage=Usage(600, 300, 4_500, 0),
        cost_usd=0.0078,
        served_model="claude-sonnet-5-5-20261101",
        base_url="https://api.anthropic.com",
    )


if __name__ == "__main__":
    main()
