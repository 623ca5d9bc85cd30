"""Rows of a format as a Parquet file and as a folder of `datasets`, chunk by chunk.

The columns of each format are declared, not inferred from the rows: they have the same types in every set,
whatever its values, and no more than a chunk of rows is in memory.

Not here: what rows hold and what else is written (`formats.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from xyreward.errors import DataError, told

MESSAGES = [{"role": str, "content": str}]
LABELS = {
    "has_stated_solution": bool,
    "has_intended_solution": bool,
    "focus": str,
    "identifies_misconception": bool,
}
_OF_SIDE = {"kind": str, "origin": str, "reward": float, "labels": LABELS, "details": str}
_SINGLE = {
    "item_id": str,
    "item_kind": str,
    "split": str,
    "cluster": str,
    "language": str,
    "source": str,
    "licence": str,
    "pair_source": str,
    "origin": str,
    "answer_kind": str,
    "reward": float,
    "judge": str,
    "rubric_version": str,
    "grounded": bool,
}
COLUMNS: Mapping[str, Mapping[str, Any]] = {
    "preference": {
        "prompt": MESSAGES,
        "chosen": MESSAGES,
        "rejected": MESSAGES,
        "margin": float,
        "id": str,
        "item_id": str,
        "item_kind": str,
        "split": str,
        "cluster": str,
        "language": str,
        "source": str,
        "licence": str,
        "rule": str,
        "pair_source": str,
        "judge": str,
        "rubric_version": str,
        "grounded": bool,
        **{f"chosen_{name}": kind for name, kind in _OF_SIDE.items()},
        **{f"rejected_{name}": kind for name, kind in _OF_SIDE.items()},
    },
    "unpaired": {"prompt": MESSAGES, "completion": MESSAGES, "label": bool, **_SINGLE},
    "sft": {"prompt": MESSAGES, "completion": MESSAGES, **_SINGLE},
    "prompts": {
        "prompt": MESSAGES,
        "item_id": str,
        "kind": str,
        "source": str,
        "domain": str,
        "language": str,
        "stated_request": str,
        "intended_request": str,
        "misconception": str,
        "stated_solutions": [str],
        "intended_solutions": [str],
        "inferred": bool,
        "split": str,
        "cluster": str,
    },
    "verl": {
        "data_source": str,
        "prompt": MESSAGES,
        "ability": str,
        "reward_model": {"style": str, "ground_truth": str},
        "extra_info": {
            "index": int,
            **dict.fromkeys(("split", "item_id", "kind", "source", "language", "cluster"), str),
        },
    },
}
"""Format -> its columns and what is in them; a list holds any number of its one element."""

CHUNK = 100
"""Rows that are made into a table at a time."""
BATCH = 1_000
"""Rows of a batch in the files of `datasets`, which is what its own writer takes."""
ROW_GROUP = 10_000
MAX_BYTES = 100 * 2**20
"""Of a batch or row group, above which it ends before it has its rows: answers may be long."""


def write_tables(
    rows: Iterable[Mapping[str, Any]],
    fmt: str,
    *,
    parquet: Path | None = None,
    folder: Path | None = None,
) -> None:
    """Write rows of a format.

    Args:
        rows: at least one, with exactly the keys of `COLUMNS[fmt]`.
        fmt: the format.
        parquet: a Parquet file to be.
        folder: a folder to be that `datasets.load_from_disk` reads. Its fingerprint is a hash of its rows.

    Raises:
        DataError: other keys, a value that is not of its column's type, or no UTF-8.
        OSError: no room.
    """
    import pyarrow as pa

    schema = pa.schema([(name, _arrow(kind)) for name, kind in COLUMNS[fmt].items()])
    with ExitStack() as open_files:
        outs: list[_Gathered] = []
        if parquet is not None:
            import pyarrow.parquet

            writer = open_files.enter_context(pyarrow.parquet.ParquetWriter(parquet, schema))
            outs.append(_Gathered(writer.write_table, ROW_GROUP))
        if folder is not None:
            outs.append(_Gathered(open_files.enter_context(_dataset(folder, schema)), BATCH))
        rows = iter(rows)
        while chunk := list(islice(rows, CHUNK)):
            # Arrow would leave out keys that no column has, and fill in those that lack.
            if wrong := next((row for row in chunk if row.keys() != COLUMNS[fmt].keys()), None):
                raise DataError(
                    [
                        f"format {fmt!r}: a row has {', '.join(wrong)}; expected {', '.join(COLUMNS[fmt])}"
                    ]
                )
            try:
                table = pa.Table.from_pylist(chunk, schema=schema)
            except (pa.ArrowException, UnicodeEncodeError) as error:
                raise DataError([f"format {fmt!r}: cannot be written: {told(error)}"]) from None
            for out in outs:
                out.add(table)
        for out in outs:
            out.flush()


def _arrow(kind: Any) -> Any:
    import pyarrow as pa

    if isinstance(kind, list):
        return pa.list_(_arrow(kind[0]))
    if isinstance(kind, dict):
        return pa.struct([(name, _arrow(inner)) for name, inner in kind.items()])
    return {str: pa.string(), float: pa.float64(), int: pa.int64(), bool: pa.bool_()}[kind]


class _Gathered:
    """Hands small tables on as larger ones."""

    def __init__(self, write: Callable[[Any], object], rows: int) -> None:
        self._write = write
        self._rows = rows
        self._tables: list[Any] = []

    def add(self, table: Any) -> None:
        self._tables.append(table)
        if (
            sum(map(len, self._tables)) >= self._rows
            or sum(t.nbytes for t in self._tables) >= MAX_BYTES
        ):
            self.flush()

    def flush(self) -> None:
        import pyarrow as pa

        if self._tables:
            whole = pa.concat_tables(self._tables).combine_chunks()
            self._tables.clear()
            self._write(whole)


@contextmanager
def _dataset(folder: Path, schema: Any) -> Iterator[Callable[[Any], object]]:
    """Write a folder for `load_from_disk`, of the tables that the yielded function is called with.

    `Dataset.save_to_disk` would want all of them at once. So it writes an empty set, whose file of rows is
    then put in by the same class that it writes with.
    """
    import datasets
    from datasets.arrow_writer import ArrowWriter

    rows = folder.with_name(f"{folder.name}.rows")
    with ArrowWriter(
        features=datasets.Features.from_arrow_schema(schema), path=str(rows)
    ) as writer:
        yield writer.write_table
        writer.finalize()  # raises where there is no room; what `with` does on its way out does not
    with rows.open("rb") as file:
        fingerprint = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    empty = datasets.Dataset(
        datasets.table.InMemoryTable(schema.empty_table()), fingerprint=fingerprint
    )
    silent = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        empty.save_to_disk(folder, num_shards=1)
    finally:
        if not silent:
            datasets.enable_progress_bars()
    (file_of_rows,) = folder.glob("*.arrow")
    rows.replace(file_of_rows)
