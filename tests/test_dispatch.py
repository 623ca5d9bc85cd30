import asyncio
import itertools
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xyreward.dispatch import Dispatcher, DispatchStats, Limits
from xyreward.errors import ConfigError
from xyreward.judges.calls import CallError, JudgeStopped, Reply
from xyreward.verdict import FailureKind, Usage

T = TypeVar("T")
QUICK = Limits(backoff_s=0.001, max_backoff_s=0.01, processes=1)


def limits(**changes: Any) -> Limits:
    return Limits(**{"backoff_s": 0.001, "max_backoff_s": 0.01, "processes": 1, **changes})


def error(kind: FailureKind = "transport", *, retry: bool = True, **more: Any) -> CallError:
    return CallError(kind, "the server said so", retry=retry, **more)


def too_many(retry_after: float | None = None) -> CallError:
    return error("rate_limited", overloaded=True, retry_after=retry_after)


def overloaded() -> CallError:
    return error("transport", overloaded=True, pause_all=True)


class Service:
    """An endpoint that answers by script: an exception is raised, None is a reply."""

    def __init__(
        self, script: Callable[["Service"], Exception | None], latency: float = 0.0
    ) -> None:
        self.script = script
        self.latency = latency
        self.sent: list[float] = []
        self.in_flight = 0
        self.most = 0
        self.replies = 0

    async def send(self, timeout: float) -> Reply:
        self.sent.append(time.perf_counter())
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            problem = self.script(self)
            await asyncio.sleep(self.latency)
            if problem is not None:
                raise problem
            self.replies += 1
            return Reply(f"reply {self.replies}", Usage(10, 1))
        finally:
            self.in_flight -= 1


def begin(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return asyncio.create_task(work)


def script(*steps: Exception | None) -> Callable[[Service], Exception | None]:
    rest = iter(steps)
    return lambda _: next(rest)


class Ledger:
    """Counts what becomes of reservations, across awaits like a real one."""

    def __init__(self, pause: float = 0.0) -> None:
        self.pause = pause
        self.open = 0
        self.reserved = 0
        self.replies: list[Reply] = []
        self.released_ = 0
        self.lost_ = 0

    async def reserve(self) -> None:
        await asyncio.sleep(self.pause)
        self.open += 1
        self.reserved += 1

    async def received(self, reply: Reply) -> None:
        await asyncio.sleep(self.pause)
        self.open -= 1
        self.replies.append(reply)

    async def released(self) -> None:
        await asyncio.sleep(self.pause)
        self.open -= 1
        self.released_ += 1

    async def lost(self) -> None:
        await asyncio.sleep(self.pause)
        self.open -= 1
        self.lost_ += 1


async def collect(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; no task outlives it, also when it is cancelled."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run(work: Coroutine[Any, Any, T]) -> T:
    async def alone() -> T:
        result = await work
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a task was left behind"
        return result

    return asyncio.run(alone())


async def outcome(work: Awaitable[Reply]) -> Reply | CallError | JudgeStopped:
    try:
        return await work
    except (CallError, JudgeStopped) as failed:
        return failed


async def failure(work: Awaitable[Reply]) -> CallError:
    with pytest.raises(CallError) as raised:
        await work
    assert not raised.value.retry  # whoever gets it must not try again
    return raised.value


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_concurrency": 0}, "max_concurrency is 0, expected a whole number above 0"),
        ({"max_attempts": 2.5}, "max_attempts is 2.5, expected a whole number above 0"),
        ({"call_deadline_s": -1}, "call_deadline_s is -1, expected a number above 0"),
        ({"attempt_timeout_s": math.nan}, "attempt_timeout_s is nan"),
        ({"max_retry_after_s": None}, "max_retry_after_s is None, expected a number above 0"),
        ({"backoff_s": math.inf}, "backoff_s is inf"),
        ({"requests_per_minute": "50"}, "'50', expected a number above 0, or none for no limit"),
        ({"processes": True}, "processes is True"),
    ],
)
def test_an_impossible_limit_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("'", ".").replace(".", r".")):
        Limits(**change)


def test_all_impossible_limits_are_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"max_concurrency.*max_attempts"):
        Limits(max_concurrency=0, max_attempts=0)


def test_the_limits_are_shared_by_the_processes_of_a_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert Limits().processes == 8
    assert Limits(max_concurrency=64).concurrency_here == 64 // 8
    assert Limits(start_concurrency=24).start_here == 24 // 8
    assert Limits(max_concurrency=3).concurrency_here == 1
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(ConfigError, match=r"WORLD_SIZE is 'many'.*unset it"):
        Limits()
    assert Limits(processes=2).processes == 2


def test_the_start_is_never_above_the_most() -> None:
    assert limits(max_concurrency=4, start_concurrency=8).start_here == 4


# ---------------------------------------------------------------- one call


def test_a_reply_comes_back_and_is_counted() -> None:
    dispatcher = Dispatcher(QUICK)

    async def main() -> DispatchStats:
        reply = await dispatcher.run(Service(script(None)).send, tokens=1)
        assert reply.text == "reply 1"
        return dispatcher.stats()

    stats = run(main())
    assert (stats.attempts, stats.replies, stats.retries) == (1, 1, 0)
    assert (stats.in_flight, stats.waiting, dict(stats.errors)) == (0, 0, {})
    assert stats.replies_per_s == 1.0
    assert dispatcher.stats().replies == 1  # also when its loop is closed


