"""Labels of people and judges, from files to `Ratings`. All problems of all files at once.

Two forms of input:

- a table with a column per rater, any labels (`read_columns`);
- rows with an answer and the four labels of this package: what `xyreward annotate` saves, what `xyreward
  score` writes, or `{"item_id", "answer", "labels": {...}, "annotator"}` (`read_answers`).

What a rater did not label is missing; where a judge failed there is a failure; neither is a label.

Not here: the figures (`agreement.py`), asking a judge or a store (`calibrate.py`).
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from xyreward.agreement import Cell, Gap, Rater, Ratings, Role
from xyreward.errors import DataError
from xyreward.items import Item, text_hash
from xyreward.tables import Row, file_tables, kind_of
from xyreward.verdict import FOCUS_VALUES, Labels

LABELS = ("has_stated_solution", "has_intended_solution", "focus", "identifies_misconception")
THREE = "focus, neither left out"
"""The paper knows three focuses; only this stands beside its figures."""
EMPTY_ANSWER = "empty answer"


@dataclass(frozen=True, slots=True)
class Source:
    """A file that labels came from."""

    name: str
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Source:
        """Its name without the folder, and the hash of what it holds."""
        return cls(path.name, hashlib.sha256(path.read_bytes()).hexdigest())


def _rows(path: Path, problems: list[str]) -> tuple[list[Row], bool]:
    """Rows of a file and whether all cells are text."""
    if not path.is_file():
        problems.append(f"{path}: no such file")
        return [], False
    tables = list(file_tables(path, Path(path.name), problems))
    rows = [row for table in tables for row in table.rows]
    if not rows and not problems:
        problems.append(f"{path}: has no rows")
    return rows, any(table.is_csv for table in tables)


# ---------------------------------------------------------------- a column per rater


def read_columns(
    path: Path,
    *,
    humans: Sequence[str] = (),
    judges: Sequence[str] = (),
    failure_labels: Sequence[str] = (),
    mapping: Mapping[str, str] | None = None,
    id_column: str | None = None,
    cluster_column: str | None = None,
    as_text: bool = False,
    label: str = "label",
) -> tuple[Ratings, list[str]]:
    """A table with a column per rater, and notes on it.

    Args:
        path: JSONL, JSON, CSV or Parquet.
        humans: columns of people.
        judges: columns of judges.
        failure_labels: what a column holds where its judge failed.
        mapping: label -> the label that it is to be read as, before failures are looked for.
        id_column: what tells rows apart; `id` by default, where there is such a column.
        cluster_column: rows with an equal value belong together; by default each is its own.
        as_text: read 0 and "0", true and "true" as the same label. Else a mixture is a problem.
        label: what the labels are of, for the report.

    Raises:
        DataError: lists every problem.
    """
    problems: list[str] = []
    rows, _ = _rows(path, problems)
    names = [*humans, *judges]
    if twice := [name for name, n in Counter(names).items() if n > 1]:
        problems.append(f"columns named twice: {', '.join(map(repr, twice))}")
    if len(set(names)) < 2:
        problems.append(f"{len(set(names))} columns named, expected two or more raters")
    known = list(dict.fromkeys(column for row in rows for column in row.values))
    wanted = [*names, *(c for c in (id_column, cluster_column) if c is not None)]
    for name in dict.fromkeys(wanted):
        if rows and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
            problems.append(f"{path.name}: no column {name!r}; {hint:.300}")
    if id_column is None and "id" in known and "id" not in names:
        id_column = "id"
    if id_column is not None:
        problems += _id_problems(rows, id_column)
    reader = _ColumnReader(failure_labels, mapping or {}, as_text=as_text)
    columns: dict[str, list[Cell]] = {name: [] for name in names}
    for row in rows:
        for name in columns:
            try:
                columns[name].append(reader.cell(name, row.where, row.values.get(name)))
            except ValueError as error:
                problems.append(f"{row.where}, {name!r}: {error}")
                columns[name].append(Gap.MISSING)
    problems += reader.mixed_types()
    for name, cells in columns.items():
        if rows and name in known and not any(isinstance(cell, str) for cell in cells):
            problems.append(f"{path.name}: column {name!r} has no label in any row")
    clusters = []
    for number, row in enumerate(rows):
        value = row.values.get(cluster_column) if cluster_column is not None else number
        if cluster_column in known and (value is None or value == ""):
            problems.append(f"{row.where}, {cluster_column!r}: is empty, expected its cluster")
        clusters.append(str(value))
    if problems:
        raise DataError(problems)
    notes = reader.notes()
    if id_column is None:
        notes.append("no id column: rows given twice would be counted twice")
    roles: dict[str, Role] = {**dict.fromkeys(humans, "human"), **dict.fromkeys(judges, "judge")}
    raters = [Rater(name, roles[name], cells) for name, cells in columns.items()]
    return Ratings(label, raters, clusters), notes


def _id_problems(rows: Sequence[Row], column: str) -> Iterator[str]:
    first: dict[str, str] = {}
    for row in rows:
        value = row.values.get(column)
        if value is None or value == "":
            yield f"{row.where}, {column!r}: is empty, expected what tells the row apart"
            continue
        name = json.dumps(value, sort_keys=True, default=str)
        if name in first:
            yield f"{row.where}, {column!r}: {value!r:.60} is there twice, first in {first[name]}"
        first.setdefault(name, row.where)


class _ColumnReader:
    """Cells to labels, with what was met on the way."""

    def __init__(
        self, failure_labels: Sequence[str], mapping: Mapping[str, str], *, as_text: bool
    ) -> None:
        self._failures = frozenset(failure_labels)
        self._mapping = mapping
        self._as_text = as_text
        self._used: set[str] = set()
        self._types: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
        """Label -> type -> a column and a row that have it so."""

    def cell(self, column: str, where: str, value: Any) -> Cell:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return Gap.MISSING
        label, kind = _label(value)
        if not label:
            return Gap.MISSING
        if label in self._mapping:
            self._used.add(label)
            label, kind = self._mapping[label], "text"
        if label in self._failures:
            self._used.add(label)
            return Gap.FAILED
        self._types[label].setdefault(kind, (column, where))
        return label

    def mixed_types(self) -> Iterator[str]:
        """0 and "0" would be two labels that never agree."""
        if self._as_text:
            return
        for label, kinds in sorted(self._types.items()):
            if len(kinds) > 1:
                found = " and ".join(
                    f"{kind} ({column!r}, {where})" for kind, (column, where) in kinds.items()
                )
                yield f"label {label!r} is {found}; write it alike, or say that text is meant (--as-text)"

    def notes(self) -> list[str]:
        return [
            f"{label!r} is {what} and occurs in no column"
            for labels, what in (
                (self._failures, "a failure label"),
                (self._mapping, "mapped to another"),
            )
            for label in labels
            if label not in self._used
        ]


def _label(value: Any) -> tuple[str, str]:
    """A label as text, and what it was."""
    match value:
        case bool():
            return str(value).lower(), "true or false"
        case int():
            return str(value), "a number"
        case float() if value.is_integer():  # what pandas makes of whole numbers with a gap
            return str(int(value)), "a number"
        case str():
            return value.strip(), "text"
    raise ValueError(f"is {kind_of(value)}, expected text, a whole number, true or false")


# ---------------------------------------------------------------- answers with the four labels

Key = tuple[str, str]
"""Item id or hash of a bare query, and hash of the answer."""


@dataclass(slots=True)
class Answer:
    """Something that was answered, and labelled or to be labelled."""

    item_id: str | None
    query: Any
    """Of a row without an item."""
    text: str | None
    """None where the file has only its hash."""
    where: str

    def item(self, items: Mapping[str, Item]) -> Item | None:
        """Its item, or what is known of its query; None for an id that is not among the items."""
        return Item.of_query(self.query) if self.item_id is None else items.get(self.item_id)


@dataclass(frozen=True, slots=True)
class _RaterKey:
    name: str
    role: Role
    rubric_version: str = ""
    grounded: bool = True
    file: str = ""


@dataclass(slots=True)
class Labelled:
    """Answers with what each rater says of them."""

    answers: dict[Key, Answer] = field(default_factory=dict)
    given: dict[_RaterKey, dict[Key, Mapping[str, Cell]]] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_judge(
        self,
        name: str,
        rubric_version: str,
        outcomes: Mapping[Key, Labels | None],
        *,
        grounded: bool = True,
        where: str = "",
    ) -> None:
        """What a judge says: labels, or None where it failed.

        Args:
            name: of the judge.
            rubric_version: other versions are other raters.
            outcomes: by answer; answers that are not there are missing.
            grounded: False where the goals were inferred: another rater, too.
            where: tells two sets of verdicts of one judge apart.
        """
        rater = _RaterKey(name, "judge", rubric_version, grounded, where)
        self.given[rater] = {key: _cells(labels) for key, labels in outcomes.items()}

    def judges(self) -> dict[str, tuple[str, str, bool]]:
        """Shown name -> name, rubric version, grounded."""
        names = self._names()
        return {
            names[r]: (r.name, r.rubric_version, r.grounded)
            for r in self.given
            if r.role == "judge"
        }

    def _names(self) -> dict[_RaterKey, str]:
        """Names that tell all raters apart, no longer than needed."""
        raters = list(self.given)
        names: dict[_RaterKey, str] = {}
        for rater in raters:
            alike = [r for r in raters if r.name == rater.name]
            told = []
            if len({r.rubric_version for r in alike}) > 1:
                told.append(rater.rubric_version or "no verdict")
            if len({r.grounded for r in alike}) > 1:
                told.append("goals from the item" if rater.grounded else "goals inferred")
            same = [
                r
                for r in alike
                if (r.rubric_version, r.grounded) == (rater.rubric_version, rater.grounded)
            ]
            if len({r.role for r in alike}) > 1:
                told.append("judge" if rater.role == "judge" else "person")
                same = [r for r in same if r.role == rater.role]
            if len(same) > 1:
                told.append(Path(rater.file).name)
            names[rater] = f"{rater.name} ({', '.join(told)})" if told else rater.name
        taken: Counter[str] = Counter()
        for rater, name in names.items():
            taken[name] += 1
            if taken[name] > 1:  # two files of one name in two folders
                names[rater] = f"{name} #{taken[name]}"
        return names

    def ratings(self, clusters: Mapping[str, str] | None = None) -> list[Ratings]:
        """The four labels and, for the paper's figure, the focus without `neither`.

        Args:
            clusters: item id -> cluster. None: the answers to one item are a cluster.

        Raises:
            DataError: fewer than two raters, or none that labelled the same answer.
        """
        names = self._names()
        if len(names) < 2:
            found = ", ".join(names.values()) or "none"
            raise DataError(
                [
                    f"raters found: {found}; expected two or more. Give the file of labels and one that "
                    "`xyreward score` wrote, or files of several people"
                ]
            )
        keys = [key for key in self.answers if any(key in by for by in self.given.values())]
        if not any(sum(key in by for by in self.given.values()) > 1 for key in keys):
            raise DataError(
                [
                    "no answer was labelled by two raters; rows are joined by item_id and the answer's text. "
                    "Were these answers scored and labelled with the same items?"
                ]
            )
        named = [(clusters or {}).get(key[0], key[0]) for key in keys]
        out = []
        for label in (*LABELS[:3], THREE, *LABELS[3:]):
            raters = [
                Rater(names[r], r.role, [_cell_of(by.get(key), label) for key in keys])
                for r, by in self.given.items()
            ]
            out.append(Ratings(label, raters, named))
        return out


def _cell_of(cells: Mapping[str, Cell] | None, label: str) -> Cell:
    if cells is None:
        return Gap.MISSING
    if label != THREE:
        return cells.get(label, Gap.MISSING)
    focus = cells.get("focus", Gap.MISSING)
    return Gap.MISSING if focus == "neither" else focus


def _cells(labels: Labels | None) -> Mapping[str, Cell]:
    if labels is None:
        return dict.fromkeys(LABELS, Gap.FAILED)
    return {label: _text(getattr(labels, label)) for label in LABELS}


def _text(value: bool | str) -> str:
    return value if isinstance(value, str) else "yes" if value else "no"


def read_answers(paths: Sequence[Path]) -> Labelled:
    """Rows with an answer, of any number of files, joined by item and answer.

    A row of `xyreward score` is its judge's. Labels that such a row carried over from its input count
    only where no other file has labels, since they would be counted twice. Rows with an answer and nothing
    else are answers that a judge may still be asked about.

    Raises:
        DataError: lists every problem of every file.
    """
    reader = _AnswersReader()
    for path in paths:
        reader.file(path)
    if reader.problems:
        raise DataError(reader.problems)
    return reader.finished([Source.of(path) for path in paths])


class _AnswersReader:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self._found = Labelled()
        self._carried: dict[_RaterKey, dict[Key, Mapping[str, Cell]]] = {}
        self._where: dict[tuple[_RaterKey, Key], str] = {}
        self._failed: list[tuple[str, str, bool, Key, str]] = []
        self._empty = 0

    def file(self, path: Path) -> None:
        rows, is_csv = _rows(path, self.problems)
        self._failed = []
        for row in rows:
            try:
                self._row(row, path, is_csv)
            except ValueError as error:
                self.problems.append(f"{row.where}: {error}")
        self._place_failures()

    def finished(self, sources: list[Source]) -> Labelled:
        found = self._found
        if not any(rater.role == "human" for rater in found.given):
            found.given = {**self._carried, **found.given}
        # People first, whatever the order of the files.
        found.given = dict(sorted(found.given.items(), key=lambda entry: entry[0].role == "judge"))
        found.sources = sources
        if self._empty:
            found.notes.append(
                f"{self._empty} empty answers are left out: no judge is asked about them"
            )
        return found

    def _row(self, row: Row, path: Path, is_csv: bool) -> None:
        values = row.values
        key, answer = _answer(values, row.where)
        judged = "judge" in values and "verdict" in values and "failure" in values
        if judged and values["judge"] == EMPTY_ANSWER:
            self._empty += 1
            return
        self._found.answers.setdefault(key, answer)
        if answer.text is not None and self._found.answers[key].text is None:
            self._found.answers[key] = answer
        cells = _own_labels(values, is_csv)
        if cells:
            name = values.get("annotator")
            if name is not None and (not isinstance(name, str) or not name.strip()):
                raise ValueError(f"annotator is {name!r:.40}, expected a name")
            rater = _RaterKey((name or path.stem).strip(), "human")
            self._put(self._carried if judged else self._found.given, rater, key, cells, row.where)
        if judged:
            self._judged(values, key, answer.item_id is not None, path, row.where, is_csv)

    def _judged(
        self,
        values: Mapping[str, Any],
        key: Key,
        has_item: bool,
        path: Path,
        where: str,
        is_csv: bool,
    ) -> None:
        judge, verdict = values["judge"], values["verdict"]
        if not isinstance(judge, str) or not judge:
            raise ValueError(f"judge is {judge!r:.40}, expected its name")
        if is_csv and isinstance(verdict, str) and verdict:
            verdict = _object("verdict", verdict)
        if not verdict:
            if not values["failure"]:
                raise ValueError("has neither verdict nor failure, expected one of them")
            self._failed.append((judge, path.as_posix(), has_item, key, where))
            return
        if not isinstance(verdict, Mapping):
            raise ValueError(f"verdict is {kind_of(verdict)}, expected an object or null")
        cells = _four(verdict, is_csv=False, all_of_them=True)
        version = values.get("rubric_version")
        if not isinstance(version, str) or not version:
            raise ValueError(f"rubric_version is {version!r:.40}, expected which rubric was used")
        grounded = verdict.get("grounded", True) is not False
        rater = _RaterKey(judge, "judge", version, grounded, path.as_posix())
        self._put(self._found.given, rater, key, cells, where)

    def _place_failures(self) -> None:
        """A failure says no rubric version: it is that of the judge's verdicts in the file."""
        for judge, file, grounded, key, where in self._failed:
            of_judge = [
                r for r in self._found.given if (r.role, r.name, r.file) == ("judge", judge, file)
            ]
            versions = {r.rubric_version for r in of_judge}
            if len(versions) > 1:
                self.problems.append(
                    f"{where}: a failure of {judge!r}, whose verdicts in this file have several rubric "
                    f"versions ({', '.join(sorted(versions))}); put each into a file of its own"
                )
                continue
            rater = _RaterKey(judge, "judge", next(iter(versions), ""), grounded, file)
            self._put(self._found.given, rater, key, dict.fromkeys(LABELS, Gap.FAILED), where)

    def _put(
        self,
        given: dict[_RaterKey, dict[Key, Mapping[str, Cell]]],
        rater: _RaterKey,
        key: Key,
        cells: Mapping[str, Cell],
        where: str,
    ) -> None:
        if key in given.setdefault(rater, {}):
            self.problems.append(
                f"{where}: {rater.name!r:.60} labelled this answer to {key[0]!r:.60} already, in "
                f"{self._where[rater, key]}; expected each answer once"
            )
            return
        self._where[rater, key] = where
        given[rater][key] = cells


