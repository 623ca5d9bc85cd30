"""A stage of construction: rows go in, each comes out kept, dropped with a reason, or failed with one.

    rows -> stage -> kept -> stage -> kept -> ... -> items        funnel: in = kept + dropped + failed

A stage that asks a model says how a row is asked (`call`), what of a reply is remembered (`read`), and what
that means for the row (`decide`). Replies are remembered in the store, decisions are not: a changed filter
costs nothing, and a process that was killed goes on where it was.

Not here: what is asked (`forum.py`, `guides.py`), how calls are sent, paid and retried (`judges/asking.py`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import resources
from typing import Any, Generic, TypeVar

from xyreward import rubric
from xyreward.errors import JudgeError
from xyreward.items import text_hash
from xyreward.judges.asking import Estimate, ModelAsker, Question
from xyreward.judges.calls import Call, Reply
from xyreward.markdown import plain
from xyreward.reading import ReadingProblem
from xyreward.scoring import run_sync
from xyreward.store import StoredVerdict
from xyreward.verdict import FailureKind, JudgeFailure

R = TypeVar("R")
T = TypeVar("T")

TRIES = 3
"""How often a row whose replies were no good is taken up again, each time with a second asking of its own."""

NO_USE: frozenset[FailureKind] = frozenset({"refused", "truncated", "over_budget"})
"""Failures that would only come again in this run."""


# ---------------------------------------------------------------- outcomes


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where something that a model said comes from: one line of an item's `meta["provenance"]`."""

    stage: str
    prompt: str
    """Name and hash of all that the model was told, as `prompt_version` has it."""
    model: str
    """As it was asked for, without address."""
    served_model: str
    """As the server named it; empty where it did not."""
    date: str
    """Of the reply, UTC, YYYY-MM-DD."""
    key: str
    """Of the reply in the store, 16 hex digits."""

    def as_dict(self) -> dict[str, str]:
        """As it stands in `meta`."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class Kept(Generic[T]):
    """The row goes on, as `value`."""

    value: T
    how: str = ""
    """Why it is kept, where a stage has several ways: counted beside the kept ones."""
    provenance: Provenance | None = None
    """Set by `Stage.run`."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """The row ends here because of what it is."""

    reason: str
    """A few words, the same for all rows that are dropped for it: it is counted by."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The row ends here because of what went wrong: nothing is known of it."""

    reason: str
    """Of a model's failure its kind (`verdict.FailureKind`): it is counted by."""
    detail: str = ""


# ---------------------------------------------------------------- the funnel


@dataclass(frozen=True, slots=True)
class Step:
    """What one stage did to the rows that it was given. In = kept + dropped + failed, unless it `spread`."""

    name: str
    rows: int
    kept: int
    how: Mapping[str, int] = field(default_factory=dict)
    """Of the kept, by the way they were; empty where there is one way."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """By reason, most first."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """By reason, most first."""
    spread: bool = False
    """Each row became any number of others, which `kept` counts: none was dropped or failed."""

    def __post_init__(self) -> None:
        out = self.kept + sum(self.dropped.values()) + sum(self.failed.values())
        out = self.rows if self.spread and out == self.kept else out
        if out != self.rows or (self.how and sum(self.how.values()) != self.kept):
            raise AssertionError(
                f"{self.name}: {self.rows} rows in, {out} out ({self.kept} kept, by way "
                f"{sum(self.how.values())}); a row was lost or counted twice"
            )


class Funnel:
    """The steps of a construction, in order; each takes what the one before it kept."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def add(self, name: str, outcomes: Iterable[Kept[Any] | Dropped | Failed]) -> Step:
        """Count the outcomes of a stage's rows as the next step.

        Raises:
            AssertionError: a mistake of ours: it is not as many rows as the step before kept.
        """
        how: Counter[str] = Counter()
        dropped: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        for outcome in outcomes:
            match outcome:
                case Kept():
                    how[outcome.how] += 1
                case Dropped():
                    dropped[outcome.reason] += 1
                case Failed():
                    failed[outcome.reason] += 1
        return self.counted(name, how, dropped, failed)

    def counted(
        self,
        name: str,
        kept: Mapping[str, int],
        dropped: Mapping[str, int] | None = None,
        failed: Mapping[str, int] | None = None,
    ) -> Step:
        """The next step by its counts alone: for a stage that streams and keeps no list of outcomes.

        Args:
            name: of the stage.
            kept: by the way it was kept ("" where there is one way).
            dropped: by reason.
            failed: by reason.

        Raises:
            AssertionError: as `add`.
        """
        total = sum(kept.values())
        dropped, failed = _most_first(dropped or {}), _most_first(failed or {})
        rows = total + sum(dropped.values()) + sum(failed.values())
        if self.steps and self.steps[-1].kept != rows:
            raise AssertionError(
                f"{self.steps[-1].name} kept {self.steps[-1].kept} rows and {name} took {rows}"
            )
        ways = {} if set(kept) <= {""} else _most_first({k: n for k, n in kept.items() if n})
        step = Step(name, rows, total, ways, dropped, failed)
        self.steps.append(step)
        return step

    def spread(self, name: str, kept: Mapping[str, int]) -> Step:
        """The next step, in which each row becomes any number of others.

        Args:
            name: of the stage.
            kept: the others, by way ("" where there is one).
        """
        rows = self.steps[-1].kept if self.steps else 0
        ways = {} if set(kept) <= {""} else _most_first({k: n for k, n in kept.items() if n})
        step = Step(name, rows, sum(kept.values()), ways, spread=True)
        self.steps.append(step)
        return step

    def to_dict(self) -> list[dict[str, Any]]:
        """As JSON has it."""
        return [dataclasses.asdict(step) for step in self.steps]

    def to_markdown(self) -> str:
        """A table: a line per stage, and one per way and reason below it."""
        lines = ["| stage | in | kept | dropped | failed |", "|---|---:|---:|---:|---:|"]
        for step in self.steps:
            dropped, failed = sum(step.dropped.values()), sum(step.failed.values())
            lines.append(
                f"| {plain(step.name)} | {step.rows:,} | {step.kept:,} | {dropped:,} | {failed:,} |"
            )
            lines += [f"| - {plain(way or 'other')} | | {n:,} | | |" for way, n in step.how.items()]
            lines += [f"| - {plain(why)} | | | {n:,} | |" for why, n in step.dropped.items()]
            lines += [f"| - {plain(why)} | | | | {n:,} |" for why, n in step.failed.items()]
        return "\n".join(lines) + "\n"


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def values(outcomes: Iterable[Kept[T] | Dropped | Failed]) -> Iterator[T]:
    """What goes on to the next stage, in order."""
    return (outcome.value for outcome in outcomes if isinstance(outcome, Kept))


