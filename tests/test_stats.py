import math
from collections.abc import Sequence
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, bootstrap, norm, t

from xyreward import stats
from xyreward.stats import Column, Estimate, flip_test, holm, mean, means, of_totals


def near(value: float) -> Any:
    return pytest.approx(value)


def width(estimate: Estimate | None) -> float:
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.high - estimate.low


def ends(estimate: Estimate | None) -> tuple[float | None, float | None]:
    assert estimate is not None
    return estimate.low, estimate.high


def limits(estimate: Estimate | None) -> tuple[float, float]:
    low, high = ends(estimate)
    assert low is not None
    assert high is not None
    return low, high


def test_no_values_no_estimate() -> None:
    assert mean([]) is None
    assert mean([], []) is None


def test_the_value_is_the_mean_over_rows_and_not_over_clusters() -> None:
    plain = mean([1, 2, 3, 6])
    assert plain is not None
    assert plain.value == 3.0  # 12 / 4
    assert plain.n == 4
    clustered = mean([1, 1, 1, 5], ["a", "a", "a", "b"])
    assert clustered is not None
    assert clustered.value == 2.0  # 8 / 4; the mean of the two cluster means would be 3
    assert clustered.n == 4


def test_values_and_clusters_of_different_length_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 values and 1 clusters"):
        mean([1, 2], ["a"])


def test_one_cluster_has_no_interval_however_many_rows_it_has() -> None:
    assert mean([1, 2, 3], ["a", "a", "a"], bounds=(0, 5)) == Estimate(2.0, None, None, 3)


@pytest.mark.parametrize("n", [12, 60])
def test_with_one_row_per_cluster_the_interval_is_scipys_of_the_plain_mean(n: int) -> None:
    values = np.sort(np.random.default_rng(n).exponential(size=n))
    theirs = bootstrap(
        (values,),
        np.mean,
        n_resamples=stats.RESAMPLES,
        method="BCa",
        rng=np.random.default_rng(3),
    ).confidence_interval
    low, high = ends(mean(values.tolist(), seed=3))
    tolerance = 0.005 * (theirs.high - theirs.low)
    assert low == pytest.approx(theirs.low, abs=tolerance)
    assert high == pytest.approx(theirs.high, abs=tolerance)


def test_rows_of_a_cluster_stay_together_so_that_copies_of_a_row_add_no_certainty() -> None:
    values = np.random.default_rng(0).normal(size=40).tolist()
    copies = [value for value in values for _ in range(5)]
    names = [f"cluster {i}" for i in range(40) for _ in range(5)]
    once = mean(values)
    together = mean(copies, names)
    apart = mean(copies)
    assert width(together) == pytest.approx(width(once), rel=1e-6)
    # As if 5 times as many rows were independent: narrower by the square root of 5.
    assert width(together) / width(apart) == pytest.approx(math.sqrt(5), rel=0.1)


@pytest.mark.parametrize("n", [2, 10, 59])
def test_where_all_rows_agree_the_rule_of_three_gives_the_interval(n: int) -> None:
    # If a share s of all clusters differed, n clusters would show none with probability (1 - s)^n;
    # the largest s for which that is 0.05.
    share = 1 - 0.05 ** (1 / n)
    assert (1 - share) ** n == pytest.approx(0.05)
    assert mean([1.0] * n, bounds=(0, 1)) == Estimate(1.0, near(1 - share), 1.0, n)
    assert mean([0.0] * n, bounds=(0, 1)) == Estimate(0.0, 0.0, near(share), n)
    no_change = mean([0.0] * n, bounds=(-1, 1))
    assert no_change == Estimate(0.0, near(-share), near(share), n)
    ties = mean([0.5] * n, bounds=(0, 1))
    expected = (near(0.5 - share / 2), near(0.5 + share / 2))
    assert ends(ties) == expected


def test_the_rule_of_three_gives_3_over_n() -> None:
    low, _ = ends(mean([1.0] * 300, bounds=(0, 1)))
    assert low == pytest.approx(1 - 3 / 300, abs=1e-4)


