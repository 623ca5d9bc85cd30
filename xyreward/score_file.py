"""Score a JSONL file of answers into a JSONL file of verdicts, of any length, in constant memory.

A row names its item, or brings a bare query, and has an answer; other keys are carried over:

    {"item_id": "...", "answer": "..."}      {"query": "..." or messages, "answer": "..."}

The output has the same rows in the same order, each with `reward` (null where the judge failed),
`verdict`, `failure`, `judge` and `rubric_version`; a row's own keys of these names are replaced. It
appears under its name when it is complete. Until then `<name>.partial` holds the rows of the lots that
are done (`CHUNK` rows where a model is asked), and the same command goes on from there;
`<name>.partial.job` says which command that is. Verdicts of a lot that is not done are in the store.

Not here: judging (`judges/`), the command line (`cli.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock, Timeout
from pydantic import ValidationError

from xyreward.differing import differences, was_and_is
from xyreward.errors import DataError, JudgeError, RunFolderError
from xyreward.items import Item, items_hash
from xyreward.judges import Judge, RewardJudge
from xyreward.judges.asking import Estimate as Bill
from xyreward.judges.calls import JudgeStopped
from xyreward.judges.model import ModelJudge
from xyreward.judges.panel import model_judges, refuse_small_budget
from xyreward.reward import Reward
from xyreward.scoring import Score, ascore
from xyreward.stats import Estimate, mean_of_sums
from xyreward.strict_json import faults, parse_json
from xyreward.tables import packed
from xyreward.words import did_you_mean, is_empty, noun

CHUNK = 512
"""Rows that are judged together: enough to keep 64 calls in flight, few enough to hold in memory."""
CHUNK_HERE = 64
"""The same for judges that work in this process: a chunk that has begun ends before Ctrl-C is heard."""
CHUNK_BATCHED = 10_000
"""The same for message batches, of which each may take hours."""
AHEAD = 2
"""Chunks under way at a time."""
BUCKETS = 2_000
"""Items are thrown together into so many clusters at most, which bounds memory and time of intervals."""
SHOWN_PROBLEMS = 20
RUN = "run"
COLUMNS = ("reward", "verdict", "failure", "judge", "rubric_version")
"""What the output has beside the keys of a row."""


class ScoringStopped(RunFolderError):  # noqa: N818  # as JudgeStopped
    """Stopped on the way: a full disk, or answers that changed meanwhile. What is done is kept."""


@dataclass(slots=True)
class FileReport:
    """What came of a file."""

    rows: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """Rows without a reward, by kind of failure."""
    resumed: int = 0
    """Rows that an earlier run of the same command had done."""
    empty: int = 0
    """Rows with an empty answer, which have a reward of 0 and took no call."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Kind of failure -> the detail of the first one."""
    sums: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    """Of rewards: group of items -> cluster -> sum and number."""

    def add(
        self, item: Item, answer: str, reward: float | None, failure: Mapping[str, Any] | None
    ) -> None:
        """Count one row."""
        self.rows += 1
        if failure is not None:
            kind = str(failure["kind"])
            self.failed[kind] += 1
            self.reasons.setdefault(kind, str(failure.get("detail", "")))
        if reward is not None:
            self.empty += is_empty(answer)
            group = self.sums.setdefault(_group(item), defaultdict(lambda: [0.0, 0]))
            one = group[int(item.content_hash[:12], 16) % BUCKETS]
            one[0] += reward
            one[1] += 1

    def means(self) -> dict[str, Estimate]:
        """The mean reward with its interval over items, per group: empty answers count with their 0."""
        found = {
            name: mean_of_sums(s.values(), bounds=(0, 1), expand=True)
            for name, s in self.sums.items()
        }
        return {name: one for name, one in sorted(found.items()) if one is not None}