def test_what_may_be_sent_again_is_sent_again() -> None:
    service = Service(script(error(), error("timeout"), None))
    dispatcher = Dispatcher(QUICK)
    assert run(dispatcher.run(service.send, tokens=1)).text == "reply 1"
    stats = dispatcher.stats()
    assert (stats.attempts, stats.retries) == (3, 2)
    assert stats.errors == {"transport": 1, "timeout": 1}


def test_what_may_not_is_not() -> None:
    service = Service(script(error("refused", retry=False)))
    failed = run(failure(Dispatcher(QUICK).run(service.send, tokens=1)))
    assert (failed.kind, failed.detail) == ("refused", "the server said so")
    assert len(service.sent) == 1


def test_after_the_last_attempt_the_last_error_is_the_failure() -> None:
    service = Service(script(error("transport"), error("transport"), error("rate_limited")))
    failed = run(failure(Dispatcher(limits(max_attempts=3)).run(service.send, tokens=1)))
    assert failed.kind == "rate_limited"
    assert failed.detail == "the server said so (3 sendings)"


def test_a_failure_says_whether_any_of_its_sendings_may_be_charged_for() -> None:
    lost_then_refused = script(error(possibly_billed=True), error(retry=False))
    dispatcher = Dispatcher(QUICK)
    failed = run(failure(dispatcher.run(Service(lost_then_refused).send, tokens=1)))
    assert failed.possibly_billed
    assert dispatcher.stats().possibly_billed == 1
    only_refused = Service(script(error(), error(retry=False)))
    assert not run(failure(dispatcher.run(only_refused.send, tokens=1))).possibly_billed


def test_waits_double_and_are_jittered() -> None:
    dispatcher = Dispatcher(limits(backoff_s=0.02, max_backoff_s=1))
    below_the_whole = False
    for _ in range(40):
        service = Service(script(error(), error(), error(), None))
        run(dispatcher.run(service.send, tokens=1))
        waits = [b - a for a, b in itertools.pairwise(service.sent)]
        # Between half and the whole of 0.02, 0.04, 0.08; a busy machine may be late, never early.
        for wait, whole in zip(waits, (0.02, 0.04, 0.08), strict=True):
            assert wait >= whole / 2 - 1e-3
            below_the_whole |= wait < 0.95 * whole
        if below_the_whole:
            return
    pytest.fail("every wait had the whole length")


def test_a_retry_leaves_the_random_numbers_of_a_seeded_training_alone() -> None:
    random.seed(7)
    expected = random.random()
    random.seed(7)
    run(Dispatcher(QUICK).run(Service(script(error(), error(), None)).send, tokens=1))
    assert random.random() == expected


def test_a_mistake_in_an_endpoint_is_not_hidden_and_gives_its_place_back() -> None:
    async def mistaken(timeout: float) -> Reply:
        raise KeyError("content")

    async def main() -> None:
        dispatcher = Dispatcher(limits(max_concurrency=1))
        ledger = Ledger()
        with pytest.raises(KeyError, match="content"):
            await dispatcher.run(mistaken, tokens=1, attempts=ledger)
        assert (ledger.open, ledger.lost_) == (0, 1)
        await dispatcher.run(Service(script(None)).send, tokens=1)

    run(main())


def test_a_timeout_error_of_the_endpoints_own_is_a_mistake_too() -> None:
    async def mistaken(timeout: float) -> Reply:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        run(Dispatcher(QUICK).run(mistaken, tokens=1))


# ---------------------------------------------------------------- Retry-After


def test_retry_after_is_waited_for() -> None:
    service = Service(script(too_many(retry_after=0.15), None))
    run(Dispatcher(QUICK).run(service.send, tokens=1))
    assert service.sent[1] - service.sent[0] >= 0.149


def test_an_hour_is_not_waited_for_but_named() -> None:
    service = Service(script(too_many(retry_after=3600)))
    began = time.perf_counter()
    failed = run(failure(Dispatcher(QUICK).run(service.send, tokens=1)))
    assert time.perf_counter() - began < 60
    assert failed.kind == "rate_limited"
    assert "asks to wait 3600 s, above max_retry_after_s=60" in failed.detail
    assert failed.retry_after == 3600
    assert len(service.sent) == 1


def test_a_retry_after_beyond_the_deadline_is_not_waited_for_either() -> None:
    service = Service(script(too_many(retry_after=30)))
    began = time.perf_counter()
    failed = run(failure(Dispatcher(limits(call_deadline_s=5)).run(service.send, tokens=1)))
    assert time.perf_counter() - began < 4
    assert failed.kind == "timeout"
    assert "call_deadline_s=5" in failed.detail
    assert "the last one: rate_limited: the server said so" in failed.detail


# ---------------------------------------------------------------- deadlines


async def lateness(dispatcher: Dispatcher, service: Service) -> tuple[float, CallError]:
    """Seconds after a plain timer for the same time, which a busy machine delays as well."""
    loop = asyncio.get_running_loop()
    due = loop.create_future()

    async def send(timeout: float) -> Reply:
        if not service.sent:
            loop.call_later(
                dispatcher.limits.call_deadline_s, lambda: due.set_result(time.perf_counter())
            )
        return await service.send(timeout)

    failed = await failure(dispatcher.run(send, tokens=1))
    ended = time.perf_counter()
    return ended - await due, failed


