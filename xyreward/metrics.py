"""Metrics of an evaluation's rows, with intervals; what failures leave open; what changed between two.

    implicit reward   needs two policies: the change in summed log-probability, tuned minus base, of
                      the better answer minus that of the worse one. DPO's own measure of what it
                      learned (Rafailov et al. 2023, arXiv:2305.18290), without its factor beta.

Not here: how rows come about (`evaluation.py`), intervals (`stats.py`), tables (`report.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xyreward.answering import EvaluationPart
from xyreward.evaluation import Evaluation, Row, wins
from xyreward.items import ITEM_KINDS, ItemKind
from xyreward.policy import LogProb
from xyreward.shown import KINDS, percent
from xyreward.stats import Column, Estimate, means
from xyreward.words import is_empty


@dataclass(frozen=True, slots=True)
class Metric:
    """How a row becomes a number, and how to read it."""

    key: str
    title: str
    kind: ItemKind | None
    """Which items it is about; None: all."""
    part: EvaluationPart
    value: Callable[[Row], float | None]
    """None: not measured on this row."""
    better: str
    """`higher`, `lower`, or empty where neither is better in itself."""
    bounds: tuple[float, float] | None = (0.0, 1.0)
    unit: str = "%"


def _label(name: str) -> Callable[[Row], float | None]:
    return lambda row: float(row.verdict[name]) if row.verdict else None


def _focus(name: str) -> Callable[[Row], float | None]:
    return lambda row: float(row.verdict["focus"] == name) if row.verdict else None


def _paper_focus(name: str) -> Callable[[Row], float | None]:
    """Among answers with one of the paper's three focuses; `neither`, which is ours, is left out."""
    of_four = _focus(name)
    return lambda row: None if row.verdict and row.verdict["focus"] == "neither" else of_four(row)


def _direct(row: Row) -> float | None:
    if not row.verdict:
        return None
    return float(row.verdict["has_stated_solution"] and not row.verdict["identifies_misconception"])


def _no_solution(row: Row) -> float | None:
    if not row.verdict:
        return None
    v = row.verdict
    return float(not v["has_stated_solution"] and not v["has_intended_solution"])


def _empty(row: Row) -> float | None:
    return None if row.answer is None else float(is_empty(row.answer))


def _goal_served(row: Row) -> float | None:
    if not row.verdict:
        return None
    return float(row.verdict["has_intended_solution"] and row.verdict["focus"] == "intended")


def _prefers(row: Row) -> float | None:
    if row.better is None or row.worse is None:
        return None
    return wins(row.better.per_token - row.worse.per_token)


def _picks_by_margin(row: Row) -> float | None:
    return None if row.pick_margin is None else wins(row.pick_margin)


def _picks_nothing(row: Row) -> float | None:
    """Of policies that reply with a letter; of those whose logits are read there is no such failure."""
    if row.pick_failure is not None:
        return 1.0
    return 0.0 if row.picked is not None and row.pick_margin is None else None


def _length(row: Row) -> float | None:
    return float(len(row.answer)) if row.answer is not None else None


METRICS: tuple[Metric, ...] = (
    Metric("stated_solution", "stated solution", "xy", "writing", _label("has_stated_solution"), ""),
    Metric(
        "intended_solution", "intended solution", "xy", "writing", _label("has_intended_solution"),
        "higher",
    ),
    Metric("focus_intended", "focus intended", "xy", "writing", _focus("intended"), "higher"),
    Metric("focus_balanced", "focus balanced", "xy", "writing", _focus("balanced"), ""),
    Metric("focus_stated", "focus stated", "xy", "writing", _focus("stated"), ""),
    Metric("focus_neither", "focus neither", "xy", "writing", _focus("neither"), "lower"),
    Metric(
        "paper_focus_intended", "focus intended, of the paper's three", "xy", "writing",
        _paper_focus("intended"), "higher",
    ),
    Metric(
        "paper_focus_balanced", "focus balanced, of the paper's three", "xy", "writing",
        _paper_focus("balanced"), "",
    ),
    Metric(
        "paper_focus_stated", "focus stated, of the paper's three", "xy", "writing",
        _paper_focus("stated"), "",
    ),
    Metric(
        "misconception", "misconception identified", "xy", "writing",
        _label("identifies_misconception"), "higher",
    ),
    Metric(
        "goal_served", "intended solution and focus", "xy", "writing", _goal_served, "higher"
    ),
    Metric(
        "no_solution", "no solution (refusal, question back, ...)", "xy", "writing", _no_solution,
        "lower",
    ),
    Metric("soft_reward", "soft reward", "xy", "writing", lambda r: r.soft_reward, "higher", unit=""),
    Metric("preference", "prefers goal-focused", "xy", "preference", _prefers, "higher"),
    Metric("picking", "picks goal-focused", "xy", "picking", lambda r: r.picked, "higher"),
    Metric(
        "picking_margin", "picks goal-focused, position cancelled", "xy", "picking", _picks_by_margin,
        "higher",
    ),
    Metric("control_direct", "answers directly", "control", "writing", _direct, "higher"),
    Metric(
        "control_invents", "invents a misconception", "control", "writing",
        _label("identifies_misconception"), "lower",
    ),
    Metric(
        "control_soft_reward", "soft reward", "control", "writing", lambda r: r.soft_reward, "higher",
        unit="",
    ),
    Metric("control_preference", "prefers direct", "control", "preference", _prefers, "higher"),
    Metric("control_picking", "picks direct", "control", "picking", lambda r: r.picked, "higher"),
    Metric(
        "control_picking_margin", "picks direct, position cancelled", "control", "picking",
        _picks_by_margin, "higher",
    ),
    Metric(
        "length", "answer length", None, "writing", _length, "", bounds=None, unit="characters"
    ),
    Metric("empty", "empty answers", None, "writing", _empty, "lower"),
    Metric(
        "truncated", "answers cut off", None, "writing",
        lambda r: float(r.truncated) if r.truncated is not None else None, "lower",
    ),
    Metric("position", "picks answer A", None, "picking", lambda r: r.picked_first, ""),
    Metric("pick_failed", "picks nothing (no letter)", None, "picking", _picks_nothing, "lower"),
)  # fmt: skip


