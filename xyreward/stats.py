"""Means, rates and paired differences with 95 % intervals over clusters; exact tests of paired labels.

Items of one cluster (near-duplicates, one thread, one article) are not independent, so whole clusters
are resampled. Intervals are BCa bootstrap intervals (Efron 1987, doi:10.1080/01621459.1987.10478410) of
functions of cluster totals: a mean is the total of values divided by the total of rows, and both
belong to the cluster.

scipy.stats.bootstrap gives the same intervals, for the same seed from the same draws (tests). It is
not called, because it draws anew for every statistic and its jackknife takes time quadratic in the
clusters; here one set of draws serves all metrics and one matrix product sums them.
`benchmarks/stats.py` has both side by side, `benchmarks/coverage.py` says why BCa. docs/statistics.md

Not here: what is compared with what (`metrics.py`, `paired.py`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESAMPLES = 10_000
CONFIDENCE = 0.95
FEW = 20
"""Clusters below which a group is pooled, a metric within a group not shown, and an interval warned of: that
of a rate over 19 spans some 40 points, and BCa over fewer holds the truth less often than it says."""
NARROW = 0.01
"""Of the range of a value: an interval narrower than this is widened to the rule of three's."""
MANY = 2_000
"""Clusters above which clusters with equal sums are counted together, where few sums differ."""
OWN = 200
"""A column measured on fewer clusters is resampled over those alone.

Over more clusters than it was measured on, the number that it is measured on becomes random, which
widens its interval by at most a share of 1 / (2 * OWN) and could leave a small column without any.
"""


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
    clusters: int = field(default=0, compare=False)
    """Different clusters that these rows are of: what the interval is over. 0: not known."""

    def excludes(self, value: float) -> bool:
        """Whether `value` lies outside the interval."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Column:
    """One value per row."""

    values: Sequence[float | None]
    """Length N. None: not measured on this row."""
    bounds: tuple[float, float] | None = None
    """The possible range of a value, e.g. (0, 1) for a rate, (-1, 1) for a difference of rates. Used
    where all clusters agree, or nearly: the bootstrap would then give an interval of next to no width,
    which claims a certainty that n rows cannot give."""


def mean(
    values: Sequence[float],
    clusters: Sequence[str] | None = None,
    *,
    bounds: tuple[float, float] | None = None,
    expand: bool = False,
    seed: int = 0,
) -> Estimate | None:
    """The mean of values with a 95 % interval; None without values.

    A value that is not finite (the log-probability of a policy that diverged) makes the mean so: it
    is shown and not left out, and has no interval.

    For a paired difference pass the differences, one per item.

    Args:
        values: length N.
        clusters: length N, which rows belong together; None: every row is its own cluster.
        bounds: see `Column`.
        expand: see `means`.
        seed: of the resampling.
    """
    return means([Column(values, bounds)], clusters, expand=expand, seed=seed)[0]


def means(
    columns: Sequence[Column],
    clusters: Sequence[str] | None = None,
    *,
    expand: bool = False,
    seed: int = 0,
) -> list[Estimate | None]:
    """The mean of every column, as `mean` gives it, from one set of draws.

    Args:
        columns: M columns of N values each, over the same rows. A paired difference is a column too.
        clusters: length N, which rows belong together; None: every row is its own cluster.
        expand: widen the intervals for few clusters, as evaluations do. A resample of n clusters varies
            too little by the factor (n - 1)/n, and few clusters tell too little of how much they vary,
            which is why an interval of a mean takes Student's t; so BCa is asked for the level at which
            a normal interval would be that one (Hesterberg 2015, doi:10.1080/00031305.2015.1089789).
            5 % wider with 40 clusters, 1 % with 200. False: scipy's interval.
        seed: of the resampling.

    Returns:
        M estimates; None for a column without values.
    """
    if not columns:
        return []
    cluster_of, number = _numbered(clusters, len(columns[0].values))
    sums = np.zeros((number, len(columns)))
    counts = np.zeros((number, len(columns)))
    for i, column in enumerate(columns):
        values, measured = _floats(column.values, len(cluster_of))
        sums[:, i] = np.bincount(cluster_of, np.where(measured, values, 0), minlength=number)
        counts[:, i] = np.bincount(cluster_of, measured, minlength=number)
    return _means(sums, counts, [column.bounds for column in columns], expand, seed)


def mean_of_sums(
    sums: Iterable[Sequence[float]],
    *,
    bounds: tuple[float, float] | None = None,
    expand: bool = False,
    seed: int = 0,
) -> Estimate | None:
    """As `mean`, of clusters that were summed up already; None without any.

    Args:
        sums: per cluster the sum of its values and their number.
        bounds: see `Column`.
        expand: see `means`.
        seed: of the resampling.
    """
    table = np.array([tuple(one) for one in sums], float).reshape(-1, 2)
    return _means(table[:, :1], table[:, 1:], [bounds], expand, seed)[0]


def _means(
    sums: Floats,
    counts: Floats,
    bounds: Sequence[tuple[float, float] | None],
    expand: bool,
    seed: int,
) -> list[Estimate | None]:
    """The means of M columns of which every cluster's sum and number of rows are given, [C, M] each."""
    found: list[Estimate | None] = []
    together: dict[bytes, list[int]] = defaultdict(list)
    for i in range(sums.shape[1]):
        n = round(counts[:, i].sum())
        if not n:
            found.append(None)
            continue
        total, support = sums[:, i], counts[:, i] > 0
        if not np.isfinite(total).all():
            # Python's sum: inf - inf is no warning. numpy's bincount gives none either.
            why = "not finite" if support.sum() >= 2 else "one cluster"
            found.append(Estimate(sum(total.tolist()) / n, None, None, n, why, int(support.sum())))
            continue
        estimate = Estimate(math.fsum(total) / n, None, None, n, "one cluster", int(support.sum()))
        if support.sum() >= 2:
            each = total[support] / counts[support, i]
            if np.ptp(each) <= 1e-12 * np.abs(each).max():
                # Equal but for rounding: 3 * 0.1 / 3 is not 0.1.
                estimate = _with_interval(estimate, None, None, bounds[i])
            else:
                key = support.tobytes() if support.sum() < OWN else b"shared"
                together[key].append(i)
        found.append(estimate)

    for group in together.values():
        s, c = sums[:, group], counts[:, group]
        used = (c > 0).any(axis=1)
        # Columns measured on the same rows share their counts.
        c, which = np.unique(c[used], axis=1, return_inverse=True)
        intervals = _intervals(
            np.hstack([s[used], c]), partial(_ratios, which.ravel()), seed, expand
        )
        for i, (low, high) in zip(group, intervals, strict=True):
            alone = found[i]
            assert alone is not None
            found[i] = _with_interval(alone, low, high, bounds[i])
    return found