def _group(item: Item) -> str:
    # Verdicts whose goal was inferred are not averaged with others.
    if not item.is_grounded:
        return "bare queries" if item.bare else "items whose goal a model inferred"
    return "controls" if item.kind == "control" else "items with a hidden goal"


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
        if path.exists() and not path.is_file():
            raise DataError([f"{path}: expected a regular file, since it is read twice"])
        digest = hashlib.sha256()
        problems: list[str] = []
        wrong = rows = 0
        replaced: set[str] = set()
        named: dict[str, Item] = {}
        bare = 0
        self.other_queries: list[int] = []
        """Lines that name an item and bring a query that is not this item's."""
        for number, line in self._lines():
            digest.update(line)
            rows += 1
            try:
                row, item = self._row(line)
            except ValueError as error:
                wrong += 1
                if len(problems) < SHOWN_PROBLEMS:
                    problems.append(f"{path}: line {number}: {error}")
                continue
            replaced.update(row.keys() & set(COLUMNS))
            if "item_id" in row and "query" in row and _other_query(row["query"], item):
                self.other_queries.append(number)
            if item.bare:
                bare += 1
            else:
                named[item.id] = item
        if more := wrong - len(problems):
            have = "lines have" if more > 1 else "line has"
            problems.append(f"{path}: {more} more {have} problems")
        if not rows:
            problems.append(f"{path}: has no rows, expected one JSON object per line")
        if problems:
            raise DataError(problems, shown=len(problems))
        self.rows = rows
        self.hash = digest.hexdigest()
        self.named = list(named.values())
        """Items that rows name and that say what is wanted, each once."""
        self.bare = bare
        """Rows of which only the query is known."""
        self.replaced = sorted(replaced)
        """Keys of rows that the output replaces."""

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Item]]:
        """All rows with their items, in order.

        Raises:
            ScoringStopped: the file is not what it was when it was checked.
        """
        digest = hashlib.sha256()
        try:
            for count, (_, line) in enumerate(self._lines(), start=1):
                digest.update(line)
                try:
                    row = self._row(line)
                except ValueError:
                    self._changed()
                if count > self.rows:
                    self._changed()
                yield row
        except DataError as error:  # of `_lines`: verdicts may be paid for by now
            raise ScoringStopped(
                f"{error.problems[0]}; what is done is kept, run the same command again to go on"
            ) from None
        if digest.hexdigest() != self.hash:
            self._changed()

    def _changed(self) -> NoReturn:
        raise ScoringStopped(
            f"{self.path}: was changed while it was scored; remove the partial file and run again (what "
            "was paid for is in the store)"
        )

    def check(self, judge: Judge) -> None:
        """Make sure that the judge can judge these rows, before the first is.

        Raises:
            JudgeError, StoreError: it cannot; says what to do.
        """
        if check := getattr(judge, "check", None):
            check(self.named)
        alone = isinstance(judge, RewardJudge) and judge.reads_query_alone
        if self.bare and not alone and not hasattr(judge, "ground"):
            bring = "row brings" if self.bare == 1 else "rows bring"
            raise JudgeError(
                f"{self.path}: {self.bare} {bring} a query and no item that says what is wanted; judge "
                f"{judge.name!r} cannot infer it. Take a judge that asks a model (anthropic:<model>, "
                "chat:<model>@<base_url>, or a panel of nothing but such), or name items with item_id"
            )
        if any(one.budget_usd is not None for one in model_judges(judge)):
            first = [
                (i, row["answer"]) for row, i in islice(self, CHUNK) if not is_empty(row["answer"])
            ]
            refuse_small_budget(judge, *_unzipped([one for one in first if not one[0].bare]))

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        try:
            # Bytes, because a text file's lines also end at characters that JSON allows in strings.
            with self.path.open("rb") as stream:
                for number, line in enumerate(stream, start=1):
                    if number == 1 and (kind := packed(line)):
                        raise DataError(
                            [
                                f"{self.path}: is compressed ({kind}), expected JSONL; unpack it first"
                            ]
                        )
                    if line.strip():
                        yield number, line
        except OSError as error:
            raise DataError([f"{self.path}: cannot be read ({error})"]) from None

    def _row(self, line: bytes) -> tuple[dict[str, Any], Item]:
        try:
            row = parse_json(line.decode("utf-8-sig"))
        except ValueError as error:
            raise ValueError(f"is not JSON in UTF-8 ({error})") from None
        if not isinstance(row, dict):
            raise ValueError(f"is {type(row).__name__}, expected an object")
        for place, what in faults(row):
            raise ValueError(f"{place!a:.60} {what}")
        keys = f"{', '.join(sorted(row)) or 'nothing':.200}"
        if "answer" not in row:
            hint = did_you_mean("answer", row).replace("did you mean", "is it")
            raise ValueError(
                f"has no answer, expected a string; there is {keys}{hint and f'; {hint}'}"
            )
        if not isinstance(row["answer"], str):
            raise ValueError(f"answer is {row['answer']!r:.60}, expected a string")
        if "item_id" in row:
            return row, self._item(row["item_id"])
        if "query" not in row:
            hint = did_you_mean("item_id", row) or did_you_mean("query", row)
            hint = hint.replace("did you mean", "is it")
            raise ValueError(f"has neither item_id nor query, only {keys}{hint and f'; {hint}'}")
        try:
            return row, Item.of_query(row["query"])
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"][2:])
            message = first["msg"].removeprefix("Value error, ")
            raise ValueError(f"query{place and f'.{place}'}: {message}") from None

    def _item(self, given: Any) -> Item:
        # Ids that are numbers become text where items are loaded.
        name = str(given) if isinstance(given, int) else given
        item = self._items.get(name) if isinstance(name, str) else None
        if item is None:
            raise ValueError(
                f"item_id {given!r:.60} is not among the {len(self._items)} "
                f"{noun(len(self._items), 'item')}; check --items"
            )
        return item


