"""load_items(): the bundled set, JSONL, JSON, Parquet or CSV files, folders of them, hub data sets.

Every problem is found before anything runs and all are reported at once, with file, row and field.
Columns are found by alias; `columns={"stated_request": "their name"}` says the rest.

An official test split is never trained on, and what belongs to one is decided by names. The
strictest wins among: the hub's split and data set, a column such as `split` (also inside nested
objects), the key of a list in a JSON file, the file, its folders. Of folders, those below the one
that was asked for count by any of their words (`split_names.py` has them), and so does the one that
was asked for, or in which the file lies that was asked for; the folder above counts only where its
whole name is that of a test split (`XYBench/test/data`); those further up say nothing. Paths count
as given and as resolved. What is held out because of a name is logged.

Not here: reading (`tables.py`, `hub.py`); splitting (`splits.py`); what fields mean (`items.py`).
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from xyreward.errors import DataError, printable
from xyreward.hub import hub_tables
from xyreward.items import ANSWER_KINDS, AnswerKind, Item, ItemKind, text_hash
from xyreward.split_names import Named, split_in, strictest
from xyreward.splits import SIDES, Side, Splits, assign_splits, official_side
from xyreward.strict_json import TooDeepError, faults, parse_json
from xyreward.tables import (
    SUFFIXES,
    Row,
    Table,
    bundled_tables,
    file_tables,
    folder_tables,
    kind_of,
)
from xyreward.words import did_you_mean, noun

logger = logging.getLogger(__name__)

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
        source: `"mini"` (bundled), a file, a folder of files (`~` is expanded), or a hub data set
            such as `"allenai/XYBench-dataset"`. An existing path wins over a hub name.
        split: our side, `train | dev | test`; None loads all. Sides are those of `splits`, else the
            bundled ones (mini), else `assign_splits` of all items of the source.
        hub_split: the split of the source (`train`, `test`, ...), as the hub, a column `split` or
            other names say it (see the head of this module). None loads all. An official test split is on
            our test side, whatever else is loaded.
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
        tables, label = list(bundled_tables(problems)), "mini"
    else:
        tables, label = _tables(source, revision, problems)
    items = _to_items(tables, problems, label=label, columns=columns or {}, kind=kind)
    chosen = items
    if hub_split is not None:
        there = sorted({str(i.meta["hub_split"]) for i in items if "hub_split" in i.meta})
        wanted = {hub_split, split_in(hub_split)}
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


def _tables(
    source: str | os.PathLike[str], revision: str | None, problems: list[str]
) -> tuple[list[Table], str]:
    """The tables of a source, and the source's name for rows that bring none."""
    name = os.fspath(source)
    if not name.strip():
        raise DataError(['the source of items is empty, expected "mini", a path or a hub name'])
    expanded = os.path.expanduser(name)  # noqa: PTH111  # Path's raises where there is no such user
    path = Path(expanded)
    # Not Path's own, which raise where a name is too long for the file system.
    if os.path.isdir(expanded):  # noqa: PTH112
        return folder_tables(path, problems), Path(os.path.realpath(expanded)).name
    if os.path.isfile(expanded):  # noqa: PTH113
        return list(file_tables(path, Path(path.name), problems)), path.stem
    if path.suffix.lower() in SUFFIXES or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise FileNotFoundError(
            f"items {name!r:.300}: no such file or folder, and not a hub name (owner/name); "
            'the bundled items are "mini"'
        )
    return list(hub_tables(name, revision, problems)), name


# ---------------------------------------------------------------- rows to items