def _with_interval(
    estimate: Estimate,
    low: float | None,
    high: float | None,
    bounds: tuple[float, float] | None,
) -> Estimate:
    """The estimate with its bootstrap interval, or the rule of three's where clusters agree or nearly."""
    value, clusters = estimate.value, estimate.clusters

    def reaching(low: float | None, high: float | None, why: str = "") -> Estimate:
        return Estimate(value, low, high, estimate.n, why, clusters)

    if bounds is None:
        return reaching(low, high, "" if low is not None else "all alike")
    # The largest share of clusters that could differ and still, with probability 0.05, not show among
    # these. They may differ in either direction, so the interval reaches for both ends of the range.
    share = 1 - (1 - CONFIDENCE) ** (1 / clusters)
    wide = value - share * (value - bounds[0]), value + share * (bounds[1] - value)
    if low is None or high is None:
        return reaching(*wide)
    if high - low < NARROW * (bounds[1] - bounds[0]):
        # As good as equal: of 5 rewards of 0.001 to 0.003 nobody knows that the next is not 0.9.
        return reaching(min(low, wide[0]), max(high, wide[1]))
    return reaching(low, high)


def _ratios(counts: NDArray[np.intp], totals: Floats) -> Floats:
    """Means [..., M] of totals [..., M + U]; `counts` [M] says which of the U counts is whose."""
    m = len(counts)
    means: Floats = totals[..., :m] / totals[..., m:][..., counts]
    return means


def of_totals(
    rows: Sequence[Sequence[float]],
    statistic: Callable[[Floats], Floats],
    clusters: Sequence[str] | None = None,
    *,
    expand: bool = False,
    seed: int = 0,
) -> Estimate | None:
    """A smooth function of totals with a 95 % interval: a correlation, a quotient of two means.

    Args:
        rows: [N, K] finite numbers.
        statistic: [R, K] -> [R], as of `of_sums`.
        clusters: length N, which rows belong together; None: every row is its own cluster.
        expand: see `means`.
        seed: of the resampling.

    Returns:
        As `of_sums`; None without rows.
    """
    if len(rows) == 0:
        return None
    cluster_of, number = _numbered(clusters, len(rows))
    table = np.asarray(rows, float)
    sums = np.stack([np.bincount(cluster_of, column, minlength=number) for column in table.T], 1)
    return of_sums(sums, statistic, n=len(rows), expand=expand, seed=seed)


