"""Score a JSONL file of answers into a JSONL file of verdicts, of any length, in constant memory.

A row names its item, or brings a bare query, and has an answer; other keys are carried over:

    {"item_id": "...", "answer": "..."}      {"query": "..." or messages, "answer": "..."}

The output has the same rows in the same order, each with `reward` (null where the judge failed),
`verdict`, `failure`, `judge` and `rubric_version`. It appears under its name when it is complete; until
then `<name>.partial` holds what is done, and the same command goes on from there.

Not here: judging (`judges/`), the command line (`cli.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import ValidationError

from xyreward.errors import DataError, RunFolderError
from xyreward.items import Item, items_hash
from xyreward.judges import Judge
from xyreward.judges.model import Estimate
from xyreward.reward import Reward
from xyreward.scoring import Score, ascore

CHUNK = 512
"""Rows that are judged together: enough to keep 64 calls in flight, few enough to hold in memory."""
AHEAD = 2
"""Chunks under way at a time."""
SHOWN_PROBLEMS = 20


@dataclass(slots=True)
class FileReport:
    """What came of a file."""

    rows: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """Rows without a reward, by kind of failure."""
    resumed: int = 0
    """Rows that an earlier run of the same command had done."""


class AnswersFile:
    """A JSONL file of answers, checked from end to end before anything is judged."""

    def __init__(self, path: Path, items: Sequence[Item]) -> None:
        """Read the file once and check every row.

        Raises:
            DataError: it is not there, or rows cannot be used; names each line and what is wrong with
                it, the first 20.
        """
        self.path = path
        self._items = {item.id: item for item in items}
        self.items_hash = items_hash(items)
        digest = hashlib.sha256()
        problems: list[str] = []
        wrong = rows = 0
        for number, line in self._lines():
            digest.update(line)
            rows += 1
            try:
                self._row(line)
            except ValueError as error:
                wrong += 1
                if len(problems) < SHOWN_PROBLEMS:
                    problems.append(f"{path}: line {number}: {error}")
        if wrong > len(problems):
            problems.append(f"{path}: {wrong - len(problems)} more lines like these")
        if not rows:
            problems.append(f"{path}: has no rows, expected one JSON object per line")
        if problems:
            raise DataError(problems)
        self.rows = rows
        self.hash = digest.hexdigest()

    def chunks(self, skip: int = 0) -> Iterator[list[tuple[dict[str, Any], Item]]]:
        """The rows with their items, in pieces, from row `skip` on."""
        rows = (self._row(line) for _, line in islice(self._lines(), skip, None))
        while chunk := list(islice(rows, CHUNK)):
            yield chunk

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        try:
            # Bytes, because a text file's lines also end at characters that JSON allows in strings.
            with self.path.open("rb") as stream:
                for number, line in enumerate(stream, start=1):
                    if line.strip():
                        yield number, line
        except OSError as error:
            raise DataError([f"{self.path}: cannot be read ({error})"]) from None

    def _row(self, line: bytes) -> tuple[dict[str, Any], Item]:
        try:
            row = json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"is not JSON in UTF-8 ({error})") from None
        if not isinstance(row, dict):
            raise ValueError(f"is {type(row).__name__}, expected an object")
        if not isinstance(row.get("answer"), str):
            raise ValueError(f"answer is {row.get('answer')!r:.60}, expected a string")
        if "item_id" in row:
            item = self._items.get(row["item_id"]) if isinstance(row["item_id"], str) else None
            if item is None:
                raise ValueError(
                    f"item_id {row['item_id']!r:.60} is not among the {len(self._items)} items; check "
                    "--items"
                )
            return row, item
        if "query" not in row:
            raise ValueError(f"has neither item_id nor query, only {', '.join(sorted(row))}")
        try:
            return row, Item.of_query(row["query"])
        except ValidationError as error:
            raise ValueError(f"query: {error.errors()[0]['msg']}") from None


def estimate_file(answers: AnswersFile, judge: Judge) -> Estimate | None:
    """What judging the file would take, with what the store has. None for a judge that makes no calls.

    Equal questions are counted once within a chunk of rows, so the true figure may be a little lower.
    """
    estimate = getattr(judge, "estimate", None)
    if estimate is None:
        return None
    total: Estimate | None = None
    for chunk in answers.chunks():
        rows = [(item, row["answer"]) for row, item in chunk if row["answer"].strip()]
        one: Estimate | None = estimate([i for i, _ in rows], [a for _, a in rows])
        total = one if total is None or one is None else total + one
    return total


async def score_file(
    answers: AnswersFile,
    out: Path,
    judge: Judge,
    reward: Reward,
    *,
    on_rows: Callable[[int], object] | None = None,
) -> FileReport:
    """Judge every row and write `out`.

    Args:
        answers: checked.
        out: must not exist; `<out>.partial` of an earlier run of the same job is gone on with.
        judge: see `load_judge`.
        reward: how labels become the number.
        on_rows: told how many more rows are done.

    Raises:
        RunFolderError: `out` exists, its partial file belongs to another job or is being written, or
            the disk is full.
        JudgeError, StoreError: see `Judge`. What is done is in the partial file.
    """
    if out.exists():
        raise RunFolderError(f"{out}: exists; choose another --out, or remove it first")
    partial = out.with_name(out.name + ".partial")
    job = {
        "answers": answers.hash,
        "items": answers.items_hash,
        "judge": judge.name,
        "rubric_version": judge.rubric_version,
        "votes": getattr(judge, "votes", 1),
        "reward": repr(reward),
    }
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{partial}.lock", timeout=0)
        with lock:
            report = _resumed(partial, job)
            if on_rows:
                on_rows(report.rows)
            with partial.open("ab") as stream:
                if stream.tell() == 0:
                    stream.write(_line({"job": job}))
                async for rows, scores in _scored(answers.chunks(report.rows), judge, reward):
                    for row, one in zip(rows, scores, strict=True):
                        stream.write(_line({**row, **as_row(one)}))
                        if one.failure is not None:
                            report.failed[one.failure.kind] += 1
                    stream.flush()
                    os.fsync(stream.fileno())
                    report.rows += len(rows)
                    if on_rows:
                        on_rows(len(rows))
            _finish(partial, out)
            Path(lock.lock_file).unlink(missing_ok=True)
        return report
    except Timeout:
        raise RunFolderError(f"{partial}: another process is writing it") from None
    except OSError as error:
        raise RunFolderError(
            f"{out}: cannot be written ({error}); what is done is in {partial.name}, run again to go on"
        ) from error


async def _scored(
    chunks: Iterator[list[tuple[dict[str, Any], Item]]], judge: Judge, reward: Reward
) -> AsyncIterator[tuple[list[dict[str, Any]], list[Score]]]:
    """Chunks with their scores, in order. The next one is under way while the last calls of one end."""
    under_way: deque[tuple[list[dict[str, Any]], asyncio.Task[list[Score]]]] = deque()
    try:
        while True:
            while len(under_way) < AHEAD and (chunk := next(chunks, None)):
                items = [item for _, item in chunk]
                texts = [row["answer"] for row, _ in chunk]
                task = asyncio.create_task(ascore(items, texts, judge, reward))
                under_way.append(([row for row, _ in chunk], task))
            if not under_way:
                return
            rows, task = under_way[0]
            scores = await task
            under_way.popleft()
            yield rows, scores
    finally:
        for _, task in under_way:
            task.cancel()
        await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)


def as_row(score: Score) -> dict[str, Any]:
    """A score as columns of JSON: `reward`, `verdict`, `failure`, `judge`, `rubric_version`."""
    verdict, failure = score.verdict, score.failure
    shown = None
    if verdict is not None:
        shown = {
            **asdict(verdict.labels),
            "p": asdict(verdict.p),
            "suggestions": [asdict(s) for s in verdict.suggestions],
            "reason": verdict.reason,
            "grounded": verdict.grounded,
            "votes": verdict.votes,
            "usage": asdict(verdict.usage),
            "cost_usd": verdict.cost_usd,
            "cached": verdict.cached,
            "flags": list(verdict.flags),
        }
    return {
        "reward": score.reward,
        "verdict": shown,
        "failure": None if failure is None else asdict(failure),
        "judge": score.source,
        "rubric_version": None if verdict is None else verdict.rubric_version,
    }


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _resumed(partial: Path, job: Mapping[str, Any]) -> FileReport:
    """Count what an earlier run did, and cut off a row that it had half written."""
    report = FileReport()
    if not partial.exists():
        return report
    keep = 0
    with partial.open("rb") as stream:
        for number, line in enumerate(stream):
            if not line.endswith(b"\n"):
                break
            try:
                row = json.loads(line)
                told = row["job" if number == 0 else "failure"]
            except (ValueError, KeyError, TypeError):
                raise RunFolderError(
                    f"{partial}: line {number + 1} is not as a run left it; remove the file to begin anew "
                    "(what was paid for is in the store)"
                ) from None
            if number == 0:
                if told != job:
                    raise RunFolderError(
                        f"{partial}: is of another job ({_differing(told, job)}); remove it, or "
                        "choose another --out"
                    )
            else:
                report.rows += 1
                if told is not None:
                    report.failed[told["kind"]] += 1
            keep += len(line)
    os.truncate(partial, keep)
    report.resumed = report.rows
    return report


def _differing(old: Any, new: Mapping[str, Any]) -> str:
    if not isinstance(old, dict):
        return "it does not say which"
    return ", ".join(
        f"{name} was {old.get(name)!r:.60}, is {new[name]!r:.60}"
        for name in new
        if old.get(name) != new[name]
    )


def _finish(partial: Path, out: Path) -> None:
    """Give the finished rows their name, without the line that says whose they are."""
    finished = out.with_name(out.name + ".finished")
    with partial.open("rb") as source, finished.open("wb") as target:
        source.readline()
        shutil.copyfileobj(source, target)
        target.flush()
        os.fsync(target.fileno())
    finished.replace(out)
    partial.unlink()
