"""Speed of the local judge beside a naive loop, and what importing xyreward costs.

    python benchmarks/local_judge.py

The naive loop uses the same encoder, features and head, but embeds one text per call and embeds the
item's texts anew for every answer, as a first version of such a judge would. Both judge the same
answers of about 150 words to bundled items; the items are as a training loop sees them, several
answers to each. Five alternating repeats in one process, medians. "new items" is a fresh judge in
every repeat; "known items" is one that has met the items before, as from a training loop's second
epoch on. Answers are embedded anew in all three. The aim is a ratio of 5 for known items.
"""

import asyncio
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from xyreward.items import XY_KINDS, Item
from xyreward.judges.encoder import Encoder, Vectors, chunks
from xyreward.judges.features import features, ground
from xyreward.judges.local import Head, LocalJudge, head_file, to_probabilities
from xyreward.loading import load_items
from xyreward.verdict import LabelProbabilities

ITEMS = 8
ANSWERS_PER_ITEM = len(XY_KINDS)
WORDS = 150
REPEATS = 5


def texts_of(item: Item) -> list[str]:
    """Its reference answers without attempts: one of each kind."""
    return [r.text for r in item.references if r.kind in XY_KINDS]


def answers_of(item: Item, spare: Iterator[str]) -> list[str]:
    """Its reference answers, cut to `WORDS` words or lengthened with answers to other items.

    Nothing is used twice: equal sentences are embedded once, which would flatter the judge.
    """
    out = []
    for text in texts_of(item):
        while len(text.split()) < WORDS:
            text = f"{text}\n\n{next(spare)}"
        while len(text.split()) > WORDS:
            text = text.rsplit(maxsplit=1)[0]
        out.append(text)
    return out


def judged(judge: LocalJudge, items: Sequence[Item], answers: Sequence[str]) -> object:
    return asyncio.run(judge.judge(items, answers))


def naive_with(encoder: Encoder) -> Callable[[Sequence[Item], Sequence[str]], object]:
    heads = {kind: Head.from_dict(data) for kind, data in head_file()["heads"].items()}

    def one_by_one(texts: Sequence[str]) -> Vectors:
        return np.concatenate([encoder.encode([text]) for text in texts])

    def naive(items: Sequence[Item], answers: Sequence[str]) -> list[LabelProbabilities]:
        out = []
        for item, answer in zip(items, answers, strict=True):
            texts = chunks(answer)
            named = features(ground(item, one_by_one), texts, one_by_one(texts))
            head = heads[item.kind]
            values = np.array([[named[name] for name in head.features]])
            out.append(to_probabilities(head.label_probabilities(values)[0], item.kind))
        return out

    return naive


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def import_seconds(module: str) -> float:
    """Wall time of one import in a fresh interpreter, its start not counted."""
    program = (
        f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def machine() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [
            ln for ln in cpuinfo.read_text("utf-8").splitlines() if ln.startswith("model name")
        ]
        model = lines[0].split(":", 1)[1].strip() if lines else model
    return f"{model}, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads"


def main() -> None:
    mini = load_items("mini")
    chosen = [item for item in mini if len(texts_of(item)) == ANSWERS_PER_ITEM][::5][:ITEMS]
    spare = iter([r.text for item in mini if item not in chosen for r in item.references])
    items = [item for item in chosen for _ in range(ANSWERS_PER_ITEM)]
    answers = [answer for item in chosen for answer in answers_of(item, spare)]
    naive = naive_with(Encoder())
    known = LocalJudge()
    judged(known, items, answers)
    naive(items[:1], answers[:1])
    work: dict[str, Callable[[], object]] = {
        "naive loop": lambda: naive(items, answers),
        "LocalJudge, new items": lambda: judged(LocalJudge(), items, answers),
        "LocalJudge, known items": lambda: judged(known, items, answers),
    }
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(REPEATS):
        for name, run in work.items():
            taken[name].append(seconds(run))
    words = statistics.mean(len(answer.split()) for answer in answers)
    print(machine())
    print(f"{len(answers)} answers of {words:.0f} words to {len(chosen)} items, {REPEATS} repeats")
    baseline = statistics.median(taken["naive loop"])
    for name, times in taken.items():
        middle = statistics.median(times)
        print(
            f"  {name:26}{len(answers) / middle:6.1f} answers/s   ratio {baseline / middle:4.1f}"
            f"   ({min(times):.2f} to {max(times):.2f} s)"
        )
    for module in ("xyreward", "torch"):
        times = [import_seconds(module) for _ in range(REPEATS)]
        print(f"import {module:10}{statistics.median(times):6.2f} s   (median of {REPEATS})")


if __name__ == "__main__":
    main()
