"""How much of the spread of labels comes from the judge and not from the answers.

Needs several votes on each answer: a judge with `votes=3` or more, a panel, or evaluations of the same
answers repeated. A panel's share contains that its members differ, not only that each wavers.

Not here: whether the judge is right (agreement with people); a judge may be steady and wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from xyreward.evaluation import Evaluation, Row
from xyreward.items import ItemKind
from xyreward.stats import Estimate, Floats, of_totals
from xyreward.verdict import FOCUS_VALUES

Label = Literal["has_stated_solution", "has_intended_solution", "focus", "identifies_misconception"]
LABELS: tuple[Label, ...] = (
    "has_stated_solution",
    "has_intended_solution",
    "focus",
    "identifies_misconception",
)


@dataclass(frozen=True)
class JudgeNoise:
    """The judge's part of the variance of one label."""

    label: Label
    n: int
    """Answers with at least two votes."""
    votes: float
    """Mean votes per answer."""
    share: Estimate | None
    """Of the variance of a single vote. 0: votes on one answer always agree; 1: as if cast without
    looking at the answer (above 1 by chance only). None where all votes on all answers agree."""
    share_of_mean: float | None
    """Of the variance of the mean of `votes` votes."""


def judge_noise(
    evaluations: Sequence[Evaluation], *, kind: ItemKind | None = None, seed: int = 0
) -> list[JudgeNoise]:
    """The judge's share of each label's variance.

    With p_i the share of k_i votes on answer i for a label and q_i = 1 - p_i, the variance among votes
    on one answer is W = sum(k_i p_i q_i) / sum(k_i - 1); for two votes or more on each it is the mean
    of p(1 - p), made unbiased by k / (k - 1). The variance of all votes is T = P (1 - P), P the share
    over all. W / T is the judge's share: one minus kappa of Fleiss & Cuzick (1979, Applied Psychological
    Measurement 3:537-542), which for equally many votes is Fleiss' kappa, one minus the intraclass
    correlation. For focus, variances are summed over its four values. Of the mean of k votes the
    judge's share is (W/k) / (T - W + W/k).

    Args:
        evaluations: one with several votes, or repeats: of the same answers by the same judge.
        kind: count only answers to such items.

    Returns:
        One per label; empty where no answer has two votes.

    Raises:
        ValueError: repeats are of other items, other answers or another judge; or probabilities are
            not shares of votes (a panel with a local judge).
    """
    if not evaluations:
        return []
    _same_answers(evaluations)
    rows: list[tuple[Row, ...]] = [
        group
        for group in zip(*(e.rows for e in evaluations), strict=True)
        if kind in (None, group[0].kind) and sum(map(_number_of_votes, group)) >= 2
    ]
    found = []
    for label in LABELS:
        totals: list[list[float]] = []
        clusters: list[str] = []
        for group in rows:
            counts = sum((_votes(row, label) for row in group), np.zeros(_values(label)))
            k = float(counts.sum())
            within = k - float(counts @ counts) / k  # k times the sum of p(1 - p)
            totals.append([within, k - 1, *counts.tolist()])
            clusters.append(group[0].cluster)
        if not totals:
            break
        k = float(sum(sum(t[2:]) for t in totals)) / len(totals)
        share = of_totals(totals, _share, clusters, expand=True, seed=seed)
        of_mean = None
        if share is not None:
            one = min(1.0, share.value)  # above 1 by chance: then answers do not differ at all
            of_mean = (one / k) / (1 - one + one / k)
        found.append(JudgeNoise(label, len(totals), k, share, of_mean))
    return found


def _share(totals: Floats) -> Floats:
    """Totals [..., 2 + values] of within, k - 1 and votes per value to W / T."""
    votes = totals[..., 2:]
    p = votes / votes.sum(axis=-1, keepdims=True)
    share: Floats = (totals[..., 0] / totals[..., 1]) / (1 - (p * p).sum(axis=-1))
    return share


def _values(label: Label) -> int:
    return len(FOCUS_VALUES) if label == "focus" else 2


def _number_of_votes(row: Row) -> int:
    """0 where judging failed."""
    return int(row.verdict.get("votes", 1)) if row.verdict else 0


def _votes(row: Row, label: Label) -> Floats:
    """Votes per value of the label; all 0 where judging failed."""
    k = _number_of_votes(row)
    if not row.verdict:
        return np.zeros(_values(label))
    # One vote says its label: its p may be a fitted head's estimate.
    shares: Any = row.verdict["p"][label] if k > 1 else row.verdict[label]
    if label != "focus":
        votes = np.array([float(shares), 1 - float(shares)])
    elif isinstance(shares, Mapping):
        votes = np.array([float(shares[value]) for value in FOCUS_VALUES])
    else:
        votes = np.array([float(shares == value) for value in FOCUS_VALUES])
    votes = votes * k
    if np.abs(votes - np.round(votes)).max() > 1e-6:
        raise ValueError(
            f"{label} of item {row.item_id!r} has the probability {shares!r}, which is no share of {k} "
            "votes; a panel with a judge that gives probabilities has no votes to count"
        )
    return np.round(votes)


def _same_answers(evaluations: Sequence[Evaluation]) -> None:
    first = evaluations[0]
    for other in evaluations[1:]:
        for name in ("judge", "rubric_version"):
            a, b = getattr(first, name), getattr(other, name)
            if a != b:
                raise ValueError(f"the repeats differ in {name}: {a!r} and {b!r}")
        if [(r.item_id, r.answer) for r in first.rows] != [
            (r.item_id, r.answer) for r in other.rows
        ]:
            raise ValueError(
                "the repeats are not of the same answers; what differs would count as the judge's"
            )
