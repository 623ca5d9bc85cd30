"""load_items(): the bundled set, JSONL, JSON, Parquet or CSV files, folders of them, hub data sets.

Every problem is found before anything runs and all are reported at once, with file, row and field.
Columns are found by alias; `columns={"stated_request": "their name"}` says the rest.

A row in a message is the one that the user finds in the file: the line of a JSONL file; in a CSV
the row of a spreadsheet, whose header is row 1, with the line where a cell holds line breaks; in
JSON and Parquet, which have neither, the rows counted from 1.

Not here: splitting (`splits.py`); what fields mean (`items.py`).
"""

from __future__ import annotations

import codecs
import csv
import io
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
from xyreward.items import ANSWER_KINDS, AnswerKind, Item, ItemKind, text_hash
from xyreward.splits import SIDES, Side, Splits, assign_splits, official_side

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
    "hub_split": ("hub_split", "split", "official_split"),
}
"""Field -> names it goes by, after `_plain_name`: lower case, other characters to `_`, and without
a `rubric` prefix or suffix. The paper's terms, the announcement's terms and ours. The benchmark's
own column names are not published in its paper, so anything else is the caller's `columns=`.
`hub_split` goes to `meta`."""

ANSWER_ALIASES: Mapping[AnswerKind, tuple[str, ...]] = {
    kind: (kind, f"{kind}_answer") for kind in ANSWER_KINDS
} | {
    "goal_focused": ("goal_focused", "goal_focused_answer", "intended_answer", "x_answer"),
    "literal": ("literal", "literal_answer", "stated_answer", "y_answer"),
}
"""Kind of answer -> names of a text column that holds one. Each becomes a reference without
labels."""

COLUMNS: Mapping[str, tuple[str, ...]] = dict([*ALIASES.items(), *ANSWER_ALIASES.items()])
"""All that `columns=` can name."""

REQUIRED: Mapping[ItemKind, tuple[str, ...]] = {
    "control": ("query", "stated_request", "stated_solutions"),
    "xy": (
        "query",
        "stated_request",
        "stated_solutions",
        "intended_request",
        "misconception",
        "intended_solutions",
    ),
}
LISTS = ("stated_solutions", "intended_solutions")
SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")
NOT_ROWS = frozenset(
    {"dataset_infos.json", "dataset_info.json", "dataset_dict.json", "splits.json"}
)
"""Files that lie beside data: the datasets library's own, and a lock of `assign_splits`."""


