"""Files of answers: who answered which item with what. Read strictly, written a row at a time.

    {"item_id": "...", "answer": "...", "origin": "qwen3.5-9b", "source": "cross_model",
     "licence": "...", "details": {"temperature": 1.0, "seed": 0, "sample": 3}}

An item may be named by its query in place of its id. Other people's names for these columns are known
(`ALIASES`), or given. What `xyreward score` wrote is such a file too: its verdicts are not read, because
pairs need those of one judge under one rubric, and the store has them.

Not here: sampling answers (`sampling.py`), judging them (`build.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock, Timeout
from pydantic import ValidationError

from xyreward.differing import differences, was_and_is
from xyreward.errors import ConfigError, DataError, RunFolderError, told
from xyreward.items import (
    ANSWER_KINDS,
    BOTH_KINDS,
    CONTROL_KINDS,
    XY_KINDS,
    Item,
    ReferenceLabels,
    folded,
    text_hash,
)
from xyreward.pairs.candidates import PAIR_SOURCES, Candidate, PairSource
from xyreward.strict_json import faults, parse_json
from xyreward.tables import file_tables, kind_of, packed
from xyreward.whole_file import write_whole
from xyreward.words import counted

ALIASES: Mapping[str, tuple[str, ...]] = {
    "item_id": ("item_id",),
    "query": ("query", "prompt", "question"),
    "answer": ("answer", "response", "completion", "output"),
    "origin": ("origin", "model"),
    "source": ("source",),
    "licence": ("licence", "license"),
    "kind": ("kind",),
    "labels": ("labels",),
    "unsafe": ("unsafe",),
    "details": ("details",),
}
"""Field of an answer -> the columns that it may stand in."""
DETAILS = ("temperature", "top_p", "seed", "sample", "max_new_tokens", "truncated")
"""Columns that are taken as `details`, where they do not stand in an object of that name."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What a file holds."""

    candidates: tuple[Candidate, ...]
    """In the file's order."""
    rows: int
    """candidates + unknown + truncated."""
    unknown: int = 0
    """Rows of items that are not among those given; left out, where that was allowed."""
    first_unknown: str = ""
    """What the first of those names: an id, else the beginning of a query."""
    truncated: int = 0
    """Rows whose answer was cut at its token limit; left out, unless they are to be kept."""
    repeated: int = 0
    """Candidates that say what an earlier one of the same item and origin says. They are kept: the
    pairs that they would repeat are dropped, and counted, where pairs are made."""
    ignored: tuple[str, ...] = ()
    """Columns that mean nothing here."""


def read_answers(
    path: str | os.PathLike[str],
    items: Sequence[Item],
    *,
    columns: Mapping[str, str] | None = None,
    source: PairSource | None = None,
    origin: str | None = None,
    otherwise_of: str | None = None,
    skip_unknown: bool = False,
    keep_truncated: bool = False,
    section: str | None = None,
) -> Answers:
    """Read a file of answers: JSONL, line by line, or JSON, CSV or Parquet.

    Args:
        path: the file.
        items: what is answered.
        columns: field -> column, where a file has names of its own: {"answer": "generated_text"}.
        source: of all rows. None: each row's own, else `cross_model`.
        origin: who wrote all answers. None: each row says so.
        otherwise_of: who wrote the answers of rows that do not say so. None: those are an error.
        skip_unknown: leave out rows of other items (a file for the whole set, items of one split)
            and count them. Else they are an error.
        keep_truncated: an answer that was cut at its token limit would teach to stop anywhere, so it
            is left out and counted. True: keep it.
        section: where a configuration has `columns` and `origin`, for messages: "" (the top),
            "pairs.". None: they are arguments of this function.

    Raises:
        ConfigError: `columns` names no field, or `source` is none.
        DataError: the file cannot be read or rows cannot be used; names each of them with what was
            found and what was expected.
    """
    path = Path(path)
    if strange := sorted(set(columns or ()) - ALIASES.keys()):
        raise ConfigError(
            f"columns has {', '.join(strange)}, expected some of {', '.join(ALIASES)}"
        )
    if source is not None and source not in PAIR_SOURCES:
        raise ConfigError(f"source is {source!r}, expected one of {', '.join(PAIR_SOURCES)}")
    problems: list[str] = []
    reader = _Reader(
        items, columns or {}, source, origin, otherwise_of, section, skip_unknown=skip_unknown
    )
    candidates: list[Candidate] = []
    rows = unknown = truncated = repeated = 0
    seen: set[int] = set()
    for where, values in _rows(path, problems):
        rows += 1
        try:
            found = reader.candidate(values)
        except _Bad as bad:
            problems += (f"{where}: {what}" for what in bad.problems)
            continue
        if found is None:
            unknown += 1
        elif found.details.get("truncated") and not keep_truncated:
            truncated += 1
        else:
            candidates.append(found)
            key = hash((found.item_id, found.origin, folded(found.text)))
            repeated += key in seen
            seen.add(key)
    if not rows and not problems:
        problems.append(f"{path}: has no rows, expected one answer per row")
    if problems:
        raise DataError(problems)
    return Answers(
        tuple(candidates),
        rows,
        unknown,
        reader.first_unknown,
        truncated,
        repeated,
        tuple(sorted(reader.ignored)),
    )