# ---------------------------------------------------------------- stages that ask a model


@dataclass(frozen=True)
class Stage(Generic[R, T]):
    """One thing that a model is asked about each row."""

    name: str
    """A word or two: of the funnel, of provenance, of the bill."""
    version: str
    """`prompt_version` over its calls. Replies to another version are asked for anew."""
    call: Callable[[R], Call]
    """How a row is asked. Text of the source stands in it between marks (`fence.py`)."""
    read: Callable[[R, Reply], Mapping[str, Any] | ReadingProblem]
    """What of a reply is remembered, as JSON has it, read strictly (`reading.py`); or why it is no use.
    Complaints hold our own words only. It must depend on nothing but row and reply."""
    decide: Callable[[R, Mapping[str, Any]], Kept[T] | Dropped]
    """What that means for the row. It is not remembered, and so free to change."""
    output_tokens: int = 400
    """Of a usual reply; what estimates of a bill assume."""

    def run(
        self,
        rows: Sequence[R],
        asker: ModelAsker,
        *,
        number: int | Sequence[int] = 0,
        on_reply: Callable[[], object] | None = None,
    ) -> list[Kept[T] | Dropped | Failed]:
        """Ask about every row; one outcome per row, in order.

        Args:
            rows: any number of them. What the store has is not asked again.
            asker: whom to ask, within its budget.
            number: tells independent askings of the same row apart: 0 for the first, 1 for a second
                opinion. Equal numbers have equal replies. One for all rows, or one each.
            on_reply: called after each decided question, for progress bars.

        Raises:
            JudgeError: the budget is spent, or no call can succeed; what was paid for is in the store.
            StoreError: the store cannot be used, or holds what this release does not read.
        """
        told = asker.on_outcome
        if on_reply:
            asker.on_outcome = on_reply
        try:
            return run_sync(self._run(rows, asker, _each(number, rows)))
        finally:
            asker.on_outcome = told

    async def _run(
        self, rows: Sequence[R], asker: ModelAsker, numbers: Sequence[int]
    ) -> list[Kept[T] | Dropped | Failed]:
        outcomes: dict[int, Kept[T] | Dropped | Failed] = {}
        todo = list(range(len(rows)))
        for attempt in range(1, TRIES + 1):
            asked, of = [rows[i] for i in todo], [numbers[i] for i in todo]
            decided = await asker.decide(partial(self._questions, asked, asker, of))
            again = []
            for i, (_, found, _) in zip(todo, decided, strict=True):
                if not isinstance(found, JudgeFailure):
                    outcomes[i] = self._decided(rows[i], found, asker)
                elif found.kind in NO_USE or attempt == TRIES:
                    outcomes[i] = Failed(found.kind, found.detail)
                else:
                    again.append(i)
            todo = again
            if not todo:
                break
        unpaid = [
            o for o in outcomes.values() if isinstance(o, Failed) and o.reason == "over_budget"
        ]
        if unpaid:
            raise JudgeError(
                f"{self.name}: the budget is spent, {len(unpaid):,} of {len(rows):,} rows were not asked "
                f"about. What was paid for is in the store. Of the first: {unpaid[0].detail}"
            )
        return [outcomes[i] for i in range(len(rows))]

    def _decided(self, row: R, found: StoredVerdict, asker: ModelAsker) -> Kept[T] | Dropped:
        with asker.reading(found):
            decision = self.decide(row, json.loads(found.payload))
        if isinstance(decision, Dropped):
            return decision
        source = Provenance(
            stage=self.name,
            prompt=self.version,
            model=asker.name_without_url,
            served_model=found.served_model,
            date=found.created[:10],
            key=found.key[:16],
        )
        return dataclasses.replace(decision, provenance=source)

    def known(
        self, rows: Sequence[R], asker: ModelAsker, *, number: int | Sequence[int] = 0
    ) -> list[Kept[T] | Dropped | None]:
        """What the store says of each row, in order; None where `run` would ask. Sends nothing.

        For bills: what a later stage takes hangs on what an earlier one kept.

        Raises:
            StoreError: the store cannot be used, or holds what this release does not read.
        """
        best: list[Kept[T] | Dropped | None] = [None] * len(rows)
        if not asker._has_store:
            return best
        for parameters in asker.endpoint.possible_parameters:
            questions = self._questions(rows, asker, _each(number, rows), parameters)
            identities = {q.key: q.identity for q in questions}
            stored = asker.store.get_many(identities, identities)
            found = [
                self._decided(row, stored[q.key], asker) if q.key in stored else None
                for row, q in zip(rows, questions, strict=True)
            ]
            if sum(one is not None for one in found) > sum(one is not None for one in best):
                best = found
        return best

    def estimate(
        self, rows: Sequence[R], asker: ModelAsker, *, number: int | Sequence[int] = 0
    ) -> Estimate:
        """What `run` would take now, with what the store has. Sends nothing.

        Raises:
            StoreError: the store cannot be used.
        """
        return asker.estimate_of(partial(self._questions, rows, asker, _each(number, rows)))

    def _questions(
        self,
        rows: Sequence[R],
        asker: ModelAsker,
        numbers: Sequence[int],
        parameters: Mapping[str, Any],
    ) -> list[Question]:
        told = asker.asked_of(parameters)
        questions = []
        for row, number in zip(rows, numbers, strict=True):
            call = self.call(row)
            questions.append(
                Question(
                    # The version is part of it: a stage's name must not be told from another's by luck.
                    key=asker.key(call, number, f"{self.version} {told}"),
                    call=call,
                    identity={
                        "judge": asker.name_without_url,
                        "rubric_version": self.version,
                        "query": text_hash(call.text)[:16],
                        "answer": "",
                        "vote": str(number),
                    },
                    record="completion",
                    read=partial(self.read, row),
                    again=again,
                    output_tokens=self.output_tokens,
                )
            )
        return questions