@dataclass(frozen=True, slots=True)
class _Row:
    where: str
    """File and row, for messages; see the head of this module."""
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Table:
    """One file, or one split of a hub data set: rows that share their columns."""

    name: str
    rows: Sequence[_Row]
    hub_split: str | None = None
    revision: str | None = None
    is_csv: bool = False
    """All cells are text, so lists and objects are JSON in text and an empty cell is no value."""


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
            bundled ones (mini), else `assign_splits` of all items of the source.
        hub_split: the split of the source (`train`, `test`, ...), as the hub, a column `split` or
            the
            name of the file or its folder says it. None loads all. An official test split is on our
            test side, whatever else is loaded.
        revision: commit of the hub data set; recorded in every item's `meta["revision"]`.
        columns: our field -> column of the source, where the aliases do not find it. A kind of
            answer
            (`goal_focused`, `literal`, ...) -> a text column with such an answer. `"outer.inner"`
            is a field of a nested object. None as the column says that the source has no such
            field.
        kind: the kind of rows that have no `kind` column.
        splits: sides to use instead of new ones.

    Raises:
        DataError: with every problem found (missing column, empty query, duplicate id, wrong type,
            unknown kind, invalid UTF-8, ...), each with file, row and field.
        HubUnreachable: within seconds, with what to do.
        MissingDependency: Parquet and hub data sets need `xyreward[train]`.
        FileNotFoundError: `source` looks like a path and nothing is there.
    """
    if split is not None and split not in SIDES:
        raise ValueError(
            f"split is {split!r}, expected one of our sides {', '.join(SIDES)}, or None for all; "
            "the split of the source is hub_split="
        )
    problems: list[str] = []
    if source == "mini":
        tables, label = list(_bundled_tables(problems)), "mini"
    else:
        tables, label = _tables(source, revision, problems)
    items = _to_items(tables, problems, label=label, columns=columns or {}, kind=kind)
    chosen = items
    if hub_split is not None:
        there = sorted({str(i.meta["hub_split"]) for i in items if "hub_split" in i.meta})
        wanted = {hub_split, _split_in(hub_split)}
        chosen = [i for i in items if i.meta.get("hub_split") in wanted]
        if not chosen:
            raise DataError(
                [f"{source}: no split {hub_split!r}; found {', '.join(there) or 'no named splits'}"]
            )
    if split is None:
        return chosen
    if splits is None:
        # Of all items and not of the chosen ones: a side must not depend on what else is asked for.
        splits = bundled_splits() if source == "mini" else assign_splits(items)
    return splits.select(chosen, split)


def bundled_splits() -> Splits:
    """The sides of the bundled items: fixed in the package, so a result names the same items."""
    text = resources.files("xyreward").joinpath("data/mini/splits.json").read_text("utf-8")
    return Splits.from_json(text)


# ---------------------------------------------------------------- reading rows
#
# A reader returns the rows that it can read and adds the rest to `problems`, so that one bad file
# does not hide what is wrong with the next.


def _bundled_tables(problems: list[str]) -> Iterator[_Table]:
    folder = resources.files("xyreward").joinpath("data/mini")
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        if file.name.endswith(".jsonl"):
            yield _Table(file.name, _jsonl(file.name, file.read_bytes(), problems))


def _tables(
    source: str | os.PathLike[str], revision: str | None, problems: list[str]
) -> tuple[list[_Table], str]:
    path = Path(source)
    if path.is_dir():
        inside = {file: file.relative_to(path) for file in sorted(path.rglob("*"))}
        files = {
            file: name
            for file, name in inside.items()
            if name.suffix.lower() in SUFFIXES
            and name.name not in NOT_ROWS
            and not any(part.startswith(".") for part in name.parts)
            and file.is_file()
        }
        if not files:
            raise DataError([f"{path}: no {', '.join(SUFFIXES)} file in this folder"])
        return [t for f, n in files.items() for t in _file(f, n, problems)], path.resolve().name
    if path.is_file():
        return list(_file(path, Path(path.name), problems)), path.stem
    name = str(source)
    if path.suffix.lower() in SUFFIXES or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise FileNotFoundError(
            f"items {name!r}: no such file or folder, and not a hub name (owner/name); "
            'the bundled items are "mini"'
        )
    return list(_hub(name, revision)), name


_SPLIT_WORDS = {
    "train": re.compile(r"train|training"),
    "validation": re.compile(r"validation|valid|val|dev"),
    "test": re.compile(r"test|testing|eval|evaluation"),
}


def _split_in(name: str) -> str | None:
    """The official split that a name speaks of: `test-00000-of-00002`, `my_test` or `eval` -> test.

    The words and their delimiters are those by which the hub itself reads file names:
    https://huggingface.co/docs/hub/datasets-file-names-and-splits
    A name that speaks of two (`train_test`) is the one that is held out.
    """
    words = re.split(r"[^a-z]+", name.lower())
    hits = [split for split, word in _SPLIT_WORDS.items() if any(map(word.fullmatch, words))]
    return hits[-1] if hits else None


def _file(path: Path, name: Path, problems: list[str]) -> Iterator[_Table]:
    """The tables of a file; `name` is relative to what was asked for, so `/test/` is no split."""
    parts = (name.stem, *(parent.name for parent in name.parents))
    hits = set(map(_split_in, parts))
    # Where names speak of several splits (`test/train.jsonl`), the one that is held out is safe.
    hub_split = next((s for s in ("test", "validation", "train") if s in hits), None)
    shown = name.as_posix()
    match path.suffix.lower():
        case ".jsonl":
            yield _Table(shown, _jsonl(shown, path.read_bytes(), problems), hub_split)
        case ".json":
            for inner, rows in _json(shown, path.read_bytes(), problems):
                yield _Table(shown, rows, _split_in(inner) or hub_split)
        case ".csv":
            yield _Table(shown, _csv(shown, path.read_bytes(), problems), hub_split, is_csv=True)
        case ".parquet":
            yield _Table(shown, _parquet(shown, path, problems), hub_split)
        case suffix:
            problems.append(f"{shown}: cannot read {suffix!r} files; use {', '.join(SUFFIXES)}")


def _decode(name: str, data: bytes, problems: list[str]) -> str | None:
    """Text in which a byte that is not UTF-8 is a lone surrogate; `_bad_text` tells its field."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        problems.append(f"{name}: is UTF-16, expected UTF-8; save it as UTF-8")
        return None
    return data.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")


