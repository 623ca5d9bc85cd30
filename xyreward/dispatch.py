"""When a call is sent, how often, and how many at a time. The only place that retries.

A call waits for a free place, for the limits per minute and for the end of a pause; then it is sent.
Lost connections, 408, 409, 429 and 5xx are sent again after a jittered wait that doubles, or after the
server's Retry-After. The number of places adapts: it grows while replies come, halves when the server
says "too many" (429), and everybody pauses when the service as a whole is overloaded (529).

    dispatcher = Dispatcher(Limits(max_concurrency=32, requests_per_minute=1000))
    reply = await dispatcher.run(lambda timeout: endpoint.send(call, timeout=timeout), tokens=5500)

Not here: what is sent (`judges/`), what it costs (`prices.py`), what is remembered (`store/`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Protocol

from aiolimiter import AsyncLimiter
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from xyreward.errors import ConfigError
from xyreward.judges.calls import CallError, JudgeStopped, Reply

Send = Callable[[float], Awaitable[Reply]]
"""Sends once; its argument is the most seconds to wait. See `judges.calls.Endpoint.send`."""


def world_size(name: str = "WORLD_SIZE") -> int:
    """Processes of this run: WORLD_SIZE, which launchers set, else 1. LOCAL_WORLD_SIZE: on this machine.

    Raises:
        ConfigError: it is no such number.
    """
    text = os.environ.get(name) or "1"
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(
            f"{name} is {text!r}, expected a number of processes; unset it, or give "
            "Limits(processes=...)"
        )
    return int(text)


@dataclass(frozen=True, slots=True)
class Limits:
    """How hard a judge's endpoint may be driven, and how long one is ready to wait.

    The first four limits are those of the whole run: each of `processes` takes its share of them.
    """

    max_concurrency: int = 64
    """Calls in flight at a time, at most. Every process has one at least."""
    start_concurrency: int = 8
    """Calls in flight at a time until the first replies are there."""
    requests_per_minute: float | None = None
    """Of any 60 seconds. None: no limit of ours."""
    tokens_per_minute: float | None = None
    """Of any 60 seconds, by the estimate that comes with each call. None: no limit of ours."""
    call_deadline_s: float = 300.0
    """Seconds for one call with its retries, from its first sending. Waiting for the first turn does
    not count, or the tail of a long queue would fail without having been tried."""
    attempt_timeout_s: float = 120.0
    """Seconds for one sending."""
    batch_deadline_s: float | None = None
    """Seconds for all calls of one `judge(...)` together, waiting included. None: no limit."""
    max_retry_after_s: float = 60.0
    """The longest Retry-After that is waited for. A longer one makes the call fail, named."""
    max_attempts: int = 8
    """Sendings of one call."""
    backoff_s: float = 0.5
    """Seconds before the second sending, at most; doubles with each further one."""
    max_backoff_s: float = 30.0
    """The longest wait that this doubling reaches."""
    processes: int = field(default_factory=world_size)
    """Processes that share these limits. By default WORLD_SIZE, which launchers set, else 1."""

    def __post_init__(self) -> None:
        optional = ("requests_per_minute", "tokens_per_minute", "batch_deadline_s")
        whole = ("max_concurrency", "start_concurrency", "max_attempts", "processes")
        problems = []
        for name in (entry.name for entry in fields(self)):
            value = getattr(self, name)
            if value is None and name in optional:
                continue
            kind = int if name in whole else (int, float)
            if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < math.inf:
                expected = "a whole number above 0" if name in whole else "a number above 0"
                if name in optional:
                    expected += ", or none for no limit"
                problems.append(f"{name} is {value!r}, expected {expected}")
        if problems:
            raise ConfigError("limits: " + "; ".join(problems))

    @property
    def concurrency_here(self) -> int:
        """This process's share of `max_concurrency`."""
        return max(1, self.max_concurrency // self.processes)

    @property
    def start_here(self) -> int:
        """This process's share of `start_concurrency`."""
        return min(self.concurrency_here, max(1, self.start_concurrency // self.processes))


class Attempts(Protocol):
    """Is told of every sending of one call: what a budget and a ledger hang on.

    Each `reserve` that returns is followed by exactly one of the other three, whatever happens:
    also when the call is cancelled, times out, or another call has stopped the run. A method may be
    plain or a coroutine; the other three are run to their end even if the call is cancelled meanwhile.
    """

    def reserve(self) -> Awaitable[None] | None:
        """Before a sending: set its worst case aside. Raise CallError("over_budget") to forbid it.

        It may wait until others give something back. It is cancelled with its call and at a stop, and
        must then have set nothing aside.
        """
        ...

    def received(self, reply: Reply) -> Awaitable[None] | None:
        """The reply is here and was paid for."""
        ...

    def released(self) -> Awaitable[None] | None:
        """Surely not billed: not sent after all, or refused by the server."""
        ...

    def lost(self) -> Awaitable[None] | None:
        """Sent, and no reply came: possibly billed, at most with its worst case."""
        ...


class _Unobserved:
    def reserve(self) -> None: ...
    def received(self, reply: Reply) -> None: ...
    def released(self) -> None: ...
    def lost(self) -> None: ...


@dataclass(frozen=True, slots=True)
class DispatchStats:
    """What a dispatcher did until now, over all event loops of this process."""

    attempts: int = 0
    """Sendings."""
    replies: int = 0
    retries: int = 0
    """Sendings that were not the first of their call."""
    possibly_billed: int = 0
    """Sendings without a reply that the server may have charged for."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Sendings that failed, by kind of failure, whether or not a later one succeeded."""
    in_flight: int = 0
    waiting: int = 0
    """Calls without a place, without those that wait for their next try."""
    concurrency: int = 0
    """Places at the moment."""
    cuts: int = 0
    """How often the places were halved."""
    pauses: int = 0
    """How often everybody paused."""
    replies_per_s: float = 0.0
    """Over the last 30 seconds at most."""


class Dispatcher:
    """Sends calls to one endpoint within its limits.

    May be used from several event loops, also at once in several threads: each loop has places, limits
    and deadlines of its own, because futures of one loop cannot be awaited in another. So two loops
    together may reach twice the limits.

    After a JudgeStopped nothing is sent any more, in no loop: calls in flight may still end, all
    others raise a JudgeStopped whose cause is the first one.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._lock = threading.Lock()
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}
        self._done = _Counts()  # of loops that are gone
        self._stopped: JudgeStopped | None = None

    async def run(
        self,
        send: Send,
        *,
        tokens: int,
        attempts: Attempts | None = None,
        deadline: float | None = None,
    ) -> Reply:
        """Send until there is a reply.

        Args:
            send: sends once, given the most seconds to wait.
            tokens: estimate of input and output tokens, for `tokens_per_minute`.
            attempts: is told of every sending.
            deadline: of a batch, as the event loop's time; see `batch_deadline`.

        Raises:
            CallError: finally no reply; `retry` is False, `kind` says why, `possibly_billed` whether
                any of the sendings may have been charged for.
            JudgeStopped: this call or another one found that no call can succeed.
        """
        if self._stopped is not None:
            raise JudgeStopped(
                f"{self._stopped} (This judge has stopped for good; when that is mended, load it again.)"
            ) from self._stopped
        return await self._here().run(_Job(send, tokens, attempts or _Unobserved(), deadline))

    def batch_deadline(self) -> float | None:
        """The `deadline` of a batch of calls that begins now, or None without `batch_deadline_s`."""
        seconds = self.limits.batch_deadline_s
        return None if seconds is None else asyncio.get_running_loop().time() + seconds

    def stats(self) -> DispatchStats:
        """A snapshot, cheap enough for a progress bar."""
        with self._lock:
            total = _Counts().add(self._done)
            for state in self._loops.values():
                total.add(state.counts)
            loops = [state for loop, state in self._loops.items() if not loop.is_closed()]
        return DispatchStats(
            attempts=total.attempts,
            replies=total.replies,
            retries=total.retries,
            possibly_billed=total.possibly_billed,
            errors=dict(total.errors),
            in_flight=sum(loop.places.taken for loop in loops),
            waiting=sum(loop.places.waiting for loop in loops),
            concurrency=sum(loop.places.allowed for loop in loops) or self.limits.start_here,
            cuts=total.cuts,
            pauses=total.pauses,
            replies_per_s=sum(loop.replies_per_s() for loop in loops),
        )

    def _here(self) -> _Loop:
        running = asyncio.get_running_loop()
        here = self._loops.get(running)
        if here is None:
            with self._lock:
                for loop in [loop for loop in self._loops if loop.is_closed()]:
                    self._done.add(self._loops.pop(loop).counts)
                here = self._loops[running] = _Loop(self, running)
        return here

    def stop(self, error: JudgeStopped) -> None:
        """Send nothing more, as after a JudgeStopped of a call of one's own."""
        with self._lock:
            if self._stopped is not None:
                return
            self._stopped = error
            loops = dict(self._loops)
        for loop, state in loops.items():
            try:
                loop.call_soon_threadsafe(state.wake_all)
            except RuntimeError:  # that loop is closed: nobody waits in it
                continue


@dataclass(slots=True)
class _Counts:
    attempts: int = 0
    replies: int = 0
    retries: int = 0
    possibly_billed: int = 0
    cuts: int = 0
    pauses: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, other: _Counts) -> _Counts:
        for entry in fields(self):
            value = getattr(self, entry.name) + getattr(other, entry.name)
            setattr(self, entry.name, value)
        return self


@dataclass(slots=True, eq=False)
class _Job:
    """One call on its way."""

    send: Send
    tokens: int
    attempts: Attempts
    deadline: float | None
    sent: int = 0
    lost: int = 0
    last: CallError | None = None


class _Loop:
    """Everything that belongs to one event loop."""

    def __init__(self, owner: Dispatcher, loop: asyncio.AbstractEventLoop) -> None:
        self.limits = limits = owner.limits
        self.counts = _Counts()
        self.places = _Places(limits, loop, self.counts)
        self._owner = owner
        self._loop = loop
        self._requests = _per_minute(limits.requests_per_minute, limits.processes, whole=True)
        self._tokens = _per_minute(limits.tokens_per_minute, limits.processes, whole=False)
        self._turn = asyncio.Lock()
        self._asleep: set[asyncio.Future[None]] = set()
        """Whatever a stop is to interrupt: waits, and reservations that wait for others."""
        # Not the module's generator: a retry must not shift the random numbers of a seeded training.
        self._random = random.Random()  # noqa: S311
        self._seconds: deque[list[int]] = deque(maxlen=30)

    async def run(self, job: _Job) -> Reply:
        if job.deadline is not None and job.deadline <= self._loop.time():
            raise self._too_late(job)
        clock = asyncio.timeout_at(job.deadline)
        try:
            async with clock:
                # Nearly every call ends here, and the retrying would take as long as storing its verdict.
                try:
                    return await self._attempt(job, clock)
                except CallError as error:
                    first = error
                return await self._retry(job, clock, first)
        except TimeoutError:
            if not clock.expired():
                raise
            raise self._too_late(job) from job.last
        except CallError as error:
            raise self._final(error, job) from error.__cause__

    async def _retry(self, job: _Job, clock: asyncio.Timeout, first: CallError) -> Reply:
        """Go on after the first attempt, which raised `first`."""
        limits = self.limits
        retrying = AsyncRetrying(
            sleep=self._sleep,
            retry=retry_if_exception(self._may_retry),
            wait=self._wait,
            stop=lambda state: (
                job.sent >= limits.max_attempts
                or self._loop.time() + state.upcoming_sleep >= (clock.when() or math.inf)
            ),
            reraise=True,
        )
        failed: list[CallError] = [first]

        async def attempt() -> Reply:
            if failed:
                raise failed.pop()
            return await self._attempt(job, clock)

        return await retrying(attempt)

    def wake_all(self) -> None:
        """After a stop: whoever waits looks up and finds it."""
        self.places.turn_away()
        for sleeper in self._asleep:
            sleeper.cancel()

    def replies_per_s(self) -> float:
        if not self._seconds:
            return 0.0
        now = self._loop.time()
        recent = [(second, n) for second, n in self._seconds if now - second <= 30]
        if not recent:
            return 0.0
        return sum(n for _, n in recent) / max(1.0, now - recent[0][0])

    async def _attempt(self, job: _Job, clock: asyncio.Timeout) -> Reply:
        self._check_stopped()
        # Calls that come again go first: their deadline runs.
        await self.places.enter(first=job.sent > 0)
        try:
            self._check_stopped()
            if self._requests or self._tokens:
                await self._rate(job.tokens)
            # The places are kept through a pause, so that no more rush in at its end than they are.
            while (seconds := self.places.paused_s()) > 0:
                await self._sleep(seconds)
            await self._reserve(job)
            return await self._send(job, clock)
        finally:
            self.places.leave()

    async def _reserve(self, job: _Job) -> None:
        work = job.attempts.reserve()
        if work is None:
            return
        task = asyncio.ensure_future(work)
        self._asleep.add(task)
        try:
            await task
        except asyncio.CancelledError:
            if not task.cancelled() and task.exception() is None:  # it was just done
                await _to_the_end(job.attempts.released())
            self._check_cancelled()
            raise
        finally:
            self._asleep.discard(task)
        if self._owner._stopped:
            await _to_the_end(job.attempts.released())
            self._check_stopped()

    async def _send(self, job: _Job, clock: asyncio.Timeout) -> Reply:
        now = self._loop.time()
        if job.sent == 0:
            own = now + self.limits.call_deadline_s
            clock.reschedule(own if job.deadline is None else min(own, job.deadline))
        else:
            self.counts.retries += 1
        job.sent += 1
        self.counts.attempts += 1
        seconds = min(self.limits.attempt_timeout_s, (clock.when() or math.inf) - now)
        window = self.places.window
        try:
            async with asyncio.timeout(seconds) as patience:
                reply = await job.send(seconds)
        except JudgeStopped as stop:
            self._owner.stop(stop)
            await _to_the_end(job.attempts.released())
            raise
        except CallError as raised:
            error = raised
        except TimeoutError as raised:
            if not patience.expired():  # of the endpoint's own making, so a mistake of its author
                await self._lost(job)
                raise
            error = CallError(
                "timeout", f"no reply within {seconds:.3g} s", retry=True, possibly_billed=True
            )
            error.__cause__ = raised
        except BaseException:  # cancelled, out of time, or a mistake in the endpoint
            await self._lost(job)
            raise
        else:
            if not clock.expired():
                clock.reschedule(None)  # it is in time, even if its bookkeeping takes a moment
            self.counts.replies += 1
            self._tick(now)
            self.places.succeeded(window)
            if await _to_the_end(job.attempts.received(reply)):
                raise asyncio.CancelledError
            return reply
        job.last = error
        self.counts.errors[error.kind] += 1
        if error.pause_all:
            self.places.pause(window, self._backoff, error.retry_after or 0.0)
        elif error.overloaded:
            self.places.halve(window)
        if error.possibly_billed:
            cancelled = await self._lost(job)
        else:
            cancelled = await _to_the_end(job.attempts.released())
        if cancelled:
            raise asyncio.CancelledError
        self._check_stopped()
        raise error

    async def _lost(self, job: _Job) -> bool:
        job.lost += 1
        self.counts.possibly_billed += 1
        return await _to_the_end(job.attempts.lost())

    async def _rate(self, tokens: int) -> None:
        # One at a time: the limiter itself lets small amounts overtake, and a large one could starve.
        async with self._turn:
            self._check_stopped()
            for limiter, wanted in ((self._requests, 1.0), (self._tokens, float(tokens))):
                while limiter is not None and wanted > 0:
                    part = min(wanted, limiter.max_rate)
                    # Not left to `acquire`, which would go on waiting after a stop.
                    while not limiter.has_capacity(part):
                        await self._sleep(min(0.05, part / limiter.max_rate))
                    await limiter.acquire(part)
                    wanted -= part

    async def _sleep(self, seconds: float) -> None:
        sleeper = self._loop.create_future()
        timer = self._loop.call_later(seconds, _wake, sleeper)
        self._asleep.add(sleeper)
        try:
            await sleeper
        except asyncio.CancelledError:
            self._check_cancelled()
            raise
        finally:
            timer.cancel()
            self._asleep.discard(sleeper)
        self._check_stopped()

    def _check_cancelled(self) -> None:
        """After a CancelledError: raise JudgeStopped where `wake_all` and nobody else cancelled."""
        this = asyncio.current_task()
        if this is None or not this.cancelling():
            self._check_stopped()

    def _check_stopped(self) -> None:
        stopped = self._owner._stopped
        if stopped is not None:
            # A new exception: one that is raised in many tasks would collect the tracebacks of all.
            raise JudgeStopped(str(stopped)) from stopped

    def _may_retry(self, error: BaseException) -> bool:
        return (
            isinstance(error, CallError)
            and error.retry
            and (error.retry_after or 0.0) <= self.limits.max_retry_after_s
        )

    def _wait(self, state: RetryCallState) -> float:
        assert state.outcome is not None
        error = state.outcome.exception()
        assert isinstance(error, CallError)
        return max(error.retry_after or 0.0, self._backoff(state.attempt_number - 1))

    def _backoff(self, doublings: int) -> float:
        """Seconds: between half and the whole of a wait that doubles."""
        whole = min(self.limits.max_backoff_s, self.limits.backoff_s * 2.0 ** min(doublings, 60))
        return whole * self._random.uniform(0.5, 1.0)

    def _tick(self, now: float) -> None:
        if self._seconds and self._seconds[-1][0] == int(now):
            self._seconds[-1][1] += 1
        else:
            self._seconds.append([int(now), 1])

    def _too_late(self, job: _Job) -> CallError:
        last = f"; the last one: {job.last}" if job.last else ""
        if job.sent == 0:
            limit = f"batch_deadline_s={self.limits.batch_deadline_s:g} passed before its turn came"
        else:
            limit = (
                f"no reply in time: call_deadline_s={self.limits.call_deadline_s:g}, "
                f"batch_deadline_s={self.limits.batch_deadline_s}, {job.sent} sending(s){last}"
            )
        return CallError("timeout", limit, retry=False, possibly_billed=job.lost > 0)

    def _final(self, error: CallError, job: _Job) -> CallError:
        after = error.retry_after
        if not error.retry:
            kind, detail = error.kind, error.detail
        elif not self._may_retry(error):
            kind = "rate_limited"
            detail = (
                f"the server asks to wait {after:.0f} s, above max_retry_after_s="
                f"{self.limits.max_retry_after_s:g}; try again later or raise it: {error.detail}"
            )
        elif job.sent >= self.limits.max_attempts:
            kind, detail = error.kind, f"{error.detail} ({job.sent} sendings)"
        else:
            return self._too_late(job)
        return CallError(
            kind,
            detail,
            retry=False,
            retry_after=after,
            overloaded=error.overloaded,
            pause_all=error.pause_all,
            possibly_billed=job.lost > 0,
        )


class _Places:
    """How many calls may be in flight, and who is next.

    Like TCP's congestion control: the number doubles per round of replies until the first refusal,
    then grows by one per round; a refusal halves it, once per round, because all calls in flight at
    that time will be refused for the same reason.
    """

    def __init__(self, limits: Limits, loop: asyncio.AbstractEventLoop, counts: _Counts) -> None:
        self._loop = loop
        self._counts = counts
        self._most = float(limits.concurrency_here)
        self._start = float(limits.start_here)
        self._cap = limits.max_retry_after_s
        self._limit = self._start
        self._steep_until = self._most
        self.window = 0
        """Changes with each halving and pause: what was sent before says nothing about now."""
        self.taken = 0
        self._again: deque[asyncio.Future[bool]] = deque()
        self._fresh: deque[asyncio.Future[bool]] = deque()
        self._paused_until = -math.inf
        self._pauses_in_a_row = 0

    @property
    def allowed(self) -> int:
        return int(self._limit)

    @property
    def waiting(self) -> int:
        return len(self._again) + len(self._fresh)

    def paused_s(self) -> float:
        return self._paused_until - self._loop.time()

    async def enter(self, *, first: bool) -> None:
        if self.taken < self.allowed and not self.waiting:
            self.taken += 1
            return
        queue = self._again if first else self._fresh
        place: asyncio.Future[bool] = self._loop.create_future()
        queue.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                with contextlib.suppress(ValueError):  # it was next, and was passed over
                    queue.remove(place)
            else:  # given and cancelled in the same round of the loop
                self.leave()
            raise

    def leave(self) -> None:
        self.taken -= 1
        while self.taken < self.allowed and self.waiting:
            self._give((self._again or self._fresh).popleft())

    def succeeded(self, window: int) -> None:
        if window != self.window:
            return
        self._pauses_in_a_row = 0
        if self.taken >= self.allowed:  # places that nobody used prove nothing
            step = 1.0 if self._limit < self._steep_until else 1.0 / self._limit
            self._limit = min(self._most, self._limit + step)

    def halve(self, window: int) -> None:
        if window == self.window:
            self.window += 1
            self._counts.cuts += 1
            self._limit = self._steep_until = max(1.0, self._limit / 2)

    def pause(self, window: int, backoff: Callable[[int], float], at_least: float) -> None:
        if window != self.window:
            return
        self.window += 1
        self._counts.pauses += 1
        seconds = max(backoff(self._pauses_in_a_row), min(at_least, self._cap))
        self._pauses_in_a_row += 1
        self._paused_until = self._loop.time() + seconds
        # Whoever waited would rush in together at the end: begin small, but return steeply.
        self._steep_until = self._limit
        self._limit = min(self._limit, self._start)

    def turn_away(self) -> None:
        """Everybody who waits is let through to see that there is nothing to do any more."""
        for queue in (self._again, self._fresh):
            while queue:
                self._give(queue.popleft())

    def _give(self, place: asyncio.Future[bool]) -> None:
        if not place.done():
            self.taken += 1
            place.set_result(True)


def _per_minute(rate: float | None, processes: int, *, whole: bool) -> AsyncLimiter | None:
    if rate is None:
        return None
    rate = rate / processes
    if whole and rate < 61:
        return AsyncLimiter(1, 60 / rate)  # evenly spaced, and the first one at once
    # A bucket of one second's worth leaks at one 61st of the rate per second, so that full bucket and
    # leak together stay within the rate in any 60 seconds. A bucket of a minute's worth, the usual
    # choice, lets through twice the rate in its first minute.
    return AsyncLimiter(rate / 61, 1)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


async def _to_the_end(work: Awaitable[None] | None) -> bool:
    """Finish bookkeeping that must not stop half-way. True: the call was cancelled meanwhile."""
    if work is None:
        return False
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    return cancelled
