"""Asking a model: each question paid for once and remembered.

    question -> store -> (not there) claim -> reserve its worst cost -> send -> read -> store

A judge's verdicts are asked for like this (`judges/model.py`), and so is whatever else a model is asked:
answers of a policy behind an API, contrastive answers, which of two answers is better (`pairs/`).

Not here: what is asked and how a reply is read (each `Question` brings both), how often and how fast
calls are sent (`dispatch.py`), where replies and the bill are kept (`store/`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import random
import time
import uuid
import warnings
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from xyreward.dispatch import Dispatcher, Limits
from xyreward.errors import JudgeError, StoreError
from xyreward.judges.calls import Call, CallError, Endpoint, JudgeStopped, Reply
from xyreward.prices import Prices, without_url
from xyreward.reading import ReadingProblem
from xyreward.rubric import estimate_tokens
from xyreward.store import StoredVerdict, VerdictStore, store_path
from xyreward.store.verdicts import RecordKind
from xyreward.verdict import FailureKind, JudgeFailure, Usage
from xyreward.words import noun

ASK_AGAIN: frozenset[FailureKind] = frozenset({"unparseable", "off_menu", "inconsistent"})
"""Problems of a reply after which the judge is asked once more. A refusal or a truncated reply would
only come again."""

FIRST_ALONE_FROM = 16
"""From so many calls on, the first is sent alone: it finds a wrong key before 64 calls do, and it writes
the prompt cache that all the others read."""

FIRST_TRIES = 3
"""So many first replies of a long job, each sent alone, may be no verdicts before it stops."""

NO_VERDICT: frozenset[FailureKind] = frozenset({"unparseable", "off_menu", "truncated"})
"""What a model or server makes of every reply that cannot do what is asked: no JSON, no room for it."""

WARM_S = 240.0
"""Seconds after a reply in which no call with the same prefix is sent alone: a prompt cache lives for five
minutes from its last reading, and in a training loop every step would wait for two replies in a row."""


_KEYS_WANTED: ContextVar[bool] = ContextVar("keys_wanted", default=True)


@contextmanager
def nothing_sent(dry_run: bool = True) -> Iterator[None]:
    """Around the checks of a dry run: inside, `ModelAsker.check_ready` wants no key.

    Not an argument of every check, because those of other people's judges take the items alone.

    Args:
        dry_run: False does nothing.
    """
    before = _KEYS_WANTED.set(_KEYS_WANTED.get() and not dry_run)
    try:
        yield
    finally:
        _KEYS_WANTED.reset(before)


LOOK_FOR_BATCHES_S = 2.0
"""Seconds between two looks at whether batches alone hold a full budget: they may for a day."""


@dataclass(slots=True)
class JudgeStats:
    """What a judge did in this process until now, for progress bars and closing lines."""

    decided: int = 0
    """Distinct questions with a verdict or a failure."""
    from_store: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """By kind of failure."""
    calls: int = 0
    """Replies received, second askings and groundings included."""
    usage: Usage = field(default_factory=Usage)
    cost_usd: float = 0.0
    """Of replies whose price is known."""
    unpriced_calls: int = 0
    lost_calls: int = 0
    """Sendings without a reply that the server may charge for."""
    possibly_usd: float = 0.0
    """Upper bound of what those may cost on top, where their price is known."""
    unpriced_lost_calls: int = 0
    """Those of `lost_calls` whose price is unknown."""
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))
    """Seconds from sending to reply, of the latest replies."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What judging would take, by offline estimates of tokens. Nothing was sent for it."""

    questions: int
    """Distinct ones, votes included."""
    in_store: int
    calls: int
    """Still to be paid for. A few will be asked twice."""
    input_tokens: int
    """Shared prefix included, whether or not it comes from the prompt cache."""
    output_tokens: int
    cost_usd: float | None
    """Expected, with the prefix from the prompt cache; None where the price is unknown."""
    worst_usd: float | None
    """If every reply used all of its tokens and nothing came from the prompt cache."""
    minutes: float | None
    """At the given limits per minute; None without any, since latency is not known beforehand."""
    on_their_way: int = 0
    """Of `calls`: sent in a message batch that is not collected yet. A judge with `batches=True` collects
    them; any other asks, and pays, a second time."""

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(
            self.questions + other.questions,
            self.in_store + other.in_store,
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            total(self.cost_usd, other.cost_usd),
            total(self.worst_usd, other.worst_usd),
            total(self.minutes, other.minutes),
            self.on_their_way + other.on_their_way,
        )

    def __str__(self) -> str:
        cost = "unknown (no price)" if self.cost_usd is None else f"about {self.cost_usd:.2f}"
        worst = "" if self.worst_usd is None else f", at most {self.worst_usd:.2f}"
        minutes = ""
        if self.minutes is not None:
            whole = round(self.minutes)
            minutes = f"; {whole} {noun(whole, 'minute')} at these limits"
        batched = ""
        if self.on_their_way:
            n = self.on_their_way
            batched = (
                f"; {n} of the calls {noun(n, 'is', 'are')} on {noun(n, 'its', 'their')} way in message "
                "batches: collected with batches, paid for twice without"
            )
        return (
            f"{self.calls:,} {noun(self.calls, 'call')} to make, {self.in_store:,} already in the store; "
            f"about {self.input_tokens:,} input and {self.output_tokens:,} output tokens; US dollars: "
            f"{cost}{worst}{minutes}{batched}"
        )


