"""Peak memory and speed of scoring a file of answers, and how soon `xyreward --help` is there.

    python benchmarks/score_file.py             100,000 and 1,000,000 answers of 100 words

Every size runs in a process of its own, with a judge that costs nothing, so that what is measured is
the way of the rows: reading, checking, `ascore`, writing. Beside it, on the smaller size, what a user
would write instead: read all rows, call `score()` once, write all rows. The answers take 0.7 GB of disk,
the output 2 GB more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from splits import machine

from xyreward.items import DEFAULT_LABELS, Item
from xyreward.loading import load_items
from xyreward.reward import Reward
from xyreward.score_file import AnswersFile, as_row, score_file
from xyreward.scoring import score
from xyreward.verdict import JudgeFailure, LabelProbabilities, Verdict


class Constant:
    """Says the same of every answer."""

    name, rubric_version = "constant", "1"

    async def judge(
        self, items: Sequence[Item], answers: Sequence[str]
    ) -> list[Verdict | JudgeFailure]:
        labels = DEFAULT_LABELS["goal_focused"]
        p = LabelProbabilities.certain(labels)
        return [
            Verdict(labels, p, self.name, self.rubric_version, reason=f"{item.id} " * 8)
            for item, _ in zip(items, answers, strict=True)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--folder", help="where the files are made (default: the system's)")
    parser.add_argument("--child", nargs=2, metavar=("HOW", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*args.child)
        return
    print(machine())
    for rows in args.rows:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            answers = Path(folder, "answers.jsonl")
            write(answers, rows)
            for how in ("score_file", "all at once") if rows == min(args.rows) else ("score_file",):
                command = [sys.executable, __file__, "--child", how, str(answers)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                found = json.loads(done.stdout)
                print(
                    f"{how:12} {rows:9,} rows: peak {found['peak']:5.0f} MiB (before the first row "
                    f"{found['before']:.0f}), {rows / found['seconds']:6,.0f} rows/s"
                )
    command = [sys.executable, "-m", "xyreward.cli", "--help"]
    seconds = [timed(command) for _ in range(7)]
    print(f"xyreward --help: {statistics.median(seconds):.2f} s")


def child(how: str, path: str) -> None:
    answers, out = Path(path), Path(path).with_suffix(".out")
    items = load_items("mini")
    before = peak_mib()
    start = time.perf_counter()
    if how == "score_file":
        file = AnswersFile(answers, items)
        asyncio.run(score_file(file, out, Constant(), Reward()))
    else:
        by_id = {item.id: item for item in items}
        rows: list[dict[str, Any]] = [json.loads(line) for line in answers.open()]
        scores = score([by_id[r["item_id"]] for r in rows], [r["answer"] for r in rows], Constant())
        lines = [json.dumps({**row, **as_row(one)}) for row, one in zip(rows, scores, strict=True)]
        out.write_text("\n".join(lines))
    seconds = time.perf_counter() - start
    out.unlink()
    print(json.dumps({"before": before, "peak": peak_mib(), "seconds": seconds}))


def write(path: Path, rows: int) -> None:
    ids = [item.id for item in load_items("mini")]
    words = ("go to bed earlier on sunday and leave the clock as it is " * 8).strip()
    with path.open("w") as stream:
        for n in range(rows):
            row = {"item_id": ids[n % len(ids)], "answer": f"{n} {words}", "step": n}
            stream.write(json.dumps(row) + "\n")


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(command: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
