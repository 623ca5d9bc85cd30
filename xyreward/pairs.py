"""Preference pairs from reference answers of known kind, in the columns that TRL's trainers read.

    item with a hidden goal   goal_focused over literal, passing_mention, dump, wrong_goal
    control                   direct over overcorrecting

Controls keep the training from teaching distrust of every question.

Not here: pairs from sampled answers, and the audit of a pair set.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from xyreward.errors import ConfigError, DataError
from xyreward.items import XY_KINDS, AnswerKind, Item, ItemKind, Reference, text_hash
from xyreward.reward import parts
from xyreward.verdict import LabelProbabilities

REJECTED_KINDS: tuple[AnswerKind, ...] = ("literal", "passing_mention", "dump", "wrong_goal")


@dataclass(frozen=True, slots=True)
class Pair:
    """One preference: to this prompt, `chosen` is better than `rejected`."""

    id: str
    """Stable: the hash of item id and both answers."""
    item_id: str
    item_kind: ItemKind
    split: str
    prompt: tuple[Mapping[str, str], ...]
    """Chat messages; the last is the user's."""
    chosen: str
    rejected: str
    chosen_kind: AnswerKind
    rejected_kind: AnswerKind
    source: str
    licence: str

    def as_row(self) -> dict[str, Any]:
        """TRL's explicit-prompt conversational form, with where it came from.

        Explicit because TRL splits implicit prompts at the longest common prefix of the two
        answers.
        """
        return {
            "prompt": [dict(message) for message in self.prompt],
            "chosen": [{"role": "assistant", "content": self.chosen}],
            "rejected": [{"role": "assistant", "content": self.rejected}],
            "id": self.id,
            "item_id": self.item_id,
            "item_kind": self.item_kind,
            "split": self.split,
            "chosen_kind": self.chosen_kind,
            "rejected_kind": self.rejected_kind,
            "source": self.source,
            "licence": self.licence,
        }


@dataclass(frozen=True)
class PairSet:
    """Pairs and what was left out, by reason."""

    pairs: tuple[Pair, ...]
    dropped: Mapping[str, int]
    """Reason -> how many. With `pairs` this adds up to all pairs for which an item has both
    answers."""
    cut: int = 0
    """Pairs with an answer longer than the trainer's `max_length`; 0 before that is known."""

    @property
    def control_share(self) -> float:
        """Share of pairs from controls, in [0, 1]."""
        controls = sum(pair.item_kind == "control" for pair in self.pairs)
        return controls / len(self.pairs) if self.pairs else 0.0

    @property
    def hash(self) -> str:
        """sha256 (hex) over the rows in their order: also over prompts, which ids leave out."""
        rows = "\n".join(json.dumps(pair.as_row(), sort_keys=True) for pair in self.pairs)
        return hashlib.sha256(rows.encode()).hexdigest()