@dataclass(frozen=True, slots=True)
class Question:
    """One distinct thing to ask, and what its answer is remembered under."""

    key: str
    call: Call
    identity: Mapping[str, str]
    record: RecordKind
    """What the store calls it."""
    read: Callable[[Reply], Mapping[str, Any] | ReadingProblem]
    """What is to be remembered of a reply, as JSON has it; or why the reply cannot be used."""
    again: Callable[[Call, Sequence[str]], Call]
    """The call to ask once more with, from the first one and `ReadingProblem.complaints`."""
    output_tokens: int
    """Of a usual reply; what estimates of a bill assume."""


Q = TypeVar("Q", bound=Question)

# Not the module's generator: waiting must not shift the random numbers of a seeded training.
_RANDOM = random.Random()  # noqa: S311


class ModelAsker:
    """Asks one model, within a budget, and remembers what it said.

    May be used from several event loops and threads, and by several processes on one store.
    """

    in_batches = False
    """Whether questions travel in Message Batches (`judges/batch_asking.py`), at their prices."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        store: VerdictStore | str | os.PathLike[str] | None = None,
        limits: Limits | None = None,
        budget_usd: float | None = None,
        run: str | None = None,
        prices: Prices | None = None,
    ) -> None:
        """Nothing is opened or sent yet.

        Args:
            endpoint: where calls are sent.
            store: a store or its path. None: XYREWARD_STORE, or a file in the user's cache folder.
            limits: concurrency, rates and deadlines.
            budget_usd: hard cap on what the run may cost, over all processes with the same `run`.
            run: whose bill it is. None: XYREWARD_RUN, or TORCHELASTIC_RUN_ID where torchrun was given
                one, or a name of this object alone, which several processes cannot share.
            prices: None: those of the package and of XYREWARD_PRICES.

        Raises:
            JudgeError: the budget is no positive number, or there is a budget and no price, or a
                budget in one of several processes and no name of the run.
            ConfigError: a price file is malformed.
        """
        self.endpoint = endpoint
        self.stats = JudgeStats()
        self.on_outcome: Callable[[], object] | None = None
        """Called after each decided question, in the thread that asks; for progress bars."""
        if prices is not None and not isinstance(prices, Prices):
            raise JudgeError(
                f"prices is {prices!r:.80}, expected Prices.load(...), or a file named by XYREWARD_PRICES"
            )
        if run is not None and (not isinstance(run, str) or not run.strip()):
            # A variable that was not set would begin a new bill, with the whole budget.
            raise JudgeError(f"run is {run!r:.80}, expected a name; leave it out for a new one")
        if not isinstance(store, VerdictStore | str | os.PathLike | None):
            raise JudgeError(f"store is {store!r:.80}, expected a path or a VerdictStore")
        self.prices = Prices.load() if prices is None else prices
        if budget_usd is not None:
            self._check_budget(budget_usd)
        self.budget_usd = budget_usd
        self.dispatcher = Dispatcher(limits)
        self.run = run or new_run(endpoint.name, budget_usd, self.dispatcher.limits.processes)
        self._store = store
        self._fixed_sizes: dict[str, int] = {}
        self._warned_of_batches = False
        self._was_usable = False
        """Whether any reply was a verdict or a grounding."""
        self._replied: dict[str, float] = {}
        """Prefix -> when a reply to it last came, on the monotonic clock."""

    def __getstate__(self) -> dict[str, Any]:
        # In another process it opens the store itself, and begins with limits and counts of its own.
        left_out = ("dispatcher", "store", "on_outcome", "stats")
        return {k: v for k, v in self.__dict__.items() if k not in left_out} | {
            "limits": self.dispatcher.limits
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.dispatcher = Dispatcher(state.pop("limits"))
        self.stats = JudgeStats()
        self.on_outcome = None
        self.__dict__.update(state)

    def beside(self) -> ModelAsker:
        """Another one of the same model, store, limits, budget, counts and bill: to ask it other things.

        Its calls go out one by one even where this one's travel in batches.
        """
        another = ModelAsker(
            self.endpoint,
            store=self.__dict__.get("store", self._store),  # the same connection, where it is open
            limits=self.dispatcher.limits,
            budget_usd=self.budget_usd,
            run=self.run,
            prices=self.prices,
        )
        another.stats = self.stats  # whoever shows what this one was paid shows all of it
        return another

    def _check_budget(self, budget_usd: float) -> None:
        number = isinstance(budget_usd, int | float) and not isinstance(budget_usd, bool)
        if not number or not 0 < budget_usd < 1e9:
            raise JudgeError(
                f"budget_usd is {budget_usd!r}, expected dollars above 0, below a billion"
            )
        if self.prices.worst_case(1, 1, self.endpoint.name, batch=self.in_batches) is None:
            raise JudgeError(
                f"budget_usd is {budget_usd:g}, but the price of {self.endpoint.name} is unknown, so "
                "nobody could say when it is reached; give the price in a file named by "
                "XYREWARD_PRICES (docs/cost.md shows one), or leave the budget out"
            )

    @property
    def name(self) -> str:
        """As `load_judge` takes it."""
        return self.endpoint.name

    @cached_property
    def name_without_url(self) -> str:
        """The name as it goes into records and provenance: a changed port must not empty the store."""
        return without_url(self.endpoint.name)

    @property
    def asks(self) -> tuple[str, ...]:
        """What tells its questions from those of another judge: model, parameters, store; no address."""
        lies = (
            self._store.path if isinstance(self._store, VerdictStore) else store_path(self._store)
        )
        parameters = _canonical(list(self.endpoint.possible_parameters))
        return self.name_without_url, parameters, str(lies.absolute())

    @cached_property
    def store(self) -> VerdictStore:
        """Where verdicts and the bill are kept; opened at the first use.

        Raises:
            StoreError: it cannot be used; says what to do.
        """
        if isinstance(self._store, VerdictStore):
            return self._store
        return VerdictStore.open(self._store)

    @contextmanager
    def reading(self, found: StoredVerdict) -> Iterator[None]:
        """Around what takes a record apart: one that was edited or imported may hold anything.

        Raises:
            StoreError: it is not what was to be read.
        """
        try:
            yield
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise StoreError(
                f"{self.store.path}: the record with key {found.key:.16} is no {found.kind} as this "
                f"release writes it ({type(error).__name__}); was it imported or edited? Use another "
                "store, or remove it with `xyreward store prune`"
            ) from None

    @property
    def _has_store(self) -> bool:
        return isinstance(self._store, VerdictStore) or store_path(self._store).exists()

    def check_ready(self) -> None:
        """Find what would stop all calls, without one: the store, the key. Makes no store.

        Inside `nothing_sent()` it may lack a key.

        Raises:
            JudgeError, StoreError: something is missing; says what to do.
        """
        if isinstance(self._store, VerdictStore) or store_path(self._store).exists():
            _ = self.store
        else:
            VerdictStore.check(self._store)
        if _KEYS_WANTED.get():
            self.endpoint.check_key()

    def asked_of(self, parameters: Mapping[str, Any]) -> str:
        """Whom a question is put to, as it goes into its key: model and parameters."""
        return _canonical([parameters, self.endpoint.model])

    @staticmethod
    def key(call: Call, number: int, asked_of: str) -> str:
        """The key of a question in the store; `number` tells repetitions of one call apart."""
        return hashlib.sha256(f"{call.hash} {number} {asked_of}".encode()).hexdigest()

    # ---------------------------------------------------------------- how it is decided

    async def decide(
        self, ask: Callable[[Mapping[str, Any]], list[Q]]
    ) -> list[tuple[Q, StoredVerdict | JudgeFailure, bool]]:
        """Every question with what came of it, and whether it was paid for here and now.

        `ask` makes the questions for given endpoint parameters. Where these are not settled yet (does
        the server know structured output?), the store is searched for each possibility first: a full
        store needs no server.

        Raises:
            JudgeStopped: no call can succeed (wrong key, unknown model, spent limit). What was paid for
                until then is in the store.
            StoreError: the store cannot be used.
        """
        questions, found = await self._search(ask)
        missing: deque[Question] = deque(
            {q.key: q for q in questions if q.key not in found}.values()
        )
        self.stats.from_store += len(found)
        self._tick(len(found))
        here: dict[str, StoredVerdict | JudgeFailure] = {}
        if missing:
            await self._ask_all(missing, here, found)
        results = []
        for question in questions:
            key = question.key
            # The second of two equal questions is free, so that costs can be summed over verdicts.
            paid = key in here
            results.append((question, here.pop(key) if paid else found[key], paid))
            if paid:
                found[key] = results[-1][1]
        return results

    async def _search(
        self, ask: Callable[[Mapping[str, Any]], list[Q]]
    ) -> tuple[list[Q], dict[str, Any]]:
        if not self.endpoint.settled:
            for parameters in self.endpoint.possible_parameters:
                questions = ask(parameters)
                found = self._take_stored(questions)
                if len(found) == len({q.key for q in questions}):
                    return questions, found
            try:
                usage = await self.endpoint.settle()
            except CallError as error:
                raise JudgeStopped(
                    f"{self.name}: no answer to a first small request ({error}). See that the server at "
                    f"{self.endpoint.base_url} is up, then run again"
                ) from error
            if usage != Usage():  # asking for the list of models is free
                # A few tokens, on the run's bill like any other call, but not set aside before.
                cost, ledger = self._book(Reply("", usage)), self.store.ledger
                if reservation := ledger.reserve(self.run, cost):
                    ledger.settle(reservation, cost)
        questions = ask(self.endpoint.parameters)
        return questions, self._take_stored(questions)

    def _stored(self, questions: Iterable[Question]) -> dict[str, Any]:
        """What the store has of these: key -> record. Changes nothing."""
        there, late = self._look(questions)
        return {**there, **late}

    def _take_stored(self, questions: Iterable[Question]) -> dict[str, Any]:
        """As `_stored`; a reply that is read now is kept as what it says."""
        there, late = self._look(questions)
        for record in late.values():
            self.store.put(record)
        return {**there, **late}

    def _look(
        self, questions: Iterable[Question]
    ) -> tuple[dict[str, StoredVerdict], dict[str, StoredVerdict]]:
        """Records that are there, and those made of replies that were kept unread; both by key."""
        of = {q.key: q for q in questions}
        identities = {key: q.identity for key, q in of.items()}
        there = self.store.get_many(identities, identities)
        missing = {unread_key(key): key for key in of if key not in there}
        late = {}
        for name, kept in self.store.get_many(missing).items():
            key = missing[name]
            if (record := self._read_late(of[key], kept)) is not None:
                late[key] = record
        return there, late

    def _read_late(self, question: Question, late: StoredVerdict) -> StoredVerdict | None:
        """What a reply says that was kept unread (see `unread`); None where it cannot be used."""
        late.check(question.identity)
        with self.reading(late):
            reply = Reply(late.raw_text, late.usage, **json.loads(late.payload))
        found = question.read(reply)
        if isinstance(found, ReadingProblem):
            return None
        return replace(late, key=question.key, kind=question.record, payload=_as_json(found))

    async def _ask_all(
        self,
        todo: deque[Question],
        here: dict[str, StoredVerdict | JudgeFailure],
        found: dict[str, Any],
    ) -> None:
        """Decide all of `todo`: into `here` what was asked for here, into `found` what others paid."""
        self._warn_of_batches(todo)
        deadline = self.dispatcher.batch_deadline()
        elsewhere: deque[Question] = deque()
        waiting: set[asyncio.Task[None]] = set()

        async def one(question: Question) -> None:
            if not self.store.claim([question.key]):
                # Another process is asking. Go on with what nobody asks for, and look again later.
                elsewhere.append(question)
                return
            try:
                here[question.key] = await self._ask(question, deadline)
            finally:
                self.store.release([question.key])
            self._tick()

        async def worker() -> None:
            while todo:
                await one(todo.popleft())
            while elsewhere:
                question = elsewhere.popleft()
                this = asyncio.current_task()
                assert this is not None
                waiting.add(this)
                record = await self.store.wait_for(question.key, question.identity)
                waiting.discard(this)
                if record is None:
                    await one(question)
                    continue
                found[question.key] = record
                self.stats.from_store += 1
                self._tick()

        async def first_alone() -> None:
            useless: list[JudgeFailure] = []
            while len(useless) < FIRST_TRIES:
                question = todo.popleft()
                await one(question)
                outcome = here.get(question.key)
                if not isinstance(outcome, JudgeFailure) or outcome.kind not in NO_VERDICT:
                    return
                if self._was_usable:
                    return
                useless.append(outcome)
            raise self._useless(useless[-1])

        last = self._replied.get(todo[0].call.prefix, -math.inf)
        if len(todo) >= FIRST_ALONE_FROM and time.monotonic() - last > WARM_S:
            await first_alone()
        workers = [
            asyncio.create_task(worker())
            for _ in range(min(len(todo), self.dispatcher.limits.concurrency_here))
        ]
        try:
            await asyncio.gather(*workers)
        except (JudgeStopped, StoreError):
            # Nothing more is sent, but replies that are on their way are paid for: let them arrive and be
            # stored, those on a full disk as soon as there is room. Nobody waits for other processes.
            todo.clear()
            elsewhere.clear()
            for task in waiting:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            raise
        finally:
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def _useless(self, last: JudgeFailure) -> JudgeStopped:
        advice = "raise max_tokens" if last.kind == "truncated" else "try schema='plain'"
        stop = JudgeStopped(
            f"{self.name}: none of the first {FIRST_TRIES} replies can be used, the last one is "
            f"{last.kind}: {last.detail}. The others would cost as much and bring as little: "
            f"{advice}, see what `xyreward judge check` says, or take another model"
        )
        self.dispatcher.stop(stop)
        return stop

    def _warn_of_batches(self, questions: Iterable[Question]) -> None:
        # Asked nevertheless: a batch may take a day, and who wants a verdict now knows that it costs.
        if self._warned_of_batches:
            return
        batched = self.store.batches.on_their_way(q.key for q in questions)
        if batched:
            self._warned_of_batches = True
            warnings.warn(
                f"{self.name}: {len(batched)} of these questions {noun(len(batched), 'is', 'are')} on "
                f"{noun(len(batched), 'its', 'their')} way in message batches ({min(batched.values())}), and "
                "now paid for a second time; to collect instead, use batches=True (--batches)",
                UserWarning,
                stacklevel=2,
            )

    async def _ask(
        self, question: Question, deadline: float | None
    ) -> StoredVerdict | JudgeFailure:
        """Ask, and ask once more where the reply cannot be used."""
        first = _Asking(self, question, question.call)
        result = await first.run(deadline)
        if isinstance(result, ReadingProblem) and result.kind in ASK_AGAIN:
            call = question.call
            if result.complaints:
                call = question.again(call, result.complaints)
            again = _Asking(self, question, call, before=first)
            result = await again.run(deadline)
            first = again
        if isinstance(result, StoredVerdict):
            return result
        if isinstance(result, ReadingProblem):
            result = JudgeFailure(result.kind, result.detail, first.raw_text)
        failure = replace(result, usage=first.usage, cost_usd=first.cost_usd)
        self.stats.failed[failure.kind] += 1
        return failure

    # ---------------------------------------------------------------- money

    def estimate_of(self, ask: Callable[[Mapping[str, Any]], list[Q]]) -> Estimate:
        """What asking these would take now, with what the store already has. See `decide` for `ask`.

        Sends nothing, and makes no store where there is none.

        Raises:
            StoreError: the store cannot be used.
        """
        best: tuple[dict[str, Q], dict[str, Any]] = ({}, {})
        for parameters in self.endpoint.possible_parameters:
            questions = {q.key: q for q in ask(parameters)}
            stored = self._stored(questions.values()) if self._has_store else {}
            if not best[0] or len(stored) > len(best[1]):
                best = questions, stored
        questions, stored = best
        missing = {key: question for key, question in questions.items() if key not in stored}
        batched = self.store.batches.on_their_way(missing) if self._has_store else {}
        return self._estimate(len(questions), [*missing.values()], len(batched))

    def _estimate(self, questions: int, missing: Sequence[Q], on_their_way: int) -> Estimate:
        calls = [question.call for question in missing]
        prefix = sum(estimate_tokens(call.prefix) for call in calls)
        unique = sum(_estimate_unique(call) for call in calls)
        output = sum(question.output_tokens for question in missing)
        worst: float | None = 0.0
        for call in calls:
            one = self._worst(call)
            worst = total(worst, one)
        limits = self.dispatcher.limits
        minutes = [
            amount / rate
            for amount, rate in (
                (len(calls), limits.requests_per_minute),
                (prefix + unique + output, limits.tokens_per_minute),
            )
            if rate is not None and not self.in_batches
        ]
        cost: float | None = 0.0
        if calls:
            cost = self.prices.expected(
                self.name,
                len(calls),
                prefix_tokens=prefix // len(calls),
                unique_tokens=unique // len(calls),
                output_tokens=output // len(calls),
                # Whether rows of a batch find the prefix cached is a matter of luck.
                cached=not self.in_batches,
                batch=self.in_batches,
                cache_writes=1 if len(calls) >= FIRST_ALONE_FROM else limits.start_concurrency,
            )
        return Estimate(
            questions=questions,
            in_store=questions - len(calls),
            calls=len(calls),
            input_tokens=prefix + unique,
            output_tokens=output,
            cost_usd=cost,
            worst_usd=worst,
            minutes=max(minutes, default=None),
            on_their_way=on_their_way,
        )

    def _worst(self, call: Call) -> float | None:
        """Upper bound of one sending in dollars: a token has at least one byte."""
        fixed = self._fixed_sizes.get(call.prefix)
        if fixed is None:  # a prefix comes with one schema, and both with thousands of calls
            fixed = _size(call.prefix) + _size(_canonical(call.schema))
            self._fixed_sizes[call.prefix] = fixed
        size = fixed + _size(call.text) + 500
        limit = self.endpoint.possible_parameters[0].get("max_tokens") or call.max_tokens
        return self.prices.worst_case(size, limit, self.name, batch=self.in_batches)

    def _book(self, reply: Reply) -> float | None:
        self.stats.calls += 1
        self.stats.usage += reply.usage
        cost = None
        if reply.usage_reported:
            cost = self.prices.cost(reply.usage, self.name, batch=self.in_batches)
        if cost is None:
            self.stats.unpriced_calls += 1
        else:
            self.stats.cost_usd += cost
        return cost

    def _of_budget(self, paid: float | None, worst: float | None) -> float | None:
        """What counts against the budget: a server that does not say what it used, used all it could."""
        return worst if paid is None and self.budget_usd is not None else paid

    def _tick(self, n: int = 1) -> None:
        self.stats.decided += n
        if self.on_outcome is not None:
            for _ in range(n):
                self.on_outcome()


class _Asking:
    """One call on its way: reserves before each sending; books, reads and stores the reply.

    All of that happens the moment a reply arrives (`received`), so that a run which is cancelled right
    then has its verdict in the store and on the bill.
    """

    def __init__(
        self, judge: ModelAsker, question: Question, call: Call, before: _Asking | None = None
    ) -> None:
        self._judge = judge
        self._question = question
        self._call = call
        self._reservation: str | None = None
        self._worst = judge._worst(call)
        self.result: StoredVerdict | ReadingProblem | None = None
        self.raw_text: str | None = before.raw_text if before else None
        self.usage: Usage = before.usage if before else Usage()
        self.cost_usd: float | None = before.cost_usd if before else 0.0
        """Of this call and the one before it."""

    async def run(self, deadline: float | None) -> StoredVerdict | ReadingProblem | JudgeFailure:
        judge, call = self._judge, self._call
        try:
            await judge.dispatcher.run(
                self._send,
                tokens=estimate_tokens(call.prefix)
                + _estimate_unique(call)
                + self._question.output_tokens,
                attempts=self,
                deadline=deadline,
            )
        except CallError as error:
            return JudgeFailure(error.kind, error.detail, self.raw_text)
        assert self.result is not None
        return self.result

    async def _send(self, timeout: float) -> Reply:
        start = time.perf_counter()
        reply = await self._judge.endpoint.send(self._call, timeout=timeout)
        self._judge.stats.latencies.append(time.perf_counter() - start)
        return reply

    def reserve(self) -> Awaitable[None] | None:
        # A coroutine would be a task of its own for every call, and nearly none has to wait.
        return None if self._reserved() else self._reserve_later()

    def _reserved(self) -> bool:
        judge = self._judge
        ledger = judge.store.ledger
        self._reservation = ledger.reserve(judge.run, self._worst, judge.budget_usd)
        return self._reservation is not None

    async def _reserve_later(self) -> None:
        judge = self._judge
        ledger = judge.store.ledger
        look_at = time.monotonic() + LOOK_FOR_BATCHES_S
        while True:
            spent = ledger.spent(judge.run)
            waits_for_batches = False
            if spent.reserved_usd and time.monotonic() > look_at:
                waits_for_batches = not ledger.in_flight(judge.run)
                look_at = time.monotonic() + LOOK_FOR_BATCHES_S
            if spent.reserved_usd == 0 or waits_for_batches:
                held = f", holds {spent.reserved_usd:.4f} for batches" if waits_for_batches else ""
                raise CallError(
                    "over_budget",
                    f"run {judge.run!r} has spent {spent.settled_usd:.4f} and possibly "
                    f"{spent.possibly_usd:.4f}{held} of {judge.budget_usd} US dollars, and this call may "
                    f"cost {self._worst:.4f}; raise budget_usd and run again: what is judged is in the "
                    "store",
                    retry=False,
                )
            # What is reserved is the worst case. Most of it comes back when those calls end.
            await asyncio.sleep(_RANDOM.uniform(0.1, 0.3))
            if self._reserved():
                return

    def received(self, reply: Reply) -> None:
        judge, question = self._judge, self._question
        judge._replied[self._call.prefix] = time.monotonic()
        paid = judge._book(reply)
        self.usage += reply.usage
        self.cost_usd = total(self.cost_usd, paid)
        self.raw_text = reply.text
        found = question.read(reply)
        if isinstance(found, ReadingProblem):
            self.result = found
            judge.store.ledger.settle(self._taken(), judge._of_budget(paid, self._worst))
            return
        judge._was_usable = True
        self.result = StoredVerdict(
            key=question.key,
            kind=question.record,
            identity=question.identity,
            payload=_as_json(found),
            raw_text=reply.text,
            usage=self.usage,
            cost_usd=self.cost_usd,
            served_model=reply.model,
            base_url=judge.endpoint.base_url,
        )
        judge.store.put(
            self.result, reservation=self._taken(), paid_usd=judge._of_budget(paid, self._worst)
        )

    def released(self) -> None:
        self._judge.store.ledger.release(self._taken())

    def lost(self) -> None:
        stats = self._judge.stats
        stats.lost_calls += 1
        stats.possibly_usd += self._worst or 0.0
        stats.unpriced_lost_calls += self._worst is None
        self._judge.store.ledger.lose(self._taken())

    def _taken(self) -> str:
        taken, self._reservation = self._reservation, None
        assert taken is not None
        return taken


def unread_key(key: str) -> str:
    """Where the store keeps a reply to the question with this key that nobody has read."""
    return f"reply {key}"


def unread(record: StoredVerdict, reply: Reply) -> StoredVerdict:
    """The record of a reply that is paid for and whose question is not known here, to be read later."""
    payload = {"stop": reply.stop, "detail": reply.detail, "has_text": reply.has_text}
    return replace(record, key=unread_key(record.key), kind="reply", payload=_as_json(payload))


def without_cost(failure: JudgeFailure) -> JudgeFailure:
    """For the second of two equal questions: it was paid once, and costs are summed over outcomes."""
    return replace(failure, usage=Usage(), cost_usd=0.0)


def total(a: float | None, b: float | None) -> float | None:
    """The sum of two costs; unknown where one of them is."""
    return None if a is None or b is None else a + b


_as_json = json.JSONEncoder(ensure_ascii=False).encode
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _estimate_unique(call: Call) -> int:
    return estimate_tokens(call.text)


def new_run(judge: str, budget_usd: float | None = None, processes: int | None = None) -> str:
    """The name of a run that was given none: the environment's, else one of its own.

    Raises:
        JudgeError: each of several processes (None: WORLD_SIZE) would have a budget of its own.
    """
    if given := run_of_environment():
        return given
    processes = processes or Limits().processes
    if budget_usd is not None and processes > 1:
        raise JudgeError(
            f"budget_usd is {budget_usd:g} in each of {processes} processes (WORLD_SIZE), which do not know "
            "that they are one run; give all of them the same run=..., or set XYREWARD_RUN"
        )
    return f"{judge} {uuid.uuid4().hex[:12]}"


def run_of_environment() -> str | None:
    """XYREWARD_RUN, else the id that torchrun gave, else None."""
    # torchrun gives every process of one launch the same id, "none" where it was not told one.
    torchrun = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return os.environ.get("XYREWARD_RUN") or (None if torchrun == "none" else torchrun)
