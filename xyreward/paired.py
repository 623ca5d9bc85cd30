"""Measurements of one item set against each other: two policies, two metrics, two conditions.

    label_tests            did a label change between two policies, beyond chance: exact tests, Holm
    co_movement            do gains on one metric come with gains on another
    picking_writing_gap    does a policy pick the goal-focused answer where it does not write one

Not here: means and their paired changes (`metrics.measure`), intervals (`stats.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

import numpy as np

from xyreward.evaluation import Evaluation
from xyreward.metrics import Metric, check_comparable, column, metrics_of
from xyreward.stats import Column, Estimate, Floats, flip_test, holm, means, of_totals

FAMILY = (
    "stated_solution",
    "intended_solution",
    "focus_intended",
    "misconception",
    "control_direct",
)
"""The labels that are tested together, and corrected for being five. The other metrics follow from them
(focus shares sum to 1) or are no labels; to test those as well would only make each test weaker."""


@dataclass(frozen=True)
class LabelTest:
    """Whether a label changed between two policies on the same items."""

    metric: Metric
    n: int
    """Items judged both times."""
    gained: int
    """Items that went up, e.g. from no to yes; of several answers, those judged both times, their sum."""
    lost: int
    """Items that went down."""
    p: float
    """Exact, over clusters (`stats.flip_test`). In (0, 1]; small: not by chance. A cluster's change is the
    sum over its answers."""
    p_rows: float
    """The same with items taken for independent: McNemar's exact test. Too small where clusters have
    several items; shown because it is what others report."""
    p_holm: float = 1.0
    """`p`, corrected for the family of tests (`stats.holm`)."""


def label_tests(
    before: Evaluation, after: Evaluation, keys: Sequence[str] = FAMILY
) -> list[LabelTest]:
    """Test each metric; those measured on no item both times are left out.

    Which answer to an item is set against which of the other policy's is arbitrary where there are several;
    so their changes are summed up first, which is the same whichever are.

    Raises:
        ValueError: the evaluations are not comparable, there is no such metric, or one is not made of
            labels (its changes are not multiples of 0.5).
    """
    check_comparable(before, after)
    tests = []
    for metric in metrics_of(keys):
        items = _item_changes(metric, before, after)
        changes = list(items.values())
        if changes:
            tests.append(
                LabelTest(
                    metric,
                    n=len(changes),
                    gained=sum(change > 0 for change in changes),
                    lost=sum(change < 0 for change in changes),
                    p=flip_test(changes, _clusters_of(before, items)),
                    p_rows=flip_test(changes),
                )
            )
    corrected = holm({test.metric.key: test.p for test in tests})
    return [
        LabelTest(t.metric, t.n, t.gained, t.lost, t.p, t.p_rows, corrected[t.metric.key])
        for t in tests
    ]


CO_MOVING = ("intended_solution", "focus_intended", "misconception")


@dataclass(frozen=True)
class CoMovement:
    """What happened to one metric where another improved, over items measured both times.

    An item improves where its value moves to what is `better` for the metric (up, where neither is); of
    several answers their sum.
    """

    first: Metric
    second: Metric
    table: Mapping[tuple[int, int], int]
    """(direction of the first, of the second) -> items; -1 worse, 0 unchanged, 1 improved. All nine."""
    improved_too: Estimate | None
    """Share of items on which the second improved, of those on which the first did. In [0, 1]."""
    worsened: Estimate | None
    """Share of items on which the second got worse, of those on which the first improved."""
    improved_otherwise: Estimate | None
    """Share of items on which the second improved, of those on which the first did not: what
    `improved_too` is to be held against."""
    correlation: Estimate | None
    """Pearson's, of the two directions over all items, in [-1, 1]. None where one never changed."""


def co_movement(
    before: Evaluation, after: Evaluation, keys: Sequence[str] = CO_MOVING, *, seed: int = 0
) -> list[CoMovement]:
    """Each pair of metrics that were measured on the same items.

    Raises:
        ValueError: the evaluations are not comparable, or there is no such metric.
    """
    check_comparable(before, after)
    directions = [
        (
            metric,
            {
                item: _direction(metric, change)
                for item, change in _item_changes(metric, before, after).items()
            },
        )
        for metric in metrics_of(keys)
    ]
    found = []
    for (first, xs), (second, ys) in combinations(directions, 2):
        items = [item for item in xs if item in ys]
        if not items:
            continue
        both = [(xs[item], ys[item]) for item in items]
        names = _clusters_of(before, items)
        table = Counter(both)
        too, worse, otherwise = means(
            [
                Column([float(y > 0) if x > 0 else None for x, y in both], (0, 1)),
                Column([float(y < 0) if x > 0 else None for x, y in both], (0, 1)),
                Column([None if x > 0 else float(y > 0) for x, y in both], (0, 1)),
            ],
            names,
            expand=True,
            seed=seed,
        )
        moments = [(1, x, y, x * x, y * y, x * y) for x, y in both]
        found.append(
            CoMovement(
                first,
                second,
                {(x, y): table[x, y] for x in (-1, 0, 1) for y in (-1, 0, 1)},
                too,
                worse,
                otherwise,
                of_totals(moments, _pearson, names, expand=True, seed=seed),
            )
        )
    return found