def test_a_call_that_hangs_ends_at_its_deadline() -> None:
    service = Service(lambda _: None, latency=30)
    dispatcher = Dispatcher(limits(call_deadline_s=0.3))
    late, failed = run(lateness(dispatcher, service))
    assert abs(late) < 0.05
    assert failed.kind == "timeout"
    assert failed.possibly_billed
    assert "1 sending(s)" in failed.detail


def test_an_attempt_that_hangs_is_given_up_and_sent_again() -> None:
    delays = iter([30.0, 0.0])

    async def send(timeout: float) -> Reply:
        assert timeout == pytest.approx(0.1, abs=1e-6)
        await asyncio.sleep(next(delays))
        return Reply("second")

    dispatcher = Dispatcher(limits(attempt_timeout_s=0.1))
    assert run(dispatcher.run(send, tokens=1)).text == "second"
    assert dispatcher.stats().possibly_billed == 1


def test_a_call_that_keeps_failing_ends_by_its_deadline() -> None:
    service = Service(lambda _: error(), latency=0.01)
    dispatcher = Dispatcher(limits(call_deadline_s=0.3, max_attempts=10_000))
    late, failed = run(lateness(dispatcher, service))
    assert -0.05 < late < 0.05
    assert failed.kind == "timeout"
    assert "the last one: transport: the server said so" in failed.detail


def test_a_retry_that_gets_no_place_ends_at_its_deadline() -> None:
    async def main() -> None:
        dispatcher = Dispatcher(
            limits(max_concurrency=1, call_deadline_s=0.5, backoff_s=0.4, max_backoff_s=0.4)
        )
        fails = Service(script(error()))
        call = begin(lateness(dispatcher, fails))
        await asyncio.sleep(0.01)  # it failed and waits for its next try; the place is free
        blocker = Service(lambda _: None, latency=30)
        other = begin(dispatcher.run(blocker.send, tokens=1))
        late, failed = await call
        assert abs(late) < 0.05
        assert (failed.kind, len(fails.sent), blocker.in_flight) == ("timeout", 1, 1)
        other.cancel()
        await asyncio.wait([other])

    run(main())


def test_waiting_for_the_first_turn_does_not_count() -> None:
    service = Service(lambda _: None, latency=0.15)
    dispatcher = Dispatcher(limits(max_concurrency=1, call_deadline_s=1.0))
    work = [dispatcher.run(service.send, tokens=1) for _ in range(9)]  # the last waits 1.2 s
    assert len(run(collect(work))) == 9


def test_a_batch_has_a_deadline_of_its_own() -> None:
    async def main() -> None:
        dispatcher = Dispatcher(limits(max_concurrency=2, batch_deadline_s=0.3))
        service = Service(lambda _: None, latency=0.2)
        end = dispatcher.batch_deadline()
        work = [outcome(dispatcher.run(service.send, tokens=1, deadline=end)) for _ in range(6)]
        began = time.perf_counter()
        outcomes = await collect(work)
        assert time.perf_counter() - began < 2
        # Two are judged, two are on their way when time is up, two never have a turn.
        assert [isinstance(one, Reply) for one in outcomes] == [True] * 2 + [False] * 4
        sent = len(service.sent)
        assert sent <= 4
        for number, one in enumerate(outcomes[2:], 2):
            assert isinstance(one, CallError)
            assert one.kind == "timeout"
            assert one.possibly_billed == (number < sent)
        assert "batch_deadline_s=0.3 passed before its turn came" in str(outcomes[-1])
        late = await failure(dispatcher.run(service.send, tokens=1, deadline=end))
        assert late.kind == "timeout"
        assert len(service.sent) == sent

    run(main())


def test_without_a_batch_deadline_there_is_none() -> None:
    async def main() -> None:
        assert Dispatcher(QUICK).batch_deadline() is None

    run(main())


# ---------------------------------------------------------------- how many at a time


@pytest.mark.parametrize("most", [1, 3, 64])
def test_never_more_at_a_time_than_allowed(most: int) -> None:
    service = Service(lambda _: None, latency=0.002)
    dispatcher = Dispatcher(limits(max_concurrency=most))
    run(collect(dispatcher.run(service.send, tokens=1) for _ in range(200)))
    assert service.most == most  # and it gets there, from 8
    assert service.replies == 200


def test_each_reply_adds_a_place_until_the_first_refusal() -> None:
    seen: list[tuple[int, int]] = []  # so the places double per round of replies

    def watch(service: Service) -> None:
        seen.append((dispatcher.stats().concurrency, service.replies))

    service = Service(watch, latency=0.01)
    dispatcher = Dispatcher(limits(max_concurrency=24, start_concurrency=4))
    run(collect(dispatcher.run(service.send, tokens=1) for _ in range(80)))
    assert [places for places, _ in seen] == [min(24, 4 + replies) for _, replies in seen]
    assert seen[-1][0] == 24


def test_after_a_refusal_a_whole_round_adds_a_place() -> None:
    seen: list[int] = []

    def watch(service: Service) -> Exception | None:
        seen.append(dispatcher.stats().concurrency)
        return too_many() if len(seen) == 1 else None

    service = Service(watch, latency=0.01)
    dispatcher = Dispatcher(limits(max_concurrency=64, start_concurrency=16))
    run(collect(dispatcher.run(service.send, tokens=1) for _ in range(16 + 8 + 9 + 10)))
    assert seen[0] == 16
    assert seen[17] == 8  # and the other 15 replies of the round of the refusal add nothing
    assert 9 <= seen[-1] <= 11  # 8 + 9 + 10 replies; a place each would be far more