HEADLINE_PARTS = ("goal_served", "control_direct")


@dataclass(frozen=True)
class Line:
    """One line of a report: a metric of one policy, or of two and what changed between them."""

    metric: Metric
    before: Estimate | None
    after: Estimate | None = None
    change: Estimate | None = None
    """Mean paired difference, after minus before, over the items measured in both."""


def metrics_of(keys: Sequence[str]) -> tuple[Metric, ...]:
    """The metrics of these keys.

    Raises:
        ValueError: there is no such metric; the message lists those there are.
    """
    known = {metric.key: metric for metric in METRICS}
    if unknown := [key for key in keys if key not in known]:
        raise ValueError(
            f"no such metric: {', '.join(unknown)}; expected some of {', '.join(known)}"
        )
    return tuple(known[key] for key in keys)


def measure(
    before: Evaluation,
    after: Evaluation | None = None,
    *,
    metrics: Sequence[Metric] = METRICS,
    seed: int = 0,
) -> list[Line]:
    """Every metric that was measured, with intervals; with two evaluations also the paired changes.

    Raises:
        ValueError: the evaluations are of different items, judges or rubric versions.
    """
    if after is not None:
        check_comparable(before, after)
    # All columns at once: they share their resamples.
    metrics = [metric for metric in metrics if metric.part in before.parts]
    columns = []
    for metric in metrics:
        first = column(metric, before)
        columns.append(Column(first, metric.bounds))
        if after is not None:
            second = column(metric, after)
            change = [
                None if a is None or b is None else b - a
                for a, b in zip(first, second, strict=True)
            ]
            low, high = metric.bounds or (-math.inf, math.inf)
            columns.append(Column(second, metric.bounds))
            columns.append(Column(change, (low - high, high - low) if metric.bounds else None))
    found = means(columns, [row.cluster for row in before.rows], expand=True, seed=seed)
    per = 1 if after is None else 3
    lines = [Line(metric, *found[per * i : per * (i + 1)]) for i, metric in enumerate(metrics)]
    return [line for line in lines if line.before or line.after]


def column(metric: Metric, evaluation: Evaluation) -> list[float | None]:
    """The metric's value of every row; None: not measured, or not about such items."""
    value, kind = metric.value, metric.kind
    return [value(row) if kind in (None, row.kind) else None for row in evaluation.rows]


def _key(row: Row) -> tuple[str, int]:
    return row.item_id, row.answer_index


def check_comparable(before: Evaluation, after: Evaluation) -> None:
    """Refuse to compare what is not comparable.

    Raises:
        ValueError: the evaluations are of different items, judges, rubric versions or parts.
    """
    if [_key(row) for row in before.rows] != [_key(row) for row in after.rows]:
        raise ValueError(
            "the two evaluations are of different items, or numbers of answers to them"
        )
    for name in ("judge", "rubric_version", "parts"):
        a, b = getattr(before, name), getattr(after, name)
        if a != b:
            raise ValueError(f"the two evaluations differ in {name}: {a!r} and {b!r}")


