"""Files, folders and the bundled set to tables of rows, with the names that the rows go by.

A reader returns the rows that it can read and adds the rest to `problems`, so that one bad file does
not hide what is wrong with the next. Nothing that a file holds raises.

A row in a message is the one that the user finds in the file: the line of a JSONL file; in a CSV
the row of a spreadsheet, whose header is row 1, with the line where a cell holds line breaks; in
JSON and Parquet, which have neither, the rows counted from 1.

Not here: hub data sets (`hub.py`); which column is which field (`loading.py`).
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from xyreward.errors import DataError, MissingDependency
from xyreward.split_names import Named, names_above, split_in, strictest
from xyreward.strict_json import Twice, faults, parse_json

SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")
NOT_ROWS = frozenset(
    {"dataset_infos.json", "dataset_info.json", "dataset_dict.json", "splits.json"}
)
"""Files that lie beside data: the datasets library's own, and a lock of `assign_splits`."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row, as it was read."""

    where: str
    """File and row, for messages; see the head of this module."""
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """One file, or one split of a hub data set: rows that share their columns."""

    name: str
    rows: Sequence[Row]
    named: Named | None = None
    """The strictest of the names that all its rows go by."""
    revision: str | None = None
    is_csv: bool = False
    """All cells are text, so lists and objects are JSON in text and an empty cell is no value."""


def bundled_tables(problems: list[str]) -> Iterator[Table]:
    """The files of the bundled set."""
    folder = resources.files("xyreward").joinpath("data/mini")
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        if file.name.endswith(".jsonl"):
            yield Table(file.name, _jsonl(file.name, file.read_bytes(), problems))


def folder_tables(folder: Path, problems: list[str]) -> list[Table]:
    """The tables of all files of a folder and of the folders in it, but for hidden ones.

    Raises:
        DataError: there is none.
    """
    files = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        if (
            name.suffix.lower() in SUFFIXES
            and name.name not in NOT_ROWS
            and not any(part.startswith(".") for part in name.parts)
            and not os.path.isdir(file)  # noqa: PTH112  # never raises
        ):
            files[file] = name
    if not files:
        raise DataError([f"{folder}: no {', '.join(SUFFIXES)} file in this folder"])
    return [table for file, name in files.items() for table in file_tables(file, name, problems)]


_PACKED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
}


def packed(data: bytes) -> str | None:
    """How a file that begins so is compressed (`gzip`, ...), whatever its name; None where it is not."""
    return next((name for mark, name in _PACKED.items() if data.startswith(mark)), None)


def file_tables(path: Path, name: Path, problems: list[str]) -> Iterator[Table]:
    """The tables of a file: one, but for JSON with a list per split.

    Args:
        path: of the file.
        name: the part of the path that lies below the folder that was asked for, or the file's name
            where that was asked for itself.
        problems: what cannot be read is added here.
    """
    shown = name.as_posix()
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        problems.append(f"{shown}: cannot read {suffix!r} files; use {', '.join(SUFFIXES)}")
        return
    named = strictest(_names(path, name))
    if suffix == ".parquet":
        yield Table(shown, _parquet(shown, path, problems), named)
        return
    try:
        data = path.read_bytes()
    except OSError as error:
        problems.append(f"{shown}: cannot be read ({error.strerror})")
        return
    if kind := packed(data):
        problems.append(f"{shown}: is compressed ({kind}), expected text; unpack it first")
        return
    match suffix:
        case ".jsonl":
            yield Table(shown, _jsonl(shown, data, problems), named)
        case ".csv":
            yield Table(shown, _csv(shown, data, problems), named, is_csv=True)
        case _:
            for key, rows in _json(shown, data, problems):
                by_key = _named(key, f"key {key!r}")
                yield Table(shown, rows, strictest(filter(None, (by_key, named))))


def _names(path: Path, name: Path) -> Iterator[Named]:
    """The names that the rows of a file go by: its own, its folders', and those of what it links to."""
    parts = [("file", name.name, name.stem)]
    parts += [("folder", folder.name, folder.name) for folder in name.parents]
    # A link has a name of its own beside that of where it leads. Of os.path, which never raises.
    asked_for = Path(os.path.abspath(path)).parents[len(name.parents) - 1]  # noqa: PTH100
    above = [asked_for, Path(os.path.realpath(asked_for))]
    if os.path.islink(path):  # noqa: PTH114
        real = Path(os.path.realpath(path))
        parts.append(("file", real.name, real.stem))
        above.append(real.parent)
    for kind, shown, text in parts:
        if hit := _named(text, f"{kind} {shown!r}"):
            yield hit
    for folder in above:
        yield from names_above(folder)


def _named(text: str, why: str) -> Named | None:
    split = split_in(text)
    return Named(split, why) if split else None


def row(where: str, values: Mapping[str, Any], problems: list[str]) -> Iterator[Row]:
    """The row, unless reading it went wrong in a way that makes it unsafe or ambiguous."""
    found = [f"{where}, {place!a}: {what}" for place, what in faults(values)]
    problems += found
    if not found:
        yield Row(where, values)


def kind_of(value: Any) -> str:
    """What a value is, in the words of a file."""
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case str():
            return "text"
        case None:
            return "null"
        case _:
            return f"a {type(value).__name__}"