def test_places_that_nobody_uses_do_not_grow() -> None:
    dispatcher = Dispatcher(limits(start_concurrency=4))
    service = Service(lambda _: None)

    async def one_by_one() -> int:
        for _ in range(50):
            await dispatcher.run(service.send, tokens=1)
        return dispatcher.stats().concurrency

    assert run(one_by_one()) == 4


def test_refusals_of_one_round_halve_once() -> None:
    refused = itertools.chain([too_many() for _ in range(32)], itertools.repeat(None))
    service = Service(lambda _: next(refused), latency=0.01)
    dispatcher = Dispatcher(limits(start_concurrency=32, backoff_s=0.5, max_backoff_s=0.5))

    async def main() -> None:
        work = begin(collect(dispatcher.run(service.send, tokens=1) for _ in range(32)))
        await asyncio.sleep(0.04)
        stats = dispatcher.stats()
        assert (stats.cuts, stats.concurrency, stats.attempts) == (1, 16, 32)
        await work

    run(main())
    assert dispatcher.stats().errors == {"rate_limited": 32}


def test_after_a_storm_of_429_the_places_come_back() -> None:
    stormy = True
    service = Service(lambda _: too_many() if stormy else None, latency=0.002)
    dispatcher = Dispatcher(limits(max_concurrency=16, max_attempts=10_000))

    async def main() -> None:
        nonlocal stormy
        caught = begin(collect(dispatcher.run(service.send, tokens=1) for _ in range(40)))
        while dispatcher.stats().concurrency > 1:
            await asyncio.sleep(0.01)
        assert service.replies == 0
        stormy = False
        await caught
        await collect(dispatcher.run(service.send, tokens=1) for _ in range(600))
        assert dispatcher.stats().concurrency == 16

    run(main())
    assert service.replies == 40 + 600


def test_the_places_settle_near_what_the_server_takes() -> None:
    capacity = 12
    service = Service(
        lambda service: too_many() if service.in_flight > capacity else None, latency=0.004
    )
    dispatcher = Dispatcher(limits(max_attempts=1000))
    run(collect(dispatcher.run(service.send, tokens=1) for _ in range(900)))
    assert service.replies == 900
    refused = dispatcher.stats().errors["rate_limited"]
    assert refused < 0.2 * 900  # at a constant 64 it would be most of them
    assert dispatcher.stats().cuts >= 2


def test_a_529_pauses_everybody() -> None:
    steps = itertools.chain([overloaded() for _ in range(4)], itertools.repeat(None))
    service = Service(lambda _: next(steps), latency=0.01)
    dispatcher = Dispatcher(limits(start_concurrency=4, backoff_s=0.2, max_backoff_s=0.2))
    run(collect(dispatcher.run(service.send, tokens=1) for _ in range(30)))
    first_round, rest = service.sent[:4], service.sent[4:]
    assert service.replies == 30
    # The first 529 came 0.01 s after sending; the pause is at least half of 0.2 s.
    assert rest[0] - first_round[-1] >= 0.1
    assert dispatcher.stats().pauses == 1
    assert dispatcher.stats().cuts == 0


def test_a_pause_holds_for_a_call_that_waited_for_something_else_meanwhile() -> None:
    steps = iter([overloaded(), None, None])
    service = Service(lambda _: next(steps), latency=0.1)
    dispatcher = Dispatcher(
        limits(
            tokens_per_minute=61 * 1000, backoff_s=0.6, max_backoff_s=0.6
        )  # pause: at least 0.3 s
    )
    run(collect(dispatcher.run(service.send, tokens=n) for n in (1000, 150)))
    # The second one had its tokens after 0.15 s, in the pause that began at 0.1 s.
    assert service.sent[1] - service.sent[0] >= 0.4 - 1e-3


def test_pauses_grow_while_the_service_stays_overloaded_and_no_longer() -> None:
    steps = iter([*(overloaded() for _ in range(6)), None, overloaded(), None])
    service = Service(lambda _: next(steps))
    dispatcher = Dispatcher(limits(max_attempts=1, backoff_s=0.01, max_backoff_s=1))

    async def one_by_one() -> None:
        for _ in range(9):
            await outcome(dispatcher.run(service.send, tokens=1))

    run(one_by_one())
    gaps = [b - a for a, b in itertools.pairwise(service.sent)]
    for gap, whole in zip(gaps, (0.01, 0.02, 0.04, 0.08, 0.16, 0.32), strict=False):
        assert gap >= whole / 2 - 1e-3
    assert gaps[7] < 0.3  # it starts again at 0.01 s; a seventh in a row would be 0.32 s at least
    assert dispatcher.stats().pauses == 7


def test_after_a_pause_everybody_begins_small_and_returns_steeply() -> None:
    places: list[int] = []

    def watch(service: Service) -> Exception | None:
        places.append(dispatcher.stats().concurrency)
        return overloaded() if len(service.sent) == 60 else None

    service = Service(watch, latency=0.005)
    dispatcher = Dispatcher(limits(max_concurrency=32, start_concurrency=4))
    run(collect(dispatcher.run(service.send, tokens=1) for _ in range(200)))
    assert places[59] == 32
    assert min(places[60:]) == 4  # whatever the others of that round brought
    assert places[-1] == 32