def _answer(values: Mapping[str, Any], where: str) -> tuple[Key, Answer]:
    text, digest = values.get("answer"), values.get("answer_hash")
    if isinstance(text, str):
        digest = text_hash(text)
    elif not isinstance(digest, str) or text is not None:
        found = f"answer is {kind_of(text)}" if "answer" in values else "has no answer"
        raise ValueError(f"{found}, expected the text that was labelled")
    item_id = values.get("item_id")
    if isinstance(item_id, int) and not isinstance(item_id, bool):
        item_id = str(item_id)
    if item_id is not None and item_id != "":
        if not isinstance(item_id, str):
            raise ValueError(f"item_id is {kind_of(item_id)}, expected text or a whole number")
        return (item_id, digest), Answer(item_id, None, text, where)
    query = values.get("query")
    if query is None:
        keys = ", ".join(sorted(values))
        raise ValueError(f"has neither item_id nor query, only {keys:.200}")
    try:
        item = Item.of_query(query)
    except (TypeError, ValidationError):
        raise ValueError(
            "query is neither a text nor chat messages that end with a user's"
        ) from None
    return (item.id, digest), Answer(None, query, text, where)


def _own_labels(values: Mapping[str, Any], is_csv: bool) -> dict[str, Cell]:
    """The labels that a row brings, as `labels` or as columns; empty where it brings none."""
    labels = values.get("labels")
    if labels is not None and labels != "":
        if is_csv:
            labels = _object("labels", labels)
        if not isinstance(labels, Mapping):
            raise ValueError(f"labels is {kind_of(labels)}, expected an object")
        if unknown := sorted(labels.keys() - set(LABELS)):
            raise ValueError(
                f"labels has {', '.join(map(repr, unknown)):.100}; known are {', '.join(LABELS)}"
            )
        return _four(labels, is_csv=False)
    return _four(values, is_csv=is_csv)


