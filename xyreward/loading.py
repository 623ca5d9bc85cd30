"""load_items(): the bundled set, files (JSONL, JSON, Parquet, CSV), a folder of them, or a hub data set.

Every problem is found before anything runs and all are reported at once, with file, row and field.
Columns are found by alias; `columns={"stated_request": "their name"}` says the rest.

Not here: splitting (`splits.py`); what fields mean (`items.py`).
"""

from __future__ import annotations

import csv
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from xyreward.errors import DataError, HubUnreachable, MissingDependency
from xyreward.items import Item, ItemKind, text_hash
from xyreward.splits import Side, Splits, assign_splits

logger = logging.getLogger(__name__)

XYBENCH = "allenai/XYBench-dataset"

ALIASES: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "item_id", "question_id", "query_id", "uid"),
    "query": ("query", "question", "prompt", "user_query", "instruction", "messages"),
    "kind": ("kind",),
    "source": ("source", "dataset", "origin", "platform"),
    "domain": ("domain", "category", "topic"),
    "language": ("language", "lang"),
    "stated_request": ("stated_request", "s_request", "explicit_request", "y", "y_request"),
    "intended_request": ("intended_request", "i_request", "implicit_request", "x", "x_request"),
    "misconception": (
        "misconception",
        "s_i_misconception",
        "si_misconception",
        "s_i_misconception_identification",
        "misconception_identification",
        "mistaken_belief",
    ),
    "stated_solutions": (
        "stated_solutions",
        "stated_solution",
        "s_solution",
        "s_solutions",
        "solution_for_y",
        "y_solution",
    ),
    "intended_solutions": (
        "intended_solutions",
        "intended_solution",
        "i_solution",
        "i_solutions",
        "solution_for_x",
        "x_solution",
    ),
    "references": ("references",),
    "group": ("group", "group_id", "thread_id", "article_id"),
}
"""Field -> names it goes by, after `_plain_name`: lower case, other characters to `_`, and without a
`rubric` prefix or suffix. The paper's terms, the announcement's terms and ours. The benchmark's own
column names are not published in its paper, so anything else is the caller's `columns=`."""

REQUIRED = (
    "query",
    "stated_request",
    "intended_request",
    "misconception",
    "stated_solutions",
    "intended_solutions",
)
LISTS = ("stated_solutions", "intended_solutions")
SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")


@dataclass(frozen=True, slots=True)
class _Row:
    where: str
    """File and row, for messages: `items.jsonl row 3`. Rows count from 1, a CSV's header is not one."""
    values: Mapping[str, Any]
    hub_split: str | None


def load_items(
    source: str | os.PathLike[str],
    *,
    split: Side | None = None,
    hub_split: str | None = None,
    revision: str | None = None,
    columns: Mapping[str, str | None] | None = None,
    kind: ItemKind = "xy",
    splits: Splits | None = None,
) -> list[Item]:
    """Load items and check every one of them.

    Args:
        source: `"mini"` (bundled), a file, a folder of files, or a hub data set such as
            `"allenai/XYBench-dataset"`. An existing path wins over a hub name.
        split: our side, `train | dev | test`; None loads all. Sides are those of `splits`, else the
            bundled ones (mini), else `assign_splits(items)`.
        hub_split: the split of the source (`train`, `test`, ...; in a folder the file's name says it).
            None loads all. An official test split is on our test side, whatever else is loaded.
        revision: commit of the hub data set; recorded in every item's `meta["revision"]`.
        columns: our field -> column of the source, where the aliases do not find it. None as the
            column says that the source has no such field.
        kind: the kind of rows that have no `kind` column.
        splits: sides to use instead of new ones.

    Raises:
        DataError: with every problem found (missing column, empty query, duplicate id, wrong type,
            unknown kind, invalid UTF-8, ...), each with file, row and field.
        HubUnreachable: within seconds, with what to do.
        MissingDependency: Parquet and hub data sets need `xyreward[train]`.
        FileNotFoundError: `source` looks like a path and nothing is there.
    """
    if source == "mini":
        rows = list(_bundled_rows())
        label = "mini"
    else:
        rows, label = _rows(source, revision)
    if hub_split is not None:
        there = sorted({row.hub_split for row in rows if row.hub_split})
        rows = [row for row in rows if row.hub_split == hub_split]
        if not rows:
            raise DataError(
                [f"{source}: no split {hub_split!r}; found {', '.join(there) or 'no named splits'}"]
            )
    items = _to_items(rows, label=label, columns=columns or {}, kind=kind)
    if split is None:
        return items
    if splits is None:
        splits = bundled_splits() if source == "mini" else assign_splits(items)
    return [item for item in items if splits.side(item) == split]