@dataclass(frozen=True)
class ImplicitReward:
    """What training moved, by DPO's own measure, on one kind of item."""

    kind: ItemKind
    accuracy: Estimate
    """Share of items on which the change favours the better answer, summed log-ratio; ties half."""
    accuracy_per_token: Estimate
    """The same with log-ratios per token of the answer."""
    margin: Estimate
    """Mean change of better minus worse, in nats (sum over the answer)."""
    margin_per_token: Estimate
    """The same, in nats per token."""
    better_change: Estimate
    """Mean change of the better answer's log-probability, in nats. Below 0: displacement."""
    worse_change: Estimate


def implicit_reward(
    before: Evaluation, after: Evaluation, kind: ItemKind, *, seed: int = 0
) -> ImplicitReward | None:
    """The change from `before` to `after` in log-probabilities; None where none were measured."""
    check_comparable(before, after)
    changes: list[_Change | None] = []
    for old, new in zip(before.rows, after.rows, strict=True):
        if old.kind != kind or not (old.better and new.better and old.worse and new.worse):
            changes.append(None)
            continue
        better, worse = _change(old.better, new.better), _change(old.worse, new.worse)
        changes.append(_Change(*better, *worse))

    def column(
        value: Callable[[_Change], float], bounds: tuple[float, float] | None = None
    ) -> Column:
        return Column([None if c is None else value(c) for c in changes], bounds)

    estimates = means(
        [
            column(lambda c: wins(c.better - c.worse), (0, 1)),
            column(lambda c: wins(c.better_per_token - c.worse_per_token), (0, 1)),
            column(lambda c: c.better - c.worse),
            column(lambda c: c.better_per_token - c.worse_per_token),
            column(lambda c: c.better),
            column(lambda c: c.worse),
        ],
        [row.cluster for row in before.rows],
        expand=True,
        seed=seed,
    )
    found = [estimate for estimate in estimates if estimate is not None]
    return ImplicitReward(kind, *found) if found else None


class _Change(NamedTuple):
    """Of the log-probabilities of one item's two reference answers, in nats."""

    better: float
    better_per_token: float
    worse: float
    worse_per_token: float


def _change(old: LogProb, new: LogProb) -> tuple[float, float]:
    return new.total - old.total, new.per_token - old.per_token


@dataclass(frozen=True)
class Headline:
    """P(intended solution and intended focus | xy) + P(direct answer | control) - 1.

    In [-1, 1], higher is better. A policy that ignores the query cannot exceed 0: what it gains on one
    kind of item it loses on the other.
    """

    value: float | None
    """None: not to be had; `why` says so. It also says why there is no interval."""
    low: float | None = None
    high: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Failures:
    """Answers without labels on one kind of item."""

    kind: ItemKind
    judged: int
    failed: int
    """The judgement failed, or there was no answer to judge."""
    by_kind: Mapping[str, int]

    @property
    def missing(self) -> int:
        """Those of `failed` whose answer did not come."""
        return sum(n for kind, n in self.by_kind.items() if kind.startswith("policy_"))

    @property
    def rate(self) -> float:
        """Share of answers without labels, in [0, 1]."""
        total = self.judged + self.failed
        return self.failed / total if total else 0.0


def failures(evaluation: Evaluation) -> list[Failures]:
    """Failed judgements per kind of item, also where there are none. Empty without `writing`."""
    if "writing" not in evaluation.parts:
        return []
    out = []
    for kind in ITEM_KINDS:
        rows = [row for row in evaluation.rows if row.kind == kind]
        if not rows:
            continue
        by_kind: dict[str, int] = {}
        for row in rows:
            if row.failure:
                by_kind[row.failure["kind"]] = by_kind.get(row.failure["kind"], 0) + 1
        failed = sum(by_kind.values())
        out.append(Failures(kind, len(rows) - failed, failed, by_kind))
    return out


def failure_bounds(evaluation: Evaluation, metric: Metric) -> tuple[float, float] | None:
    """The lowest and the highest value that the metric could have, whatever failures have left unmeasured.

    Of picking: if everything that an API did not pick had been. None where no failure hides a value of this
    metric, or where it has no bounds.
    """
    rows = [row for row in evaluation.rows if metric.kind in (None, row.kind)]
    # An answer that the judge failed on may still be measured: whether it is empty, or cut off.
    failed = sum(_failed(metric, row) and metric.value(row) is None for row in rows)
    values = [value for row in rows if (value := metric.value(row)) is not None]
    if not failed or metric.bounds is None:
        return None
    total = len(values) + failed
    low, high = metric.bounds
    return (sum(values) + failed * low) / total, (sum(values) + failed * high) / total


def _failed(metric: Metric, row: Row) -> bool:
    """Whether what the metric is made from failed on this row."""
    if metric.part == "picking":
        return row.pick_failure is not None
    return metric.part == "writing" and row.failure is not None


