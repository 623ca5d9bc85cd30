"""Time and peak memory of the intervals of a whole evaluation: 8,115 items, two policies, 10,000 resamples.

    python benchmarks/stats.py              # half a minute; exits 1 above 2 s or 500 MiB
    python benchmarks/stats.py --clusters   # items in clusters of 1-5 instead of alone
    python benchmarks/stats.py --report     # all of report.json; exits 1 above 4 s

All metrics of both policies and all their paired changes, from the rows of two evaluations to
estimates. Beside it what a user would do instead: scipy.stats.bootstrap, BCa, once per column (measured
on a few columns and scaled by their number). Ours runs in a process of its own, whose peak is reported.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import numpy as np
from scipy.stats import bootstrap

from xyreward.evaluation import Evaluation, Row
from xyreward.metrics import METRICS, measure
from xyreward.policy import LogProb
from xyreward.report import build_report, to_json
from xyreward.verdict import FOCUS_VALUES

ITEMS = 8_115
SCIPY_COLUMNS = 2


def groups() -> dict[str, list[str]]:
    """Sources of the benchmark's sizes, 60 domains from large to small, 4 languages."""
    rng = np.random.default_rng(0)
    sizes = {"wikihow": 6_272, "stackoverflow": 1_557, "stackexchange": 184, "curated": 102}
    likely = 1 / np.arange(1, 61)
    domains = rng.choice(60, ITEMS, p=likely / likely.sum())
    return {
        "source": [name for name, size in sizes.items() for _ in range(size)],
        "domain": [f"domain {n}" for n in domains],
        "language": [
            ("en", "zh", "es", "de")[n] for n in rng.choice(4, ITEMS, p=(0.7, 0.1, 0.1, 0.1))
        ],
    }


def evaluation(seed: int, clusters: list[str]) -> Evaluation:
    rng = np.random.default_rng(seed)
    of = groups()
    rows = []
    for i in range(ITEMS):
        soft, margin, better, worse = rng.normal(size=4)
        p = rng.random(6)
        rows.append(
            Row(
                item_id=f"i{i}",
                kind="control" if i % 10 == 0 else "xy",
                source=of["source"][i],
                domain=of["domain"][i],
                language=of["language"][i],
                cluster=clusters[i],
                comparable=True,
                answer="x" * int(rng.integers(500, 2_500)),
                answer_tokens=300,
                truncated=bool(p[0] < 0.1),
                verdict={
                    "has_stated_solution": bool(p[1] < 0.8),
                    "has_intended_solution": bool(p[2] < 0.6),
                    "focus": FOCUS_VALUES[int(4 * p[3])],
                    "identifies_misconception": bool(p[4] < 0.5),
                },
                soft_reward=float(1 / (1 + np.exp(-soft))),
                better=LogProb(float(better) - 100, 120),
                worse=LogProb(float(worse) - 100, 120),
                picked=int(3 * p[5]) / 2,
                picked_first=0.5,
                pick_margin=float(margin),
            )
        )
    return Evaluation(f"p{seed}", tuple(rows), "j", "v", ("writing", "preference", "picking"))


def cluster_names(grouped: bool) -> list[str]:
    if not grouped:
        return [f"i{i}" for i in range(ITEMS)]
    sizes = np.random.default_rng(0).integers(1, 6, ITEMS)
    return [str(c) for c, size in enumerate(sizes) for _ in range(size)][:ITEMS]


def ours(grouped: bool) -> None:
    clusters = cluster_names(grouped)
    before, after = evaluation(1, clusters), evaluation(2, clusters)
    start, cpu = time.perf_counter(), time.process_time()
    lines = measure(before, after)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    estimates = [e for line in lines for e in (line.before, line.after, line.change) if e]
    peak = peak_mib()
    print(
        f"{len(lines)} metrics, {len(estimates)} intervals over {len(set(clusters)):,} clusters: "
        f"{seconds:.2f} s, {cpu:.2f} s of CPU (aim: 2), peak {peak:.0f} MiB (aim: 500)"
    )
    print(f"columns {len(estimates)} cpu {cpu} peak {peak}", file=sys.stderr)
    sys.exit(cpu > 2 or peak > 500)


def report(grouped: bool) -> None:
    clusters = cluster_names(grouped)
    before, after = evaluation(1, clusters), evaluation(2, clusters)
    start, cpu = time.perf_counter(), time.process_time()
    found = build_report(before, after)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    told = sum(len(groups) for groups in found["breakdown"].values())
    print(
        f"report.json, {told} groups, {len(to_json(found)) / 2**20:.1f} MiB, over {len(set(clusters)):,} "
        f"clusters: {seconds:.2f} s, {cpu:.2f} s of CPU (aim: 4), peak {peak_mib():.0f} MiB"
    )
    sys.exit(cpu > 4)


def peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2 ** (20 if sys.platform == "darwin" else 10)


def theirs(grouped: bool, columns: int) -> float:
    """CPU seconds of scipy for as many columns."""
    cluster = np.unique(cluster_names(grouped), return_inverse=True)[1]
    rng = np.random.default_rng(0)
    start = time.process_time()
    for _ in range(SCIPY_COLUMNS):
        values = rng.random(ITEMS)
        sums, counts = np.bincount(cluster, values), np.bincount(cluster)
        bootstrap(
            (sums, counts),
            lambda s, c, axis=-1: s.sum(axis=axis) / c.sum(axis=axis),
            paired=True,
            vectorized=True,
            batch=100,
            n_resamples=10_000,
            method="BCa",
            rng=rng,
        )
    return (time.process_time() - start) / SCIPY_COLUMNS * columns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clusters", action="store_true", help="items in clusters of 1-5")
    parser.add_argument("--only-ours", action="store_true")
    parser.add_argument("--report", action="store_true", help="all of report.json")
    args = parser.parse_args()
    if args.report:
        report(args.clusters)
    if args.only_ours:
        ours(args.clusters)
    command = [sys.executable, __file__, "--only-ours"] + ["--clusters"] * args.clusters
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, end="")
    if not done.stderr.startswith("columns"):
        sys.exit(done.stderr)
    columns, cpu = int(done.stderr.split()[1]), float(done.stderr.split()[3])
    scipy_cpu = theirs(args.clusters, columns)
    print(
        f"scipy.stats.bootstrap, a call per column: {scipy_cpu:.0f} s of CPU for {columns} (scaled from "
        f"{SCIPY_COLUMNS}), {scipy_cpu / cpu:.0f} times as long; METRICS: {len(METRICS)}"
    )
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