def bundled_splits() -> Splits:
    """The sides of the bundled items: fixed in the package, so a result names the same test items."""
    text = resources.files("xyreward").joinpath("data/mini/splits.json").read_text("utf-8")
    return Splits.from_json(text)


# ---------------------------------------------------------------- reading rows


def _bundled_rows() -> Iterator[_Row]:
    folder = resources.files("xyreward").joinpath("data/mini")
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        if file.name.endswith(".jsonl"):
            yield from _jsonl(file.name, file.read_bytes(), None)


def _rows(source: str | os.PathLike[str], revision: str | None) -> tuple[list[_Row], str]:
    path = Path(source)
    if path.is_dir():
        files = sorted(f for f in path.rglob("*") if f.suffix.lower() in SUFFIXES)
        if not files:
            raise DataError([f"{path}: no {', '.join(SUFFIXES)} file in this folder"])
        rows = [row for file in files for row in _file_rows(file, _split_of(file))]
        return rows, path.name
    if path.is_file():
        return list(_file_rows(path, None)), path.stem
    name = str(source)
    if path.suffix.lower() in SUFFIXES or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise FileNotFoundError(
            f"items {name!r}: no such file or folder, and not a hub name (owner/name); "
            'the bundled items are "mini"'
        )
    return list(_hub_rows(name, revision)), name


def _split_of(file: Path) -> str | None:
    """`data/test-00000-of-00002.parquet` and `test/part.jsonl` are of split `test`, as on the hub."""
    for part in (file.stem, file.parent.name):
        match = re.match(r"(train|test|validation|valid|dev|val)(?![a-z])", part.lower())
        if match:
            return match[1]
    return None


def _file_rows(path: Path, hub_split: str | None) -> Iterator[_Row]:
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        yield from _jsonl(path.name, path.read_bytes(), hub_split)
    elif suffix == ".json":
        yield from _json(path.name, path.read_bytes(), hub_split)
    elif suffix == ".csv":
        yield from _csv(path, hub_split)
    elif suffix == ".parquet":
        yield from _parquet(path, hub_split)
    else:
        raise DataError([f"{path.name}: cannot read {suffix!r} files; use {', '.join(SUFFIXES)}"])


def _jsonl(name: str, data: bytes, hub_split: str | None) -> Iterator[_Row]:
    problems = []
    rows = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        where = f"{name} row {number}"
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            problems.append(f"{where}: not valid UTF-8 (byte {error.start})")
            continue
        if not text:
            continue
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            problems.append(f"{where}: not valid JSON ({error.msg}, column {error.colno})")
            continue
        if not isinstance(values, dict):
            problems.append(f"{where}: {type(values).__name__}, expected an object")
            continue
        rows.append(_Row(where, values, hub_split))
    if problems:
        raise DataError(problems)
    yield from rows


def _json(name: str, data: bytes, hub_split: str | None) -> Iterator[_Row]:
    try:
        content = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError([f"{name}: not valid UTF-8 (byte {error.start})"]) from None
    except json.JSONDecodeError as error:
        raise DataError([f"{name} line {error.lineno}: not valid JSON ({error.msg})"]) from None
    if isinstance(content, dict):
        lists = [value for value in content.values() if isinstance(value, list)]
        if len(lists) != 1:
            raise DataError([f"{name}: an object, expected a list of rows (or one key with it)"])
        content = lists[0]
    bad = [i for i, value in enumerate(content, start=1) if not isinstance(value, dict)]
    if bad:
        raise DataError([f"{name} row {i}: not an object" for i in bad])
    for number, values in enumerate(content, start=1):
        yield _Row(f"{name} row {number}", values, hub_split)