def _decode(name: str, data: bytes, problems: list[str]) -> str | None:
    """Text in which a byte that is not UTF-8 is a lone surrogate; `loading.py` tells its field."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        problems.append(f"{name}: is UTF-16, expected UTF-8; save it as UTF-8")
        return None
    return data.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")


def _jsonl(name: str, data: bytes, problems: list[str]) -> list[Row]:
    text = _decode(name, data, problems)
    rows: list[Row] = []
    # Not str.splitlines(): it also breaks at characters that JSON allows inside a string (U+2028).
    for number, line in enumerate((text or "").split("\n"), start=1):
        where = f"{name} row {number}"
        if not line.strip():
            continue
        try:
            values = parse_json(line)
        except ValueError as error:
            problems.append(f"{where}: not valid JSON ({error})")
            continue
        if isinstance(values, dict):
            rows += row(where, values, problems)
        else:
            problems.append(f"{where}: is {kind_of(values)}, expected an object")
    return rows


def _json(name: str, data: bytes, problems: list[str]) -> Iterator[tuple[str, list[Row]]]:
    """Lists of rows, with the key that holds them where the file is an object."""
    text = _decode(name, data, problems)
    if text is None:
        return
    try:
        content = parse_json(text)
    except ValueError as error:
        # Many a .json is JSONL. Its first line alone is an object.
        if "Extra data" in str(error) and text.lstrip().startswith("{"):
            yield "", _jsonl(name, data, problems)
        else:
            problems.append(f"{name}: not valid JSON ({error})")
        return
    lists = {"": content}
    if isinstance(content, dict):
        if content.keys() == {"version", "placements"}:  # a lock of `assign_splits` by another name
            return
        if isinstance(content, Twice):
            problems += (
                f"{name}, {key!a}: is there twice, expected once"
                for key in content.keys_given_twice
            )
        lists = {
            key: value
            for key, value in content.items()
            if isinstance(value, list) and any(isinstance(inner, dict) for inner in value)
        }
    if not lists or not isinstance(content, (dict, list)):
        problems.append(
            f"{name}: is {kind_of(content)} without a list of rows, expected a list of objects "
            'or one list per split ({"train": [...], "test": [...]})'
        )
        return
    for key, values in lists.items():
        place = f"{name} {key!r} row" if len(lists) > 1 else f"{name} row"
        rows: list[Row] = []
        for number, value in enumerate(values, start=1):
            if isinstance(value, dict):
                rows += row(f"{place} {number}", value, problems)
            else:
                problems.append(f"{place} {number}: is {kind_of(value)}, expected an object")
        yield key, rows


def _csv(name: str, data: bytes, problems: list[str]) -> list[Row]:
    text = _decode(name, data, problems)
    if text is None:
        return []
    rows: list[Row] = []
    header: list[str] | None = None
    # newline="" leaves line breaks inside quotes as they are; csv itself knows the ends of rows.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    limit = csv.field_size_limit(
        max(len(text), 131_072)
    )  # a pasted log can be longer than the default
    line, number = 1, 0
    try:
        for cells in reader:
            number += 1
            line, first_line = reader.line_num + 1, line
            where = f"{name} row {number}" + (
                f" (line {first_line})" if first_line != number else ""
            )
            if not cells:
                continue
            if header is None:
                header = cells
                if twice := _twice(header):
                    problems.append(f"{where}: the header has {', '.join(map(repr, twice))} twice")
                    return []
                if len(header) == 1 and re.search(r"[;\t]", header[0]):
                    problems.append(
                        f"{where}: no comma in {header[0]!r:.80}; separate cells by commas"
                    )
                    return []
                continue
            if len(cells) != len(header):
                problems.append(f"{where}: {len(cells)} cells, the header has {len(header)}")
                continue
            rows.append(Row(where, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        # Where a quote is missing, all that follows is guesswork.
        problems.append(f"{name} row {number + 1} (line {line}): not valid CSV ({error})")
    finally:
        csv.field_size_limit(limit)
    return rows


def _twice(names: Sequence[str]) -> list[str]:
    return [name for name, n in Counter(names).items() if n > 1]


def _parquet(name: str, path: Path, problems: list[str]) -> list[Row]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingDependency(
            f"{name}: reading Parquet needs pyarrow: pip install 'xyreward[train]'"
        ) from None
    damaged = (pa.ArrowException, OSError, ValueError, OverflowError)
    try:
        table = pq.ParquetFile(path).read()
    except damaged as error:
        problems.append(f"{name}: not a readable Parquet file ({error})")
        return []
    if twice := list(_columns_twice(table.schema)):
        problems += (f"{name}, {column!a}: is there twice, expected once" for column in twice)
        return []
    try:
        values = table.to_pylist()
    except damaged:  # some cell; look which
        for column in table.column_names:
            for number, cell in enumerate(table[column], start=1):
                try:
                    cell.as_py()
                except UnicodeDecodeError as error:
                    what = (
                        f"is not valid UTF-8 (byte 0x{error.object[error.start]:02x} "
                        f"at byte {error.start + 1})"
                    )
                except damaged as error:
                    what = f"cannot be read ({error})"
                else:
                    continue
                problems.append(f"{name} row {number}, {column!a}: {what}")
        return []
    rows: list[Row] = []
    for number, value in enumerate(values, start=1):
        rows += row(f"{name} row {number}", value, problems)
    return rows


def _columns_twice(fields: Any, outer: str = "") -> Iterator[str]:
    """Columns, and fields of structs, that have the name of another; `fields` is a schema or a list."""
    fields = list(fields)
    yield from (f"{outer}{name}" for name in _twice([field.name for field in fields]))
    for field in fields:
        inner = [field.type.field(i) for i in range(field.type.num_fields)]
        yield from _columns_twice(inner, f"{outer}{field.name}.")