def _each(number: int | Sequence[int], rows: Sequence[Any]) -> Sequence[int]:
    return [number] * len(rows) if isinstance(number, int) else number


def again(call: Call, complaints: Sequence[str]) -> Call:
    """The same question once more, saying what was wrong.

    The first reply is not shown: the source's text may have steered it.
    """
    wrong = "\n".join(f"- {complaint}" for complaint in complaints)
    return dataclasses.replace(
        call,
        text=f"{call.text}\n\nAn earlier reply to this request could not be used:\n{wrong}\n"
        "Do it afresh. Copy every quote from the text between the marks, letter by letter.",
    )


@cache
def prompt(name: str) -> str:
    """The text of a file of `prompts/construct/`."""
    file = resources.files("xyreward").joinpath("prompts", "construct", name)
    return file.read_text("utf-8")


def prompt_version(mark: str, calls: Iterable[Call]) -> str:
    """`<mark>-<12 hex digits>` over all that a model is told.

    Args:
        mark: such as `extract-1`, raised by hand where replies are meant to differ.
        calls: one per form that the stage's question can take, of made-up rows.
    """
    told: list[Any] = []
    for call in calls:
        told += [rubric.as_told(call), rubric.as_told(again(call, ["c"]))]
    return f"{mark}-{hashlib.sha256(json.dumps(told).encode('ascii')).hexdigest()[:12]}"