def _csv(path: Path, hub_split: str | None) -> Iterator[_Row]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError([f"{path.name}: not valid UTF-8 (byte {error.start})"]) from None
    reader = csv.DictReader(text.splitlines(keepends=True), strict=True)
    try:
        for number, values in enumerate(reader, start=1):
            if None in values or None in values.values():
                raise DataError(
                    [f"{path.name} row {number}: not as many cells as the header has columns"]
                )
            yield _Row(f"{path.name} row {number}", _unpack_cells(values), hub_split)
    except csv.Error as error:
        raise DataError([f"{path.name} line {reader.line_num}: {error}"]) from None


def _unpack_cells(values: dict[str, str]) -> dict[str, Any]:
    """A CSV cell is text. One that holds a JSON list or object is read as such; the rest stays text."""
    cells: dict[str, Any] = {}
    for column, cell in values.items():
        cells[column] = cell
        if cell[:1] in "[{" and cell[-1:] in "]}" and cell:
            try:
                cells[column] = json.loads(cell)
            except json.JSONDecodeError:
                pass
    return cells


def _parquet(path: Path, hub_split: str | None) -> Iterator[_Row]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingDependency(
            f"{path.name}: reading Parquet needs pyarrow: pip install 'xyreward[train]'"
        ) from None
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError([f"{path.name}: not a readable Parquet file ({error})"]) from None
    for number, values in enumerate(table.to_pylist(), start=1):
        yield _Row(f"{path.name} row {number}", values, hub_split)


def _hub_rows(name: str, revision: str | None) -> Iterator[_Row]:
    try:
        import datasets
        import huggingface_hub as hub
    except ImportError:
        raise MissingDependency(
            f"{name}: hub data sets need the datasets package: pip install 'xyreward[train]'"
        ) from None
    way_out = (
        f"Fetch it once where there is a network (hf download --repo-type dataset {name} --local-dir "
        f"DIR) and pass DIR, or set HF_HUB_OFFLINE=1 to use a copy in the hub cache, "
        f'or use the bundled items ("mini").'
    )
    commit = revision
    if not hub.constants.HF_HUB_OFFLINE:
        # load_dataset alone retries for over 20 s before it gives up; one look-up with a timeout tells.
        # It also names the commit, which a report needs: a branch name says nothing a year later.
        try:
            commit = hub.HfApi().dataset_info(name, revision=revision, timeout=5).sha
        except (hub.errors.RepositoryNotFoundError, hub.errors.RevisionNotFoundError) as error:
            raise DataError(
                [f"{name}: no such data set or revision on the hub ({type(error).__name__})"]
            ) from None
        except Exception as error:  # the hub client raises its HTTP library's own classes
            raise HubUnreachable(
                f"{name}: the hub cannot be reached ({type(error).__name__}). {way_out}"
            ) from error
    try:
        dataset = datasets.load_dataset(name, revision=commit)
    except ConnectionError as error:
        raise HubUnreachable(f"{name}: offline and not in the hub cache. {way_out}") from error
    for hub_split, rows in dataset.items():
        for number, values in enumerate(rows, start=1):
            if commit:
                values = {**values, "revision": commit}
            yield _Row(f"{name}[{hub_split}] row {number}", values, str(hub_split))


# ---------------------------------------------------------------- rows to items


