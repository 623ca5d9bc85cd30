"""Files of a forum to threads: dumps of posts (XML, Parquet, JSONL), and JSONL or Parquet of whole threads.

    Posts.xml -> rows -> lots of whole threads, on disk -> threads

A dump has an answer far from its question, so its posts are first sorted into lots on disk, each of which
holds whole threads and fits into memory. That takes less than the dump's size. Threads come in an order that
depends on nothing but the dump.

Rows that cannot be used are told with place and reason and left out. Not here: the XML itself
(`posts_xml.py`), which threads are of interest (`prefilter.py`).
"""

from __future__ import annotations

import marshal
import math
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from xyreward.construct.posts_xml import xml_rows
from xyreward.construct.threads import Post, Thread, chosen_answers
from xyreward.errors import ConfigError, DataError, MissingDependency
from xyreward.strict_json import parse_json

POSTS_PER_LOT = 32 << 20
"""Bytes of a dump whose threads are in memory together; as objects they take about twice that."""
HELD = 32 << 20
"""Characters of posts that wait to be written; one that is no Latin letter may take four bytes."""
SHOWN = 1000
"""Problems that are kept word by word; the others are counted."""


@dataclass
class Problems:
    """What was wrong with a source. Reading goes on, unless `strict`."""

    strict: bool = False
    lines: list[str] = field(default_factory=list)
    """The first 1,000."""
    count: int = 0

    def tell(self, line: str) -> None:
        """Note a problem.

        Raises:
            DataError: `strict`.
        """
        self.count += 1
        if self.strict:
            raise DataError([line])
        if len(self.lines) < SHOWN:
            self.lines.append(line)


