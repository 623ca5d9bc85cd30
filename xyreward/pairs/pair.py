"""A preference pair, a set of them, and what was left out and why."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from xyreward.items import AnswerKind, Item, ItemKind, text_hash
from xyreward.pairs.candidates import Judged, PairSource

if TYPE_CHECKING:
    from xyreward.pairs.guards import Guard

PairRule = Literal["goal_focused", "margin"]
"""Why a pair was kept. `goal_focused`: chosen is what the rule wants (for controls: a direct answer),
rejected is not. `margin`: no answer to the item was (for controls: or none overcorrects), and chosen is
better by the rule's margin."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One preference: to this prompt, `chosen` is better than `rejected`."""

    id: str
    """Stable: hash of item id and both answers, white space folded."""
    item_id: str
    item_kind: ItemKind
    split: str
    cluster: str
    """Items whose queries nearly repeat each other share it: intervals are over clusters."""
    prompt: tuple[Mapping[str, str], ...]
    """Chat messages; the last is the user's."""
    chosen_answer: Judged
    rejected_answer: Judged
    source: str
    """Of the item."""
    language: str
    """Of the item, ISO 639-1."""
    rule: PairRule = "goal_focused"

    @property
    def chosen(self) -> str:
        """Text of the better answer."""
        return self.chosen_answer.text

    @property
    def rejected(self) -> str:
        """Text of the worse answer."""
        return self.rejected_answer.text

    @property
    def chosen_kind(self) -> AnswerKind | None:
        """Kind of the better answer, where it is a reference."""
        return self.chosen_answer.answer.kind

    @property
    def rejected_kind(self) -> AnswerKind | None:
        """Kind of the worse answer, where it is a reference."""
        return self.rejected_answer.answer.kind

    @property
    def pair_source(self) -> PairSource:
        """Where the better answer came from."""
        return self.chosen_answer.answer.source

    @property
    def margin(self) -> float:
        """Soft reward of chosen minus that of rejected, in (0, 1]."""
        assert self.chosen_answer.reward is not None
        assert self.rejected_answer.reward is not None
        return self.chosen_answer.reward - self.rejected_answer.reward

    @property
    def judge(self) -> str:
        """Who judged the answers; `a over b` where two did."""
        return over(self.chosen_answer.judge, self.rejected_answer.judge)

    @property
    def rubric_version(self) -> str:
        """Under what; `a over b` where it differs."""
        return over(self.chosen_answer.rubric_version, self.rejected_answer.rubric_version)

    @property
    def grounded(self) -> bool:
        """False where a model inferred what is wanted, which both answers were judged by."""
        return self.chosen_answer.grounded and self.rejected_answer.grounded

    @property
    def licence(self) -> str:
        """Licences of both answers."""
        both = (self.chosen_answer.answer, self.rejected_answer.answer)
        return ", ".join(sorted({answer.licence or "unknown" for answer in both}))

    def as_row(self) -> dict[str, Any]:
        """TRL's explicit-prompt conversational form, with where it came from.

        Explicit because TRL splits implicit prompts at the longest common prefix of the two
        answers. `margin` is read by TRL's RewardTrainer; its DPOTrainer ignores it.
        """
        # None in a set that must not be; its audit says so, and has to name it by its hash.
        unjudged = None in (self.chosen_answer.reward, self.rejected_answer.reward)
        return {
            "prompt": [dict(message) for message in self.prompt],
            "chosen": [{"role": "assistant", "content": self.chosen}],
            "rejected": [{"role": "assistant", "content": self.rejected}],
            "margin": None if unjudged else round(self.margin, 6),
            "id": self.id,
            "item_id": self.item_id,
            "item_kind": self.item_kind,
            "split": self.split,
            "cluster": self.cluster,
            "language": self.language,
            "source": self.source,
            "licence": self.licence,
            "rule": self.rule,
            "pair_source": self.pair_source,
            "judge": self.judge,
            "rubric_version": self.rubric_version,
            "grounded": self.grounded,
            **_side("chosen", self.chosen_answer),
            **_side("rejected", self.rejected_answer),
        }