def _other_query(query: Any, item: Item) -> bool:
    try:
        return Item.of_query(query).content_hash != item.content_hash
    except (TypeError, ValidationError):
        return False  # a key of the row's own that is no query


def estimate_file(answers: AnswersFile, judge: Judge) -> Bill | None:
    """What judging the file would take, with what the store has. None for a judge that makes no calls.

    Sends nothing. Equal questions are counted once within a chunk of rows, so the true figure may be a
    little lower.
    """
    estimate = getattr(judge, "estimate", None)
    if estimate is None:
        return None
    total: Bill | None = None
    for chunk in _chunks(iter(answers), CHUNK):
        rows = [(item, row["answer"]) for row, item in chunk if not is_empty(row["answer"])]
        one: Bill | None = estimate(*_unzipped(rows))
        total = one if total is None or one is None else total + one
    return total


def _unzipped(rows: Sequence[tuple[Item, str]]) -> tuple[list[Item], list[str]]:
    return [item for item, _ in rows], [text for _, text in rows]


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
        answers: its `check(judge)` finds beforehand what would stop the judge.
        out: must not exist; `<out>.partial` of an earlier run of the same job is gone on with.
        judge: see `load_judge`.
        reward: how labels become the number.
        on_rows: told how many more rows are done.

    Raises:
        RunFolderError: nothing was judged: `out` exists or cannot be made, its partial file belongs to
            another job, is damaged or is being written.
        ScoringStopped: the disk is full, or the answers changed.
        JudgeError, StoreError: see `Judge`. What is done is in the partial file.
    """
    refuse_existing(out)
    partial = _partial(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{partial}.lock", timeout=0)
        held = lock.acquire()
    except Timeout:
        raise RunFolderError(f"{partial}: another process is writing it") from None
    except OSError as error:
        raise RunFolderError(f"{out}: cannot be made ({error}); choose another --out") from error
    with held:
        refuse_existing(out)  # another process may just have finished it
        rows = iter(answers)
        run = next((one.run for one in model_judges(judge)), None)
        report = _resumed(partial, _job(answers, judge, reward), rows, run)
        if on_rows:
            on_rows(report.rows)
        # Closed at once where a row cannot be written: the chunk under way would go on paying.
        async with aclosing(_scored(_chunks(rows, _size(judge)), judge, reward)) as scored:
            async for chunk, scores in scored:
                done = [{**row, **as_row(s)} for (row, _), s in zip(chunk, scores, strict=True)]
                _append(partial, done)
                for (_, item), row in zip(chunk, done, strict=True):
                    report.add(item, row["answer"], row["reward"], row["failure"])
                if on_rows:
                    on_rows(len(chunk))
        _finish(partial, out)
        Path(lock.lock_file).unlink(missing_ok=True)
    return report


def refuse_existing(out: Path) -> None:
    """Raise RunFolderError where `out` is there already."""
    if out.exists():
        raise RunFolderError(f"{out}: exists; choose another --out, or remove it first")


def begun_run(out: Path) -> str | None:
    """The name of the run whose partial file for `out` is there: whose bill it is. None where none is."""
    partial = _partial(out)
    told = _told(partial)
    run = told.get(RUN) if isinstance(told, dict) and partial.exists() else None
    return run if isinstance(run, str) and run.strip() else None


def _partial(out: Path) -> Path:
    return out.with_name(out.name + ".partial")


def _size(judge: Judge) -> int:
    asking = model_judges(judge)
    if any(one.in_batches for one in asking):
        return CHUNK_BATCHED
    return CHUNK if asking else CHUNK_HERE


def _chunks(
    rows: Iterator[tuple[dict[str, Any], Item]], size: int
) -> Iterator[list[tuple[dict[str, Any], Item]]]:
    while chunk := list(islice(rows, size)):
        yield chunk


async def _scored(
    chunks: Iterator[list[tuple[dict[str, Any], Item]]], judge: Judge, reward: Reward
) -> AsyncGenerator[tuple[list[tuple[dict[str, Any], Item]], list[Score]], None]:
    """Chunks with their scores, in order. The next one is under way while the last calls of one end."""
    under_way: deque[tuple[list[tuple[dict[str, Any], Item]], asyncio.Task[list[Score]]]] = deque()
    try:
        while True:
            while len(under_way) < AHEAD and (chunk := next(chunks, None)):
                items = [item for _, item in chunk]
                texts = [row["answer"] for row, _ in chunk]
                task = asyncio.create_task(ascore(items, texts, judge, reward))
                under_way.append((chunk, task))
            if not under_way:
                return
            rows, task = under_way[0]
            # Not `await task`: that would cancel this chunk some rounds of the loop before the next one,
            # whose calls would be sent into the places that this one's leave, to be lost at once.
            await asyncio.wait([task])
            scores = task.result()
            under_way.popleft()
            yield rows, scores
    except JudgeStopped:
        # The judge sends nothing more. What the other chunk has on its way is paid for: let it arrive.
        await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)
        raise
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


# ---------------------------------------------------------------- the partial file


def _job(answers: AnswersFile, judge: Judge, reward: Reward) -> dict[str, Any]:
    """All that decides what the rows are. A partial file of another job is not gone on with."""
    return {
        "answers": answers.hash,
        "items": answers.items_hash,
        "judge": judge.name,
        "rubric_version": judge.rubric_version,
        "votes": [one.votes for one in model_judges(judge)],
        "parameters": [_parameters(one) for one in model_judges(judge)],
        "reward": asdict(reward),
    }


def _parameters(judge: ModelJudge) -> dict[str, Any]:
    # Whether there is structured output may not be known yet, and is the server's to say.
    possible = judge.endpoint.possible_parameters[0]
    return {name: value for name, value in possible.items() if name != "schema"}


def _job_file(partial: Path) -> Path:
    # Beside the rows and not their first line: then they only need a new name when they are complete,
    # where a copy would need the space of the whole file once more.
    return partial.with_name(partial.name + ".job")


def _resumed(
    partial: Path,
    job: Mapping[str, Any],
    rows: Iterator[tuple[dict[str, Any], Item]],
    run: str | None,
) -> FileReport:
    """Take from `rows` those that an earlier run did, and cut off one that it had half written."""
    report = FileReport()
    if not partial.exists():
        with _writing(partial):
            _job_file(partial).write_text(json.dumps({**job, RUN: run}), "utf-8")
            partial.touch()
        return report
    told = _told(partial)
    if isinstance(told, dict):
        told.pop(RUN, None)  # whose bill it is decides nothing about the rows
    if told != job:
        raise RunFolderError(
            f"{partial}: is of another job ({_differing(told, job, _job_file(partial).name)}); remove it, "
            "or choose another --out"
        )
    keep = 0
    with partial.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.endswith(b"\n"):
                break
            row, item = next(rows, ({}, None))
            try:
                done = json.loads(line)
                if item is None or any(done[k] != v for k, v in row.items() if k not in COLUMNS):
                    raise ValueError("another row")
                reward, failure = done["reward"], done["failure"]
                if (reward is None) != (failure is not None):
                    raise ValueError("a failure that has a reward, or neither")
                report.add(item, row["answer"], None if reward is None else reward + 0.0, failure)
            except (AttributeError, ValueError, KeyError, TypeError, RecursionError):
                raise RunFolderError(
                    f"{partial}: line {number} is not as a run left it; remove the file to begin anew "
                    "(what was paid for is in the store)"
                ) from None
            keep += len(line)
    os.truncate(partial, keep)
    report.resumed = report.rows
    return report


def _told(partial: Path) -> Any:
    """What lies beside a partial file about its job; None where nothing does."""
    try:
        return json.loads(_job_file(partial).read_text("utf-8"))
    except (OSError, RecursionError, ValueError):
        return None


def _differing(old: Any, new: Mapping[str, Any], name: str) -> str:
    if not isinstance(old, dict):
        return f"nothing beside it says of which, expected {name}"
    return ", ".join(
        f"{place} {was_and_is(before, now)}" for place, before, now in differences(old, new)
    )


def _append(partial: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    # Opened for each chunk, and not made anew: one that somebody removed meanwhile must not come back
    # without its first rows.
    with _writing(partial), partial.open("r+b") as stream:
        stream.seek(0, os.SEEK_END)
        stream.write(b"".join(_line(row) for row in rows))


def _line(row: Mapping[str, Any]) -> bytes:
    text = json.dumps(row, ensure_ascii=False)
    if not text.isascii():
        try:
            return text.encode() + b"\n"
        except UnicodeEncodeError:  # half a surrogate pair, which only stands escaped
            text = json.dumps(row)
    return text.encode("ascii") + b"\n"


def _finish(partial: Path, out: Path) -> None:
    refuse_existing(out)
    with _writing(partial):
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        partial.rename(out)
        _job_file(partial).unlink(missing_ok=True)


@contextmanager
def _writing(partial: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ScoringStopped(
            f"{partial}: cannot be written ({error}); what is done is kept, make room and run the same "
            "command again to go on"
        ) from error