def _pearson(totals: Floats) -> Floats:
    """Totals [..., 6] of 1, x, y, xx, yy, xy to the correlation of x and y."""
    n, x, y, xx, yy, xy = np.moveaxis(totals, -1, 0)
    correlation: Floats = (n * xy - x * y) / np.sqrt((n * xx - x * x) * (n * yy - y * y))
    return correlation


@dataclass(frozen=True)
class Gap:
    """Knowing against saying, over items with both: paired by item."""

    picking: Estimate
    """Share of items on which the goal-focused answer was picked. In [0, 1]."""
    writing: Estimate
    """Share of an item's written answers that do what `writing` names, mean over items. In [0, 1]."""
    gap: Estimate
    """Picking minus writing, in [-1, 1]; above 0: it picks what it does not write."""
    picked_though_not_written: Estimate | None
    """Share picked, of items none of whose written answers does. None where there are none."""


def picking_writing_gap(
    evaluation: Evaluation,
    *,
    picking: str = "picking",
    writing: str = "focus_intended",
    seed: int = 0,
) -> Gap | None:
    """How much more often a policy picks the goal-focused answer than it writes one.

    It picks once per item: several written answers to an item are averaged first.

    Args:
        picking, writing: keys of metrics. Writing: that the answer as a whole is about the intended
            request, which is what a goal-focused answer is picked for.

    Returns:
        None where no item has both.

    Raises:
        ValueError: there is no such metric.
    """
    both = _picked_and_written(evaluation, picking, writing)
    found = means(
        [
            Column([p for p, _ in both.values()], (0, 1)),
            Column([w for _, w in both.values()], (0, 1)),
            Column([p - w for p, w in both.values()], (-1, 1)),
            Column([p if w == 0 else None for p, w in both.values()], (0, 1)),
        ],
        _clusters_of(evaluation, both),
        expand=True,
        seed=seed,
    )
    if found[0] is None or found[1] is None or found[2] is None:
        return None
    return Gap(found[0], found[1], found[2], found[3])


def gap_change(
    before: Evaluation,
    after: Evaluation,
    *,
    picking: str = "picking",
    writing: str = "focus_intended",
    seed: int = 0,
) -> Estimate | None:
    """The change of the picking-writing gap, in [-2, 2], paired by item; None where none has both.

    Raises:
        ValueError: the evaluations are not comparable, or there is no such metric.
    """
    check_comparable(before, after)
    old, new = (
        {item: p - w for item, (p, w) in _picked_and_written(one, picking, writing).items()}
        for one in (before, after)
    )
    changes = {item: new[item] - gap for item, gap in old.items() if item in new}
    column = Column(list(changes.values()), (-2, 2))
    return means([column], _clusters_of(before, changes), expand=True, seed=seed)[0]


def _picked_and_written(
    evaluation: Evaluation, picking: str, writing: str
) -> dict[str, tuple[float, float]]:
    """Item -> its pick, and the mean over its answers of what was written; only items with both."""
    picked, written = (
        _by_item(evaluation, column(metric, evaluation))
        for metric in metrics_of((picking, writing))
    )
    return {
        item: (fmean(picked[item]), fmean(values))
        for item, values in written.items()
        if item in picked
    }


def _by_item(evaluation: Evaluation, values: Sequence[float | None]) -> dict[str, list[float]]:
    """Item -> the values of its answers, those that were measured; only items with some."""
    found: dict[str, list[float]] = {}
    for row, value in zip(evaluation.rows, values, strict=True):
        if value is not None:
            found.setdefault(row.item_id, []).append(value)
    return found


def _clusters_of(evaluation: Evaluation, items: Iterable[str]) -> list[str]:
    clusters = {row.item_id: row.cluster for row in evaluation.rows}
    return [clusters[item] for item in items]


def _item_changes(metric: Metric, before: Evaluation, after: Evaluation) -> dict[str, float]:
    """Item -> the change of the sum over its answers that were measured both times; only items with some."""
    pairs = zip(column(metric, before), column(metric, after), strict=True)
    changes = [None if a is None or b is None else b - a for a, b in pairs]
    return {item: math.fsum(several) for item, several in _by_item(before, changes).items()}


def _direction(metric: Metric, change: float) -> int:
    up = (change > 0) - (change < 0)
    return -up if metric.better == "lower" else up