def over(chosen: str, rejected: str) -> str:
    """What is said of both sides of a pair: once where it is the same."""
    return chosen if chosen == rejected else f"{chosen or 'none'} over {rejected or 'none'}"


def _side(name: str, answer: Judged) -> dict[str, Any]:
    labels = answer.labels
    return {
        f"{name}_kind": answer.answer.kind or "",
        f"{name}_origin": answer.answer.origin,
        f"{name}_reward": None if answer.reward is None else round(answer.reward, 6),
        f"{name}_labels": None
        if labels is None
        else {
            "has_stated_solution": labels.has_stated_solution,
            "has_intended_solution": labels.has_intended_solution,
            "focus": labels.focus,
            "identifies_misconception": labels.identifies_misconception,
        },
        # As text: keys differ from source to source, and Arrow wants one form for all rows.
        f"{name}_details": json.dumps(dict(answer.answer.details), sort_keys=True),
    }


def pair_of(
    item: Item,
    chosen: Judged,
    rejected: Judged,
    *,
    split: str,
    cluster: str | None = None,
    rule: PairRule = "goal_focused",
) -> Pair:
    """Put a pair together."""
    return Pair(
        id=text_hash(f"{item.id}\n{chosen.text}\n{rejected.text}")[:16],
        item_id=item.id,
        item_kind=item.kind,
        split=split,
        cluster=cluster or item.content_hash,
        prompt=tuple(item.messages),
        chosen_answer=chosen,
        rejected_answer=rejected,
        source=item.source,
        language=item.language,
        rule=rule,
    )


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A candidate pair that was dropped, kept as an example for people to look at."""

    pair: Pair | None
    """None where there is no pair to show, since an answer has no verdict."""
    item_id: str
    reason: str


@dataclass(frozen=True)
class PairSet:
    """Pairs and what was left out, by reason."""

    pairs: tuple[Pair, ...]
    dropped: Mapping[str, int]
    """Reason -> how many candidate pairs. With `pairs` this adds up to `candidates`."""
    candidates: int = 0
    """Candidate pairs: every two answers to one item of which one could be chosen; see `rule.py`."""
    examples: tuple[LeftOut, ...] = ()
    """Some of what was dropped, at most `EXAMPLES` a reason."""
    cut: int = 0
    """Pairs with an answer longer than the trainer's `max_length`; 0 where that was not looked at."""
    examined: int = 0
    """Pairs that the guards looked at: those that they dropped and those that passed."""
    unpaired: Mapping[str, int] = field(default_factory=dict)
    """What is lacking -> how many items have no candidate pair for it; no part of `dropped`."""
    problems: tuple[str, ...] = ()
    """Guards that dropped more than their limit allows, a line each; errors of the audit."""
    masked: Mapping[str, int] = field(default_factory=dict)
    """Kind of personal data or key -> how many were masked in queries and answers of pairs."""
    balance: float | None = None
    """The tolerance that balance was asked for with. None: it was not. The audit holds the set to it."""
    held_out_hash: str | None = None
    """`HeldOut.hash` of what was held out; a recipe takes the set only where it holds out the same. None:
    nothing was, or nobody knows."""
    limits: Mapping[Guard, float] = field(default_factory=dict)
    """Guard -> limit in place of the default one, as in `Guards.limits`: for guards that look again."""

    @property
    def control_share(self) -> float:
        """Share of pairs from controls, in [0, 1]."""
        controls = sum(pair.item_kind == "control" for pair in self.pairs)
        return controls / len(self.pairs) if self.pairs else 0.0

    @cached_property
    def hash(self) -> str:
        """sha256 (hex) over the rows in their order: also over prompts, which ids leave out."""
        digest = hashlib.sha256()
        for pair in self.pairs:
            digest.update(json.dumps(pair.as_row(), sort_keys=True).encode() + b"\n")
        return digest.hexdigest()


EXAMPLES = 20