def of_sums(
    sums: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray],
    *,
    n: int,
    bounds: tuple[float, float] | None = None,
    expand: bool = False,
    seed: int = 0,
) -> Estimate | None:
    """A number that follows from sums over all rows (kappa, alpha), with a 95 % BCa interval.

    Args:
        sums: [clusters, D], what each cluster adds to the D sums.
        statistic: [R, D] -> [R], the number for each of R totals; nan where there is none.
        n: rows behind it, for `Estimate.n`.
        bounds: as in `Column`, for a number that is a mean of rates.
        expand: see `means`.
        seed: of the resampling.

    Returns:
        None where the number itself is undefined. Without an interval where more than one in a hundred
        resamples have no number, or all have the same one and there are no bounds.
    """
    if len(sums) == 0:
        return None
    sums = np.asarray(sums, float)

    def parts(totals: Floats) -> Floats:
        # In parts, since a statistic may need several tables of the size of its totals.
        return np.concatenate(
            [statistic(totals[i : i + 2_000]) for i in range(0, len(totals), 2_000)]
        )

    with np.errstate(all="ignore"):
        value = float(statistic(np.array([[math.fsum(column) for column in sums.T]]))[0])
        if not math.isfinite(value):
            return None
        estimate = Estimate(value, None, None, n, "one cluster", len(sums))
        if len(sums) < 2:
            return estimate
        kinds, number = _kinds(sums)
        resampled = parts(_resampled(kinds, number, seed))
        without_one = parts(number @ kinds - kinds)
    resampled = resampled[np.isfinite(resampled)]
    if len(resampled) < 0.99 * RESAMPLES:
        return Estimate(value, None, None, n, "too few rows decide it", len(sums))
    if np.ptp(resampled) <= 1e-12:
        return _with_interval(estimate, None, None, bounds)
    low, high = _bca(resampled, value, without_one, number, expand)
    why = "" if low is not None else "too few rows decide it"
    return Estimate(value, low, high, n, why, len(sums))


def _numbered(clusters: Sequence[str] | None, rows: int) -> tuple[NDArray[np.intp], int]:
    """[N] the number of each row's cluster, and how many clusters there are."""
    if clusters is None:
        return np.arange(rows), rows
    if len(clusters) != rows:
        raise ValueError(f"there are {rows} values and {len(clusters)} clusters, expected one each")
    names: dict[str, int] = {}
    return np.array([names.setdefault(c, len(names)) for c in clusters], np.intp), len(names)


def _floats(values: Sequence[float | None], rows: int) -> tuple[Floats, NDArray[np.bool_]]:
    if len(values) != rows:
        raise ValueError(f"columns have {rows} and {len(values)} values, expected equally many")
    # Not by NaN: a NaN that was measured must show.
    return np.array(values, float), np.array([v is not None for v in values], bool)


def _intervals(
    sums: Floats, statistic: Callable[[Floats], Floats], seed: int, expand: bool
) -> list[tuple[float | None, float | None]]:
    """BCa intervals of M functions of totals.

    Args:
        sums: [C, K], of every cluster.
        statistic: totals [..., K] to values [..., M].
        seed: of the resampling.
        expand: see `means`.
    """
    sums, number = _kinds(sums)
    totals = number @ sums
    value = statistic(totals)
    resampled = statistic(_resampled(sums, number, seed))
    without_one = statistic(totals - sums)
    return [
        _bca(resampled[:, m], float(value[m]), without_one[:, m], number, expand)
        for m in range(resampled.shape[1])
    ]


def _kinds(sums: Floats) -> tuple[Floats, Floats]:
    """Sums [kinds, K] that clusters have, and how many have them [kinds].

    Every cluster is a kind of its own unless there are many clusters and few kinds.
    """
    # Sorted, so that an interval depends neither on the order of rows nor on names of clusters.
    sums = sums[np.lexsort(sums.T[::-1])]
    clusters = len(sums)
    if clusters > MANY:
        # Clusters with equal sums are interchangeable: how often each kind of cluster is drawn is
        # multinomial, and leaving out one or another of a kind gives the same value.
        first = np.r_[True, (sums[1:] != sums[:-1]).any(axis=1)]
        if first.sum() <= 200:
            return sums[first], np.diff(np.r_[np.flatnonzero(first), clusters]).astype(float)
    return sums, np.ones(clusters)