_SURROGATE = re.compile(r"[\ud800-\udfff]")


def _bad_text(where: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Problems with characters that are none: each field once."""
    for column, value in values.items():
        hit = next(filter(None, map(_SURROGATE.search, (column, *_texts(value)))), None)
        if hit is None:
            continue
        code = ord(hit[0])
        found = (
            f"is not valid UTF-8 (byte 0x{code - 0xDC00:02x} at character {hit.start() + 1})"
            if 0xDC80 <= code <= 0xDCFF
            else f"has half a surrogate pair (\\u{code:04x} at character {hit.start() + 1})"
        )
        yield f"{where}, {column!a}: {found}; save the file as UTF-8 from the program that made it"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)


def _jsonl(name: str, data: bytes, problems: list[str]) -> list[_Row]:
    text = _decode(name, data, problems)
    rows = []
    # Not str.splitlines(): it also breaks at characters that JSON allows inside a string (U+2028).
    for number, line in enumerate((text or "").split("\n"), start=1):
        where = f"{name} row {number}"
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            problems.append(f"{where}: not valid JSON ({error})")
            continue
        if not isinstance(values, dict):
            problems.append(f"{where}: is {_type(values)}, expected an object")
            continue
        rows.append(_Row(where, values))
    return rows


def _json(name: str, data: bytes, problems: list[str]) -> Iterator[tuple[str, list[_Row]]]:
    """Lists of rows, with the key that holds them where the file is an object."""
    text = _decode(name, data, problems)
    if text is None:
        return
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        # Many a .json is JSONL. Its first line alone is an object.
        if "Extra data" in str(error) and text.lstrip().startswith("{"):
            yield "", _jsonl(name, data, problems)
        else:
            problems.append(f"{name}: not valid JSON ({error})")
        return
    lists = {"": content}
    if isinstance(content, dict):
        lists = {
            key: value
            for key, value in content.items()
            if isinstance(value, list) and any(isinstance(row, dict) for row in value)
        }
    if not lists or not isinstance(content, (dict, list)):
        problems.append(
            f"{name}: is {_type(content)} without a list of rows, expected a list of objects "
            'or one list per split ({"train": [...], "test": [...]})'
        )
        return
    for key, values in lists.items():
        place = f"{name} {key!r} row" if len(lists) > 1 else f"{name} row"
        rows = []
        for number, row in enumerate(values, start=1):
            if isinstance(row, dict):
                rows.append(_Row(f"{place} {number}", row))
            else:
                problems.append(f"{place} {number}: is {_type(row)}, expected an object")
        yield key, rows


def _type(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", type(None): "null"}
    return names.get(type(value), f"a {type(value).__name__}")


def _csv(name: str, data: bytes, problems: list[str]) -> list[_Row]:
    text = _decode(name, data, problems)
    if text is None:
        return []
    rows: list[_Row] = []
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
                twice = sorted({c for c in header if header.count(c) > 1})
                if twice:
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
            rows.append(_Row(where, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        # Where a quote is missing, all that follows is guesswork.
        problems.append(f"{name} row {number + 1} (line {line}): not valid CSV ({error})")
    finally:
        csv.field_size_limit(limit)
    return rows


def _parquet(name: str, path: Path, problems: list[str]) -> list[_Row]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingDependency(
            f"{name}: reading Parquet needs pyarrow: pip install 'xyreward[train]'"
        ) from None
    try:
        table = pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        problems.append(f"{name}: not a readable Parquet file ({error})")
        return []
    try:
        rows = table.to_pylist()
    except UnicodeDecodeError:
        rows = []
        for column in table.column_names:
            for number, cell in enumerate(table[column], start=1):
                try:
                    cell.as_py()
                except UnicodeDecodeError as error:
                    byte = error.object[error.start]
                    problems.append(
                        f"{name} row {number}, {column!r}: is not valid UTF-8 "
                        f"(byte 0x{byte:02x} at byte {error.start + 1})"
                    )
    return [_Row(f"{name} row {number}", row) for number, row in enumerate(rows, start=1)]


def _hub(name: str, revision: str | None) -> Iterator[_Table]:
    try:
        import datasets
        import huggingface_hub as hub
    except ImportError:
        raise MissingDependency(
            f"{name}: hub data sets need the datasets package: pip install 'xyreward[train]'"
        ) from None
    offline = hub.constants.HF_HUB_OFFLINE
    way_out = (
        "Fetch it once where there is a network "
        f"(hf download --repo-type dataset {name} --local-dir DIR) and pass DIR, "
        + ("unset HF_HUB_OFFLINE, " if offline else "set HF_HUB_OFFLINE=1 to use the hub cache, ")
        + 'or use the bundled items ("mini").'
    )
    commit = revision
    if not offline:
        # load_dataset alone retries for over 20 s before it gives up; one look-up with a timeout
        # tells. It also names the commit, which a report needs: a branch name says nothing a year
        # later.
        try:
            commit = hub.HfApi().dataset_info(name, revision=revision, timeout=5).sha
        except hub.errors.GatedRepoError:
            raise DataError(
                [f"{name}: asks for consent; accept its terms on its hub page, then hf auth login"]
            ) from None
        except (hub.errors.RepositoryNotFoundError, hub.errors.RevisionNotFoundError) as error:
            at = f" at revision {revision!r}" if revision else ""
            raise DataError(
                [
                    f"{name}{at}: not found on the hub ({type(error).__name__}); look for a typing "
                    "error, or hf auth login if it is private"
                ]
            ) from None
        except Exception as error:  # the hub client raises its HTTP library's own classes
            raise HubUnreachable(
                f"{name}: the hub cannot be reached ({type(error).__name__}). {way_out}"
            ) from error
    try:
        dataset = datasets.load_dataset(name, revision=commit)
    except ConnectionError as error:
        state = (
            "offline (HF_HUB_OFFLINE) and not in the hub cache" if offline else "download failed"
        )
        raise HubUnreachable(f"{name}: {state}. {way_out}") from error
    except (FileNotFoundError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            [
                f"{name}: the datasets library cannot read it ({error}); "
                "download it and pass the folder"
            ]
        ) from error
    if offline:
        # datasets takes the latest commit in its cache, whatever was asked for.
        commit = _cached_commit(dataset)
        wanted = revision if revision and re.fullmatch(r"[0-9a-f]{7,40}", revision) else ""
        if not (commit or "").startswith(wanted):
            raise HubUnreachable(
                f"{name}: offline (HF_HUB_OFFLINE), and the hub cache has revision {commit}, "
                f"not {wanted}. {way_out}"
            )
    for hub_split, rows in dataset.items():
        table = f"{name}[{hub_split}]"
        read = [_Row(f"{table} row {number}", row) for number, row in enumerate(rows, start=1)]
        yield _Table(table, read, str(hub_split), revision=commit)


def _cached_commit(dataset: Any) -> str | None:
    """The commit of a data set from the cache: the folder in which datasets keeps its tables."""
    files = [file["filename"] for rows in dataset.values() for file in rows.cache_files]
    folders = {Path(file).parent.name for file in files}
    commits = [folder for folder in folders if re.fullmatch(r"[0-9a-f]{40}", folder)]
    return commits[0] if len(commits) == 1 else None


# ---------------------------------------------------------------- rows to items


def _plain_name(column: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")
    return re.sub(r"^(rubrics?|requests)_|_rubrics?$", "", name)


_NESTS = ("rubric", "rubrics", "requests")
"""Objects whose fields have aliases too; fields of other objects are found by `columns=`."""


def _unpack(table: _Table, row: _Row) -> dict[str, Any]:
    """Column -> value. JSON in text is read where a field can only be an object or a list."""
    values = {c: v for c, v in row.values.items() if not (table.is_csv and v == "")}
    for column, value in values.items():
        nested = _plain_name(column) in (*_NESTS, "meta")
        lists = table.is_csv and isinstance(value, str) and value.startswith("[")
        if isinstance(value, str) and ((nested and value.lstrip().startswith("{")) or lists):
            try:
                read = json.loads(value)
            except ValueError:
                continue
            # A query in brackets ("[1, 2]") stays text: lists here are of texts or of objects.
            if nested or all(isinstance(v, (str, dict)) for v in read):
                values[column] = read
    return values


def _flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of nested objects as `outer.inner`, beside the object."""
    flat = dict(values)
    for column, value in values.items():
        if isinstance(value, Mapping) and column != "meta":
            for inner, inner_value in _flatten(value).items():
                flat.setdefault(f"{column}.{inner}", inner_value)
    return flat


def _find_columns(
    table: str,
    present: Sequence[str],
    columns: Mapping[str, str | None],
    required: Sequence[str],
) -> tuple[dict[str, str], list[str]]:
    """Field -> column, and the problems."""
    problems = []
    found: dict[str, str] = {}
    there = f"there is {', '.join(present)}"
    claimed = set(columns.values())
    for field, aliases in COLUMNS.items():
        if field in columns:
            wanted = columns[field]
            if wanted is not None and wanted in present:
                found[field] = wanted
            elif wanted is not None:
                problems.append(f"{table}: columns= maps {field} to {wanted!r}; {there}")
            elif field in REQUIRED["control"][:2]:
                problems.append(f"{table}: columns= says there is no {field}; no item goes without")
            continue
        hits = [c for c in present if c not in claimed and _plain_name(c) in aliases]
        exact = [c for c in hits if c == field]
        if len(hits) > 1 and not exact:
            problems.append(
                f"{table}: {' and '.join(map(repr, hits))} could both be {field}; "
                f'say which: columns={{"{field}": ...}}'
            )
        elif hits:
            found[field] = (exact or hits)[0]
        elif field in required:
            problems.append(
                f"{table}: no column for {field}; looked for {', '.join(aliases)}; "
                f'{there}; say which: columns={{"{field}": ...}}'
            )
    return found, problems


def _to_items(
    tables: Sequence[_Table],
    problems: list[str],
    *,
    label: str,
    columns: Mapping[str, str | None],
    kind: ItemKind,
) -> list[Item]:
    unknown = [field for field in columns if field not in COLUMNS]
    if unknown:
        problems.append(
            f"columns= names {', '.join(map(repr, unknown))}; it can name {', '.join(COLUMNS)}"
        )
    if not any(table.rows for table in tables) and not problems:
        problems.append(f"{label}: no rows")
    seen: dict[str, tuple[str, Item]] = {}
    repeated = 0
    for table in tables:
        if not table.rows:
            continue
        for where, item, given_id in _table_items(table, problems, label, columns, kind):
            first, other = seen.setdefault(item.id, (where, item))
            if other is item:
                continue
            if other.model_copy(update={"meta": item.meta}) == item:
                repeated += 1
                if official_side(item) == "test":  # whichever came first, it is held out
                    seen[item.id] = (first, item)
            elif given_id:
                problems.append(f"{where}, id: {item.id!r} is also the id of {first}")
            else:
                problems.append(
                    f"{where}: query and requests repeat {first}, other fields differ; "
                    "keep one of them, or give each an id"
                )
    if problems:
        raise DataError(problems)
    items = [item for _, item in seen.values()]
    if repeated:
        logger.warning(
            "%s: %d rows repeat an earlier row in every field; left out", label, repeated
        )
    for field in ("stated_solutions", "intended_solutions", "misconception"):
        empty = [w for w, i in seen.values() if not getattr(i, field) and i.kind == "xy"]
        if empty:
            logger.warning(
                "%s: %d of %d xy items have no %s (first: %s); a judge has nothing to compare with",
                label,
                len(empty),
                len(items),
                field,
                empty[0],
            )
    return items


def _table_items(
    table: _Table,
    problems: list[str],
    label: str,
    columns: Mapping[str, str | None],
    kind: ItemKind,
) -> Iterator[tuple[str, Item, bool]]:
    """The items of a table, each with its place and whether the table gives its id."""
    read = [_unpack(table, row) for row in table.rows]
    flat = [_flatten(values) for values in read]
    # A JSONL row may leave a column out, so the columns that are there are those of any row.
    names = {c: None for row in table.rows for c in row.values} | {c: None for f in flat for c in f}
    found, missing = _find_columns(table.name, list(names), columns, REQUIRED["control"])
    kinds = {f.get(found["kind"]) if "kind" in found else kind for f in flat}
    if kinds != {"control"}:
        found, missing = _find_columns(table.name, list(names), columns, REQUIRED["xy"])
    problems += missing
    for row, values, flattened in zip(table.rows, read, flat, strict=True):
        bad = list(_bad_text(row.where, values))
        problems += bad
        if missing:
            continue
        fields, answers = _fields(table, values, flattened, found, label, kind)
        try:
            item = Item.model_validate(fields)
        except ValidationError as error:
            for e in error.errors(include_url=False):
                if e["type"] == "string_unicode" and bad:  # told above, with the byte
                    continue
                place = _place(e["loc"], found, answers)
                message = e["msg"].removeprefix("Value error, ")
                problems.append(f"{row.where}, {place}: {message}{_got(e)}")
            continue
        if not bad:
            yield row.where, item, "id" in found and found["id"] in flattened


def _place(
    loc: Sequence[int | str], found: Mapping[str, str], answers: Mapping[int, AnswerKind]
) -> str:
    """The field of an error, and the column where that has another name."""
    field, *inner = loc
    if field == "references" and inner and inner[0] in answers:
        field, inner = answers[int(inner[0])], []
    if inner and inner[0] in ("text", "messages"):  # tags of items.Query
        inner = inner[1:]
    place = ".".join(map(str, [field, *inner]))
    column = found.get(str(field), field)
    return place if column == field else f"{place} (column {column!r})"


def _got(error: Any) -> str:
    value = error.get("input")
    if error["type"] == "value_error" or isinstance(value, (dict, list, tuple)):
        return ""
    return f" (found {value!r:.80})"


def _fields(
    table: _Table,
    values: Mapping[str, Any],
    flat: Mapping[str, Any],
    found: Mapping[str, str],
    label: str,
    kind: ItemKind,
) -> tuple[dict[str, Any], dict[int, AnswerKind]]:
    """The row as keyword arguments of Item, and which of its references come from columns.

    Only shapes are changed here; Item does the checking.
    """
    fields: dict[str, Any] = {
        field: flat[column] for field, column in found.items() if flat.get(column) is not None
    }
    for field in ("id", "group"):
        if isinstance(fields.get(field), int) and not isinstance(fields[field], bool):
            fields[field] = str(fields[field])
    for field in LISTS:
        value = fields.get(field)
        if isinstance(value, str):
            fields[field] = (value,) if value.strip() else ()
    for field in ("query", "references"):
        if isinstance(fields.get(field), (list, tuple)):
            fields[field] = [_without_nulls(value) for value in fields[field]]
    fields.setdefault("kind", kind)
    fields.setdefault("source", label)
    for field in ("query", "stated_request", "intended_request"):
        fields.setdefault(field, "")
    if fields["kind"] == "control":
        fields["intended_request"] = fields["intended_request"] or fields["stated_request"]

    answers: dict[int, AnswerKind] = {}
    references = fields.get("references", [])
    for answer_kind in ANSWER_KINDS:
        text = fields.pop(answer_kind, None)
        blank = text is None or (isinstance(text, str) and not text.strip())
        if not blank and isinstance(references, list):  # otherwise Item says what references are
            answers[len(references)] = answer_kind
            references = [*references, {"kind": answer_kind, "text": text, "origin": label}]
    if references:
        fields["references"] = references

    meta = _leftover(values, set(found.values()))
    inner = meta.pop("meta", None)
    meta = {**inner, **meta} if isinstance(inner, Mapping) else meta
    hub_split = fields.pop("hub_split", None) or table.hub_split
    if table.hub_split == "test":  # a column does not take rows out of a file of the test split
        hub_split = "test"
    if hub_split is not None:
        meta["hub_split"] = str(hub_split)
    if table.revision is not None:
        meta["revision"] = table.revision
    if meta:
        fields["meta"] = meta
    if "id" not in fields:
        told = [str(fields[f]) for f in ("query", "stated_request", "intended_request")]
        fields["id"] = text_hash("\n".join(told))[:16]
    return fields, answers


def _without_nulls(value: Any) -> Any:
    """A Parquet struct has every key in every row; null there is what absence is in JSON."""
    if isinstance(value, Mapping):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return value


def _leftover(values: Mapping[str, Any], used: set[str], outer: str = "") -> dict[str, Any]:
    """What no field took, nested as it came."""
    rest: dict[str, Any] = {}
    for column, value in values.items():
        name = f"{outer}{column}"
        if name in used or value is None:
            continue
        if isinstance(value, Mapping):
            value = _leftover(value, used, f"{name}.")
            if not value:
                continue
        rest[column] = value
    return rest
