"""Verdicts out of a store and into another: JSONL, Parquet, another store.

What is exported can be shared, and stays usable when the judge that said it is retired. Claims,
batches and the ledger stay behind: they belong to one machine.

Everything goes by page, so that a million verdicts need no more memory than a thousand.

Not here: what a record is (`verdicts.py`).
"""

from __future__ import annotations

import codecs
import json
import math
import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from xyreward.errors import DataError, MissingDependency, StoreError
from xyreward.home import expanded
from xyreward.store.database import MIGRATIONS, open_to_read, translated
from xyreward.store.verdicts import (
    CHUNK,
    COLUMNS,
    RecordKind,
    StoredVerdict,
    VerdictStore,
    conflict,
    from_row,
    identity_of,
    insert,
    pages,
    to_row,
)
from xyreward.verdict import Usage
from xyreward.whole_file import whole

T = TypeVar("T")

ROW_GROUP = 5_000
"""Rows of a Parquet file that are in memory at once, about 20 MB."""


@dataclass(frozen=True, slots=True)
class Added:
    """What an import or a merge brought."""

    added: int
    present: int
    """Rows whose verdict was there already, and stays as it was."""


class _Row(BaseModel):
    """One verdict as it is exported, and as it comes back from outside."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: str = Field(min_length=1)
    kind: RecordKind
    created: str = Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
    input_tokens: int = Field(ge=0, lt=2**63)
    output_tokens: int = Field(ge=0, lt=2**63)
    cache_read_tokens: int = Field(ge=0, lt=2**63)
    cache_write_tokens: int = Field(ge=0, lt=2**63)
    cost_usd: float | None = Field(ge=0, lt=math.inf)
    served_model: str
    base_url: str
    identity: dict[str, str]
    payload: str
    raw_text: str

    @field_validator("payload")
    @classmethod
    def _is_json(cls, text: str) -> str:
        try:
            json.loads(text, parse_constant=_no_constant)
        except RecursionError:
            raise ValueError("is nested too deep") from None
        return text

    @classmethod
    def of(cls, record: StoredVerdict) -> dict[str, Any]:
        """The fields of a record, in their order."""
        return {
            name: getattr(record.usage if name.endswith("_tokens") else record, name)
            for name in cls.model_fields
        }

    def record(self) -> StoredVerdict:
        fields = self.model_dump()
        usage = {name: fields.pop(name) for name in list(fields) if name.endswith("_tokens")}
        return StoredVerdict(usage=Usage(**usage), **fields)


# ---------------------------------------------------------------- out


def export(store: VerdictStore, path: str | os.PathLike[str]) -> int:
    """Write all verdicts to a .jsonl or .parquet file, replacing it. Returns how many.

    The file is there whole or not at all.

    Raises:
        StoreError: the name ends in something else, or the file cannot be written.
        MissingDependency: a Parquet file, and pyarrow is not installed.
    """
    path = expanded(path, StoreError)
    write = {".jsonl": _write_jsonl, ".parquet": _write_parquet}.get(path.suffix)
    if write is None:
        raise StoreError(f"{path}: ends in {path.suffix!r}, expected .jsonl or .parquet")
    if path.exists() and path.samefile(store.path):
        raise StoreError(f"{path}: is the store itself; name another file")
    with _whole(path) as partial:
        return write(partial, store.records())


def _write_jsonl(path: Path, records: Iterator[StoredVerdict]) -> int:
    n = 0
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        for record in records:
            stream.write(json.dumps(_Row.of(record), ensure_ascii=False) + "\n")
            n += 1
    return n


def _write_parquet(path: Path, records: Iterator[StoredVerdict]) -> int:
    pa, pq = _pyarrow(path)
    types = {"cost_usd": pa.float64(), "identity": pa.map_(pa.string(), pa.string())}
    schema = pa.schema(
        [
            (name, types.get(name, pa.int64() if name.endswith("_tokens") else pa.string()))
            for name in _Row.model_fields
        ]
    )
    n = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for chunk in _chunks(records, ROW_GROUP):
            rows = [
                {**(row := _Row.of(r)), "identity": list(row["identity"].items())} for r in chunk
            ]
            writer.write_table(pa.Table.from_pylist(rows, schema))
            n += len(rows)
    return n


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A file beside `path` that takes its place when all is written."""
    try:
        with whole(path) as partial:
            yield partial
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error}); name another path") from error


# ---------------------------------------------------------------- in


def import_(store: VerdictStore, path: str | os.PathLike[str]) -> Added:
    """Take in verdicts that `export` wrote. All rows are checked before the first is taken.

    A verdict that is there already stays.

    Raises:
        DataError: one line per bad row, and per row whose key stands for something else here.
        StoreError: the name ends in something else, or the store cannot be written.
        MissingDependency: a Parquet file, and pyarrow is not installed.
    """
    path = expanded(path, StoreError)
    read = {".jsonl": _read_jsonl, ".parquet": _read_parquet}.get(path.suffix)
    if read is None:
        raise StoreError(f"{path}: ends in {path.suffix!r}, expected .jsonl or .parquet")
    problems: list[str] = []
    total = added = 0
    # What is good waits in a file of SQLite's own: read once, however large, and not yet in the store.
    with (
        translated(Path(tempfile.gettempdir())),
        closing(sqlite3.connect("", isolation_level=None)) as waiting,
    ):
        waiting.execute(MIGRATIONS[0].split(";")[0])
        waiting.execute("BEGIN")
        for chunk in _chunks(_checked(read(path, problems), problems), CHUNK):
            total += len(chunk)
            here = store.identities([record.key for _, record in chunk])
            for where, record in chunk:
                key, identity = record.key, record.identity
                if here.get(key, identity) != identity:
                    problems.append(f"{where}: {conflict(key, here[key], identity, 'in this row')}")
                before = insert(waiting, [to_row(record)])
                if before.get(key, identity) != identity:
                    problems.append(f"{where}: its key is in an earlier row with another identity")
        if problems:
            raise DataError(problems)
        staged = (from_row(row) for row in pages(lambda: nullcontext(waiting), COLUMNS))
        for records in _chunks(staged, CHUNK):
            added += store.add_many(records)
    return Added(added, total - added)