# ---------------------------------------------------------------- limits per minute


def test_no_minute_has_more_requests_than_allowed() -> None:
    rate = 6000.0
    service = Service(lambda _: None)
    dispatcher = Dispatcher(limits(requests_per_minute=rate))
    began = time.perf_counter()
    run(collect(dispatcher.run(service.send, tokens=1) for _ in range(200)))
    assert time.perf_counter() - began >= (200 - rate / 61) / (rate / 61) - 0.01
    # A second's worth at once, then one 61st of the rate per second: at most `rate` in any 60 s.
    for i, j in itertools.combinations(range(0, 200, 7), 2):
        seconds = service.sent[j] - service.sent[i]
        assert j - i <= rate / 61 * (1 + seconds) + 1


def test_a_large_call_is_not_overtaken_by_small_ones_until_it_starves() -> None:
    order: list[int] = []

    async def send(tokens: int) -> Reply:
        order.append(tokens)
        return Reply("")

    dispatcher = Dispatcher(limits(tokens_per_minute=61 * 10_000, start_concurrency=64))
    amounts = [10_000, 9_000, *[100] * 20]
    run(collect(dispatcher.run(lambda _, n=n: send(n), tokens=n) for n in amounts))  # type: ignore[misc]
    assert order == amounts


def test_few_requests_per_minute_are_evenly_spaced_and_the_first_is_sent_at_once() -> None:
    service = Service(lambda _: None)
    dispatcher = Dispatcher(limits(requests_per_minute=60))
    began = time.perf_counter()
    run(collect(dispatcher.run(service.send, tokens=1) for _ in range(2)))
    assert service.sent[0] - began < 0.9
    assert 0.99 <= service.sent[1] - service.sent[0] < 10


def test_tokens_are_limited_also_where_one_call_is_more_than_a_second_allows() -> None:
    per_minute = 61 * 1000.0  # a bucket of 1,000
    service = Service(lambda _: None)
    dispatcher = Dispatcher(limits(tokens_per_minute=per_minute))
    began = time.perf_counter()
    run(dispatcher.run(service.send, tokens=1500))
    # 1,000 are there at once, 500 come in half a second.
    assert 0.45 <= time.perf_counter() - began < 10


def test_processes_share_the_limits_per_minute() -> None:
    service = Service(lambda _: None)
    dispatcher = Dispatcher(limits(requests_per_minute=61 * 20.0, processes=4))
    began = time.perf_counter()
    run(collect(dispatcher.run(service.send, tokens=1) for _ in range(10)))
    # 5 at once, 5 more in a second.
    assert 0.95 <= time.perf_counter() - began < 10


# ---------------------------------------------------------------- stopping


def test_after_a_stop_nothing_is_sent_and_replies_in_flight_are_kept() -> None:
    async def main() -> None:
        dispatcher = Dispatcher(limits(start_concurrency=4, backoff_s=30, max_backoff_s=30))
        ledgers = [Ledger() for _ in range(30)]
        plan: dict[int, Exception | None] = {0: error(), 2: JudgeStopped("401: wrong key")}
        slow = asyncio.Event()

        async def send(number: int) -> Reply:
            sent.append(number)
            if number in plan:
                await asyncio.sleep(0.01)
                raise plan[number] or AssertionError
            await slow.wait()
            return Reply(str(number))

        sent: list[int] = []
        work = [
            asyncio.ensure_future(
                outcome(
                    dispatcher.run(
                        lambda _, n=number: send(n),  # type: ignore[misc]
                        tokens=1,
                        attempts=ledgers[number],
                    )
                )
            )
            for number in range(30)
        ]
        while sum(task.done() for task in work) < 30 - 4:
            await asyncio.sleep(0.01)
        # Call 0 slept for its retry and woke at once; 1, 3 and what was sent after 0 are in flight.
        in_flight = set(sent) - {0, 2}
        done = {number for number, task in enumerate(work) if task.done()}
        assert done == set(range(30)) - in_flight
        before = list(sent)
        slow.set()
        outcomes = await asyncio.gather(*work)
        assert sent == before
        for number, one in enumerate(outcomes):
            if number in in_flight:
                assert isinstance(one, Reply)
                assert ledgers[number].replies == [one]
            else:
                assert isinstance(one, JudgeStopped)
                assert "401: wrong key" in str(one)
            assert ledgers[number].open == 0
        with pytest.raises(JudgeStopped, match="401"):
            await dispatcher.run(lambda _: send(99), tokens=1)
        assert 99 not in sent

    run(main())


def test_the_first_stop_is_the_cause_of_all_others() -> None:
    stop = JudgeStopped("429: spend limit")
    steps = itertools.chain([None] * 5, [stop], itertools.repeat(None))
    service = Service(lambda _: next(steps), latency=0.001)
    dispatcher = Dispatcher(limits(start_concurrency=2))
    outcomes = run(collect(outcome(dispatcher.run(service.send, tokens=1)) for _ in range(200)))
    stops = [one for one in outcomes if isinstance(one, JudgeStopped)]
    assert stops.count(stop) == 1
    assert all(one is stop or one.__cause__ is stop for one in stops)
    assert all(str(one) == "429: spend limit" for one in stops)
    assert len(outcomes) - len(stops) == service.replies == len(service.sent) - 1


