"""How often the 95 % interval of a paired change holds the true change: 93 to 97 % is what we want.

    python benchmarks/coverage.py            # some minutes; exits 1 where ours is outside 93-97 %

Studies as a held-out evaluation gives them: 200 items in clusters of 1 to 5 whose rows resemble each
other, measured before and after. The same resamples give the plain percentile interval, BCa (what scipy
gives), BCa at a level expanded for few clusters (what evaluations give) and the bootstrap-t. Smaller
studies and lengths, whose distribution has a long tail, are shown and not held to the aim.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from xyreward.stats import RESAMPLES, _bca, _resampled

Floats = NDArray[np.float64]
STUDIES = 1_000


def normals(rng: np.random.Generator, cluster: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """[N] before and [N] after, standard normal, alike within a cluster and within an item."""
    shape = (2, len(cluster))
    of_cluster = rng.normal(size=(2, cluster[-1] + 1))[:, cluster]
    both = rng.normal(size=len(cluster))
    rest = rng.normal(size=shape)
    before, after = np.sqrt(0.3) * of_cluster + np.sqrt(0.4) * both + np.sqrt(0.3) * rest
    return before, after


def labels(p: float, q: float) -> Callable[[np.random.Generator, NDArray[np.intp]], Floats]:
    """Changes of a label whose rate goes from p to q: -1, 0 or 1."""

    def draw(rng: np.random.Generator, cluster: NDArray[np.intp]) -> Floats:
        before, after = normals(rng, cluster)
        return (after < ndtri(q)).astype(float) - (before < ndtri(p))

    return draw


def reward(rng: np.random.Generator, cluster: NDArray[np.intp]) -> Floats:
    """Changes of a soft reward; the true mean is 0 by symmetry plus 0.1."""
    before, after = normals(rng, cluster)
    change: Floats = ndtr(after) - ndtr(before) + 0.1
    return change


def skewed(rng: np.random.Generator, cluster: NDArray[np.intp]) -> Floats:
    """Changes of a length: few answers grow a lot. exp of a normal has the mean exp(1/2)."""
    change: Floats = np.exp(normals(rng, cluster)[0]) - np.exp(0.5)
    return change


SCENARIOS: dict[str, tuple[Callable[[np.random.Generator, NDArray[np.intp]], Floats], float]] = {
    "label, 35 to 50 %": (labels(0.35, 0.50), 0.15),
    "label, 80 to 82 %": (labels(0.80, 0.82), 0.02),
    "label, 5 to 10 %": (labels(0.05, 0.10), 0.05),
    "soft reward": (reward, 0.1),
    "length (log-normal)": (skewed, 0.0),
}
METHODS = ("percentile", "BCa", "BCa expanded", "bootstrap-t")


def clusters_of(rng: np.random.Generator, items: int) -> NDArray[np.intp]:
    sizes = rng.integers(1, 6, items)
    return np.repeat(np.arange(items), sizes)[:items]


def intervals(values: Floats, cluster: NDArray[np.intp], seed: int) -> list[tuple[float, float]]:
    """Of each of METHODS, from the same resamples."""
    s, n = np.bincount(cluster, values), np.bincount(cluster).astype(float)
    value = float(s.sum() / n.sum())
    drawn = _resampled(np.stack([s, n, s * s, s * n, n * n], axis=1), np.ones(len(s)), seed)
    total, rows, ss, sn, nn = drawn.T
    resampled = total / rows
    percentile = np.quantile(resampled, [0.025, 0.975])
    without_one = (s.sum() - s) / (n.sum() - n)
    bca = [_bca(resampled, value, without_one, np.ones(len(s)), expand) for expand in (False, True)]
    # Standard error of a quotient of totals, by linearisation, in the sample and in every resample.
    error = np.sqrt(((s - value * n) ** 2).sum()) / n.sum()
    errors = np.sqrt(np.maximum(ss - 2 * resampled * sn + resampled**2 * nn, 0)) / rows
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (resampled - value) / errors
    t = t[np.isfinite(t)]
    upper, lower = np.quantile(t, [0.975, 0.025]) if len(t) else (np.inf, -np.inf)
    return [
        (float(percentile[0]), float(percentile[1])),
        *((np.nan if low is None else low, np.nan if high is None else high) for low, high in bca),
        (value - float(upper) * float(error), value - float(lower) * float(error)),
    ]


def main() -> None:
    print(
        f"{STUDIES:,} studies each, {RESAMPLES:,} resamples; share that hold the truth, mean width"
    )
    good = True
    for items in (200, 60):
        for name, (draw, truth) in SCENARIOS.items():
            rng = np.random.default_rng(0)
            covered, widths = np.zeros(len(METHODS)), np.zeros(len(METHODS))
            for seed in range(STUDIES):
                cluster = clusters_of(rng, items)
                found = np.array(intervals(draw(rng, cluster), cluster, seed))
                covered += (found[:, 0] <= truth) & (truth <= found[:, 1])
                widths += np.nan_to_num(found[:, 1] - found[:, 0])
            figures = ", ".join(
                f"{method} {c:.1%} ({w:.3f})"
                for method, c, w in zip(METHODS, covered / STUDIES, widths / STUDIES, strict=True)
            )
            print(f"{items} items, {name}: {figures}", flush=True)
            if items == 200 and not name.startswith("length"):
                good &= bool(0.93 <= covered[2] / STUDIES <= 0.97)
    sys.exit(not good)


if __name__ == "__main__":
    main()