@dataclass(frozen=True, slots=True)
class Source:
    """Where threads are read from.

    Raises:
        ConfigError: the file is of a kind that is not read, or a dump without a site.
    """

    path: Path
    site: str = ""
    """Host of the forum, `stackoverflow.com`: dumps do not name it, and licences want a link."""
    licence: str = ""
    """Of posts that do not bring theirs."""

    def __post_init__(self) -> None:
        if not self.path.is_file():
            raise ConfigError(
                f"{self.path}: no such file; expected Posts.xml, or .parquet or .jsonl of posts or threads"
            )
        if self.kind == "other":
            raise ConfigError(
                f"{self.path.name}: expected .xml (also .xml.gz, .xml.bz2, .xml.xz), .parquet or .jsonl"
            )
        if self.kind == "xml" and not self.site:
            raise ConfigError(
                f"{self.path.name}: a dump does not say which forum it is of, and licences want a link to "
                "each post; give --site, such as --site stackoverflow.com"
            )

    @property
    def kind(self) -> str:
        """`xml`, `parquet`, `jsonl` or `other`."""
        name = self.path.name.lower()
        for end in (".gz", ".bz2", ".xz"):
            name = name.removesuffix(end)
        kinds = {".xml": "xml", ".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}
        kind = kinds.get(Path(name).suffix, "other")
        return kind if kind == "xml" or name == self.path.name.lower() else "other"

    @property
    def name(self) -> str:
        """As items have it in `source`."""
        return self.site or self.path.stem

    def place(self, number: int) -> str:
        """Where a row is: `Posts.xml line 12`."""
        return f"{self.path.name} {'row' if self.kind == 'parquet' else 'line'} {number}"


@dataclass
class ReadCounts:
    """What a source held, for the data card."""

    rows: Counter[str] = field(default_factory=Counter)
    """`question`, `answer`, `other` (wiki pages, ...), `thread`; `orphan`: an answer without question."""


def read_threads(
    source: Source,
    problems: Problems,
    *,
    counts: ReadCounts | None = None,
    work: Path | None = None,
) -> Iterator[Thread]:
    """The threads of a source, one by one.

    Args:
        source: the file.
        problems: gets what cannot be used.
        counts: gets what was there.
        work: folder for temporary files of a dump. None: the system's.

    Raises:
        DataError: `problems.strict`, and something cannot be used; or there is no column that can be read.
        OSError: no room on the disk, or the file cannot be read.
    """
    counts = counts or ReadCounts()
    if source.kind == "xml":
        rows: Iterator[tuple[int, Mapping[str, Any]]]
        rows = xml_rows(source.path, problems.tell, root="posts")
        yield from _from_posts(rows, source, problems, counts, work)
        return
    rows = (_jsonl if source.kind == "jsonl" else _parquet)(source.path, problems)
    first = next(rows, None)
    if first is None:
        problems.tell(f"{source.path.name}: holds no rows")
        return
    names = {_plain(name) for name in first[1]}
    rows = _chain(first, rows)
    if "answers" in names:
        for number, row in rows:
            counts.rows["thread"] += 1
            thread = _thread(source.place(number), row, source, problems)
            if thread is not None:
                yield thread
    elif {"posttypeid", "parentid"} & names:
        if not source.site:
            raise DataError(
                [
                    f"{source.path.name}: posts of a dump; give --site, such as --site stackoverflow.com"
                ]
            )
        yield from _from_posts(rows, source, problems, counts, work)
    else:
        raise DataError(
            [
                f"{source.path.name}: has columns {', '.join(sorted(map(str, first[1])))[:200]}; expected "
                "those of posts (Id, PostTypeId, ParentId, Body, Score, ...) or of threads (id, title, "
                "body, answers)"
            ]
        )


def _chain(first: Any, rows: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rows


# ---------------------------------------------------------------- posts


_COLUMNS = {
    "id": "Id",
    "posttypeid": "PostTypeId",
    "parentid": "ParentId",
    "acceptedanswerid": "AcceptedAnswerId",
    "creationdate": "CreationDate",
    "score": "Score",
    "body": "Body",
    "owneruserid": "OwnerUserId",
    "ownerdisplayname": "OwnerDisplayName",
    "title": "Title",
    "tags": "Tags",
    "closeddate": "ClosedDate",
    "contentlicense": "ContentLicense",
}
"""Names as Parquet and JSONL forms have them, without case and underscores, to those of Posts.xml."""


_OF_QUESTIONS = (
    "Id",
    "Id",
    "Score",
    "Body",
    "CreationDate",
    "OwnerUserId",
    "OwnerDisplayName",
    "ContentLicense",
    "Title",
    "Tags",
    "AcceptedAnswerId",
    "ClosedDate",
)
_OF_ANSWERS = ("Id", "ParentId", *_OF_QUESTIONS[2:8])
_Row = tuple[Any, ...]
"""Its place, the number of its thread, `_OF_QUESTIONS` or `_OF_ANSWERS`. Which one its length says."""


def _from_posts(
    rows: Iterator[tuple[int, Mapping[str, Any]]],
    source: Source,
    problems: Problems,
    counts: ReadCounts,
    work: Path | None,
) -> Iterator[Thread]:
    size = source.path.stat().st_size
    if source.path.suffix.lower() in (".gz", ".bz2", ".xz", ".parquet"):
        size *= 8  # compressed
    with tempfile.TemporaryFile(dir=work, prefix="xyreward-build-") as file:
        folder = work or Path(tempfile.gettempdir())
        free = shutil.disk_usage(folder).free
        if free < size:
            raise OSError(
                f"{folder}: {free / 1e9:.1f} GB are free, and sorting {source.path.name} takes about "
                f"{size / 1e9:.1f} GB; set TMPDIR to a folder with more room"
            )
        sorted_rows = _SortedRows(file, -(-size // POSTS_PER_LOT))
        _sort(rows, sorted_rows, source, problems, counts)
        for lot in sorted_rows.lots():
            yield from _threads_of(lot, source, problems, counts)


class _SortedRows:
    """Rows by the number of their thread, in lots of whole threads; on disk in blocks, each of one lot."""

    def __init__(self, file: IO[bytes], lots: int) -> None:
        self._file = file
        self._held: list[list[_Row]] = [[] for _ in range(max(lots, 1))]
        self._characters = 0
        self._blocks: list[list[tuple[int, int]]] = [[] for _ in self._held]
        """Of each lot: where its blocks begin in the file, and their lengths."""

    def add(self, thread: int, row: _Row, characters: int) -> None:
        # Not the number itself: ids may all be multiples of ten. Knuth's multiplicative hash.
        self._held[(thread * 2654435761 & 0xFFFFFFFF) * len(self._held) >> 32].append(row)
        self._characters += characters
        if self._characters > HELD:
            self._write()

    def lots(self) -> Iterator[list[_Row]]:
        """Each lot's rows, in the order in which they were added."""
        self._write()
        for blocks in self._blocks:
            rows: list[_Row] = []
            for at, length in blocks:
                self._file.seek(at)
                rows += marshal.loads(self._file.read(length))  # noqa: S302  # written by this process
            yield rows

    def _write(self) -> None:
        for rows, blocks in zip(self._held, self._blocks, strict=True):
            if rows:
                # A row at a time would take marshal several times as long to read.
                data = marshal.dumps(rows)
                blocks.append((self._file.tell(), len(data)))
                self._file.write(data)
                rows.clear()
        self._characters = 0


def _sort(
    rows: Iterator[tuple[int, Mapping[str, Any]]],
    sorted_rows: _SortedRows,
    source: Source,
    problems: Problems,
    counts: ReadCounts,
) -> None:
    """Sort the posts of questions and answers."""
    add = sorted_rows.add
    plain = source.kind != "xml"
    questions = answers = others = 0
    try:
        for place, row in rows:
            if plain:
                row = {_COLUMNS.get(_plain(name), name): _as_text(v) for name, v in row.items()}
            kind = row.get("PostTypeId")
            if kind is None and plain:
                kind = "2" if row.get("ParentId") else "1"
            if kind == "2":
                answers += 1
                values = tuple(map(row.get, _OF_ANSWERS))
            elif kind == "1":
                questions += 1
                values = tuple(map(row.get, _OF_QUESTIONS))
            elif kind is None:
                problems.tell(
                    f"{source.place(place)}: has no PostTypeId, expected 1 (question), 2 (answer), ...; "
                    "left out"
                )
                continue
            else:
                others += 1
                continue
            body = values[3]
            if body and _NUMBERS.fullmatch(f"{values[0]} {values[1]} {values[2]}"):
                thread = int(values[1])
                add(thread, (place, thread, *values), len(body))
            else:
                problems.tell(f"{source.place(place)}: {_wrong(values)}; left out")
    finally:
        counts.rows.update({"question": questions, "answer": answers})
        if others:
            counts.rows["other"] += others


_NUMBERS = re.compile(r"[0-9]{1,18} [0-9]{1,18} (?:-?[0-9]{1,18}|None)")


def _wrong(values: _Row) -> str:
    for name, value in zip(("Id", "ParentId"), values, strict=False):
        if not re.fullmatch("[0-9]{1,18}", value or ""):
            return f"{name} is {value or ''!r:.40}, expected a number"
    if values[2] is not None and not re.fullmatch("-?[0-9]{1,18}", values[2]):
        return f"Score is {values[2]!r:.40}, expected a whole number"
    return "has no Body"


def _threads_of(
    rows: list[_Row], source: Source, problems: Problems, counts: ReadCounts
) -> Iterator[Thread]:
    """The threads of a lot, by the number of their question."""
    questions: dict[int, _Row] = {}
    answers: dict[int, list[_Row]] = {}
    for row in rows:
        thread = row[1]
        if len(row) == 2 + len(_OF_ANSWERS):
            if thread in answers:
                answers[thread].append(row)
            else:
                answers[thread] = [row]
        elif thread in questions:
            problems.tell(
                f"{source.place(row[0])}: question {row[2]} is there twice; the first one was taken"
            )
        else:
            questions[thread] = row
    for number in sorted(questions):
        row = questions[number]
        found = answers.pop(number, [])
        if len(found) > 1:
            found = list({row[2]: row for row in reversed(found)}.values())
        posts = [_post(answer, source, "a") for answer in found]
        title, tags, accepted, closed = row[10:]
        yield Thread(
            _post(row, source, "q"),
            title or "",
            _tags(tags or ""),
            accepted if any(post.id == accepted for post in posts) else None,
            chosen_answers(posts, accepted),
            len(posts),
            source.name,
            (("closed", closed),) if closed else (),
        )
    counts.rows["orphan"] += sum(map(len, answers.values()))


def _post(row: _Row, source: Source, kind: str) -> Post:
    _, _, name, _, score, html, date, user, author, licence, *_ = row
    date = date or ""
    return Post(
        name,
        html,
        int(score or 0),
        author or "",
        user or "",
        licence or source.licence or _licence_by_date(date, source.site),
        f"https://{source.site}/{kind}/{name}",
        date,
    )


_NETWORK = (
    "stackoverflow.com",
    "serverfault.com",
    "superuser.com",
    "askubuntu.com",
    "mathoverflow.net",
    "stackapps.com",
    "stackexchange.com",
)


def _licence_by_date(date: str, site: str) -> str:
    """What Stack Exchange's terms give for a post of a dump that names no licences, as old ones do not."""
    if not date or not any(site == one or site.endswith(f".{one}") for one in _NETWORK):
        return ""
    if date < "2011-04-08":
        return "CC BY-SA 2.5"
    return "CC BY-SA 3.0" if date < "2018-05-02" else "CC BY-SA 4.0"


def _tags(text: str) -> tuple[str, ...]:
    """Tags as dumps have them: `<a><b>`, since 2024 `|a|b|`."""
    parts = text.replace("><", "|").strip("<>|").split("|")
    return tuple(part for part in parts if part)


# ---------------------------------------------------------------- threads


_THREAD = {
    "id": ("id", "qid", "questionid", "threadid"),
    "title": ("title", "questiontitle"),
    "body": ("body", "question", "text", "questionbody", "content"),
    "accepted": ("acceptedanswerid", "accepted", "acceptedid"),
    "author": ("author", "ownerdisplayname", "user", "username"),
    "author_id": ("authorid", "owneruserid", "userid"),
    "licence": ("licence", "license", "contentlicense"),
    "link": ("link", "url"),
    "date": ("date", "creationdate", "created"),
    "score": ("score", "pmscore", "votes"),
    "tags": ("tags",),
    "answers": ("answers",),
}
_ANSWER = {
    **{k: _THREAD[k] for k in ("author", "author_id", "licence", "date", "score")},
    "id": ("id", "answerid"),
    "body": ("body", "text", "answer", "content"),
    "link": ("link", "url", "href"),
    "accepted": ("accepted", "isaccepted", "selected"),
}


class _Bad(Exception):  # noqa: N818
    pass


def _thread(
    where: str, row: Mapping[str, Any], source: Source, problems: Problems
) -> Thread | None:
    try:
        fields = _fields(row, _THREAD)
        answers, accepted = [], _as_text(fields.get("accepted")) or None
        given = fields.get("answers")
        if not isinstance(given, list):
            raise _Bad(f"answers is {type(given).__name__}, expected a list")
        ids = set()
        for n, one in enumerate(given, start=1):
            if not isinstance(one, Mapping):
                raise _Bad(f"answers[{n}] is {type(one).__name__}, expected an object")
            of = _fields(one, _ANSWER)
            of.setdefault("id", str(n))
            post = _thread_post(of, f"answers[{n}]", source)
            if post.id in ids:
                raise _Bad(f"answers[{n}].id {post.id!r:.40} is there twice")
            ids.add(post.id)
            answers.append(post)
            if of.get("accepted") is True:
                accepted = post.id
        if fields.get("id") is None:
            raise _Bad("has no id")
        question = _thread_post(fields, "body", source)
    except _Bad as bad:
        problems.tell(f"{where}: {bad}; left out")
        return None
    tags = fields.get("tags") or ()
    return Thread(
        question=question,
        title=_as_text(fields.get("title")),
        tags=_tags(tags) if isinstance(tags, str) else tuple(map(str, tags)),
        accepted=accepted if accepted in ids else None,
        answers=chosen_answers(answers, accepted),
        answer_count=len(answers),
        source=source.name,
    )


def _fields(row: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    plain = {_plain(name): value for name, value in row.items() if value is not None}
    found = {}
    for ours, theirs in names.items():
        for name in theirs:
            if name in plain:
                found[ours] = plain[name]
                break
    return found


def _thread_post(fields: Mapping[str, Any], name: str, source: Source) -> Post:
    body, score = fields.get("body"), fields.get("score", 0)
    if not isinstance(body, str) or not body.strip():
        raise _Bad(f"{name} has no text")
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise _Bad(f"{name}.score is {score!r:.40}, expected a whole number")
    if not math.isfinite(score) or score != int(score):
        raise _Bad(f"{name}.score is {score!r:.40}, expected a whole number")
    texts = {
        k: _as_text(fields.get(k)) for k in ("id", "author", "author_id", "licence", "link", "date")
    }
    texts["licence"] = texts["licence"] or source.licence
    return Post(html=body, score=int(score), is_html=_is_html(body), **texts)


def _is_html(text: str) -> bool:
    return "</" in text and any(
        tag in text.lower() for tag in ("<p>", "<pre", "<a ", "<li>", "<code>")
    )


def _as_text(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, float) and value == int(value):
        value = int(value)  # a column of whole numbers with gaps, as pandas has it
    return value if isinstance(value, str) else str(value)


def _plain(name: object) -> str:
    return str(name).replace("_", "").replace("-", "").casefold()


# ---------------------------------------------------------------- rows of files


def _jsonl(path: Path, problems: Problems) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            where = f"{path.name} line {number}"
            if not line.strip():
                continue
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                row = parse_json(text)
            except UnicodeDecodeError as error:
                problems.tell(
                    f"{where}: byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8; left out"
                )
                continue
            except ValueError as error:
                problems.tell(f"{where}: is not JSON ({error}); left out")
                continue
            if not isinstance(row, dict):
                problems.tell(f"{where}: is a {type(row).__name__}, expected an object; left out")
                continue
            yield number, row


def _parquet(path: Path, problems: Problems) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingDependency(
            f"{path.name}: reading Parquet needs pyarrow: pip install 'xyreward[train]'"
        ) from None
    number = 0
    try:
        file = pq.ParquetFile(path)
        for batch in file.iter_batches(batch_size=1000):
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pa.ArrowException, OSError, ValueError) as error:
        problems.tell(
            f"{path.name} after row {number}: cannot be read ({error}); the rest was left out"
        )
