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
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from xyreward.construct.authors import user_rows
from xyreward.construct.posts_xml import xml_rows
from xyreward.construct.threads import Post, Thread, chosen_answers
from xyreward.errors import ConfigError, DataError, MissingDependency
from xyreward.published import refuse_benchmarks_name
from xyreward.strict_json import parse_json
from xyreward.tables import packed
from xyreward.words import whole

POSTS_PER_LOT = 16 << 20
"""Bytes of a dump whose threads are in memory together; as objects they take about twice that."""
HELD = 4 << 20
"""Characters of posts that wait to be written: few, so that they stay in the processor's cache."""
BLOCK = 16 << 10
"""Characters of a lot that are written together; with very many lots, more of them wait than `HELD`."""
LONGEST_LINE = 16 << 20
"""Bytes of a line of JSONL: a file that is one line of JSON would else be in memory as a whole."""
LONGEST_ID = 200
"""Characters."""
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
        ConfigError: the file is of a kind that is not read, a dump is without a site, or its items would have
            the name of a source of XYBench.
    """

    path: Path
    site: str = ""
    """Host of the forum, `stackoverflow.com`: dumps do not name it, and licences want a link."""
    licence: str = ""
    """Of posts that do not bring theirs."""
    users: Path | None = None
    """`Users.xml` of the dump, for names of authors. None: `users_file` is looked for."""

    def __post_init__(self) -> None:
        if self.path.is_dir():
            raise ConfigError(f"{self.path}: a folder; give the file in it, such as Posts.xml")
        if not self.path.is_file():
            raise ConfigError(
                f"{self.path}: no such file; expected Posts.xml, or .parquet or .jsonl of posts or threads"
            )
        if self.kind == "other":
            raise ConfigError(
                f"{self.path.name}: expected .xml (also .xml.gz, .xml.bz2, .xml.xz), .parquet or .jsonl"
                + (
                    "; unpack it first (7z x)"
                    if self.path.suffix.lower() in (".7z", ".zip")
                    else ""
                )
            )
        if self.kind == "xml" and not self.site:
            raise ConfigError(
                f"{self.path.name}: a dump does not say which forum it is of, and licences want a link to "
                "each post; give --site, such as --site stackoverflow.com"
            )
        refuse_benchmarks_name(self.name, "give the host of the forum with --site")
        if self.users is not None:
            self._check_users(self.users)

    def _check_users(self, users: Path) -> None:
        if not users.is_file():
            raise ConfigError(f"{users}: no such file; expected Users.xml of the same dump")
        if not self.site:
            raise ConfigError(
                f"{users.name}: names of authors go with posts of a dump; give --site, or leave --users out"
            )
        told: list[str] = []
        if next(user_rows(users, told.append), None) is None:
            why = told[0] if told else f"{users.name}: holds no users"
            raise ConfigError(f"{why}; expected Users.xml of the same dump")

    @property
    def users_file(self) -> Path | None:
        """`users`, or the `Users.xml` beside a `Posts.xml` (or either packed); None where there is none."""
        if self.users is not None or not self.path.name.lower().startswith("posts.xml"):
            return self.users
        names = {f"users.xml{end}": n for n, end in enumerate(("", ".gz", ".bz2", ".xz"))}
        found = [one for one in self.path.parent.iterdir() if one.name.lower() in names]
        return min(found, key=lambda one: names[one.name.lower()], default=None)

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
        return whole(self.site or self.path.stem)

    def place(self, number: int) -> str:
        """Where a row is: `Posts.xml line 12`."""
        return f"{self.path.name} {'row' if self.kind == 'parquet' else 'line'} {number}"


@dataclass
class ReadCounts:
    """What a source held, for the data card."""

    rows: Counter[str] = field(default_factory=Counter)
    """`question`, `answer`, `other` (wiki pages, ...), `thread`; `orphan`: an answer without question; `blank
    answer`: one of those that are looked at in which a reader sees nothing, left out."""


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
    counts, told = counts or ReadCounts(), problems.count
    if problems.strict and source.users_file is not None:
        # Names are looked up after the model has been paid; what is wrong is wanted before.
        for _ in user_rows(source.users_file, problems.tell):
            pass
    if source.kind == "xml":
        rows: Iterator[tuple[int, Mapping[str, Any]]]
        rows = xml_rows(source.path, problems.tell, root="posts")
        yield from _from_posts(rows, source, problems, counts, work)
        return
    rows = (jsonl_rows if source.kind == "jsonl" else parquet_rows)(source.path, problems)
    first = next(rows, None)
    if first is None:
        if problems.count == told:
            problems.tell(f"{source.path.name}: holds no rows")
        return
    names = {_plain(name) for name in first[1]}
    rows = _chain(first, rows)
    if "answers" in names:
        seen: set[str] = set()
        for number, row in rows:
            counts.rows["thread"] += 1
            thread = _thread(source.place(number), row, source, problems)
            if thread is None:
                continue
            if thread.id in seen:
                where = source.place(number)
                problems.tell(
                    f"{where}: thread {thread.id!r:.40} is there twice; the first one was taken"
                )
                continue
            seen.add(thread.id)
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


_OF_ANSWERS = (
    "Id",
    "ParentId",
    "Score",
    "Body",
    "CreationDate",
    "OwnerUserId",
    "OwnerDisplayName",
    "ContentLicense",
)
"""What is kept of an answer."""
_OF_QUESTIONS = ("Id", "Title", *_OF_ANSWERS[2:], "Tags", "AcceptedAnswerId", "ClosedDate")
"""What is kept of a question, and then its place."""


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
        lots = _Lots(file, -(-size // POSTS_PER_LOT))
        _sort(rows, lots, source, problems, counts)
        for questions, answers in lots.read():
            yield from _threads_of(questions, answers, source, problems, counts)


class _Lots:
    """Posts by the number of their thread, in lots of whole threads; on disk in blocks, each of one lot.

    Posts lie side by side in plain lists of texts. A tuple of each would keep the garbage collector busy, and
    written one by one they would take marshal several times as long to read.
    """

    def __init__(self, file: IO[bytes], n: int) -> None:
        self.n = max(n, 1)
        self.questions: list[list[Any]] = [[] for _ in range(self.n)]
        self.answers: list[list[Any]] = [[] for _ in range(self.n)]
        self._file = file
        self._blocks = [array("q") for _ in range(self.n)]
        """Of each lot: where a block begins in the file, its length, and so on."""

    def write(self) -> None:
        """Bring what is held to the disk."""
        for questions, answers, blocks in zip(
            self.questions, self.answers, self._blocks, strict=True
        ):
            if questions or answers:
                data = marshal.dumps((questions, answers))
                blocks.extend((self._file.tell(), len(data)))
                self._file.write(data)
                questions.clear()
                answers.clear()

    def read(self) -> Iterator[tuple[list[Any], list[Any]]]:
        """Each lot's questions and answers, in the order in which they were added."""
        self.write()
        for blocks in self._blocks:
            questions: list[Any] = []
            answers: list[Any] = []
            for at, length in zip(blocks[::2], blocks[1::2], strict=True):
                self._file.seek(at)
                more = marshal.loads(self._file.read(length))  # noqa: S302  # written by this process
                questions += more[0]
                answers += more[1]
            yield questions, answers


