"""Time and peak memory of assign_splits() and check_no_overlap() on as many items as XYBench has.

    python benchmarks/splits.py             8,115 items of about 150 words, a tenth nearly repeated

Queries are drawn from 20,000 words with Zipf's frequencies, so that unrelated ones share common
words as texts do; one in ten is an earlier query with a few words changed. Beside it: what a user
would write instead, every pair compared, measured on 1,000 items and scaled by the square. Then as many
questions of one form ("How do I install X on Y?"), short, long, and with half of their words their own:
what all have in common must not make each pair a candidate.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import TypeVar

from xyreward.items import Item
from xyreward.splits import NEAR_DUPLICATE, assign_splits, check_no_overlap
from xyreward.testing import make_item

T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--items", type=int, default=8_115)
    parser.add_argument("--words", type=int, default=150, help="mean length of a query")
    args = parser.parse_args()

    print(machine())
    items, repeats = made(args.items, args.words)
    print(
        f"{len(items):,} items, {sum(len(i.query_text.split()) for i in items) / len(items):.0f} "
        f"words on average, {repeats:,} of them nearly repeat another"
    )
    before = peak_mib()
    splits, seconds = timed(lambda: assign_splits(items))
    print(f"assign_splits       {seconds:6.1f} s   (aim: under 30)")
    count = Counter(splits.side(item) for item in items)
    print("                    " + ", ".join(f"{s} {n / len(items):.1%}" for s, n in count.items()))
    clusters = len({p.cluster for p in splits.placements.values()})
    print(f"                    {clusters:,} clusters; {len(items) - repeats:,} if all were found")
    train, test = splits.select(items, "train"), splits.select(items, "test")
    _, seconds = timed(lambda: check_no_overlap(train, test))
    print(f"check_no_overlap    {seconds:6.1f} s   ({len(train):,} against {len(test):,})")
    few = items[: min(1_000, len(items))]
    _, seconds = timed(lambda: every_pair(few))
    print(
        f"every pair compared {seconds * (len(items) / len(few)) ** 2:6.1f} s   (scaled from "
        f"{len(few):,} items in {seconds:.1f} s)"
    )
    for form in FORMS:
        alike = of_one_form(args.items, form)
        splits, seconds = timed(partial(assign_splits, alike))
        clusters = len({p.cluster for p in splits.placements.values()})
        print(f"one form, {form:9} {seconds:6.1f} s   ({clusters:,} clusters)")
    print(f"peak memory         {peak_mib():6.0f} MiB, of which {before:.0f} before the first call")


def made(n: int, words: int) -> tuple[list[Item], int]:
    chance = random.Random(0)
    vocabulary = [f"w{i}" for i in range(20_000)]
    weights = [1 / (rank + 1) for rank in range(len(vocabulary))]
    queries: list[list[str]] = []
    repeats = 0
    for _ in range(n):
        if queries and chance.random() < 0.1:
            repeats += 1
            query = list(chance.choice(queries))
            for _ in range(len(query) // 30):
                query[chance.randrange(len(query))] = chance.choice(vocabulary)
        else:
            length = chance.randint(words // 3, 5 * words // 3)
            query = chance.choices(vocabulary, weights, k=length)
        queries.append(query)
    return [make_item(id=f"i{k}", query=" ".join(q)) for k, q in enumerate(queries)], repeats


FORMS = {
    "short": "How do I install {} on {}?",
    "half own": "How do I quickly install the {2} {3} {4} {5} {6} {0} on {1} now?",
    "long": "I have been trying for some days now and nothing that I found has helped me so far, so please "
    "tell me in simple words how do I install {} on {} without breaking what is already there on the "
    "machine of my mother?",
}


def of_one_form(n: int, form: str) -> list[Item]:
    chance = random.Random(0)
    names = ["".join(chance.choices(ascii_lowercase, k=6)) for _ in range(2_000)]
    places = ["".join(chance.choices(ascii_lowercase, k=5)) for _ in range(300)]
    return [
        make_item(
            id=f"i{k}",
            query=FORMS[form].format(
                chance.choice(names), chance.choice(places), *chance.choices(names, k=5)
            ),
        )
        for k in range(n)
    ]


def every_pair(items: list[Item]) -> int:
    """The naive search: the same shingles, all pairs."""
    shingles = []
    for item in items:
        tokens = item.query_text.lower().split()
        shingles.append({tuple(tokens[i : i + 3]) for i in range(len(tokens) - 2)})
    return sum(
        len(a & b) >= NEAR_DUPLICATE * len(a | b)
        for i, a in enumerate(shingles)
        for b in shingles[:i]
    )


def timed(work: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def peak_mib() -> float:
    """Peak resident memory of this process; Linux counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2 ** (20 if sys.platform == "darwin" else 10)


def machine() -> str:
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [
            line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        name = models[0].partition(":")[2].strip() if models else name
    return (
        f"{name}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    )


if __name__ == "__main__":
    main()
