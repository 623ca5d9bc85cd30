"""A figure reads the same wherever it is shown."""

from pathlib import Path
from typing import Any

import pytest

from xyreward.shown import (
    changed,
    counts,
    estimate_of,
    estimated,
    figure,
    headline,
    in_words,
    p_value,
    percent,
    reasons,
    title,
    with_failures,
)
from xyreward.stats import Estimate

SOME = Estimate(0.354, 0.301, 0.42, 12)
ALIKE = Estimate(7.0, None, None, 5, "all alike")


@pytest.mark.parametrize(
    ("estimate", "unit", "signed", "told"),
    [
        (SOME, "%", False, "35 [30, 42]"),
        (SOME, "%", True, "+35 [+30, +42]"),
        (Estimate(-0.001, -0.1, 0.1, 3), "%", True, "-0 [-10, +10]"),
        (SOME, "", False, "0.35 [0.30, 0.42]"),
        (Estimate(120.4, 99.6, 140.5, 3), "characters", False, "120 [100, 140]"),
        (ALIKE, "characters", False, "7 [no interval: 5 all alike]"),
        (Estimate(1.0, None, None, 1, "one cluster"), "%", False, "100 [no interval: one cluster]"),
        (Estimate(1.0, None, None, 1), "%", False, "100 [no interval]"),
        (None, "%", True, "n/a"),
    ],
)
def test_an_estimate_is_told_in_the_unit_of_its_metric_with_its_interval_or_why_it_has_none(
    estimate: Estimate | None, unit: str, signed: bool, told: str
) -> None:
    assert figure(estimate, unit, signed=signed) == told


def test_decimals_are_the_tables_and_words_are_the_same() -> None:
    assert estimated(SOME, digits=1, ends=0, scale=100) == "35.4 [30, 42]"
    assert estimated(SOME, digits=3) == "0.354 [0.301, 0.420]"
    assert changed(SOME, None, SOME) == "35 → n/a: +35 [+30, +42]"
    assert (
        in_words(SOME, digits=1, scale=100, over="items") == "95 % interval over items 30.1 to 42.0"
    )
    assert in_words(ALIKE) == "no interval: 5 all alike"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"value": 0.5, "low": 0.25, "high": 0.75, "why": ""}, "+0.50 [+0.25, +0.75]"),
        ({"value": -0.5, "low": None, "high": None, "why": "one cluster"},
         "-0.50 [no interval: one cluster]"),
        ({"value": None, "low": None, "high": None, "why": "n/a: no controls"}, "n/a: no controls"),
    ],
)  # fmt: skip
def test_a_headline_or_why_it_is_withheld(value: dict[str, Any], told: str) -> None:
    assert headline(**value) == told


def test_shares_counts_and_kinds_of_failure() -> None:
    assert percent(1 / 9) == "11.1 %"
    assert (p_value(0.0004), p_value(0.0312)) == ("< 0.001", "0.031")
    assert (counts([3, 3, 3]), counts([3, 2, 2])) == ("3", "3 / 2 / 2")
    assert reasons({"timeout": 2, "refused": 1}) == "1 refused, 2 timeout"
    metric = {"title": "focus", "unit": "%", "better": "lower"}
    assert (title(metric), title(metric, unit=False)) == ("focus, % ↓", "focus ↓")
    beside = {"value": 0.5, "low": None, "high": None, "n": 2, "failure_bounds": [0, 1]}
    assert estimate_of(beside) == Estimate(0.5, None, None, 2)
    assert estimate_of(None) is None


def test_nobody_else_has_words_for_a_figure_without_an_interval() -> None:
    package = Path(__file__).parent.parent / "xyreward"
    telling = [f.name for f in package.rglob("*.py") if "[no interval" in f.read_text("utf-8")]
    assert sorted(telling) == ["figures.py", "shown.py"]  # figures have no room for why


@pytest.mark.parametrize(
    ("bounds", "unit", "signed", "told"),
    [
        ((0.0, 0.1), "%", False, "with failures: 0 to 10"),
        ((0.375, 0.62), "", False, "with failures: 0.38 to 0.62"),
        ((-0.1, 0.5), "%", True, "with failures: -10 to +50"),
        ((-0.1, 0.5), "", True, "with failures: -0.10 to +0.50"),
        (None, "%", False, ""),
    ],
)
def test_bounds_are_told_in_the_unit_of_their_metric(
    bounds: tuple[float, float] | None, unit: str, signed: bool, told: str
) -> None:
    assert with_failures(bounds, unit, signed=signed) == told
