"""Metrics by source, domain, language or kind of item, and how often judging failed.

A group of few clusters tells nothing by itself: such groups are pooled, and what is measured on too few
even then is named and not shown.

Not here: the metrics themselves (`metrics.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from xyreward.evaluation import Evaluation, Row
from xyreward.items import ITEM_KINDS, ItemKind
from xyreward.metrics import Line, Metric, check_comparable, column, measure, metrics_of
from xyreward.stats import FEW, Column, Estimate, means

Dimension = Literal["source", "domain", "language", "kind"]

KEYS = (
    "stated_solution",
    "intended_solution",
    "focus_intended",
    "misconception",
    "goal_served",
    "control_direct",
    "control_invents",
)


@dataclass(frozen=True)
class Group:
    """The metrics of the items that share a source, a domain, a language or a kind."""

    name: str | None
    """As the items have it, untrusted; None: pooled from small groups."""
    items: int
    clusters: int
    lines: tuple[Line, ...]
    """As of `measure`; n and intervals are in the estimates."""
    too_few: tuple[str, ...] = ()
    """Keys of metrics that were measured on fewer than `few` clusters of the group, of two evaluations both
    times."""
    pooled: tuple[str, ...] = ()
    """Names of the groups that were pooled."""


def breakdown(
    before: Evaluation,
    after: Evaluation | None = None,
    *,
    by: Dimension,
    keys: Sequence[str] = KEYS,
    few: int = FEW,
    whole: Sequence[Line] = (),
    seed: int = 0,
) -> list[Group]:
    """The metrics of every group; with two evaluations also their paired changes.

    Groups with fewer than `few` clusters are pooled into one, which comes last (kinds are not: their
    metrics have nothing in common). The others come by size, then by name.

    Args:
        by: what the items of a group share.
        keys: of the metrics.
        few: clusters below which a group is pooled, and a metric not shown.
        whole: what `measure` gave of all items. A group that has all items of a metric takes its line from
            there, so that one figure does not get two intervals.
        seed: of the resampling.

    Raises:
        ValueError: the evaluations are not comparable, or there is no such metric.
    """
    metrics = metrics_of(keys)
    if after is not None:
        check_comparable(before, after)
    positions: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(before.rows):
        positions[getattr(row, by)].append(i)
    size = {name: _clusters(before, where) for name, where in positions.items()}
    small = sorted(name for name in size if size[name] < few and by != "kind")
    if len(small) == 1:
        small = []  # a pool of one hides its name and gains nothing; its figures are withheld below
    large = sorted(set(size) - set(small), key=lambda name: (-len(positions[name]), name))
    groups: list[tuple[str | None, list[int]]] = [(name, positions[name]) for name in large]
    if small:
        groups.append((None, sorted(i for name in small for i in positions[name])))
    lines_of_all = {line.metric.key: line for line in whole}
    everywhere = Counter(row.kind for row in before.rows)
    found = []
    for group, where in groups:
        old = _only(before, where)
        new = _only(after, where) if after is not None else None
        enough: list[Metric] = []
        too_few: list[Metric] = []
        for metric in metrics:
            if metric.part not in before.parts:
                continue
            clusters = _measured_on(metric, old, new)
            if clusters is not None:
                (enough if clusters >= few else too_few).append(metric)
        here = Counter(row.kind for row in old.rows)
        lines = {
            metric.key: lines_of_all[metric.key]
            for metric in enough
            if metric.key in lines_of_all and _of(metric, here) == _of(metric, everywhere)
        }
        rest = [metric for metric in enough if metric.key not in lines]
        lines |= {line.metric.key: line for line in measure(old, new, metrics=rest, seed=seed)}
        found.append(
            Group(
                name=group,
                items=len({row.item_id for row in old.rows}),
                clusters=_clusters(before, where),
                lines=tuple(lines[metric.key] for metric in enough if metric.key in lines),
                too_few=tuple(metric.key for metric in too_few),
                pooled=tuple(small) if group is None else (),
            )
        )
    return found


def _measured_on(metric: Metric, old: Evaluation, new: Evaluation | None) -> int | None:
    """Clusters that the metric was measured on, of two evaluations both times; None: on nothing at all."""
    columns = [column(metric, one) for one in (old, new) if one is not None]
    values = list(zip(old.rows, *columns, strict=True))
    if all(value is None for _, *of_row in values for value in of_row):
        return None
    return len({row.cluster for row, *of_row in values if None not in of_row})


def _of(metric: Metric, rows: Mapping[ItemKind, int]) -> int:
    """How many rows the metric is about, of those there are of each kind."""
    return sum(rows.values()) if metric.kind is None else rows.get(metric.kind, 0)


def _clusters(evaluation: Evaluation, where: Sequence[int]) -> int:
    return len({evaluation.rows[i].cluster for i in where})


def _only(evaluation: Evaluation, where: Sequence[int]) -> Evaluation:
    return replace(evaluation, rows=tuple(evaluation.rows[i] for i in where))


@dataclass(frozen=True)
class FailureRates:
    """How often an answer to one kind of item got no labels. Shares in [0, 1], lower is better."""

    kind: ItemKind
    failed: Estimate
    """The judge gave no verdict, for whatever reason."""
    abstained: Estimate
    """The judge refused to judge (kind of failure `refused`); among `failed`."""


def failure_rates(evaluation: Evaluation, *, seed: int = 0) -> list[FailureRates]:
    """Failures and abstentions of the judge with intervals, per kind of item; counts: `failures`.

    The policy's own abstentions are metrics: `empty`, `no_solution`. How much failures could change a
    metric: `failure_bounds`, `failure_bounds_of_change`.
    """

    def judged(row: Row, yes: bool) -> float | None:
        return float(yes) if row.verdict or row.failure else None

    def refused(row: Row) -> bool:
        return row.failure is not None and row.failure["kind"] == "refused"

    found = []
    for kind in ITEM_KINDS:
        rows = [row for row in evaluation.rows if row.kind == kind]
        failed, abstained = means(
            [
                Column([judged(r, r.failure is not None) for r in rows], (0, 1)),
                Column([judged(r, refused(r)) for r in rows], (0, 1)),
            ],
            [row.cluster for row in rows],
            expand=True,
            seed=seed,
        )
        if failed and abstained:
            found.append(FailureRates(kind, failed, abstained))
    return found