def _sort(
    rows: Iterator[tuple[int, Mapping[str, Any]]],
    lots: _Lots,
    source: Source,
    problems: Problems,
    counts: ReadCounts,
) -> None:
    """Sort the posts of questions and answers into lots."""
    n, of_questions, of_answers = lots.n, lots.questions, lots.answers
    plain = source.kind != "xml"
    held = max(HELD, n * BLOCK)
    characters = questions = answers = others = 0
    try:
        for place, row in rows:
            if plain:
                row = {_COLUMNS.get(_plain(name), name): as_text(v) for name, v in row.items()}
            get = row.get
            kind = get("PostTypeId")
            if kind is None and plain:
                kind = "2" if get("ParentId") else "1"
            if kind == "2":
                answers += 1
                name, thread = get("Id"), get("ParentId")
            elif kind == "1":
                questions += 1
                name = thread = get("Id")
            elif kind is None:
                problems.tell(
                    f"{source.place(place)}: has no PostTypeId, expected 1 (question), 2 (answer), ...; "
                    "left out"
                )
                continue
            else:
                others += 1
                continue
            body = get("Body")
            if not body or not thread or not _NUMBERS.fullmatch(f"{name} {thread} {get('Score')}"):
                problems.tell(f"{source.place(place)}: {_wrong(row, kind)}; left out")
                continue
            # Not the number itself: ids may all be multiples of ten. Knuth's multiplicative hash.
            lot = (int(thread) * 2654435761 & 0xFFFFFFFF) * n >> 32
            if kind == "2":
                of_answers[lot] += map(get, _OF_ANSWERS)
            else:
                of_questions[lot] += (*map(get, _OF_QUESTIONS), place)
            characters += len(body)
            if characters > held:
                lots.write()
                characters = 0
    finally:
        counts.rows.update({"question": questions, "answer": answers})
        if others:
            counts.rows["other"] += others


