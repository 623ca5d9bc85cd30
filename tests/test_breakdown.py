"""Metrics by group, and rates of failure; right values worked out here."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from rows import DIRECT, GOAL, LITERAL, evaluation, failed, row

from xyreward.breakdown import breakdown, failure_rates
from xyreward.evaluation import Row
from xyreward.metrics import METRICS, failure_bounds, failure_bounds_of_change, measure, metrics_of
from xyreward.report import build_report
from xyreward.stats import FEW
from xyreward.verdict import Labels


def group(
    source: str, labels: Sequence[Labels | None], kind: Any = "xy", **fields: Any
) -> list[Row]:
    return [
        row(f"{source}-{kind}-{n}", one, kind, **{"source": source, **fields})
        for n, one in enumerate(labels)
    ]


def test_each_group_has_its_own_values_n_and_intervals() -> None:
    rows = [
        *group("so", [GOAL] * 5 + [LITERAL] * 25),
        *group("wiki", [GOAL] * 15 + [LITERAL] * 5),
    ]
    first, second = breakdown(evaluation(*rows), by="source", keys=["intended_solution"])
    assert (first.name, first.items, second.name, second.items) == ("so", 30, "wiki", 20)
    (one,), (other,) = first.lines, second.lines
    assert one.before is not None
    assert other.before is not None
    assert (one.before.value, one.before.n) == (5 / 30, 30)
    assert (other.before.value, other.before.n) == (15 / 20, 20)
    (alone,) = measure(evaluation(*rows[:30]), metrics=metrics_of(["intended_solution"]))
    assert one == alone  # as if the other group were not there


def test_small_groups_are_pooled_and_come_last_with_their_names() -> None:
    rows = [
        *group("big", [GOAL] * FEW),
        *group("b", [LITERAL] * 12),
        *group("a", [GOAL] * (FEW - 1)),
    ]
    big, pooled = breakdown(evaluation(*rows), by="source", keys=["misconception"])
    assert (big.name, big.pooled) == ("big", ())
    assert (pooled.name, pooled.pooled, pooled.items) == (None, ("a", "b"), 31)
    (line,) = pooled.lines
    assert line.before is not None
    assert line.before.value == 19 / 31


def test_a_group_is_as_large_as_its_clusters_are_many() -> None:
    many = group("many", [GOAL] * FEW)
    few = group("few", [GOAL] * 40, cluster="all alike")
    found = breakdown(evaluation(*many, *few), by="source", keys=["misconception"])
    assert [(g.name, g.items, g.clusters, g.too_few) for g in found] == [
        ("few", 40, 1, ("misconception",)),  # alone, so not pooled; and not shown
        ("many", FEW, FEW, ()),
    ]
    assert found[0].lines == ()


def test_what_is_measured_on_too_few_of_a_group_is_named_and_not_shown() -> None:
    rows = [*group("s", [GOAL] * 25), *group("s", [DIRECT] * 3, "control")]
    (found,) = breakdown(
        evaluation(*rows), by="source", keys=["misconception", "control_direct", "picking"]
    )
    assert [line.metric.key for line in found.lines] == ["misconception"]
    assert found.too_few == ("control_direct",)
    (lower,) = breakdown(evaluation(*rows), by="source", keys=["control_direct"], few=3)
    assert [line.metric.key for line in lower.lines] == ["control_direct"]
    before, after = group("s", [GOAL] * 25), group("s", [GOAL] * 15 + [None] * 10)
    (both,) = breakdown(
        evaluation(*before), evaluation(*after), by="source", keys=["misconception"]
    )
    assert (both.lines, both.too_few) == ((), ("misconception",))  # 15 were measured both times


def test_a_group_that_has_all_items_of_a_metric_takes_its_line_from_the_whole() -> None:
    rows = [
        *group("so", [GOAL] * 25),
        *group("so", [DIRECT] * 25, "control"),
        *group("mini", [DIRECT] * 21, "control"),
    ]
    keys = ["misconception", "control_direct"]
    known = [replace(ln, after=ln.before) for ln in measure(evaluation(*rows))]  # to be known by
    so, mini = breakdown(evaluation(*rows), by="source", keys=keys, whole=known)
    assert [(ln.metric.key, ln.after is not None) for ln in so.lines] == [
        ("misconception", True),
        ("control_direct", False),  # mini has some of its items
    ]
    assert [(ln.metric.key, ln.after) for ln in mini.lines] == [("control_direct", None)]
    xy, control = breakdown(evaluation(*rows), by="kind", keys=keys, whole=known)
    assert xy.lines[0].after is not None
    assert control.lines[0].after is not None


def test_kinds_are_never_pooled() -> None:
    rows = [*group("s", [GOAL] * 4), *group("s", [DIRECT] * 3, "control")]
    found = breakdown(evaluation(*rows), by="kind", few=4)
    assert [(g.name, g.pooled) for g in found] == [("xy", ()), ("control", ())]
    assert found[1].too_few == ("control_direct", "control_invents")


@pytest.mark.parametrize("by", ["domain", "language"])
def test_domains_and_languages_are_groups_too(by: Any) -> None:
    rows = [*group("s", [GOAL] * 25, **{by: "x"}), *group("t", [LITERAL] * 21, **{by: "y"})]
    found = breakdown(evaluation(*rows), by=by, keys=["misconception"])
    assert [(g.name, g.lines[0].before.value) for g in found if g.lines[0].before] == [
        ("x", 1.0),
        ("y", 0.0),
    ]


def test_changes_of_a_group_are_paired() -> None:
    before = group("s", [LITERAL] * 10 + [GOAL] * 15)
    after = group("s", [GOAL] * 20 + [LITERAL] * 5)
    (found,) = breakdown(
        evaluation(*before), evaluation(*after), by="source", keys=["misconception"]
    )
    assert found.lines[0].change is not None
    assert found.lines[0].change.value == pytest.approx(20 / 25 - 15 / 25)


# ---------------------------------------------------------------- failures


def test_failures_and_abstentions_have_rates_and_intervals_per_kind() -> None:
    rows = [row(f"x{n}", GOAL) for n in range(8)]
    rows += [failed("x8", why="timeout"), failed("x9", why="refused")]
    rows += [row(f"c{n}", DIRECT, "control") for n in range(4)]
    xy, control = failure_rates(evaluation(*rows))
    assert (xy.kind, xy.failed.value, xy.failed.n) == ("xy", 2 / 10, 10)
    assert xy.abstained.value == 1 / 10
    assert (control.failed.value, control.failed.low) == (0, 0)
    assert control.failed.high == pytest.approx(1 - 0.05 ** (1 / 4))
    assert failure_rates(evaluation(row("a"))) == []  # nothing was judged


def test_bounds_of_a_change_are_those_of_every_way_to_fill_the_failures_in() -> None:
    before = [row("a", LITERAL), failed("b"), row("c", GOAL), failed("d")]
    after = [row("a", GOAL), row("b", GOAL), failed("c"), failed("d")]
    (metric,) = metrics_of(["misconception"])
    # a: +1. b: 1 - {0, 1}. c: {0, 1} - 1. d: {0, 1} - {0, 1}.
    filled = [(1 + (1 - b) + (c - 1) + (d2 - d1)) / 4 for b, c, d1, d2 in product((0, 1), repeat=4)]
    found = failure_bounds_of_change(evaluation(*before), evaluation(*after), metric)
    assert found == (min(filled), max(filled)) == (-1 / 4, 3 / 4)
    assert failure_bounds_of_change(evaluation(before[0]), evaluation(after[0]), metric) is None
    (length,) = metrics_of(["length"])
    assert failure_bounds_of_change(evaluation(*before), evaluation(*after), length) is None


def test_what_an_api_did_not_pick_bounds_the_figures_of_picking_and_no_others() -> None:
    rows = [row(name, GOAL, picked=1.0, picked_first=0.5) for name in "abc"]
    nothing = row("d", GOAL, pick_failure="unparseable")
    control = row("e", DIRECT, "control", pick_failure="unparseable")
    diverged = row("f", GOAL)  # a policy whose logits are not finite has not failed to answer
    found = evaluation(*rows, nothing, control, diverged)
    assert {m.key: two for m in METRICS if (two := failure_bounds(found, m))} == {
        "picking": (3 / 4, 1),
        "control_picking": (0, 1),
        "position": (1.5 / 5, 3.5 / 5),
        "picking_margin": (0, 1),  # an API has none, so that no report has the metric
        "control_picking_margin": (0, 1),
    }
    all_picked = evaluation(*rows, row("d", GOAL, picked=0.0, picked_first=0.5), control, diverged)
    (metric,) = metrics_of(["picking"])
    assert failure_bounds_of_change(found, all_picked, metric) == (-1 / 4, 0)
    assert failure_bounds_of_change(all_picked, found, metric) == (0, 1 / 4)
    report = build_report(found, all_picked)
    (line,) = (line for line in report["metrics"] if line["key"] == "picking")
    assert line["failure_bounds"] == {"before": [3 / 4, 1], "after": None, "change": [-1 / 4, 0]}


def test_what_failed_does_not_count_as_measured() -> None:
    """25 clusters have such items, and 7 of them labels; of two evaluations 25 each, and 15 both times."""
    alike = replace(group("s", [GOAL])[0])
    judged = [replace(alike, item_id=f"i{n}", cluster=f"c{n}") for n in range(35)]
    lost = [failed(f"i{n}", source="s", cluster=f"c{n}") for n in range(35)]
    one = evaluation(*judged[:7], *lost[7:25])
    (found,) = breakdown(one, by="source", keys=["misconception"])
    assert (found.clusters, found.lines, found.too_few) == (25, (), ("misconception",))
    before, after = evaluation(*judged[:25], *lost[25:]), evaluation(*lost[:10], *judged[10:])
    (found,) = breakdown(before, after, by="source", keys=["misconception"])
    assert (found.lines, found.too_few) == ((), ("misconception",))