def test_a_stop_also_ends_a_reservation_that_waits_for_others() -> None:
    class Waits(Ledger):
        async def reserve(self) -> None:
            await asyncio.sleep(30)

    async def main() -> None:
        dispatcher = Dispatcher(QUICK)
        began = time.perf_counter()
        waits, never = Waits(), Service(lambda _: None)
        stopping = Service(script(JudgeStopped("401: wrong key")), latency=0.05)
        first, second = await collect(
            [
                outcome(dispatcher.run(never.send, tokens=1, attempts=waits)),
                outcome(dispatcher.run(stopping.send, tokens=1)),
            ]
        )
        assert time.perf_counter() - began < 10
        assert first is not second
        assert isinstance(first, JudgeStopped)
        assert (waits.open, waits.released_, never.sent) == (0, 0, [])

    run(main())


def test_a_dispatcher_that_has_stopped_says_so_to_later_calls() -> None:
    dispatcher = Dispatcher(limits())
    with pytest.raises(JudgeStopped, match=r"^401: wrong key$"):
        run(dispatcher.run(Service(script(JudgeStopped("401: wrong key"))).send, tokens=1))
    with pytest.raises(JudgeStopped, match=r"^401: wrong key .*stopped for good.* load it again"):
        run(dispatcher.run(Service(script(None)).send, tokens=1))


def test_a_stop_also_ends_the_wait_for_the_limits_per_minute() -> None:
    steps = itertools.chain([JudgeStopped("401: wrong key")], itertools.repeat(None))
    service = Service(lambda _: next(steps), latency=0.02)
    # The next one in half a minute.
    dispatcher = Dispatcher(limits(requests_per_minute=2, start_concurrency=64))
    began = time.perf_counter()
    with pytest.raises(JudgeStopped, match="401"):
        run(collect(dispatcher.run(service.send, tokens=1) for _ in range(60)))
    assert time.perf_counter() - began < 15
    assert len(service.sent) == 1


def test_a_stop_also_ends_a_pause() -> None:
    async def main() -> None:
        dispatcher = Dispatcher(limits(max_concurrency=3, backoff_s=60, max_backoff_s=60))
        stopping = Service(script(JudgeStopped("401: wrong key")), latency=0.1)
        pausing = Service(script(overloaded()), latency=0.05)
        never = Service(lambda _: None)
        services = [pausing, stopping, *[never] * 20]
        began = time.perf_counter()
        work = [outcome(dispatcher.run(service.send, tokens=1)) for service in services]
        for one in await collect(work):
            assert isinstance(one, JudgeStopped | Reply)
        assert time.perf_counter() - began < 10
        # One had a place at the start; nothing more was sent in the pause, which would last half a minute.
        assert len(never.sent) <= 1 + 20
        with pytest.raises(JudgeStopped):
            await dispatcher.run(never.send, tokens=1)

    run(main())


def test_a_stop_reaches_those_who_wait_for_a_place_in_another_loop() -> None:
    dispatcher = Dispatcher(limits(max_concurrency=1))
    waiting = threading.Event()

    async def hangs_and_waits() -> None:
        hanging = Service(lambda _: None, latency=30)
        first = begin(dispatcher.run(hanging.send, tokens=1))
        second = begin(outcome(dispatcher.run(hanging.send, tokens=1)))
        await asyncio.sleep(0.05)
        waiting.set()
        assert isinstance(await asyncio.wait_for(second, 10), JudgeStopped)
        third = outcome(dispatcher.run(hanging.send, tokens=1))  # waits for no place either
        assert isinstance(await asyncio.wait_for(third, 10), JudgeStopped)
        assert len(hanging.sent) == 1
        first.cancel()
        await asyncio.wait([first])

    def stopper() -> None:
        waiting.wait(10)
        with pytest.raises(JudgeStopped):
            run(dispatcher.run(Service(script(JudgeStopped("401"))).send, tokens=1))

    in_threads(lambda: run(hangs_and_waits()), stopper)


def test_a_call_that_reserved_just_before_a_stop_is_not_sent() -> None:
    reserved = asyncio.Event()

    class Sets(Ledger):
        async def reserve(self) -> None:
            await super().reserve()
            reserved.set()

    async def stops(timeout: float) -> Reply:
        await reserved.wait()  # and wakes before the call that has reserved
        raise JudgeStopped("401: wrong key")

    async def main() -> None:
        dispatcher = Dispatcher(QUICK)
        ledger, service = Sets(), Service(lambda _: None)
        outcomes = await collect(
            [
                outcome(dispatcher.run(stops, tokens=1)),
                outcome(dispatcher.run(service.send, tokens=1, attempts=ledger)),
            ]
        )
        assert all(isinstance(one, JudgeStopped) for one in outcomes)
        assert service.sent == []
        assert (ledger.reserved, ledger.released_, ledger.open) == (1, 1, 0)

    run(main())