def test_the_rule_counts_clusters_and_not_rows() -> None:
    rows = mean([1.0] * 12, [str(i // 4) for i in range(12)], bounds=(0, 1))
    assert ends(rows) == (near(0.05 ** (1 / 3)), 1.0)  # three clusters


def test_agreement_on_a_value_without_bounds_has_no_interval() -> None:
    assert mean([2.5] * 10) == Estimate(2.5, None, None, 10)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.01])
def test_of_many_clusters_those_alike_are_counted_together_with_the_same_interval(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    clusters = rng.integers(0, 600, 900)
    # Rows of a cluster resemble each other, so a cluster that is taken for a row would show.
    bad = rng.random(600) > share
    values = np.where(rng.random(900) < 0.2, 0.5, 1.0 - bad[clusters])
    names = [str(c) for c in clusters]
    slow = mean(values.tolist(), names, bounds=(0, 1))
    monkeypatch.setattr(stats, "MANY", 1)
    fast = mean(values.tolist(), names, bounds=(0, 1))
    assert fast is not None
    assert slow is not None
    assert fast.value == slow.value
    assert fast != slow  # other draws, so this compares two computations
    assert ends(fast) == pytest.approx(ends(slow), abs=0.03 * width(slow))


def test_an_interval_over_100_000_clusters_takes_no_longer_than_over_few() -> None:
    values = np.random.default_rng(0).choice([0, 0.5, 1], 100_000).tolist()
    found = mean(values, bounds=(0, 1))  # minutes by scipy's jackknife, and the suite has a limit
    # sd of one value: sqrt(1/6) = 0.408; 2 * 1.96 * 0.408 / sqrt(100,000) = 0.00506
    assert width(found) == pytest.approx(0.00506, abs=2e-4)


def test_values_that_agree_but_for_rounding_agree() -> None:
    # (0.1 + 0.1 + 0.1) / 3 is not 0.1, and the bootstrap would make an interval of width 1e-17.
    assert (0.1 + 0.1 + 0.1) / 3 != 0.1
    low, high = ends(mean([0.1] * 4, ["a", "a", "a", "b"], bounds=(0, 1)))
    share = 1 - 0.05 ** (1 / 2)
    assert low == pytest.approx(0.1 - share * 0.1)
    assert high == pytest.approx(0.1 + share * 0.9)


@pytest.mark.parametrize(
    "bad", [[math.nan], [math.inf], [-math.inf], [math.inf, -math.inf]], ids=repr
)
def test_a_value_that_is_not_finite_shows_in_the_mean_and_has_no_interval(
    bad: list[float],
) -> None:
    found = mean([0.1, 0.2, 0.3, *bad])
    assert found is not None
    assert not math.isfinite(found.value)
    assert (found.low, found.high, found.n) == (None, None, 3 + len(bad))


rows = st.lists(
    st.tuples(st.integers(-8, 8).map(lambda i: i / 4), st.sampled_from("abcdefgh")),
    min_size=2,
    max_size=30,
)


@settings(max_examples=25, deadline=None)
@given(rows, st.randoms(use_true_random=False))
def test_neither_the_order_of_rows_nor_names_of_clusters_matter(
    rows: list[tuple[float, str]], random: Random
) -> None:
    def estimate(rows: Sequence[tuple[float, str]]) -> Estimate | None:
        return mean([v for v, _ in rows], [c for _, c in rows], bounds=(-2, 2))

    shuffled = list(rows)
    random.shuffle(shuffled)
    assert estimate(shuffled) == estimate(rows)
    # "abcdefgh" backwards
    assert estimate([(v, chr(ord("a") + ord("h") - ord(c))) for v, c in rows]) == estimate(rows)


@settings(max_examples=25, deadline=None)
@given(rows)
def test_an_interval_holds_its_value_and_stays_within_the_range_of_the_values(
    rows: list[tuple[float, str]],
) -> None:
    found = mean([v for v, _ in rows], [c for _, c in rows], bounds=(-2, 2))
    assert found is not None
    if found.low is not None and found.high is not None:
        assert -2 <= found.low <= found.value + 1e-9
        assert found.value - 1e-9 <= found.high <= 2


def test_order_does_not_matter_without_clusters_either() -> None:
    values = np.random.default_rng(1).normal(size=30).tolist()
    assert ends(mean(values)) == ends(mean(values[::-1]))


def test_the_seed_decides_the_interval() -> None:
    values = np.random.default_rng(1).normal(size=30).tolist()
    assert mean(values, seed=1) == mean(values, seed=1)
    assert ends(mean(values, seed=1)) != ends(mean(values, seed=2))


def test_an_interval_excludes_what_lies_outside_and_nothing_where_there_is_none() -> None:
    estimate = Estimate(0.3, 0.1, 0.5, 10)
    assert estimate.excludes(0.0)
    assert estimate.excludes(0.6)
    assert not estimate.excludes(0.1)
    assert not estimate.excludes(0.5)
    assert not Estimate(0.3, None, None, 1).excludes(0.0)


# ---------------------------------------------------------------- many columns at once


def test_columns_together_have_the_estimates_of_each_alone() -> None:
    rng = np.random.default_rng(2)
    clusters = [str(c) for c in rng.integers(0, 50, 120)]
    few: list[float | None] = [float(v) if v > 0 else None for v in rng.normal(size=120)]
    columns = [
        Column(rng.random(120).tolist(), (0, 1)),
        Column(few),
        Column([1.0] * 120, (0, 1)),
        Column([None] * 120),
        Column([math.nan, *rng.random(119).tolist()]),
    ]
    found = means(columns, clusters, seed=4)
    for column, estimate in zip(columns, found, strict=True):
        pairs = [(v, c) for v, c in zip(column.values, clusters, strict=True) if v is not None]
        alone = mean([v for v, _ in pairs], [c for _, c in pairs], bounds=column.bounds, seed=4)
        if estimate is None or alone is None or math.isnan(alone.value):
            assert repr(estimate) == repr(alone)
        else:
            assert (estimate.value, estimate.n) == (alone.value, alone.n)
            # The order of clusters, and with it the draws, is that of all columns.
            assert ends(estimate) == pytest.approx(ends(alone), abs=0.04 * width(alone))
    assert means([]) == []


def test_a_column_on_many_of_more_clusters_keeps_its_width() -> None:
    # Resampled over all 1,000 clusters, the number that a column is measured on is random.
    values = np.random.default_rng(1).normal(size=300).tolist()
    beside = Column(np.random.default_rng(2).normal(size=1000).tolist())
    together = means([Column([*values, *[None] * 700]), beside])[0]
    assert width(together) == pytest.approx(width(mean(values)), rel=0.03)


def test_columns_of_different_length_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 and 1 values, expected equally many"):
        means([Column([1.0, 2.0]), Column([1.0])])


@pytest.mark.parametrize("n", [20, 40, 400])
def test_expanded_for_few_clusters_it_is_scipys_interval_at_the_level_of_students_t(n: int) -> None:
    values = np.sort(np.random.default_rng(n).exponential(size=n))
    reach = t.ppf(0.975, n - 1) * math.sqrt(n / (n - 1))

    def theirs(level: float) -> tuple[float, float]:
        found = bootstrap(
            (values,), np.mean, n_resamples=stats.RESAMPLES, confidence_level=level, method="BCa",
            rng=np.random.default_rng(3),
        ).confidence_interval  # fmt: skip
        return found.low, found.high

    expanded = mean(values.tolist(), expand=True, seed=3)
    level = 1 - 2 * norm.sf(reach)
    assert level > 0.95
    assert ends(expanded) == pytest.approx(theirs(level), abs=0.005 * width(expanded))
    if n == 400:  # and then the level is nearly the usual one
        assert ends(expanded) == pytest.approx(theirs(0.95), abs=0.005 * width(expanded))


def test_intervals_of_one_row_clusters_are_scipys_whatever_the_draws() -> None:
    # A quantile of 10,000 draws is itself uncertain by 0.7 % of the width, so those of 20 seeds are
    # averaged: 0.15 %, and as much for scipy's.
    values = np.random.default_rng(5).gamma(2.0, size=300)
    theirs = np.mean(
        [
            bootstrap((values,), np.mean, method="BCa", n_resamples=10_000, batch=1000, rng=seed)
            .confidence_interval
            for seed in range(100, 120)
        ],
        axis=0,
    )  # fmt: skip
    ours = np.mean([limits(mean(values.tolist(), seed=seed)) for seed in range(20)], axis=0)
    assert ours == pytest.approx(theirs, abs=0.005 * (theirs[1] - theirs[0]))


# ---------------------------------------------------------------- functions of totals


def correlation(totals: Any) -> Any:
    n, x, y, xx, yy, xy = np.moveaxis(totals, -1, 0)
    return (n * xy - x * y) / np.sqrt((n * xx - x * x) * (n * yy - y * y))


def test_a_function_of_totals_has_scipys_interval() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=80)
    y = x + rng.normal(size=80)
    rows = np.stack([np.ones(80), x, y, x * x, y * y, x * y], axis=1)
    rows = rows[np.lexsort(rows.T[::-1])]  # as ours are, so that the draws are the same
    theirs = bootstrap(
        (rows[:, 1], rows[:, 2]),
        lambda a, b: np.corrcoef(a, b)[0, 1],
        paired=True,
        vectorized=False,
        n_resamples=stats.RESAMPLES,
        method="BCa",
        rng=np.random.default_rng(3),
    ).confidence_interval
    found = of_totals(rows.tolist(), correlation, seed=3)
    assert found is not None
    assert found.value == near(float(np.corrcoef(x, y)[0, 1]))
    tolerance = 0.005 * (theirs.high - theirs.low)
    assert ends(found) == pytest.approx((theirs.low, theirs.high), abs=tolerance)


def test_a_function_that_is_not_finite_is_no_estimate_and_if_only_sometimes_no_interval() -> None:
    def moments(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
        return [(1, x, y, x * x, y * y, x * y) for x, y in pairs]

    assert of_totals([], correlation) is None
    assert of_totals(moments([(1, 1), (1, 2), (1, 3)]), correlation) is None  # x is constant
    # Only one row varies: a third of all resamples lack it.
    rare = of_totals(moments([(0, 0)] * 9 + [(1, 1)]), correlation)
    assert rare is not None
    assert (rare.value, rare.low, rare.high) == (near(1.0), None, None)
    one_cluster = of_totals(moments([(0, 0), (1, 1)]), correlation, ["a", "a"])
    assert one_cluster == Estimate(near(1.0), None, None, 2)


# ---------------------------------------------------------------- tests of paired labels


@pytest.mark.parametrize(("up", "down", "same"), [(6, 1, 3), (0, 4, 0), (9, 9, 2), (300, 240, 500)])
def test_the_flip_test_is_mcnemars_on_single_rows(up: int, down: int, same: int) -> None:
    changes = [1.0] * up + [-1.0] * down + [0.0] * same
    assert flip_test(changes) == near(float(binomtest(up, up + down, 0.5).pvalue))


def test_the_flip_test_counts_all_signs_of_all_clusters() -> None:
    # Sums of clusters: 2, 1, -1, 0.5. Of 16 signs the sums are +-2 +-1 +-1 +-0.5.
    values = [1, 1, 1, 0, -1, 0.5]
    clusters = ["a", "a", "b", "b", "c", "d"]
    sums = [sum(signed) for signed in product((2, -2), (1, -1), (1, -1), (0.5, -0.5))]
    extreme = sum(abs(s) >= 2.5 for s in sums) / 16
    assert flip_test(values, clusters) == near(extreme)
    assert extreme == 8 / 16


def test_no_change_is_no_evidence() -> None:
    assert flip_test([]) == 1
    assert flip_test([0.0, 0.0]) == 1
    assert flip_test([1.0, -1.0], ["a", "a"]) == 1


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), max_size=30))
@settings(max_examples=30, deadline=None)
def test_the_flip_test_gives_a_probability_and_takes_no_side(changes: list[float]) -> None:
    p = flip_test(changes)
    assert 0 < p <= 1
    assert flip_test([-c for c in changes]) == near(p)