def _plain_name(column: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")
    return re.sub(r"^(rubrics?|requests)_|_rubrics?$", "", name)


_NESTS = ("rubric", "rubrics", "requests")
"""Objects whose fields have aliases too; fields of other objects are found by `columns=`."""


def _unpack(table: Table, row: Row) -> tuple[dict[str, Any], list[str]]:
    """Column -> value, and problems. JSON in text is read where a field can only be an object or a list."""
    problems: list[str] = []
    values = {
        column: value
        for column, value in row.values.items()
        if not (table.is_csv and value == "") and not _is_nan(value)
    }
    for column, value in values.items():
        nested = _plain_name(column) in (*_NESTS, "meta")
        lists = table.is_csv and isinstance(value, str) and value.startswith("[")
        if not (isinstance(value, str) and ((nested and value.lstrip().startswith("{")) or lists)):
            continue
        try:
            read = parse_json(value)
        except ValueError as error:
            if nested or isinstance(error, TooDeepError):
                problems.append(f"{row.where}, {column!a}: not valid JSON ({error})")
            continue
        # A query in brackets ("[1, 2]") stays text: lists here are of texts or of objects.
        if nested or all(isinstance(v, (str, dict)) for v in read):
            values[column] = read
            problems += (f"{row.where}, {f!a}: {what}" for f, what in faults({column: read}))
    return values, problems


def _is_nan(value: Any) -> bool:
    """Whether it is what pandas writes into a Parquet file where a number is missing."""
    return isinstance(value, float) and math.isnan(value)


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
    more = f", ... ({len(present)} in all)" if len(present) > 40 else ""
    there = f"there is {', '.join(present[:40])}{more}"
    claimed = set(columns.values())
    for field, aliases in COLUMNS.items():
        if field in columns:
            wanted = columns[field]
            if wanted is not None and wanted in present:
                found[field] = wanted
            elif wanted is not None:
                hint = _in_brackets(did_you_mean(wanted, present))
                problems.append(f"{table}: columns= maps {field} to {wanted!r}{hint}; {there}")
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
            near = next(filter(None, (did_you_mean(alias, present) for alias in aliases)), "")
            near = _in_brackets(near.replace("did you mean", "is it"))
            problems.append(
                f"{table}: no column for {field}{near}; looked for {', '.join(aliases)}; "
                f'{there}; say which: columns={{"{field}": ...}}'
            )
    return found, problems


def _in_brackets(hint: str) -> str:
    return f" ({hint})" if hint else ""


@dataclass(frozen=True, slots=True)
class _Loaded:
    item: Item
    where: str
    id_given: bool
    """Whether the source gives its id."""
    named: Named | None
    """The name that decides which official split it belongs to."""


_HELD_OUT: Mapping[Side | None, int] = {None: 0, "train": 0, "dev": 1, "test": 2}
"""How strictly an official side holds out."""


def _tell_held_out(label: str, loaded: Collection[_Loaded]) -> None:
    by_name = Counter(
        one.named.why for one in loaded if one.named and official_side(one.item) is not None
    )
    if by_name:
        shown = [f"{n} by {why}" for why, n in by_name.most_common(5)]
        logger.warning(
            "%s: %d of %d %s held out and never trained on, because of a name: %s. Where a "
            "name means something else than a split, rename it",
            printable(label),
            by_name.total(),
            len(loaded),
            noun(len(loaded), "item is", "items are"),
            printable(", ".join([*shown, "..."] if len(by_name) > 5 else shown)),
        )


def _to_items(
    tables: Sequence[Table],
    problems: list[str],
    *,
    label: str,
    columns: Mapping[str, str | None],
    kind: ItemKind,
) -> list[Item]:
    unknown = [field for field in columns if field not in COLUMNS]
    if unknown:
        hints = [f"{field!r}{_in_brackets(did_you_mean(field, COLUMNS))}" for field in unknown]
        problems.append(f"columns= names {', '.join(hints)}; it can name {', '.join(COLUMNS)}")
    if not any(table.rows for table in tables) and not problems:
        problems.append(f"{label}: no rows")
    seen: dict[str, _Loaded] = {}
    repeated = 0
    for table in tables:
        if not table.rows:
            continue
        for new in _table_items(table, problems, label, columns, kind):
            first = seen.setdefault(new.item.id, new)
            if first is new:
                continue
            if first.item.model_copy(update={"meta": new.item.meta}) == new.item:
                repeated += 1
                if _HELD_OUT[official_side(new.item)] > _HELD_OUT[official_side(first.item)]:
                    seen[new.item.id] = replace(new, where=first.where)  # whichever came first
            elif new.id_given:
                problems.append(f"{new.where}, id: {new.item.id!r} is also the id of {first.where}")
            else:
                problems.append(
                    f"{new.where}: query and requests repeat {first.where}, other fields differ; "
                    "keep one of them, or give each an id"
                )
    if problems:
        raise DataError(problems)
    items = [loaded.item for loaded in seen.values()]
    if repeated:
        logger.warning(
            "%s: %d %s an earlier row in every field; left out",
            printable(label),
            repeated,
            noun(repeated, "row repeats", "rows repeat"),
        )
    _tell_held_out(label, seen.values())
    for field in ("stated_solutions", "intended_solutions", "misconception"):
        empty = [
            loaded.where
            for loaded in seen.values()
            if not getattr(loaded.item, field) and loaded.item.kind == "xy"
        ]
        if empty:
            logger.warning(
                "%s: %d of %d xy %s no %s (first: %s); a judge has nothing to compare with",
                printable(label),
                len(empty),
                len(items),
                noun(len(items), "item has", "items have"),
                field,
                printable(empty[0]),
            )
    return items


def _table_items(
    table: Table,
    problems: list[str],
    label: str,
    columns: Mapping[str, str | None],
    kind: ItemKind,
) -> Iterator[_Loaded]:
    """The items of a table."""
    rows: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    # A JSONL row may leave a column out, so the columns that are there are those of any row.
    names = {c: None for row in table.rows for c in row.values}
    for row in table.rows:
        values, unreadable = _unpack(table, row)
        problems += unreadable
        if not unreadable:
            rows.append((row.where, values, _flatten(values)))
    names |= {c: None for _, _, flat in rows for c in flat}
    found, missing = _find_columns(table.name, list(names), columns, REQUIRED["control"])
    kinds = [flat.get(found["kind"]) if "kind" in found else kind for _, _, flat in rows]
    if any(k != "control" for k in kinds):
        found, missing = _find_columns(table.name, list(names), columns, REQUIRED["xy"])
    problems += missing
    for where, values, flat in rows:
        bad = list(_bad_text(where, values)) + list(_bad_meta(where, values, set(found.values())))
        problems += bad
        if missing:
            continue
        named = strictest(_names(table, values, flat, found, "hub_split" in columns))
        fields, answers = _fields(table, values, flat, found, label, kind, named)
        try:
            item = Item.model_validate(fields)
        except ValidationError as error:
            for e in error.errors(include_url=False):
                if e["type"] == "string_unicode" and bad:  # told above, with the byte
                    continue
                place = _place(e["loc"], found, answers)
                message = e["msg"].removeprefix("Value error, ")
                problems.append(f"{where}, {place}: {message}{_got(e)}")
            continue
        if not bad:
            yield _Loaded(item, where, "id" in found and found["id"] in flat, named)


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


def _bad_meta(where: str, values: Mapping[str, Any], used: set[str]) -> Iterator[str]:
    """Problems with what would go to an item's `meta` and does not fit there."""
    meta = values.get("meta")
    if meta is None or "meta" in used:
        return
    if not isinstance(meta, Mapping):
        yield f"{where}, meta: is {kind_of(meta)}, expected an object"
        return
    for column, value in _leftover(values, used).items():
        if column != "meta" and column in meta and meta[column] != value:
            yield (
                f"{where}, {column!a}: is a column and a field of meta, with different values; "
                "leave one of them out"
            )


def _names(
    table: Table,
    values: Mapping[str, Any],
    flat: Mapping[str, Any],
    found: Mapping[str, str],
    mapped: bool,
) -> Iterator[Named]:
    """The names of splits that a row goes by.

    Args:
        table: the row's.
        values: the row, as it is nested.
        flat: the same, flat.
        found: field -> column.
        mapped: whether the caller says which column is the split, so that no other is asked.
    """
    column = found.get("hub_split")
    if column is not None and flat.get(column) is not None:
        text = str(flat[column])
        yield Named(text, f"{text!r:.60} in column {column!r}")
    for place, value in () if mapped else _split_fields(values):
        if split_in(value) in ("validation", "test"):
            yield Named(value, f"{value!r:.60} in column {place!r}")
    if table.named is not None:
        yield table.named


_SPLIT_FIELDS = frozenset(
    {*ALIASES["hub_split"], "data_split", "dataset_split", "split_name"}
    | {"partition", "subset", "set", "fold", "phase"}
)
"""Names under which a row may say that it is held out, also inside `meta` and other objects."""


def _split_fields(values: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _split_fields(value, f"{outer}{key}.")
        elif _plain_name(key) in _SPLIT_FIELDS and value is not None:
            yield f"{outer}{key}", str(value)


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
    if error["type"] == "value_error":
        return ""
    if isinstance(value, (dict, list, tuple)):
        return f" (found {kind_of(value)})"
    return f" (found {value!r:.80})"


def _fields(
    table: Table,
    values: Mapping[str, Any],
    flat: Mapping[str, Any],
    found: Mapping[str, str],
    label: str,
    kind: ItemKind,
    named: Named | None,
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
    fields.pop("hub_split", None)
    if named is not None:
        meta["hub_split"] = named.text
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
        if name in used or value is None or _is_nan(value):
            continue
        if isinstance(value, Mapping):
            value = _leftover(value, used, f"{name}.")
            if not value:
                continue
        rest[column] = value
    return rest