def test_who_is_cancelled_at_a_stop_is_cancelled() -> None:
    async def main() -> None:
        dispatcher = Dispatcher(limits(backoff_s=30, max_backoff_s=30))
        sleeping = begin(dispatcher.run(Service(script(error())).send, tokens=1))
        await asyncio.sleep(0.01)
        stopping = Service(script(JudgeStopped("401: wrong key")))
        with pytest.raises(JudgeStopped):
            await dispatcher.run(stopping.send, tokens=1)
        sleeping.cancel()
        await asyncio.wait([sleeping])
        assert sleeping.cancelled()

    run(main())


def test_a_call_that_was_refused_by_the_budget_is_not_sent_and_others_go_on() -> None:
    class Empty(Ledger):
        async def reserve(self) -> None:
            raise error("over_budget", retry=False)

    service = Service(lambda _: None)
    dispatcher = Dispatcher(limits(max_concurrency=1))
    ledger = Empty()

    async def main() -> None:
        failed = await failure(dispatcher.run(service.send, tokens=1, attempts=ledger))
        assert failed.kind == "over_budget"
        assert (ledger.open, service.sent) == (0, [])
        await dispatcher.run(service.send, tokens=1)

    run(main())
    assert dispatcher.stats().attempts == 1


# ---------------------------------------------------------------- cancelling


@pytest.mark.parametrize("seed", range(8))
def test_a_cancelled_run_leaves_nothing_behind_and_keeps_every_reply(seed: int) -> None:
    rng = random.Random(seed)

    def chaos(_: Service) -> Exception | None:
        return rng.choice(
            [None, None, None, error(), too_many(), overloaded(), error(possibly_billed=True)]
        )

    async def main() -> None:
        service = Service(chaos, latency=0.003)
        dispatcher = Dispatcher(limits(max_concurrency=8, requests_per_minute=200_000))
        ledger = Ledger(pause=0.001)
        work = begin(
            collect(
                outcome(dispatcher.run(service.send, tokens=1, attempts=ledger)) for _ in range(300)
            )
        )
        await asyncio.sleep(rng.uniform(0.005, 0.12))
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert ledger.open == 0
        assert ledger.reserved == len(ledger.replies) + ledger.released_ + ledger.lost_
        assert len(ledger.replies) == service.replies == dispatcher.stats().replies
        stats = dispatcher.stats()
        assert (stats.in_flight, stats.waiting, service.in_flight) == (0, 0, 0)
        # And it works on: no place was lost.
        fine = Service(lambda _: None, latency=0.001)
        await collect(dispatcher.run(fine.send, tokens=1) for _ in range(60))
        assert fine.replies == 60
        assert fine.most <= 8

    run(main())


def test_a_place_given_and_cancelled_in_the_same_moment_is_passed_on() -> None:
    async def main() -> None:
        dispatcher = Dispatcher(limits(max_concurrency=1))
        service = Service(lambda _: None, latency=0.02)

        async def then_cancel_the_next() -> None:
            await dispatcher.run(service.send, tokens=1)
            second.cancel()  # it was given the place just now and has not been told yet

        first = begin(then_cancel_the_next())
        second = begin(dispatcher.run(service.send, tokens=1))
        third = begin(dispatcher.run(service.send, tokens=1))
        await asyncio.wait_for(asyncio.gather(first, third), 5)
        assert second.cancelled()
        assert len(service.sent) == 2

    run(main())


def test_a_call_that_comes_again_goes_before_those_that_were_never_sent() -> None:
    order: list[int] = []

    async def send(number: int) -> Reply:
        order.append(number)
        await asyncio.sleep(0.01)
        if order == [0]:
            raise error()
        return Reply(str(number))

    dispatcher = Dispatcher(limits(max_concurrency=1))
    run(collect(dispatcher.run(lambda _, n=n: send(n), tokens=1) for n in range(20)))  # type: ignore[misc]
    assert order.count(0) == 2
    assert order.index(0, 1) <= 3  # one that was sent while it waited for its next try, perhaps two


def test_bookkeeping_is_finished_however_often_one_cancels() -> None:
    class Slow(Ledger):
        async def received(self, reply: Reply) -> None:
            booking.set()
            await asyncio.sleep(0.05)
            await super().received(reply)

    booking = asyncio.Event()

    async def main() -> None:
        ledger = Slow()
        service = Service(lambda _: None)
        call = begin(Dispatcher(QUICK).run(service.send, tokens=1, attempts=ledger))
        await booking.wait()
        for _ in range(3):
            call.cancel()
            await asyncio.sleep(0.005)
        with pytest.raises(asyncio.CancelledError):
            await call
        assert [reply.text for reply in ledger.replies] == ["reply 1"]

    run(main())


def test_who_stops_waiting_for_a_place_is_not_counted_as_waiting() -> None:
    async def main() -> None:
        dispatcher = Dispatcher(limits(max_concurrency=1))
        hanging = Service(lambda _: None, latency=30)
        calls = [begin(dispatcher.run(hanging.send, tokens=1)) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert dispatcher.stats().waiting == 2
        calls[1].cancel()
        await asyncio.wait([calls[1]])
        assert dispatcher.stats().waiting == 1
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)

    run(main())


def test_a_call_cancelled_while_it_reserves_has_set_nothing_aside() -> None:
    async def main() -> None:
        ledger = Ledger(pause=30)
        service = Service(lambda _: None)
        call = begin(Dispatcher(QUICK).run(service.send, tokens=1, attempts=ledger))
        await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(call, 10)
        assert (ledger.reserved, ledger.released_, ledger.open) == (0, 0, 0)
        assert service.sent == []

    run(main())


