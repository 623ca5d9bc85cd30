"""The rule: which two answers to an item make a preference pair, and why the others do not.

    item with a hidden goal   chosen is goal-focused (`Rule.needs`), rejected is not
    control                   chosen answers directly, rejected overcorrects

Two verdicts and a margin decide, never a kind or an author alone. Controls keep the training from
teaching distrust of every question.

Not here: what may be wrong with a pair beyond its labels (`guards.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import ConfigDict, Strict

from xyreward.errors import ConfigError
from xyreward.items import XY_KINDS, AnswerKind, Item
from xyreward.pairs.candidates import Judged
from xyreward.pairs.pair import PairRule

REJECTED_KINDS: tuple[AnswerKind, ...] = ("literal", "passing_mention", "dump", "wrong_goal")

Need = Literal["intended_solution", "intended_focus", "misconception"]
NEEDS: tuple[Need, ...] = get_args(Need)

# Strict in a YAML file: `margin: true` is not 1.
_Number = Annotated[float, Strict()]


@dataclass(frozen=True, slots=True)
class Rule:
    """What makes a pair.

    Raises:
        ConfigError: a field outside its range.
    """

    needs: tuple[Need, ...] = NEEDS
    """What a chosen answer to an item with a hidden goal must have, at least one of: an intended
    solution, its focus on the intended request, the misconception identified. A rejected answer lacks
    one of these."""
    margin: _Number = 0.0
    """Soft reward of chosen minus that of rejected, at least this, in [0, 1]; never 0 or below."""
    margin_pairs: _Number | None = None
    """For items without any answer that could be chosen, and controls without one that overcorrects:
    take pairs whose margin is at least this instead, in (0, 1]. A weak policy hardly ever writes a
    goal-focused answer. None: no such pairs."""
    same_origin: Annotated[bool, Strict()] = True
    """Both answers come from one source and one author."""
    max_pairs_per_item: Annotated[int, Strict()] | None = None
    """> 0; the widest margins first, and answers that are in no pair yet before others. None: all."""
    max_length_ratio: _Number | None = None
    """Longer answer over shorter one, in characters, at most this, >= 1. None: any."""
    rejected_kinds: tuple[AnswerKind, ...] = REJECTED_KINDS
    """Kinds of reference answers that goal-focused ones are preferred to, most important first."""

    # As a section of a YAML file, where a key that is not known is an error.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        possible = XY_KINDS - {"goal_focused"}
        kinds: Any = self.rejected_kinds  # also what a caller passed without a type checker
        if (
            isinstance(kinds, str)
            or not kinds
            or not possible.issuperset(kinds)
            or len(set(kinds)) < len(kinds)
        ):
            raise ConfigError(
                f"rejected_kinds is {kinds!r}, expected a list of some of "
                f"{', '.join(sorted(possible))}, each once"
            )
        needs: Any = self.needs
        if isinstance(needs, str) or not needs or not set(NEEDS).issuperset(needs):
            raise ConfigError(f"needs is {needs!r}, expected some of {', '.join(NEEDS)}")
        if not 0 <= self.margin <= 1:
            raise ConfigError(f"margin is {self.margin}, expected in [0, 1]")
        if self.margin_pairs is not None and not 0 < self.margin_pairs <= 1:
            raise ConfigError(
                f"margin_pairs is {self.margin_pairs}, expected in (0, 1], or None for none"
            )
        if self.max_pairs_per_item is not None and self.max_pairs_per_item < 1:
            raise ConfigError(
                f"max_pairs_per_item is {self.max_pairs_per_item}, expected > 0, or None for all"
            )
        if self.max_length_ratio is not None and not self.max_length_ratio >= 1:
            raise ConfigError(
                f"max_length_ratio is {self.max_length_ratio}, expected >= 1, or None for any"
            )

    def proposals(self, item: Item, answers: Sequence[Judged]) -> Iterator[tuple[Judged, Judged]]:
        """Candidate pairs: every two answers to an item that could make a pair.

        Of references their kinds say which is to be chosen, so those are (better, worse). Of answers
        without a kind it is every two, in either order; and where authors may differ, one of each.
        """
        by_kind = [a for a in answers if a.answer.kind is not None]
        better: AnswerKind = "direct" if item.kind == "control" else "goal_focused"
        worse = ("overcorrecting",) if item.kind == "control" else self.rejected_kinds
        for kind in worse:
            for chosen in by_kind:
                if chosen.answer.kind == better:
                    for rejected in by_kind:
                        if rejected.answer.kind == kind:
                            yield chosen, rejected
        without_kind = [a for a in answers if a.answer.kind is None]
        yield from combinations(without_kind, 2)
        if not self.same_origin:
            yield from product(
                without_kind, [a for a in by_kind if a.answer.kind in (better, *worse)]
            )

    def lacking(self, item: Item, answers: Sequence[Judged]) -> str:
        """Why an item has no candidate pair at all, where `proposals` has none."""
        if not answers:
            return "no answer"
        if item.kind == "control" and any(one.answer.kind == "direct" for one in answers):
            return NEITHER_OVERCORRECTS
        return "no two answers that could be a pair"

    def is_wanted(self, item: Item, answer: Judged) -> bool:
        """Whether an answer is what training should teach."""
        labels = answer.labels
        if labels is None:
            return False
        if item.kind == "control":
            return labels.has_stated_solution and not labels.identifies_misconception
        has = {
            "intended_solution": labels.has_intended_solution,
            "intended_focus": labels.focus == "intended",
            "misconception": labels.identifies_misconception,
        }
        return all(has[need] for need in self.needs)

    def decide(
        self, item: Item, one: Judged, other: Judged, *, by_margin: bool = False
    ) -> tuple[Judged, Judged, PairRule] | str:
        """Which of two answers is chosen over which, or the reason why neither is.

        Args:
            item: what they answer.
            one: an answer.
            other: another.
            by_margin: the margin alone decides; see `margin_pairs`.
        """
        for answer in (one, other):
            if answer.labels is None or answer.reward is None:
                failure = answer.failure or NOT_JUDGED
                return failure if failure in (_EMPTY, NOT_JUDGED) else f"failed verdict: {failure}"
        if self.same_origin and one.answer.provenance != other.answer.provenance:
            return "different origins"
        assert one.reward is not None
        assert other.reward is not None
        if by_margin:
            assert self.margin_pairs is not None
            chosen, rejected = (one, other) if one.reward >= other.reward else (other, one)
            threshold = max(self.margin, self.margin_pairs)
        else:
            first, second = self.is_wanted(item, one), self.is_wanted(item, other)
            if one.answer.kind is not None and not first:
                return "chosen is not labelled as what it should teach"
            if not first and not second:
                return NEITHER
            if first and second and one.reward <= other.reward and one.answer.kind is not None:
                return "rejected is labelled as good as chosen"
            if first and second:
                return "both sides are what training should teach"
            chosen, rejected = (one, other) if first else (other, one)
            assert rejected.labels is not None
            if item.kind == "control" and not rejected.labels.identifies_misconception:
                return NEITHER_OVERCORRECTS
            threshold = self.margin
        if chosen.answer.unsafe:
            return "chosen is unsafe"
        assert chosen.reward is not None
        assert rejected.reward is not None
        margin = chosen.reward - rejected.reward
        if margin <= 0:
            return "tie" if margin == 0 else "rejected is labelled as good as chosen"
        if margin < threshold:
            return f"margin below {threshold:g}"
        if self.max_length_ratio is not None:
            short, long = sorted((len(chosen.text), len(rejected.text)))
            if long > self.max_length_ratio * short:
                return f"one side more than {self.max_length_ratio:g} times as long"
        return chosen, rejected, "margin" if by_margin else "goal_focused"


NEITHER = "neither side is what training should teach"
NEITHER_OVERCORRECTS = "control without an answer that overcorrects"
NOT_JUDGED = "not judged"
_EMPTY = "empty answer"