def merge(store: VerdictStore, other: str | os.PathLike[str]) -> Added:
    """Take in the verdicts of another store, for instance another machine's.

    The other is only read. It may be in use, unless it lies on a network file system.

    Raises:
        DataError: one line per key that stands for something else here; nothing was taken.
        StoreError: the other is no verdict store, is damaged or cannot be read; or the store cannot
            be written.
    """
    other = expanded(other, StoreError)
    if other.exists() and other.samefile(store.path):
        raise StoreError(f"{other}: is the store itself; name another one")
    with translated(other), open_to_read(other) as connection:
        problems = []
        total = added = 0
        for chunk in _chunks(pages(lambda: nullcontext(connection), "key, identity"), CHUNK):
            total += len(chunk)
            here = store.identities([key for key, _ in chunk])
            for key, identity in chunk:
                named = identity_of(key, identity)
                if here.get(key, named) != named:
                    problems.append(f"{other.name}: {conflict(key, here[key], named, 'there')}")
        if problems:
            raise DataError(problems)
        theirs = (from_row(row) for row in pages(lambda: nullcontext(connection), COLUMNS))
        for records in _chunks(theirs, CHUNK):
            added += store.add_many(records)
    return Added(added, total - added)


def _checked(
    rows: Iterator[tuple[str, Any]], problems: list[str]
) -> Iterator[tuple[str, StoredVerdict]]:
    """The good ones of `rows`; a line in `problems` for each of the others.

    Where the first row has next to nothing of what `export` writes, so has the rest: one line for all.
    """
    for number, (where, row) in enumerate(rows):
        keys = row.keys() if isinstance(row, dict) else {}
        if number == 0 and len(_Row.model_fields.keys() & set(keys)) < 4:
            found = ", ".join(keys) if keys else f"{row!r:.60}"
            problems[:] = [_no_export(where, f"found {found:.80}")]
            return
        try:
            yield where, _Row.model_validate(row).record()
        except ValidationError as error:
            problems += [
                f"{where}, {'.'.join(map(str, e['loc'])) or 'row'}: "
                f"{e['msg'].removeprefix('Value error, ')} (found {e['input']!r:.80})"
                for e in error.errors(include_url=False)
            ]


def _no_export(where: str, found: str) -> str:
    return (
        f"{where}: is no record of a verdict store, so the file is none that `xyreward store export` wrote "
        f"({found}; expected {', '.join(_Row.model_fields)})"
    )


def _read_jsonl(path: Path, problems: list[str]) -> Iterator[tuple[str, Any]]:
    number, any_row = 0, False
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                where = f"{path.name} row {number}"
                try:
                    text = line.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").decode()
                    if not text.strip():
                        continue
                    if text.lstrip()[0] != "{" and not any_row:
                        problems[:] = [_no_export(where, f"found {text.strip()!r:.60}")]
                        return
                    any_row = True
                    yield where, json.loads(text, object_pairs_hook=_once)
                except UnicodeDecodeError as error:
                    problems.append(
                        f"{where}: is not valid UTF-8 (byte 0x{line[error.start]:02x} at byte "
                        f"{error.start + 1})"
                    )
                except ValueError as error:
                    problems.append(f"{where}: not valid JSON ({error})")
                except RecursionError:
                    problems.append(f"{where}: not valid JSON (nested too deep)")
    except OSError as error:
        problems.append(f"{path} after row {number}: cannot be read ({error})")


def _read_parquet(path: Path, problems: list[str]) -> Iterator[tuple[str, Any]]:
    pa, pq = _pyarrow(path)
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            missing = _Row.model_fields.keys() - set(file.schema_arrow.names)
            if missing:  # once, and not for a million rows
                problems.append(f"{path.name}: has no column {', '.join(sorted(missing))}")
                return
            for batch in file.iter_batches(batch_size=CHUNK):
                for row in batch.to_pylist():
                    number += 1
                    if isinstance(row["identity"], list):
                        row["identity"] = _once(row["identity"])
                    yield f"{path.name} row {number}", row
    except (pa.ArrowException, OSError, ValueError) as error:
        problems.append(f"{path.name} after row {number}: not a readable Parquet file ({error})")


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r:.80} is there twice")
        found[name] = value
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _pyarrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingDependency(
            f"{path.name}: Parquet needs pyarrow: pip install pyarrow (or use .jsonl)"
        ) from None
    return pyarrow, pyarrow.parquet


def _chunks(things: Iterable[T], size: int) -> Iterator[list[T]]:
    chunk = []
    for thing in things:
        chunk.append(thing)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