def _four(values: Mapping[str, Any], *, is_csv: bool, all_of_them: bool = False) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for label in LABELS:
        value = values.get(label)
        if value is None or (is_csv and value == ""):
            if all_of_them:
                raise ValueError(f"verdict has no {label}")
            continue
        cells[label] = _focus(value) if label == "focus" else _yes_or_no(label, value, is_csv)
    return cells


def _focus(value: Any) -> str:
    if value not in FOCUS_VALUES:
        raise ValueError(f"focus is {value!r:.40}, expected one of {', '.join(FOCUS_VALUES)}")
    return str(value)


YesNo = Literal["yes", "no"]


def _yes_or_no(label: str, value: Any, is_csv: bool) -> YesNo:
    if is_csv and isinstance(value, str):
        found: YesNo | None = {"true": "yes", "yes": "yes", "false": "no", "no": "no"}.get(
            value.strip().lower()
        )  # type: ignore[assignment]
        if found is not None:
            return found
    if not isinstance(value, bool):
        raise ValueError(f"{label} is {kind_of(value)} {value!r:.40}, expected true or false")
    return "yes" if value else "no"


def _object(name: str, text: Any) -> Any:
    try:
        return json.loads(text)
    except (RecursionError, TypeError, ValueError):
        raise ValueError(f"{name} is {text!r:.40}, expected an object as JSON") from None
