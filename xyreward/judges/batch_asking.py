"""Asking Claude through Message Batches: half the price, and up to a day of patience.

For work that can wait: pairs, construction, evaluation, whole files. These are a `ModelAsker` and a
`ModelJudge` in all but how questions travel: same questions, same keys, same store, so what one was told is
a hit for the other.

    judge = load_judge("anthropic:claude-sonnet-5-5", batches=True)
    asker = load_asker("anthropic:claude-sonnet-5-5", batches=True)

A process that ends while batches are on their way loses nothing: the next one with the same store
collects them. Not here: batches themselves (`judges/batches.py`), how a reply is read (each `Question`).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from xyreward.errors import JudgeError
from xyreward.judges.anthropic import AnthropicEndpoint
from xyreward.judges.asking import ASK_AGAIN, ModelAsker, Question, total, unread
from xyreward.judges.batches import BatchLimits, BatchReport, BatchRequest, MessageBatches
from xyreward.judges.calls import Call, Reply
from xyreward.judges.model import ModelJudge
from xyreward.reading import ReadingProblem
from xyreward.store import BatchRow, StoredVerdict
from xyreward.verdict import JudgeFailure, Usage


@dataclass(slots=True)
class _Asked:
    """What asking one question has come to."""

    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = 0.0
    problem: ReadingProblem | None = None
    raw_text: str | None = None


class BatchAsker(ModelAsker):
    """See the module. Takes what `ModelAsker` takes; limits of calls do not apply to batches."""

    in_batches = True

    def __init__(
        self,
        endpoint: AnthropicEndpoint,
        *,
        batch_limits: BatchLimits | None = None,
        on_batches: Callable[[BatchReport], None] | None = None,
        **arguments: Any,
    ) -> None:
        """Make one. Nothing is opened or sent yet.

        Args:
            endpoint: where batches are sent.
            batch_limits: their sizes and pauses.
            on_batches: called with a report after each step.
            arguments: of `ModelAsker`, or `ModelJudge`.

        Raises:
            JudgeError: as these, and for an endpoint without Message Batches.
        """
        if not isinstance(endpoint, AnthropicEndpoint):
            raise JudgeError(
                f"{endpoint.name!r} has no Message Batches, only anthropic:<model> has; leave batches out"
            )
        super().__init__(endpoint, **arguments)
        self._messages = endpoint
        self.batch_limits = batch_limits or BatchLimits()
        self.on_batches = on_batches

    async def _ask_all(
        self,
        todo: deque[Question],
        here: dict[str, StoredVerdict | JudgeFailure],
        found: dict[str, Any],
    ) -> None:
        questions = {question.key: question for question in todo}
        todo.clear()
        asked: dict[str, _Asked] = {}
        calls = {key: question.call for key, question in questions.items()}
        again = await self._round(questions, calls, asked, here)
        if again:
            await self._round(questions, again, asked, here, last=True)
        # What is not here now was stored by somebody else meanwhile.
        stored = self._take_stored(q for key, q in questions.items() if key not in here)
        found.update(stored)
        self.stats.from_store += len(stored)
        self._tick(len(stored))

    async def _round(
        self,
        questions: dict[str, Question],
        calls: dict[str, Call],
        asked: dict[str, _Asked],
        here: dict[str, StoredVerdict | JudgeFailure],
        *,
        last: bool = False,
    ) -> dict[str, Call]:
        """Send the calls in batches. Those to be asked once more, with their second call."""
        again: dict[str, Call] = {}

        def received(row: BatchRow, reply: Reply) -> None:
            question = questions.get(row.key)
            record, state = self._read(row, reply, question, asked)
            if question is None or row.key in here:
                return
            if record is not None:
                here[row.key] = record
                self._tick()
            elif state.problem is not None:
                problem = state.problem
                if not last and problem.kind in ASK_AGAIN:
                    call = calls[row.key]
                    complaints = problem.complaints
                    again[row.key] = question.again(call, complaints) if complaints else call
                else:
                    failure = JudgeFailure(problem.kind, problem.detail, state.raw_text)
                    self._failed(row.key, failure, asked, here)

        batches = MessageBatches(
            self._messages,
            self.store,
            run=self.run,
            received=received,
            there=lambda keys: self._stored(questions[key] for key in keys),
            lost=self._lost,
            budget_usd=self.budget_usd,
            limits=self.batch_limits,
            on_change=self.on_batches,
        )
        report = await batches.run(self._requests(questions, calls, asked))
        for key, error in report.failed.items():
            state = asked.get(key) or _Asked()
            self._failed(key, JudgeFailure(error.kind, error.detail, state.raw_text), asked, here)
        return again

    def _requests(
        self,
        questions: dict[str, Question],
        calls: dict[str, Call],
        asked: dict[str, _Asked],
    ) -> Iterable[BatchRequest]:
        for key, call in calls.items():
            before = asked.get(key) or _Asked()
            worst = self._worst(call)
            memo = {
                "identity": dict(questions[key].identity),
                "usage": asdict(before.usage),
                "cost_usd": before.cost_usd,
                "worst_usd": worst,
            }
            yield BatchRequest(key, call, json.dumps(memo, ensure_ascii=False), worst)

    def _read(
        self, row: BatchRow, reply: Reply, question: Question | None, asked: dict[str, _Asked]
    ) -> tuple[StoredVerdict | None, _Asked]:
        """Book a reply, and store what can be used of it; as it is, where its question is not known here.

        A process that ended may have had other questions. Its replies are paid for, and who asks for one
        of them later reads it (`ModelAsker._stored`).
        """
        memo = json.loads(row.call)
        paid = self._book(reply)
        counted = self._of_budget(paid, None if row.reservation is None else memo["worst_usd"])
        state = asked[row.key] = _Asked(
            usage=Usage(**memo["usage"]) + reply.usage,
            cost_usd=total(memo["cost_usd"], paid),
            raw_text=reply.text,
        )
        found: Any = None if question is None else question.read(reply)
        if isinstance(found, ReadingProblem):
            state.problem = found
            if row.reservation is not None:
                self.store.ledger.settle(row.reservation, counted)
            return None, state
        record = StoredVerdict(
            key=row.key,
            kind="reply" if question is None else question.record,
            identity=memo["identity"],
            payload=json.dumps(found, ensure_ascii=False),
            raw_text=reply.text,
            usage=state.usage,
            cost_usd=state.cost_usd,
            served_model=reply.model,
            base_url=self.endpoint.base_url,
        )
        if question is None:
            record = unread(record, reply)
        self.store.put(record, reservation=row.reservation, paid_usd=counted)
        return record, state

    def _lost(self, row: BatchRow) -> None:
        """Count a row that may be billed and has no reply, on the bill of who collects it."""
        worst = json.loads(row.call)["worst_usd"]
        self.stats.lost_calls += 1
        self.stats.possibly_usd += worst or 0.0
        self.stats.unpriced_lost_calls += worst is None

    def _failed(
        self,
        key: str,
        failure: JudgeFailure,
        asked: dict[str, _Asked],
        here: dict[str, StoredVerdict | JudgeFailure],
    ) -> None:
        state = asked.get(key) or _Asked()
        here[key] = replace(failure, usage=state.usage, cost_usd=state.cost_usd)
        self.stats.failed[failure.kind] += 1
        self._tick()


class BatchJudge(BatchAsker, ModelJudge):
    """A judge whose questions travel so. Takes what `BatchAsker` and `ModelJudge` take."""
