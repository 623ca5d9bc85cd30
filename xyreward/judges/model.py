"""A judge that asks a model: the rubric's question, paid for once and remembered.

    question -> store -> (not there) claim -> reserve its worst cost -> send -> read -> store

`anthropic:<model>` and `chat:<model>@<base_url>` differ in their endpoint and in nothing here.

Not here: what is asked (`rubric.py`), how a reply is read (`reading.py`), how it is asked, paid for and
remembered (`judges/asking.py`), how votes are counted
(`judges/votes.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache, partial
from typing import Any

from xyreward import rubric
from xyreward.dispatch import Limits
from xyreward.errors import JudgeError
from xyreward.items import Item, ItemKind, text_hash
from xyreward.judges.asking import Estimate, ModelAsker, Question, without_cost
from xyreward.judges.calls import Call, Endpoint, Reply
from xyreward.judges.votes import Outcome, combine
from xyreward.prices import Prices
from xyreward.reading import ReadingProblem, read_reply
from xyreward.rubric import Grounding
from xyreward.store import StoredVerdict, VerdictStore
from xyreward.verdict import (
    JudgeFailure,
    LabelProbabilities,
    Labels,
    Suggestion,
    Usage,
    Verdict,
)


@dataclass(frozen=True, slots=True)
class JudgeQuestion(Question):
    """A verdict on an answer, or the grounding of a query."""

    answer: str | None
    """What is judged; None where a query is grounded."""
    kind: ItemKind
    grounded: bool


_UNKNOWN = Grounding("unknown yet", "not inferred yet", inferred=True)


class ModelJudge(ModelAsker):
    """Judge answers by asking a model with the rubric of `rubric.py`."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        store: VerdictStore | str | os.PathLike[str] | None = None,
        limits: Limits | None = None,
        votes: int = 1,
        budget_usd: float | None = None,
        run: str | None = None,
        prices: Prices | None = None,
    ) -> None:
        """Make a judge. Nothing is opened or sent yet.

        Args:
            endpoint: where calls are sent.
            store: see `ModelAsker`, and so for all but `votes`.
            limits: concurrency, rates and deadlines.
            votes: how many times each answer is judged.
            budget_usd: hard cap on what the run may cost.
            run: whose bill it is.
            prices: None: those of the package and of XYREWARD_PRICES.

        Raises:
            JudgeError: votes or budget are no positive numbers, or there is a budget and no price.
            ConfigError: a price file is malformed.
        """
        if isinstance(votes, bool) or not isinstance(votes, int) or votes < 1:
            raise JudgeError(f"votes is {votes!r}, expected a whole number of at least 1")
        super().__init__(
            endpoint, store=store, limits=limits, budget_usd=budget_usd, run=run, prices=prices
        )
        self.votes = votes

    @property
    def rubric_version(self) -> str:
        """Version and hash of all that the judge is told."""
        return rubric.rubric_version()

    def check(self, items: Sequence[Item]) -> None:
        """Find what would stop the judge, without a call: its store, its key, items without grounding.

        Raises:
            JudgeError, StoreError: something is missing; says what to do.
        """
        bare = [item.id for item in items if Grounding.of(item) is None]
        if bare:
            say = "item says" if len(bare) == 1 else "items say"
            raise JudgeError(
                f"{len(bare)} {say} nothing of a goal, the first is {bare[0]!r}; expected a stated "
                "and an intended request. (score() has the judge infer the goal of a bare query.)"
            )
        self.check_ready()

    # ---------------------------------------------------------------- what is asked

    async def judge(self, items: Sequence[Item], answers: Sequence[str]) -> list[Outcome]:
        """See `Judge`.

        Raises:
            JudgeStopped: no call can succeed (wrong key, unknown model, spent limit). What was judged
                until then is in the store.
            JudgeError: an item has no grounding; see `ground`.
            StoreError: the store cannot be used.
        """
        groundings = [Grounding.of(item) for item in items]
        if None in groundings:
            self.check(items)
        calls = [
            (rubric.verdict_call(item, grounding, answer), item, grounding, answer)
            for item, grounding, answer in zip(items, groundings, answers, strict=True)
            if grounding is not None
        ]

        def ask(parameters: Mapping[str, Any]) -> list[JudgeQuestion]:
            told = self.asked_of(parameters)
            return [
                self._question(call, told, item, grounding, answer, vote)
                for call, item, grounding, answer in calls
                for vote in range(self.votes)
            ]

        outcomes = [self._verdict(*found) for found in await self.decide(ask)]
        if self.votes == 1:
            return outcomes
        return [
            combine(
                outcomes[n * self.votes : (n + 1) * self.votes],
                item.kind,
                judge=self.name,
                rubric_version=self.rubric_version,
            )
            for n, item in enumerate(items)
        ]

    async def ground(self, items: Sequence[Item]) -> list[Item | JudgeFailure]:
        """Infer what is asked and what is wanted from each item's query alone.

        Once per distinct query, for all answers to it. The items returned are marked (`Item.inferred`),
        and so is every verdict on them (`grounded=False`).

        Raises:
            JudgeStopped, StoreError: see `judge`.
        """

        def ask(parameters: Mapping[str, Any]) -> list[JudgeQuestion]:
            told = self.asked_of(parameters)
            return [
                self._question(rubric.grounding_call(item), told, item, None, None, 0)
                for item in items
            ]

        grounded: list[Item | JudgeFailure] = []
        for item, (_, found, paid) in zip(items, await self.decide(ask), strict=True):
            if isinstance(found, JudgeFailure):
                grounded.append(found if paid else without_cost(found))
                continue
            with self.reading(found):
                inferred = Grounding(**_tuples(json.loads(found.payload)))
                grounded.append(inferred.item(item))
        return grounded

    def _question(
        self,
        call: Call,
        asked_of: str,
        item: Item,
        grounding: Grounding | None,
        answer: str | None,
        vote: int,
    ) -> JudgeQuestion:
        identity = {
            "judge": self.name_without_url,
            "rubric_version": self.rubric_version,
            "query": item.content_hash[:16],
            "answer": "" if answer is None else _short_hash(answer),
            "vote": str(vote),
        }
        kind = item.kind if grounding is None else grounding.kind
        return JudgeQuestion(
            key=self.key(call, vote, asked_of),
            call=call,
            identity=identity,
            record="grounding" if answer is None else "verdict",
            read=partial(read, answer=answer, kind=kind),
            again=rubric.reask_call,
            output_tokens=rubric.TYPICAL_OUTPUT_TOKENS,
            answer=answer,
            kind=kind,
            grounded=grounding is not None and not grounding.inferred,
        )

    def _verdict(
        self, question: JudgeQuestion, found: StoredVerdict | JudgeFailure, paid: bool
    ) -> Outcome:
        if isinstance(found, JudgeFailure):
            return found if paid else without_cost(found)
        with self.reading(found):
            data = json.loads(found.payload)
            labels = Labels(**data["labels"])
            return Verdict(
                labels=labels,
                p=LabelProbabilities.certain(labels),
                judge=self.name,
                rubric_version=found.identity["rubric_version"],
                suggestions=tuple(Suggestion(**s) for s in data["suggestions"]),
                reason=data["reason"],
                grounded=question.grounded,
                usage=found.usage if paid else Usage(),
                cost_usd=found.cost_usd if paid else 0.0,
                cached=not paid,
                flags=tuple(data["flags"]),
            )

    def least_worst(self, items: Sequence[Item], answers: Sequence[str]) -> float | None:
        """US dollars that a budget must have room for to let the cheapest of these calls through.

        None without items, and where the price is unknown. Items have a grounding, see `check`.
        """
        worst = [
            self._worst(rubric.verdict_call(item, grounding, answer))
            for item, answer in zip(items, answers, strict=True)
            if (grounding := Grounding.of(item)) is not None
        ]
        known = [one for one in worst if one is not None]
        return min(known, default=None) if len(known) == len(worst) else None

    def estimate(self, items: Sequence[Item], answers: Sequence[str]) -> Estimate:
        """What judging these would take now, with what the store already has.

        Sends nothing, and makes no store where there is none. A bare query counts with the call that
        infers its goal, and with a verdict of usual length.

        Raises:
            StoreError: the store cannot be used.
        """
        groundings = [(Grounding.of(item), item) for item in items]
        calls = [
            (rubric.verdict_call(item, grounding or _UNKNOWN, answer), item, grounding, answer)
            for (grounding, item), answer in zip(groundings, answers, strict=True)
        ]
        bare = [item for grounding, item in groundings if grounding is None]

        def ask(parameters: Mapping[str, Any]) -> list[JudgeQuestion]:
            told = self.asked_of(parameters)
            asked = [
                self._question(call, told, item, grounding, answer, vote)
                for call, item, grounding, answer in calls
                for vote in range(self.votes)
            ]
            asked += [
                self._question(rubric.grounding_call(item), told, item, None, None, 0)
                for item in bare
            ]
            return asked

        return self.estimate_of(ask)


def read(reply: Reply, answer: str | None, kind: ItemKind) -> dict[str, Any] | ReadingProblem:
    """What is to be remembered of a reply, or why it cannot be used. No answer: it is a grounding."""
    if answer is None:
        grounding = rubric.read_grounding(reply)
        return grounding if isinstance(grounding, ReadingProblem) else asdict(grounding)
    reading = read_reply(reply, answer, kind)
    if isinstance(reading, ReadingProblem):
        return reading
    return {
        "labels": _flat(reading.labels),
        "suggestions": [_flat(suggestion) for suggestion in reading.suggestions],
        "reason": reading.reason,
        "flags": list(reading.flags),
    }


def _flat(data: Labels | Suggestion) -> dict[str, Any]:
    # asdict() copies each field deeply, which takes as long as the rest of reading a reply.
    return {entry.name: getattr(data, entry.name) for entry in fields(data)}


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}


@lru_cache(maxsize=4096)
def _short_hash(text: str) -> str:
    return text_hash(text)[:16]