def none_belongs(found: Answers, path: Path, side: str, items: Sequence[Item]) -> list[str]:
    """The problem of a file whose answers are all to other items; none where some are to these.

    Args:
        found: with `skip_unknown`.
        path: the file.
        side: what the items are, such as "the train side".
        items: those.
    """
    if found.unknown < found.rows:
        return []
    first = f", the first is item {items[0].id!r:.80}" if items else ""
    return [
        f"{path}: no answer of the file belongs to an item of {side} "
        f"({counted(len(items), 'item')}{first}); found {counted(found.rows, 'answer')}, the first to "
        f"{_shown(found.first_unknown):.80}. Expected item_id as the items have it, or the query's text"
    ]


def write_answers(path: str | os.PathLike[str], candidates: Iterable[Candidate]) -> None:
    """Write a file that `read_answers` and `xyreward score` take. It appears whole, or not at all.

    Raises:
        OSError: it cannot be written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, map(line_of, candidates))


def line_of(candidate: Candidate) -> bytes:
    """The row of an answer as a line of JSONL; the same bytes for the same answer."""
    row: dict[str, Any] = {
        "item_id": candidate.item_id,
        "answer": candidate.text,
        "origin": candidate.origin,
        "source": candidate.source,
    }
    if candidate.licence:
        row["licence"] = candidate.licence
    if candidate.kind is not None:
        row["kind"] = candidate.kind
    if candidate.labels is not None:
        row["labels"] = asdict(candidate.labels)
    if candidate.unsafe:
        row["unsafe"] = True
    if candidate.details:
        row["details"] = dict(candidate.details)
    # A tokenizer can leave half a surrogate pair, which UTF-8 does not have.
    text = json.dumps(row, ensure_ascii=False)
    return text.encode("utf-8", "replace") + b"\n"


# ---------------------------------------------------------------- reading


class _Bad(Exception):  # noqa: N818
    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = problems
        super().__init__(*problems)


def _rows(path: Path, problems: list[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if path.suffix.lower() in (".json", ".csv", ".parquet"):
        if not path.is_file():
            problems.append(f"{path}: no such file")
            return
        for table in file_tables(path, Path(path.name), problems):
            for row in table.rows:
                yield row.where, _cells(row.values) if table.is_csv else row.values
        return
    try:
        # Bytes, because a text file's lines also end at characters that JSON allows in strings.
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if number == 1 and (kind := packed(line)):
                    problems.append(
                        f"{path}: is compressed ({kind}), expected JSONL; unpack it first"
                    )
                    return
                if not line.strip():
                    continue
                where = f"{path.name} line {number}"
                try:
                    values = parse_json(line.decode("utf-8-sig"))
                except ValueError as error:
                    problems.append(f"{where}: is not JSON in UTF-8 ({error})")
                    continue
                if not isinstance(values, dict):
                    problems.append(f"{where}: is {kind_of(values)}, expected an object")
                    continue
                if found := [f"{where}: {place!a:.60} {what}" for place, what in faults(values)]:
                    problems += found
                    continue
                yield where, values
    except OSError as error:
        problems.append(f"{path}: cannot be read ({error.strerror})")


def _cells(values: Mapping[str, Any]) -> dict[str, Any]:
    """Cells of a CSV: an empty one is no value, and what is not text stands as JSON in it."""
    cells: dict[str, Any] = {}
    for column, text in values.items():
        if text == "":
            continue
        cells[column] = text
        if column in (*DETAILS, "details", "labels", "unsafe"):
            try:
                cells[column] = parse_json(text.lower() if column == "unsafe" else text)
            except ValueError:
                continue  # left as text, which is told where it is read
    return cells


class _Reader:
    """Rows to candidates."""

    def __init__(
        self,
        items: Sequence[Item],
        columns: Mapping[str, str],
        source: PairSource | None,
        origin: str | None,
        otherwise_of: str | None,
        section: str | None,
        *,
        skip_unknown: bool,
    ) -> None:
        self._by_id = {item.id: item for item in items}
        self._by_query: dict[str, list[Item]] = {}
        for item in items:
            self._by_query.setdefault(item.content_hash, []).append(item)
        self._columns = columns
        self._source = source
        self._origin = origin
        self._otherwise_of = otherwise_of
        self._skip_unknown = skip_unknown
        self._section = section
        self.ignored: set[str] = set()
        self.first_unknown = ""
        self._found: dict[tuple[str, ...], dict[str, str] | _Bad] = {}

    def candidate(self, values: Mapping[str, Any]) -> Candidate | None:
        """None: of an item that is not there, where those are skipped.

        Raises:
            _Bad: with all that is wrong with the row.
        """
        names = self._fields(tuple(values))
        row = {field: values[name] for field, name in names.items() if values[name] is not None}
        problems: list[str] = []
        item = self._item(row, names, problems)
        text = row.get("answer")
        if not isinstance(text, str):
            problems.append(
                f"{names['answer']} is {_shown(text)}, expected a text"
                if "answer" in names
                else f"has no answer, expected one of {', '.join(ALIASES['answer'])}, only "
                f"{', '.join(sorted(values)):.200}; or name its column: "
                + self._how_columns("answer", "THEIR_COLUMN")
            )
        origin = row.get("origin", self._otherwise_of) if self._origin is None else self._origin
        if not isinstance(origin, str) or not origin.strip():
            problems.append(
                f"origin is {_shown(origin)}, expected who wrote the answer, such as a model's name"
                + (
                    f"; where one wrote all of them, give {self._how('origin', 'NAME')}"
                    if self._otherwise_of is None
                    else ""
                )
            )
        details = self._details(values, row, problems)
        given = self._source or row.get("source", "cross_model")
        source = next((s for s in PAIR_SOURCES if s == given), None)
        if source is None:
            problems.append(
                f"source is {_shown(given)}, expected one of {', '.join(PAIR_SOURCES)}; to read a file "
                "whose column of this name means something else, give source"
            )
        licence = row.get("licence", "")
        if not isinstance(licence, str):
            problems.append(f"licence is {_shown(licence)}, expected a text")
        unsafe = row.get("unsafe", False)
        if not isinstance(unsafe, bool):
            problems.append(f"unsafe is {_shown(unsafe)}, expected true or false")
        kind = next((k for k in ANSWER_KINDS if k == row.get("kind")), None)
        if "kind" in row and (kind is None or (item and not _fits(kind, item))):
            allowed = ANSWER_KINDS if item is None else [k for k in ANSWER_KINDS if _fits(k, item)]
            problems.append(
                f"kind is {_shown(row['kind'])}, expected one of {', '.join(allowed)}, or none"
            )
        labels = None
        if "labels" in row:
            try:
                labels = ReferenceLabels.model_validate(row["labels"]).as_labels()
            except ValidationError as error:
                first = error.errors()[0]
                place = ".".join(map(str, ("labels", *first["loc"])))
                problems.append(f"{place}: {first['msg']} (found {_shown(first['input'])})")
        problems += (
            f"{name} has half a surrogate pair, which is no character; write the file anew"
            for name, value in (("answer", text), ("origin", origin), ("licence", licence))
            if isinstance(value, str) and not value.isascii() and not _is_text(value)
        )
        if problems:
            raise _Bad(problems)
        if item is None:
            if not self.first_unknown:
                named = row["item_id"] if "item_id" in row else _query_text(row["query"], [])
                self.first_unknown = str(named)
            return None
        assert isinstance(text, str)
        assert isinstance(origin, str)
        assert isinstance(licence, str)
        assert source is not None
        return Candidate(
            item_id=item.id,
            text=text,
            source=source,
            origin=origin,
            kind=kind,
            labels=labels,
            licence=licence,
            unsafe=bool(unsafe),
            details=details,
        )

    def _how(self, option: str, value: str) -> str:
        """How an option is given where this file was named."""
        if self._section is None:
            return f'{option}="{value}"'
        return f"--set {self._section}{option}={value}"

    def _how_columns(self, field: str, column: str) -> str:
        if self._section is None:
            return f'columns={{"{field}": "{column}"}}'
        return f"--set '{self._section}columns={{{field}: {column}}}'"

    def _fields(self, columns: tuple[str, ...]) -> Mapping[str, str]:
        """Field -> column, for rows with these columns."""
        found = self._found.get(columns)
        if found is None:
            found = self._found[columns] = self._find(columns)
        if isinstance(found, _Bad):
            raise _Bad(found.problems)
        return found

    def _find(self, columns: tuple[str, ...]) -> dict[str, str] | _Bad:
        names, problems = {}, []
        for field, known in ALIASES.items():
            given = self._columns.get(field)
            if given is not None:
                if given not in columns:
                    problems.append(
                        f"has no {given!r}, which columns names for {field}, only "
                        f"{', '.join(sorted(columns)):.200}"
                    )
                else:
                    names[field] = given
                continue
            taken = {*self._columns.values()}
            there = [name for name in known if name in columns and name not in taken]
            if len(there) > 1 and field not in there:
                problems.append(
                    f"has {' and '.join(there)}, either of which may be the {field}; say which: "
                    + self._how_columns(field, there[0])
                )
            elif there:
                names[field] = there[0]
        if problems:
            return _Bad(problems)
        self.ignored |= set(columns) - {*names.values(), *DETAILS}
        return names

    def _item(
        self, row: Mapping[str, Any], names: Mapping[str, str], problems: list[str]
    ) -> Item | None:
        if "item_id" in row:
            # Ids that are numbers become text where items are loaded.
            given = row["item_id"]
            name = str(given) if type(given) is int else given
            item = self._by_id.get(name) if isinstance(name, str) else None
            if item is None and not (self._skip_unknown and isinstance(name, str)):
                problems.append(
                    f"item_id {_shown(given)} is not among the {counted(len(self._by_id), 'item')}"
                )
            # Of a column that is surely meant: a file that was joined wrongly shows here.
            is_query = names.get("query") == "query" or "query" in self._columns
            if item is not None and "query" in row and is_query:
                text = _query_text(row["query"], problems)
                if text is not None and text_hash(text) != item.content_hash:
                    problems.append(
                        f"query is not the one of item {item.id!r}, expected the same, or no query"
                    )
            return item
        if "query" not in row:
            problems.append(
                "names no item, expected item_id, or the query's text as "
                f"{', '.join(ALIASES['query'])}"
            )
            return None
        text = _query_text(row["query"], problems)
        if text is None:
            return None
        fitting = self._by_query.get(text_hash(text), [])
        if len(fitting) > 1:
            problems.append(
                f"query is that of {len(fitting)} items ({', '.join(i.id for i in fitting):.100}); name "
                "one by item_id"
            )
        elif not fitting and not self._skip_unknown:
            problems.append(
                f"query {_shown(text)} is not among those of the {counted(len(self._by_id), 'item')}"
            )
        return fitting[0] if fitting else None

    def _details(
        self, values: Mapping[str, Any], row: Mapping[str, Any], problems: list[str]
    ) -> dict[str, Any]:
        given = row.get("details", {})
        if not isinstance(given, Mapping):
            problems.append(f"details is {_shown(given)}, expected an object")
            given = {}
        taken = {*self._columns.values()}
        details = {
            name: values[name]
            for name in DETAILS
            if name not in taken and values.get(name) is not None
        }
        details.update(given)
        try:
            # They are written beside the pairs, after everything was judged and paid for. Parquet has
            # times, bytes and NaN; JSON, in files of other people, half surrogate pairs.
            json.dumps(details, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            problems.append(
                f"details cannot be kept as JSON in UTF-8 ({told(error)}); leave it out"
            )
        cut = details.get("truncated", False)
        if not isinstance(cut, bool):
            problems.append(f"truncated is {_shown(cut)}, expected true or false")
        return details


def _fits(kind: str, item: Item) -> bool:
    return kind in (CONTROL_KINDS if item.kind == "control" else XY_KINDS) | BOTH_KINDS


def _query_text(query: object, problems: list[str]) -> str | None:
    if isinstance(query, str):
        return query
    turns = query if isinstance(query, Sequence) else []
    texts = [turn.get("content") for turn in turns if isinstance(turn, Mapping)]
    if texts and len(texts) == len(turns) and all(isinstance(text, str) for text in texts):
        return "\n\n".join(map(str, texts))
    problems.append(f"query is {_shown(query)}, expected a text, or messages with role and content")
    return None


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: object) -> str:
    if value is None:
        return "not there"
    if isinstance(value, (str, int, float, bool)):
        return ascii(value)[:60]
    return kind_of(value)


# ---------------------------------------------------------------- a file in the making


class Growing:
    """A file of answers that grows by whole groups, and is gone on with after whatever stopped it.

    `<out>.job` says what makes the file, and refuses whatever else would. Rows go to `<out>.partial`,
    which becomes `out` when all are there. Every group is one write at the end; half a line, or half a
    group, that a killed process left is cut off.
    """

    def __init__(self, out: Path, job: Mapping[str, Any], expected: Sequence[str]) -> None:
        """Take what is there.

        Args:
            out: the file to be.
            job: all that decides what its rows are, as JSON has it.
            expected: item ids of all rows, in order.

        Raises:
            RunFolderError: the files are of another job, or damaged, or being written.
        """
        self.out = out
        self.job = json.loads(json.dumps(job))
        self.rows = 0
        """Rows that are there."""
        self.complete = False
        self._expected = expected
        self._partial = out.with_name(out.name + ".partial")
        self._check_job()
        if out.exists():
            self.complete = True
            self.rows = len(expected)
        elif self._partial.exists():
            self.rows = self._count()
        else:
            with _writing(out):
                write_job(out, self.job, 0)
                self._partial.touch()

    def _check_job(self) -> None:
        if self.out.exists() or self._partial.exists():
            check_job(self.out, self.job)

    def _count(self) -> int:
        rows = 0
        with self._partial.open("rb") as stream:
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                try:
                    name = json.loads(line)["item_id"]
                    if rows >= len(self._expected) or name != self._expected[rows]:
                        raise ValueError("another row")
                except (ValueError, KeyError, TypeError):
                    raise RunFolderError(
                        f"{self._partial}: line {rows + 1} is not as a run left it; remove the file to "
                        "begin anew"
                    ) from None
                rows += 1
        return rows

    def keep(self, rows: int) -> None:
        """Cut off what lies behind the first `rows` rows: an unfinished group."""
        with _writing(self.out), self._partial.open("r+b") as stream:
            for _ in range(rows):
                stream.readline()
            stream.truncate(stream.tell())
        self.rows = rows

    def append(self, candidates: Sequence[Candidate]) -> None:
        """One group of rows more."""
        # Not made anew: one that somebody removed must not come back without its first rows.
        with _writing(self.out), self._partial.open("r+b") as stream:
            stream.seek(0, os.SEEK_END)
            stream.write(b"".join(map(line_of, candidates)))
        self.rows += len(candidates)

    def finish(self) -> None:
        """All rows are there: give the file its name."""
        assert self.rows == len(self._expected)
        with _writing(self.out):
            with self._partial.open("rb") as stream:
                os.fsync(stream.fileno())
            self._partial.rename(self.out)
        self.complete = True


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Alone with `out` and what lies beside it.

    Raises:
        RunFolderError: another process has it, or it cannot be made.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{out}.lock", timeout=0)
        held = lock.acquire()
    except Timeout:
        raise RunFolderError(f"{out}: another process is writing it") from None
    except OSError as error:
        raise RunFolderError(f"{out}: cannot be made ({error}); choose another place") from error
    with held:
        try:
            yield
        finally:
            Path(lock.lock_file).unlink(missing_ok=True)


def job_file(out: Path) -> Path:
    """Where it is written what makes `out`."""
    return out.with_name(out.name + ".job")


def write_job(out: Path, job: Mapping[str, Any], missing: int) -> None:
    """Tell beside `out` what makes it, and how many answers it lacks.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(job_file(out), json.dumps({"job": job, "missing": missing}))


def check_job(out: Path, job: Mapping[str, Any]) -> int:
    """How many answers `out` still lacks, where it is of this job.

    Raises:
        RunFolderError: it is of another one, or nothing says of which.
    """
    try:
        told = json.loads(job_file(out).read_text("utf-8"))
        old, missing = told["job"], int(told["missing"])
        if not isinstance(old, dict):
            raise TypeError(old)
    except (OSError, ValueError, KeyError, TypeError):
        _refuse(out, f"nothing beside it says how it was made, expected {job_file(out).name}")
    if old != job:
        differing = ", ".join(
            f"{place} {was_and_is(before, now)}" for place, before, now in differences(old, job)
        )
        _refuse(out, differing)
    return missing


def _refuse(out: Path, why: str) -> NoReturn:
    raise RunFolderError(f"{out}: is of another job ({why}); remove it, or choose another place")


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{out}: cannot be written ({error}); what is done is kept, make room and run the same "
            "again to go on"
        ) from error
