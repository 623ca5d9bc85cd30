"""Several outcomes for one answer become one: votes of one judge, or the members of a panel.

A model's sampling is not deterministic, so asking three times says how sure it is: `p` is the share of
votes. Hard labels go to the majority. Where votes are tied, the label that is worth least to the reward
wins: no solution, no identified misconception (on a control: an invented one), and of tied focuses the
one that pays least. A policy then gains nothing from an answer that splits the judges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from xyreward.items import ItemKind
from xyreward.verdict import (
    FOCUS_VALUES,
    Focus,
    JudgeFailure,
    LabelProbabilities,
    Labels,
    Usage,
    Verdict,
    odd_combinations,
)

Outcome = Verdict | JudgeFailure
YesNo = Literal["has_stated_solution", "has_intended_solution", "identifies_misconception"]

_WORST_FOCUS_FIRST: dict[ItemKind, tuple[Focus, ...]] = {
    "xy": ("neither", "stated", "balanced", "intended"),
    "control": ("neither", "intended", "balanced", "stated"),
}


def combine(
    outcomes: Sequence[Outcome], kind: ItemKind, *, judge: str, rubric_version: str
) -> Outcome:
    """One outcome of one or more for the same answer.

    Args:
        outcomes: length >= 1.
        kind: of the item; decides which of two tied labels is worth less.
        judge: name of the whole.
        rubric_version: of the whole.

    Returns:
        A Verdict where more than half of the outcomes are verdicts; those that failed are counted in
        its flags (`failed_votes:1`). Else a JudgeFailure of the commonest kind. Usage and cost are sums
        over all, failed ones included; a cost is None as soon as one is unknown.
    """
    verdicts = [o for o in outcomes if isinstance(o, Verdict)]
    failures = [o for o in outcomes if isinstance(o, JudgeFailure)]
    usage = sum((o.usage for o in outcomes), Usage())
    costs = [o.cost_usd for o in outcomes]
    cost = None if any(c is None for c in costs) else sum(c for c in costs if c is not None)
    if len(verdicts) <= len(failures):
        commonest = Counter(f.kind for f in failures).most_common(1)[0][0]
        first = next(f for f in failures if f.kind == commonest)
        detail = first.detail
        if len(outcomes) > 1:
            detail = f"{len(failures)} of {len(outcomes)} votes failed, one with: {detail}"
        return JudgeFailure(commonest, detail, first.raw_text, usage, cost)

    labels = _majority(verdicts, kind)
    # The one that agrees most speaks for all.
    spokesman = max(verdicts, key=lambda v: _agreement(v.labels, labels))
    flags = dict.fromkeys(odd_combinations(labels))
    for one in verdicts:
        # What is odd about one vote's labels is not about the majority's.
        flags |= dict.fromkeys(f for f in one.flags if f not in odd_combinations(one.labels))
    if failures:
        flags[f"failed_votes:{len(failures)}"] = None
    return Verdict(
        labels=labels,
        p=_mean(verdicts),
        judge=judge,
        rubric_version=rubric_version,
        suggestions=spokesman.suggestions,
        reason=spokesman.reason,
        grounded=all(v.grounded for v in verdicts),
        votes=sum(v.votes for v in verdicts),
        usage=usage,
        cost_usd=cost,
        cached=all(v.cached for v in verdicts),
        flags=tuple(flags),
    )


def _majority(verdicts: Sequence[Verdict], kind: ItemKind) -> Labels:
    def yes(name: YesNo, *, on_tie: bool) -> bool:
        ayes = sum(getattr(v.labels, name) for v in verdicts)
        return on_tie if 2 * ayes == len(verdicts) else 2 * ayes > len(verdicts)

    votes = Counter(v.labels.focus for v in verdicts)
    most = max(votes.values())
    return Labels(
        has_stated_solution=yes("has_stated_solution", on_tie=False),
        has_intended_solution=yes("has_intended_solution", on_tie=False),
        focus=next(f for f in _WORST_FOCUS_FIRST[kind] if votes[f] == most),
        identifies_misconception=yes("identifies_misconception", on_tie=kind == "control"),
    )


def _mean(verdicts: Sequence[Verdict]) -> LabelProbabilities:
    n = len(verdicts)

    def share(name: YesNo) -> float:
        total: float = sum(getattr(v.p, name) for v in verdicts)
        return min(1.0, total / n)

    return LabelProbabilities(
        has_stated_solution=share("has_stated_solution"),
        has_intended_solution=share("has_intended_solution"),
        focus={f: min(1.0, sum(v.p.focus[f] for v in verdicts) / n) for f in FOCUS_VALUES},
        identifies_misconception=share("identifies_misconception"),
    )


def _agreement(one: Labels, other: Labels) -> int:
    return (
        (one.has_stated_solution == other.has_stated_solution)
        + (one.has_intended_solution == other.has_intended_solution)
        + (one.focus == other.focus)
        + (one.identifies_misconception == other.identifies_misconception)
    )