def test_changes_that_are_no_labels_have_no_flip_test() -> None:
    with pytest.raises(ValueError, match=r"not multiples of 0\.5"):
        flip_test([0.3])


def test_holm_multiplies_by_how_many_are_left_and_never_falls() -> None:
    corrected = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    # 4 * 0.005, 3 * 0.01, 2 * 0.03, then 1 * 0.04 raised to the one before
    assert corrected == {"a": near(0.03), "b": near(0.06), "c": near(0.06), "d": near(0.02)}
    assert holm({"a": 0.7, "b": 0.6}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


# ---------------------------------------------------------------- coverage


@pytest.mark.parametrize("expand", [False, True])
def test_the_paired_interval_covers_the_true_change_in_about_95_of_100_studies(
    monkeypatch: pytest.MonkeyPatch, expand: bool
) -> None:
    # A sanity check with few resamples; benchmarks/coverage.py does it in earnest.
    monkeypatch.setattr(stats, "RESAMPLES", 400)
    rng = np.random.default_rng(0)
    studies, clusters = 200, 40
    covered = 0
    for study in range(studies):
        sizes = rng.integers(1, 5, clusters)
        names = [f"{i:02}" for i, size in enumerate(sizes) for _ in range(size)]
        shared = np.repeat(rng.normal(size=clusters), sizes)  # what a cluster's rows have in common
        differences = 0.3 + shared + 0.5 * rng.normal(size=len(names))
        low, high = ends(mean(differences.tolist(), names, expand=expand, seed=study))
        assert low is not None
        assert high is not None
        covered += low <= 0.3 <= high
    # 95 % of 200 is 190, with a standard deviation of 3.1.
    assert 180 <= covered <= 198


def test_tiny_values_have_the_interval_of_large_ones() -> None:
    large = [0.0, 1.0, 3.0, 0.0, 2.0, 5.0]
    found, expected = mean([1e-200 * v for v in large]), mean(large)
    assert found is not None
    assert expected is not None
    assert found.low is not None
    assert expected.low is not None
    assert found.low / 1e-200 == pytest.approx(expected.low)


def test_values_that_are_all_but_equal_are_as_uncertain_as_equal_ones() -> None:
    """A level of 0.00 [0.00, 0.00] beside its change of +0.00 [-0.45, +0.45] would be two stories."""
    equal, nearly = mean([0.0] * 5, bounds=(0, 1)), mean([0, 0, 0.001, 0, 0.002], bounds=(0, 1))
    assert equal is not None
    assert nearly is not None
    assert nearly.low == pytest.approx(0.0, abs=1e-3)
    assert nearly.high == pytest.approx(equal.high, abs=1e-3)
    many = mean([0.0] * 50_000 + [0.001] * 50_000, bounds=(0, 1))
    assert many is not None
    assert many.high == pytest.approx(0.0005, abs=1e-4)  # of so many the rule of three says little
    wide = [0.0, 0.2, 0.4, 0.1, 0.3]
    assert mean(wide, bounds=(0, 1)) == mean(wide)


def test_why_there_is_no_interval() -> None:
    cases = {"one cluster": [1.0], "all alike": [2.5, 2.5], "not finite": [1.0, float("nan")]}
    for why, values in cases.items():
        found = mean(values)
        assert found is not None
        assert (found.low, found.why) == (None, why)
    found = mean([1.0, 2.0])
    assert found is not None
    assert found.why == ""


def test_an_estimate_tells_the_clusters_that_it_was_measured_on() -> None:
    values = [0.0, 1.0, None, 1.0, None, 0.0]
    clusters = ["a", "a", "b", "c", "c", "d"]
    rate, alike, one = means(
        [
            Column(values, (0, 1)),
            Column([v and 1.0 for v in values[:4]] + [None, None], (0, 1)),
            Column([1.0] + [None] * 5),
        ],
        clusters,
    )
    assert rate is not None
    assert alike is not None
    assert one is not None
    assert (rate.n, rate.clusters, alike.clusters, one.clusters) == (4, 3, 2, 1)
    total = of_totals([(1, 2), (1, 3), (1, 5)], lambda t: t[..., 1] / t[..., 0], ["a", "a", "b"])
    assert total is not None
    assert (total.n, total.clusters) == (3, 2)