def _resampled(sums: Floats, number: Floats, seed: int) -> Floats:
    """Totals [RESAMPLES, K] of as many clusters as there are, drawn with replacement.

    Args:
        sums: [kinds, K].
        number: [kinds], how many clusters have these sums.
        seed: of the drawing.
    """
    rng = np.random.default_rng(seed)
    clusters = int(number.sum())
    if len(sums) < clusters:
        drawn = rng.multinomial(clusters, number / clusters, size=RESAMPLES)
        return np.asarray(drawn.astype(float) @ sums)
    out = np.empty((RESAMPLES, sums.shape[1]))
    # In double precision: sums of labels stay whole numbers, so that resamples that equal the value
    # are seen to; single precision would save a tenth of the time.
    step = max(1, 1_000_000 // clusters)  # 8 MiB of counts for one matrix product
    few = max(1, 100_000 // clusters)  # so that counting stays within the processor's cache
    shift = np.arange(few)[:, None] * clusters
    for start in range(0, RESAMPLES, step):
        times = np.empty((min(step, RESAMPLES - start), clusters))
        for i in range(0, len(times), few):
            part = times[i : i + few]
            # The same call as scipy's, hence the same draws for the same seed.
            drawn = rng.integers(0, clusters, part.shape)
            drawn += shift[: len(part)]
            part[:] = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(part.shape)
        out[start : start + step] = times @ sums
    return out


def _bca(
    resampled: Floats, value: float, without_one: Floats, number: Floats, expand: bool
) -> tuple[float | None, float | None]:
    """The BCa interval of one statistic.

    Args:
        resampled: [RESAMPLES].
        value: of all clusters.
        without_one: [kinds], the statistic without one cluster of a kind.
        number: [kinds], how many clusters are such.
        expand: see `means`.
    """
    from scipy.special import ndtr, ndtri, stdtrit

    if not (np.isfinite(resampled).all() and np.isfinite(without_one).all()):
        return None, None
    rounding = 1e-9 * float(np.ptp(resampled))
    below = ((resampled < value - rounding).sum() + (resampled <= value + rounding).sum()) / (
        2 * len(resampled)
    )
    influence = (number @ without_one) / number.sum() - without_one
    largest = float(np.abs(influence).max())
    if not 0 < below < 1 or largest == 0:
        return None, None
    influence /= largest  # acceleration has no unit, and cubes of differences of 1e-200 would be 0
    spread = float(number @ influence**2)
    acceleration = float(number @ influence**3) / (6 * spread**1.5)
    clusters = float(number.sum())
    upper = (1 + CONFIDENCE) / 2
    reach = (
        stdtrit(clusters - 1, upper) * math.sqrt(clusters / (clusters - 1))
        if expand
        else ndtri(upper)
    )
    shift = ndtri(below) + np.array([-reach, reach])
    levels = ndtr(ndtri(below) + shift / (1 - acceleration * shift))
    low, high = np.quantile(resampled, levels)
    return float(low), float(high)


def flip_test(differences: Sequence[float], clusters: Sequence[str] | None = None) -> float:
    """Exact two-sided p-value of paired differences: could it be that the two do not differ?

    If they did not, a cluster's difference would be as likely with the opposite sign. All signs of
    all clusters are counted out: p is the share in which the sum of differences is at least as far
    from 0 as it is. On clusters of one row with differences of -1, 0 and 1 this is McNemar's exact
    test (scipy.stats.binomtest of the items that changed); with larger clusters McNemar's test, which
    takes rows for independent, finds too much.

    Args:
        differences: length N, multiples of 0.5: of labels, or of a share of two orders.
        clusters: length N, which rows belong together; None: every row is its own cluster.

    Returns:
        In (0, 1]; 1 without differences.

    Raises:
        ValueError: a difference is not a multiple of 0.5. Use the interval of `mean`.
    """
    from scipy.stats import binom

    cluster_of, number = _numbered(clusters, len(differences))
    doubled = 2 * np.asarray(differences, float)
    if not np.array_equal(doubled, np.round(doubled)):
        raise ValueError("differences are not multiples of 0.5, as those of labels are")
    sums = np.bincount(cluster_of, doubled, minlength=number).astype(int)
    sums //= max(1, int(np.gcd.reduce(sums, initial=0)))
    # The distribution of the sum of all clusters whose sum is k or -k is binomial with step 2k;
    # that of the whole is the convolution over k.
    whole = np.ones(1)
    for k, m in sorted(Counter(np.abs(sums[sums != 0]).tolist()).items()):
        part = np.zeros(2 * k * m + 1)
        part[:: 2 * k] = binom.pmf(np.arange(m + 1), m, 0.5)
        whole = np.convolve(whole, part)
    reach = len(whole) // 2
    far = np.abs(np.arange(-reach, reach + 1)) >= abs(int(sums.sum()))
    return min(1.0, float(whole[far].sum()))


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """p-values corrected for being a family: the probability that any of them is below by chance alone.

    Holm 1979 (Scandinavian Journal of Statistics 6:65-70): the smallest of m times m, the next times
    m - 1, and so on, none smaller than the one before. Holds whatever the dependence between them.
    """
    corrected: dict[str, float] = {}
    running = 0.0
    for done, key in enumerate(sorted(p, key=p.__getitem__)):
        running = max(running, min(1.0, p[key] * (len(p) - done)))
        corrected[key] = running
    return {key: corrected[key] for key in p}
