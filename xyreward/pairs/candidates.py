"""Answers that may become one side of a preference pair: where they come from and what they are worth.

    references    human or bundled answers of known kind
    on_policy     sampled from the model that is to be trained
    cross_model   answers of several models, from files
    contrastive   a model wrote a goal-focused and a literal answer at matched length and style

Not here: how answers are sampled or written (`sampling.py`, `contrastive.py`), which of them make a
pair (`rule.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

from xyreward.errors import DataError
from xyreward.items import DEFAULT_LABELS, AnswerKind, Item
from xyreward.judges import Judge
from xyreward.reward import Reward
from xyreward.scoring import Score, ascore
from xyreward.verdict import LabelProbabilities, Labels, Verdict
from xyreward.words import is_empty

PairSource = Literal["references", "on_policy", "cross_model", "contrastive"]
PAIR_SOURCES: tuple[PairSource, ...] = get_args(PairSource)

EMPTY: Mapping[str, Any] = MappingProxyType({})

MAX_ANSWERS = 1_000
"""To one item. Every two of them are compared, which is half a million candidate pairs of so many."""

SOFT = Reward(soft=True)
"""Worth of an answer for ranking: hard labels tie (see `reward.py`)."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An answer to an item, with its provenance. Not judged yet."""

    item_id: str
    text: str
    source: PairSource
    origin: str
    """Who wrote it: `human`, a model's name, a data set's name. Both sides of a pair come from one
    origin by default: a human's answer over a model's would teach who wrote it."""
    kind: AnswerKind | None = None
    """Known for references only."""
    labels: Labels | None = None
    """Labels that a person gave it. None: nobody did."""
    licence: str = ""
    unsafe: bool = False
    """Following it could hurt someone: it may be rejected, never chosen."""
    details: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    """How it was made: temperature, top_p, seed, sample, max_new_tokens, truncated, writer, ..."""

    @property
    def provenance(self) -> tuple[str, str]:
        """Source and author: where two answers differ in it, it may tell which is better."""
        return self.source, self.origin


def check_numbers(answers_to: Mapping[str, int]) -> None:
    """Whether there are so few answers to each item that every two of them can be compared.

    Raises:
        DataError: there are more to some; all of these are named.
    """
    if problems := [
        f"item {item_id!r}: {n:,} answers, expected at most {MAX_ANSWERS:,}, since every two answers to an "
        "item are compared; leave out those that repeat another, or take a sample"
        for item_id, n in answers_to.items()
        if n > MAX_ANSWERS
    ]:
        raise DataError(problems)


@dataclass(frozen=True, slots=True)
class Judged:
    """A candidate with what a judge, or a person, said of it."""

    answer: Candidate
    labels: Labels | None
    """None: the judgement failed, and no pair can have this answer."""
    reward: float | None
    """Soft reward in [0, 1], higher is better; None with `labels`."""
    judge: str
    """The judge's name; `labels` where a person labelled the answer, `kind` where its kind stands for
    its labels."""
    rubric_version: str = ""
    failure: str | None = None
    """Kind of the failure (`verdict.FailureKind`)."""
    reason: str = ""
    """The judge's words."""
    grounded: bool = True
    """False where a model inferred from the query alone what is wanted (`Verdict.grounded`)."""

    @property
    def text(self) -> str:
        """The answer's text."""
        return self.answer.text


def references(items: Sequence[Item]) -> list[Candidate]:
    """Every reference answer of these items, in their order."""
    return [
        Candidate(
            item_id=item.id,
            text=reference.text,
            source="references",
            origin=reference.origin or item.source,
            kind=reference.kind,
            labels=None if reference.labels is None else reference.labels.as_labels(),
            licence=reference.licence or "",
            unsafe=reference.unsafe,
        )
        for item in items
        for reference in item.references
    ]


def by_labels(item: Item, candidate: Candidate) -> Judged | None:
    """Judge a reference by a person's labels or, where there are none, by its kind; else None."""
    labels, judge = candidate.labels, "labels"
    if labels is None and candidate.kind is not None:
        labels, judge = DEFAULT_LABELS[candidate.kind], "kind"
    if labels is None:
        return None
    p = LabelProbabilities.certain(labels)
    verdict = Verdict(labels=labels, p=p, judge=judge, rubric_version="")
    return Judged(candidate, labels, SOFT(verdict, item.kind), judge)


async def by_judge(
    items: Mapping[str, Item], candidates: Sequence[Candidate], judge: Judge
) -> list[Judged]:
    """Judge candidates, in order. An answer that was not judged has `labels` None; none is a zero.

    Raises:
        JudgeError: see `ascore`.
    """
    scores = await ascore(
        [items[c.item_id] for c in candidates], [c.text for c in candidates], judge, SOFT
    )
    return [_judged(c, s, judge) for c, s in zip(candidates, scores, strict=True)]


def _judged(candidate: Candidate, score: Score, judge: Judge) -> Judged:
    verdict = score.verdict
    if is_empty(candidate.text):  # worth 0, and no pair should teach to say something at all
        return Judged(candidate, None, None, score.source, failure="empty answer")
    if verdict is None:
        kind = score.failure.kind if score.failure else "unknown"
        return Judged(candidate, None, None, judge.name, judge.rubric_version, failure=kind)
    return Judged(
        candidate,
        verdict.labels,
        score.reward,
        verdict.judge,
        verdict.rubric_version,
        reason=verdict.reason,
        grounded=verdict.grounded,
    )
