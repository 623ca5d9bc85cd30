"""Means, rates and paired differences with 95 % intervals over clusters.

Items of one cluster (near-duplicates, one thread, one article) are not independent, so whole
clusters are resampled. The intervals are scipy's BCa bootstrap on cluster sums: a mean is the ratio
of the sum of values to the number of rows, and both sums belong to the cluster.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

RESAMPLES = 10_000
CONFIDENCE = 0.95
NARROW = 0.01
"""Of the range of a value: an interval narrower than this is widened to the rule of three's."""
MANY = 2_000
"""Clusters above which clusters with equal sums are counted together, where few sums differ."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval.

    `low` and `high` are None where there is no interval to be had: one cluster; clusters that all
    agree on a value without bounds; a value that is not finite.
    """

    value: float
    low: float | None
    """Lower end of the 95 % interval, same unit as `value`."""
    high: float | None
    n: int
    """Rows behind it."""
    why: str = field(default="", compare=False)
    """Where there is no interval: the reason, in a few words."""

    def excludes(self, value: float) -> bool:
        """Whether `value` lies outside the interval."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high


def mean(
    values: Sequence[float],
    clusters: Sequence[str] | None = None,
    *,
    bounds: tuple[float, float] | None = None,
    seed: int = 0,
) -> Estimate | None:
    """The mean of values with a 95 % interval; None without values.

    A value that is not finite (the log-probability of a policy that diverged) makes the mean so: it
    is shown and not left out, and has no interval.

    For a paired difference pass the differences, one per item.

    Args:
        values: length N.
        clusters: length N, which rows belong together; None: every row is its own cluster.
        bounds: the possible range of a value, e.g. (0, 1) for a rate, (-1, 1) for a difference of
            rates. Used where all clusters agree, or nearly: the bootstrap would then give an interval of
            next to no width, which claims a certainty that n rows cannot give.
        seed: of the resampling.
    """
    if len(values) == 0:
        return None
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    names = clusters if clusters is not None else [str(i) for i in range(len(values))]
    for value, name in zip(values, names, strict=True):
        sums[name][0] += float(value)
        sums[name][1] += 1
    return mean_of_sums(sums.values(), bounds=bounds, seed=seed)


def mean_of_sums(
    sums: Iterable[Sequence[float]],
    *,
    bounds: tuple[float, float] | None = None,
    seed: int = 0,
) -> Estimate | None:
    """As `mean`, of clusters that were summed up already; None without any.

    Args:
        sums: per cluster the sum of its values and their number.
        bounds: see `mean`.
        seed: see `mean`.
    """
    # Sorted, so that the interval depends neither on the order of rows nor on names of clusters.
    ordered = sorted(tuple(one) for one in sums)
    if not ordered:
        return None
    total, count = np.array(ordered).T
    value = sum(total.tolist()) / sum(count.tolist())  # Python's sum: inf - inf is no warning
    n = round(count.sum())
    if len(total) < 2:
        return Estimate(value, None, None, n, "one cluster")
    if not math.isfinite(value):
        return Estimate(value, None, None, n, "not finite")
    low, high = _interval(total, count, value, bounds, seed)
    return Estimate(value, low, high, n, "" if low is not None else "all alike")


def _interval(
    total: np.ndarray,
    count: np.ndarray,
    value: float,
    bounds: tuple[float, float] | None,
    seed: int,
) -> tuple[float | None, float | None]:
    clusters = len(total)
    means = total / count
    rule_of_three: tuple[float | None, float | None] = None, None
    if bounds is not None:
        # The largest share of clusters that could differ and still, with probability 0.05, not show
        # among these. They may differ in either direction, so the interval reaches for both ends of the
        # range.
        share = 1 - (1 - CONFIDENCE) ** (1 / clusters)
        rule_of_three = (
            value - share * (value - bounds[0]),
            value + share * (bounds[1] - value),
        )
    if np.ptp(means) <= 1e-12 * np.abs(means).max():
        # Equal but for rounding: 3 * 0.1 / 3 is not 0.1.
        return rule_of_three
    low, high = _bootstrap(total, count, seed)
    if bounds is None or low is None or high is None:
        return (low, high) if low is not None else rule_of_three
    if high - low < NARROW * (bounds[1] - bounds[0]):
        # As good as equal: of 5 rewards of 0.001 to 0.003 nobody knows that the next is not 0.9.
        wide_low, wide_high = rule_of_three
        assert wide_low is not None
        assert wide_high is not None
        return min(low, wide_low), max(high, wide_high)
    return low, high


def _bootstrap(
    total: np.ndarray, count: np.ndarray, seed: int
) -> tuple[float | None, float | None]:
    clusters = len(total)
    if clusters > MANY:
        alike, number = np.unique(np.stack([total, count]), axis=1, return_counts=True)
        if alike.shape[1] <= 200:
            return _interval_of_alike(alike, number, seed)

    from scipy.stats import DegenerateDataWarning, bootstrap

    def ratio(sums: np.ndarray, counts: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(sums.sum(axis=axis) / counts.sum(axis=axis))

    with warnings.catch_warnings():
        warnings.simplefilter("error", DegenerateDataWarning)
        try:
            result = bootstrap(
                (total, count),
                ratio,
                paired=True,
                vectorized=True,
                n_resamples=RESAMPLES,
                batch=max(1, 4_000_000 // clusters),
                confidence_level=CONFIDENCE,
                method="BCa",
                rng=np.random.default_rng(seed),
            ).confidence_interval
        except DegenerateDataWarning:
            return None, None
    return float(result.low), float(result.high)


def _interval_of_alike(
    sums: np.ndarray, number: np.ndarray, seed: int
) -> tuple[float | None, float | None]:
    """The same BCa interval in time that does not grow with the clusters.

    Clusters with equal sums are interchangeable, so how often each of the K kinds of cluster is drawn
    is multinomial, and leaving out one or another of a kind gives the same value. scipy's jackknife
    takes time quadratic in the clusters: hours for 100,000.

    Args:
        sums: [2, K], sum of values and number of rows of a cluster.
        number: [K], how many clusters are such.
        seed: of the resampling.
    """
    from scipy.special import ndtr, ndtri

    clusters = int(number.sum())
    total, count = sums @ number
    drawn = np.random.default_rng(seed).multinomial(clusters, number / clusters, size=RESAMPLES)
    resampled = (drawn @ sums[0]) / (drawn @ sums[1])
    value = total / count
    below = ((resampled < value).sum() + (resampled <= value).sum()) / (2 * RESAMPLES)
    if not 0 < below < 1:
        return None, None
    without_one = (total - sums[0]) / (count - sums[1])
    influence = (number @ without_one) / clusters - without_one
    acceleration = (number @ influence**3) / (6 * (number @ influence**2) ** 1.5)
    shift = ndtri(below) + ndtri([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    levels = ndtr(ndtri(below) + shift / (1 - acceleration * shift))
    low, high = np.quantile(resampled, levels)
    return float(low), float(high)


def of_sums(
    sums: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray],
    *,
    n: int,
    bounds: tuple[float, float] | None = None,
    seed: int = 0,
) -> Estimate | None:
    """A number that follows from sums over all rows (kappa, alpha), with a 95 % BCa interval.

    Clusters are resampled. Those with equal sums are interchangeable, so the time grows with the kinds of
    cluster that occur and not with the rows.

    Args:
        sums: [clusters, D], what each cluster adds to the D sums.
        statistic: [R, D] -> [R], the number for each of R totals; nan where there is none.
        n: rows behind it, for `Estimate.n`.
        bounds: as in `mean`, for a number that is a mean of rates.
        seed: of the resampling.

    Returns:
        None where the number itself is undefined. Without an interval where more than one in a hundred
        resamples have no number, or all have the same one and there are no bounds.
    """
    from scipy.special import ndtr, ndtri

    if len(sums) == 0:
        return None
    kinds, number = np.unique(sums, axis=0, return_counts=True)
    clusters, total = len(sums), number @ kinds
    with np.errstate(all="ignore"):
        value = float(statistic(total[None])[0])
        if not math.isfinite(value):
            return None
        if clusters < 2:
            return Estimate(value, None, None, n)
        rng = np.random.default_rng(seed)
        size = max(1, 4_000_000 // len(kinds))
        parts = [
            statistic(rng.multinomial(clusters, number / clusters, size=min(size, left)) @ kinds)
            for left in range(RESAMPLES, 0, -size)
        ]
        without_one = statistic(total - kinds)
    resampled = np.concatenate(parts)
    resampled = resampled[np.isfinite(resampled)]
    if len(resampled) < 0.99 * RESAMPLES:
        return Estimate(value, None, None, n)
    if np.ptp(resampled) <= 1e-12:
        if bounds is None:
            return Estimate(value, None, None, n)
        share = 1 - (1 - CONFIDENCE) ** (1 / clusters)  # see `_interval`
        low, high = value - share * (value - bounds[0]), value + share * (bounds[1] - value)
        return Estimate(value, low, high, n)
    below = ((resampled < value).mean() + (resampled <= value).mean()) / 2
    influence = (number @ without_one) / clusters - without_one
    spread = float(number @ influence**2)
    if not 0 < below < 1 or not math.isfinite(spread) or spread <= 0:
        return Estimate(value, None, None, n)
    acceleration = (number @ influence**3) / (6 * spread**1.5)
    shift = ndtri(below) + ndtri([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    levels = ndtr(ndtri(below) + shift / (1 - acceleration * shift))
    low, high = np.quantile(resampled, levels)
    return Estimate(value, float(low), float(high), n)