_NUMBERS = re.compile(r"[0-9]{1,18} [0-9]{1,18} (?:-?[0-9]{1,18}|None)")


def _wrong(row: Mapping[str, Any], kind: str) -> str:
    for name in ("Id", "ParentId") if kind == "2" else ("Id",):
        value = row.get(name) or ""
        if not re.fullmatch("[0-9]{1,18}", value):
            return f"{name} is {value!r:.40}, expected a number"
    score = row.get("Score", "0")
    if not re.fullmatch("-?[0-9]{1,18}", score):
        return f"Score is {score!r:.40}, expected a whole number"
    return "has no Body"


def _threads_of(
    of_questions: list[Any],
    of_answers: list[Any],
    source: Source,
    problems: Problems,
    counts: ReadCounts,
) -> Iterator[Thread]:
    """The threads of a lot, by the number of their question."""
    question, answer = len(_OF_QUESTIONS) + 1, len(_OF_ANSWERS)
    numbers, order = _ordered(of_questions[::question])
    parents, order_of_answers = _ordered(of_answers[1::answer])
    site, licence, forum = source.site, source.licence, source.name

    def post(row: list[Any], kind: str) -> Post:
        name, _, score, html, date, user, author, licensed = row
        date = date or ""
        return Post(
            name,
            html,
            int(score or 0),
            author or "",
            user or "",
            licensed or licence or _licence_by_date(date, site),
            f"https://{site}/{kind}/{name}",
            date,
        )

    orphans = at = 0
    n, last = len(parents), -1
    for i in order:
        number = numbers[i]
        row = of_questions[i * question : (i + 1) * question]
        if number == last:
            problems.tell(
                f"{source.place(row[-1])}: question {row[0]} is there twice; the first one was taken"
            )
            continue
        last = number
        posts = []
        while at < n and (parent := parents[k := order_of_answers[at]]) <= number:
            at += 1
            if parent == number:
                posts.append(post(of_answers[k * answer : (k + 1) * answer], "a"))
            else:
                orphans += 1
        if len(posts) > 1 and len({one.id for one in posts}) < len(posts):
            posts = list({one.id: one for one in reversed(posts)}.values())
        tags, accepted, closed, _ = row[answer:]
        yield Thread(
            post(row[:answer], "q"),
            row[1] or "",
            _tags(tags or ""),
            accepted if any(one.id == accepted for one in posts) else None,
            chosen_answers(posts, accepted),
            len(posts),
            forum,
            (("closed", closed),) if closed else (),
        )
    counts.rows["orphan"] += orphans + n - at