def build_pairs(
    items: Sequence[Item],
    *,
    split: str,
    rejected_kinds: Sequence[AnswerKind] = REJECTED_KINDS,
    control_share: float = 0.25,
    max_pairs: int | None = None,
    seed: int = 0,
) -> PairSet:
    """Make preference pairs of reference answers.

    A chosen answer must not be marked unsafe. Where it carries labels, they must say what it should
    teach (intended solution, intended focus, misconception identified; for controls a stated
    solution and no invented misconception), and where both sides do, the rejected one must be worth
    less. A pair whose two sides read the same is dropped.

    Args:
        items: the items of one side of the splits.
        split: its name, recorded in every pair.
        rejected_kinds: kinds that goal-focused answers are preferred to, most important first: with
            `max_pairs`, every item's pair of the first kind is taken before any of the second.
        control_share: share of pairs from controls, in [0, 1). Fewer where there are not enough.
        max_pairs: at most this many pairs, > 0. None: all.
        seed: decides which pairs are taken where there are too many, and their order.

    Raises:
        ConfigError: a kind that cannot be rejected or is given twice, a share outside [0, 1), or
            no pairs wanted.
        DataError: no pair can be made of these items.
    """
    possible = XY_KINDS - {"goal_focused"}
    if (
        isinstance(rejected_kinds, str)
        or not rejected_kinds
        or not possible.issuperset(rejected_kinds)
        or len(set(rejected_kinds)) < len(rejected_kinds)
    ):
        raise ConfigError(
            f"rejected_kinds is {rejected_kinds!r}, expected a list of some of "
            f"{', '.join(sorted(possible))}, each once"
        )
    if not 0 <= control_share < 1:
        raise ConfigError(f"control_share is {control_share}, expected in [0, 1)")
    if max_pairs is not None and max_pairs < 1:
        raise ConfigError(f"max_pairs is {max_pairs}, expected > 0, or None for all")

    dropped: Counter[str] = Counter()
    ranked: list[tuple[int, str, Pair]] = []
    controls: list[tuple[str, Pair]] = []
    for item in items:
        if item.kind == "control":
            if pair := _pair(item, "direct", "overcorrecting", split, dropped):
                controls.append((_order(pair, seed), pair))
            continue
        for rank, kind in enumerate(rejected_kinds):
            if pair := _pair(item, "goal_focused", kind, split, dropped):
                ranked.append((rank, _order(pair, seed), pair))
    ranked.sort(key=lambda entry: entry[:2])
    controls.sort(key=lambda entry: entry[0])

    xy_wanted, controls_wanted = _counts(len(ranked), len(controls), control_share, max_pairs)
    dropped["above max_pairs"] += len(ranked) - xy_wanted
    dropped["above control_share"] += len(controls) - controls_wanted
    pairs = [pair for _, _, pair in ranked[:xy_wanted]]
    pairs += [pair for _, pair in controls[:controls_wanted]]
    if not pairs:
        raise DataError(
            [
                f"no pair can be made of {len(items)} {split} items: an xy item needs a "
                f"goal_focused reference answer and one of {', '.join(rejected_kinds)}, a control "
                f"needs direct and overcorrecting; dropped: {dict(+dropped) or 'nothing'}"
            ]
        )
    # One order for all: pairs of one kind in a row would give batches of one kind.
    pairs.sort(key=lambda pair: _order(pair, seed))
    return PairSet(tuple(pairs), MappingProxyType(dict(+dropped)))


def _counts(xy: int, controls: int, share: float, limit: int | None) -> tuple[int, int]:
    """How many pairs of either kind: the share holds as long as there are controls."""
    limit = limit if limit is not None else xy + controls
    controls = min(controls, round(share * limit), round(xy * share / (1 - share)))
    return min(xy, limit - controls), controls


def _order(pair: Pair, seed: int) -> str:
    return text_hash(f"{seed} {pair.id}")


def _pair(
    item: Item,
    chosen_kind: AnswerKind,
    rejected_kind: AnswerKind,
    split: str,
    dropped: Counter[str],
) -> Pair | None:
    chosen, rejected = item.reference(chosen_kind), item.reference(rejected_kind)
    if chosen is None or rejected is None:
        return None
    reason = _objection(item, chosen, rejected)
    if reason:
        dropped[reason] += 1
        return None
    return Pair(
        id=text_hash(f"{item.id}\n{chosen.text}\n{rejected.text}")[:16],
        item_id=item.id,
        item_kind=item.kind,
        split=split,
        prompt=tuple(item.messages),
        chosen=chosen.text,
        rejected=rejected.text,
        chosen_kind=chosen_kind,
        rejected_kind=rejected_kind,
        source=item.source,
        licence=", ".join(sorted({r.licence or "unknown" for r in (chosen, rejected)})),
    )


def _objection(item: Item, chosen: Reference, rejected: Reference) -> str | None:
    if chosen.unsafe:
        return "chosen is unsafe"
    if text_hash(chosen.text) == text_hash(rejected.text):
        return "both sides read the same"
    labels = chosen.labels
    if labels is None:
        return None
    if item.kind == "control":
        good = labels.has_stated_solution and not labels.identifies_misconception
    else:
        good = (
            labels.has_intended_solution
            and labels.focus == "intended"
            and labels.identifies_misconception
        )
    if not good:
        return "chosen is not labelled as what it should teach"
    if rejected.labels is not None and _worth(rejected, item.kind) >= _worth(chosen, item.kind):
        return "rejected is labelled as good as chosen"
    return None


def _worth(reference: Reference, kind: ItemKind) -> float:
    assert reference.labels is not None
    return sum(parts(LabelProbabilities.certain(reference.labels.as_labels()), kind).values())
