"""How often the 95 % interval of a paired change holds the true change: 93 to 97 % is what we want.

    python benchmarks/coverage.py            # about a minute on 2 cores; exits 1 outside 93-97 %

Studies as a held-out evaluation gives them: items in clusters of unequal size whose rows resemble
each other, measured before and after.
"""

import sys

import numpy as np

from xyreward.stats import mean

STUDIES = 1_000
CHANGE = 0.3
CLUSTERS = 60


def study(rng: np.random.Generator, seed: int) -> bool:
    sizes = rng.integers(1, 4, CLUSTERS)
    names = [f"{i:03}" for i, size in enumerate(sizes) for _ in range(size)]
    item = rng.normal(size=len(names))  # easy or hard, before and after
    moved = np.repeat(rng.normal(scale=0.7, size=CLUSTERS), sizes)  # alike within a cluster
    before = item + rng.normal(scale=0.5, size=len(names))
    after = item + CHANGE + moved + rng.normal(scale=0.5, size=len(names))
    found = mean((after - before).tolist(), names, seed=seed)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    return found.low <= CHANGE <= found.high


def main() -> None:
    rng = np.random.default_rng(0)
    covered = sum(study(rng, seed) for seed in range(STUDIES)) / STUDIES
    print(f"{covered:.1%} of {STUDIES} intervals hold the true change; wanted: 93-97 %")
    sys.exit(not 0.93 <= covered <= 0.97)


if __name__ == "__main__":
    main()