def failure_bounds_of_change(
    before: Evaluation, after: Evaluation, metric: Metric
) -> tuple[float, float] | None:
    """The lowest and the highest paired change, whatever failures have left unmeasured before or after.

    Lowest: what failed before was highest, what failed after lowest. None as of `failure_bounds`.
    """
    if metric.bounds is None:
        return None
    lowest, highest = metric.bounds
    low = high = 0.0
    n = failed = 0
    for old, new in zip(before.rows, after.rows, strict=True):
        if metric.kind not in (None, old.kind):
            continue
        first, second = metric.value(old), metric.value(new)
        if any(
            value is None and not _failed(metric, row)
            for value, row in ((first, old), (second, new))
        ):
            continue  # not a failure: the metric leaves this answer out
        n += 1
        failed += first is None or second is None
        low += (lowest if second is None else second) - (highest if first is None else first)
        high += (highest if second is None else second) - (lowest if first is None else first)
    return (low / n, high / n) if failed else None


def headline(evaluation: Evaluation, *, max_failure_rate: float = 0.05, seed: int = 0) -> Headline:
    """One number that a policy which ignores the query cannot push above 0. See `Headline`."""
    lines = measure(evaluation, metrics=metrics_of(HEADLINE_PARTS), seed=seed)
    return headlines(lines, evaluation, max_failure_rate=max_failure_rate)["before"]


def headline_change(
    before: Evaluation, after: Evaluation, *, max_failure_rate: float = 0.05, seed: int = 0
) -> Headline:
    """The change of the headline, in [-2, 2], from paired differences by item."""
    lines = measure(before, after, metrics=metrics_of(HEADLINE_PARTS), seed=seed)
    return headlines(lines, before, after, max_failure_rate=max_failure_rate)["change"]


def headlines(
    lines: Sequence[Line],
    before: Evaluation,
    after: Evaluation | None = None,
    *,
    max_failure_rate: float = 0.05,
) -> dict[str, Headline]:
    """The headline of each policy and its change, from what `measure` gave of the same evaluations.

    Nothing is drawn anew, so that the headline's interval is made of the intervals of its two lines.

    Returns:
        `before`; with two evaluations also `after` and `change`.
    """
    known = {line.metric.key: line for line in lines}
    served, direct = (known.get(key) for key in HEADLINE_PARTS)

    def one(name: str, evaluation: Evaluation) -> Headline:
        first: Estimate | None = getattr(served, name, None)
        second: Estimate | None = getattr(direct, name, None)
        if why := _why_none(evaluation, first, second, max_failure_rate):
            return Headline(None, why=why)
        return headline_of(first, second, -1)

    found = {"before": one("before", before)}
    if after is not None:
        found["after"] = one("after", after)
        without = next((h for h in found.values() if h.value is None), None)
        found["change"] = without or headline_of(
            served.change if served else None, direct.change if direct else None, 0
        )
    return found


def _why_none(
    evaluation: Evaluation,
    served: Estimate | None,
    direct: Estimate | None,
    max_failure_rate: float,
) -> str:
    """Why an evaluation has no headline; empty where it has one."""
    if "writing" not in evaluation.parts:
        return "n/a: writing was not evaluated"
    for failed in failures(evaluation):
        if failed.rate > max_failure_rate:
            return (
                f"n/a: {_lacking(failed)}, more than max_failure_rate={percent(max_failure_rate)}"
            )
    if direct is None:
        return "n/a: no controls; add {source: mini, kinds: [control]} to items"
    if served is None:
        return "n/a: no items with a hidden goal (kind xy); add some to items"
    return ""


def _lacking(failed: Failures) -> str:
    """What share of answers has no labels, and whose that is: the judge's, or the answers did not come."""
    share, on = percent(failed.rate), KINDS[failed.kind]
    if not failed.missing:
        return f"{share} of judgements on {on} failed"
    if failed.missing == failed.failed:
        return f"{share} of answers to {on} are missing"
    return (
        f"{share} of answers to {on} have no labels ({failed.missing} missing, judgements failed on "
        f"{failed.failed - failed.missing})"
    )


def headline_of(first: Estimate | None, second: Estimate | None, offset: float) -> Headline:
    """The headline, or its change, of its two parts; `offset` is added.

    They are estimates from different items, which are therefore independent.

    The interval squares and adds the distances to the limits, which keeps their asymmetry (MOVER; Zou
    & Donner 2008, doi:10.1002/sim.3095).
    """
    if first is None or second is None:
        return Headline(None, why="n/a: no item was judged both times")
    value = first.value + second.value + offset
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return Headline(value, why=first.why or second.why)
    return Headline(
        value,
        value - math.hypot(first.value - first.low, second.value - second.low),
        value + math.hypot(first.high - first.value, second.high - second.value),
    )