def _ordered(names: list[str]) -> tuple[list[int], list[int]]:
    """Numbers, and their places by rising number; of equal ones the first comes first."""
    numbers = list(map(int, names))
    return numbers, sorted(range(len(numbers)), key=numbers.__getitem__)


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
        fields = known_fields(row, _THREAD)
        answers, accepted = [], as_text(fields.get("accepted")) or None
        given = fields.get("answers")
        if not isinstance(given, list):
            raise _Bad(f"answers is {type(given).__name__}, expected a list")
        ids = set()
        for n, one in enumerate(given, start=1):
            if not isinstance(one, Mapping):
                raise _Bad(f"answers[{n}] is {type(one).__name__}, expected an object")
            of = known_fields(one, _ANSWER)
            of.setdefault("id", str(n))
            # A blank one is no answer and costs no other; without the column the row is of another form.
            post = _thread_post(of, f"answers[{n}]", source, blank=True)
            if post.id in ids:
                raise _Bad(f"answers[{n}].id {post.id!r:.40} is there twice")
            ids.add(post.id)
            answers.append(post)
            if of.get("accepted") is True:
                accepted = post.id
        if fields.get("id") is None:
            raise _Bad("has no id")
        question = _thread_post(fields, "body", source)
        tags = fields.get("tags") or ()
        if not isinstance(tags, str | list | tuple):
            raise _Bad(f"tags is {type(tags).__name__}, expected a list")
    except _Bad as bad:
        problems.tell(f"{where}: {bad}; left out")
        return None
    return Thread(
        question=question,
        title=as_text(fields.get("title")),
        tags=_tags(tags) if isinstance(tags, str) else tuple(map(str, tags)),
        accepted=accepted if accepted in ids else None,
        answers=chosen_answers(answers, accepted),
        answer_count=len(answers),
        source=source.name,
    )


def known_fields(row: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """What of a row is known, by our names.

    Args:
        row: columns as a file has them; None is nothing.
        names: ours -> those of files, in lower case without `_` and `-`; the first that is there is taken.
    """
    plain = {_plain(name): value for name, value in row.items() if value is not None}
    found = {}
    for ours, theirs in names.items():
        for name in theirs:
            if name in plain:
                found[ours] = plain[name]
                break
    return found


def _thread_post(
    fields: Mapping[str, Any], name: str, source: Source, *, blank: bool = False
) -> Post:
    body, score = fields.get("body"), fields.get("score", 0)
    if not isinstance(body, str) or not (blank or body.strip()):
        raise _Bad(f"{name} has no text")
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise _Bad(f"{name}.score is {score!r:.40}, expected a whole number")
    if not math.isfinite(score) or score != int(score):
        raise _Bad(f"{name}.score is {score!r:.40}, expected a whole number")
    texts = {
        k: as_text(fields.get(k)) for k in ("id", "author", "author_id", "licence", "link", "date")
    }
    if len(texts["id"]) > LONGEST_ID:
        raise _Bad(f"{name}.id has {len(texts['id']):,} characters, expected at most {LONGEST_ID}")
    texts["licence"] = texts["licence"] or source.licence
    return Post(html=body, score=int(score), is_html=looks_like_html(body), **texts)


def looks_like_html(text: str) -> bool:
    """Whether a text has tags that posts and articles have."""
    return "</" in text and any(
        tag in text.lower() for tag in ("<p>", "<pre", "<a ", "<li>", "<code>")
    )


def as_text(value: Any) -> Any:
    """A value of a row as text; empty for None and NaN."""
    if value is None or value != value:  # NaN: a gap, as pandas has it
        return ""
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)  # a column of whole numbers with gaps, as pandas has it
    return value if isinstance(value, str) else str(value)


def _plain(name: object) -> str:
    return str(name).replace("_", "").replace("-", "").casefold()


# ---------------------------------------------------------------- rows of files

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def jsonl_rows(path: Path, problems: Problems) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects of a file with their lines, from 1; `problems` gets the lines that are none."""
    with path.open("rb") as file:
        begins = file.read(8)
        if (form := packed(begins)) is not None or begins.startswith(_UTF_16):
            what = f"{form} data, unpack it" if form else "UTF-16, convert it to UTF-8"
            problems.tell(f"{path.name}: is {what} first; the file was not read")
            return
        file.seek(0)
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            where = f"{path.name} line {number}"
            if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                while (more := file.readline(LONGEST_LINE)) and not more.endswith(b"\n"):
                    pass
                problems.tell(f"{where}: is longer than {LONGEST_LINE / 2**20:g} MiB; left out")
                continue
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
            yield number, _all_whole(row) if _ESCAPED_HALF.search(text) else row


_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def _all_whole(value: Any) -> Any:
    """A value of JSON, with a `?` for half a surrogate pair: JSON may escape one, and no file can hold it."""
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, list):
        return [*map(_all_whole, value)]
    if isinstance(value, dict):
        return {whole(name): _all_whole(one) for name, one in value.items()}
    return value


def parquet_rows(path: Path, problems: Problems) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows of a file with their numbers, from 1; `problems` gets what cannot be read."""
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