def _plain_name(column: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")
    return re.sub(r"^rubrics?_|_rubrics?$", "", name)


def _flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Bring the fields of a nested `rubric`/`rubrics` object up one level."""
    flat: dict[str, Any] = {}
    for column, value in values.items():
        if _plain_name(column) in ("rubric", "rubrics", "requests") and isinstance(value, Mapping):
            flat.update(value)
        else:
            flat[column] = value
    return flat


def _find_columns(
    present: Sequence[str], columns: Mapping[str, str | None], where: str
) -> tuple[dict[str, str], list[str]]:
    """Field -> column, and the problems."""
    problems = []
    found: dict[str, str] = {}
    unknown = [field for field in columns if field not in ALIASES]
    if unknown:
        problems.append(
            f"columns= names {', '.join(map(repr, unknown))}; fields are {', '.join(ALIASES)}"
        )
    for field, aliases in ALIASES.items():
        if field in columns:
            wanted = columns[field]
            if wanted is None:
                continue
            if wanted in present:
                found[field] = wanted
            else:
                problems.append(
                    f"{where}: columns= maps {field} to {wanted!r}; there is {', '.join(present)}"
                )
            continue
        hits = [c for c in present if _plain_name(c) in aliases]
        if len(hits) > 1:
            exact = [c for c in hits if c == field]
            if len(exact) != 1:
                problems.append(
                    f"{where}: {' and '.join(map(repr, hits))} could both be {field}; "
                    f'say which: columns={{"{field}": ...}}'
                )
                continue
            hits = exact
        if hits:
            found[field] = hits[0]
        elif field in REQUIRED:
            problems.append(
                f"{where}: no column for {field}; looked for {', '.join(aliases)}; "
                f'there is {", ".join(present)}; say which: columns={{"{field}": ...}}'
            )
    return found, problems


def _to_items(
    rows: Sequence[_Row], *, label: str, columns: Mapping[str, str | None], kind: ItemKind
) -> list[Item]:
    if not rows:
        raise DataError([f"{label}: no rows"])
    flat = [_flatten(row.values) for row in rows]
    # A JSONL row may leave a column out, so the columns that are there are those of any row.
    present = list(dict.fromkeys(column for values in flat for column in values))
    found, problems = _find_columns(present, columns, label)
    if problems:
        raise DataError(problems)
    items: list[Item] = []
    seen: dict[str, tuple[str, Item]] = {}
    repeated = 0
    for row, values in zip(rows, flat, strict=True):
        try:
            item = Item.model_validate(_fields(row, values, found, label, kind))
        except ValidationError as error:
            for e in error.errors(include_url=False):
                field = ".".join(str(part) for part in e["loc"]) or "row"
                message = e["msg"].removeprefix("Value error, ")
                problems.append(f"{row.where}, {field}: {message}{_got(e)}")
            continue
        if item.id in seen:
            first, other = seen[item.id]
            if other == item:
                repeated += 1
            else:
                problems.append(f"{row.where}, id: {item.id!r} is also the id of {first}")
            continue
        seen[item.id] = (row.where, item)
        items.append(item)
    if problems:
        raise DataError(problems)
    if repeated:
        logger.warning("%s: %d rows repeat an earlier row in every field; left out", label, repeated)
    return items


def _got(error: Any) -> str:
    value = error.get("input")
    if error["type"] == "value_error" or isinstance(value, (dict, list, tuple)):
        return ""
    return f" (found {value!r:.80})"


def _fields(
    row: _Row, values: Mapping[str, Any], found: Mapping[str, str], label: str, kind: ItemKind
) -> dict[str, Any]:
    """The row as keyword arguments of Item. Only shapes are changed here; Item does the checking."""
    fields: dict[str, Any] = {
        field: values[column]
        for field, column in found.items()
        if values.get(column) is not None
    }
    for field in ("id", "group"):
        if isinstance(fields.get(field), int) and not isinstance(fields[field], bool):
            fields[field] = str(fields[field])
    for field in LISTS:
        value = fields.get(field)
        if isinstance(value, str):
            fields[field] = (value,) if value.strip() else ()
    fields.setdefault("kind", kind)
    fields.setdefault("source", label)
    for field in ("stated_request", "intended_request"):
        fields.setdefault(field, "")
    fields.setdefault("query", "")
    if fields["kind"] == "control":
        fields["intended_request"] = fields["intended_request"] or fields["stated_request"]
    used = set(found.values())
    meta = {c: v for c, v in values.items() if c not in used and c != "meta" and v is not None}
    if isinstance(values.get("meta"), Mapping):
        meta = {**values["meta"], **meta}
    if row.hub_split:
        meta["hub_split"] = row.hub_split
    if meta:
        fields["meta"] = meta
    if "id" not in fields:
        told = [str(fields.get(f, "")) for f in ("query", "stated_request", "intended_request")]
        fields["id"] = text_hash("\n".join(told))[:16]
    return fields