def test_a_call_cancelled_just_when_it_has_reserved_gives_it_back() -> None:
    calls: list[asyncio.Task[Reply]] = []

    class Cancels(Ledger):
        async def reserve(self) -> None:
            await super().reserve()
            # It is done, and its call has not been told yet.
            asyncio.get_running_loop().call_soon(calls[0].cancel)

    async def main() -> None:
        ledger = Cancels()
        service = Service(lambda _: None)
        calls.append(begin(Dispatcher(QUICK).run(service.send, tokens=1, attempts=ledger)))
        with pytest.raises(asyncio.CancelledError):
            await calls[0]
        assert (ledger.reserved, ledger.released_, ledger.open) == (1, 1, 0)
        assert service.sent == []

    run(main())


def test_a_reply_in_time_is_a_reply_even_if_its_bookkeeping_passes_the_deadline() -> None:
    ledger = Ledger(pause=0.1)
    dispatcher = Dispatcher(limits(call_deadline_s=0.05))
    reply = run(dispatcher.run(Service(script(None)).send, tokens=1, attempts=ledger))
    assert ledger.replies == [reply]


# ---------------------------------------------------------------- everything together


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from(["reply", "lost", "429", "529", "refused"]), max_size=5),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 6),
)
def test_every_call_ends_as_its_script_says(scripts: list[list[str]], most: int) -> None:
    make: dict[str, Callable[[], CallError]] = {
        "lost": lambda: error("timeout", possibly_billed=True),
        "429": too_many,
        "529": overloaded,
        "refused": lambda: error("refused", retry=False),
    }
    ledgers = [Ledger() for _ in scripts]

    def service_of(steps: list[str]) -> Service:
        rest = iter([*steps, "reply"])
        return Service(lambda _: make[step]() if (step := next(rest)) in make else None)

    services = [service_of(steps) for steps in scripts]
    allowed = 4
    dispatcher = Dispatcher(
        limits(max_concurrency=most, max_attempts=allowed, backoff_s=1e-4, max_backoff_s=1e-4)
    )
    outcomes = run(
        collect(
            outcome(dispatcher.run(service.send, tokens=1, attempts=ledger))
            for service, ledger in zip(services, ledgers, strict=True)
        )
    )
    for steps, service, ledger, one in zip(scripts, services, ledgers, outcomes, strict=True):
        ends = next(
            (n for n, step in enumerate([*steps, "reply"]) if step in ("reply", "refused")), 0
        )
        played = [*steps, "reply"][: min(ends + 1, allowed)]
        assert len(service.sent) == len(played)
        assert ledger.reserved == len(played)
        assert ledger.open == 0
        assert ledger.lost_ == played.count("lost")
        if played[-1] == "reply":
            assert isinstance(one, Reply)
            assert ledger.replies == [one]
        else:
            assert isinstance(one, CallError)
            kinds = {"lost": "timeout", "429": "rate_limited", "529": "transport"}
            assert one.kind == kinds.get(played[-1], played[-1])
            assert one.possibly_billed == ("lost" in played)
    stats = dispatcher.stats()
    assert stats.attempts == sum(len(service.sent) for service in services)
    assert stats.replies == sum(len(ledger.replies) for ledger in ledgers)
    assert stats.possibly_billed == sum(ledger.lost_ for ledger in ledgers)
    assert max(service.most for service in services) <= most


# ---------------------------------------------------------------- loops


def in_threads(*work: Callable[[], None]) -> None:
    problems: list[BaseException] = []

    def guarded(one: Callable[[], None]) -> None:
        try:
            one()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=guarded, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def test_two_loops_at_once() -> None:
    dispatcher = Dispatcher(limits(max_concurrency=4, requests_per_minute=100_000))
    services = [Service(lambda _: None, latency=0.002) for _ in range(2)]

    def work(service: Service) -> None:
        run(collect(dispatcher.run(service.send, tokens=1) for _ in range(200)))

    in_threads(*(partial(work, service) for service in services))
    assert [service.replies for service in services] == [200, 200]
    assert all(service.most <= 4 for service in services)
    assert dispatcher.stats().replies == 400


def test_one_loop_after_the_other_and_no_count_is_lost() -> None:
    dispatcher = Dispatcher(limits(requests_per_minute=100_000))
    for _ in range(5):
        service = Service(lambda _: None)
        run(collect(dispatcher.run(service.send, tokens=1) for _ in range(20)))
    assert dispatcher.stats().replies == 100


def test_a_stop_in_one_loop_wakes_the_other() -> None:
    dispatcher = Dispatcher(limits(backoff_s=30, max_backoff_s=30))
    asleep = threading.Event()
    ended: list[str] = []

    def sleeper() -> None:
        def fails(_: Service) -> Exception:
            asleep.set()
            return error()

        with pytest.raises(JudgeStopped) as raised:
            run(dispatcher.run(Service(fails).send, tokens=1))
        ended.append(str(raised.value))

    def stopper() -> None:
        asleep.wait(10)
        time.sleep(0.05)
        with pytest.raises(JudgeStopped):
            run(dispatcher.run(Service(script(JudgeStopped("404: no such model"))).send, tokens=1))

    began = time.perf_counter()
    in_threads(sleeper, stopper)
    assert time.perf_counter() - began < 10
    assert ended == ["404: no such model"]
