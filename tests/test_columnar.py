"""Rows as Parquet files and datasets folders: chunk by chunk, with columns that are declared."""

from pathlib import Path
from typing import Any

import pytest
from pair_sets import items, pair_set

from xyreward.errors import DataError
from xyreward.pairs import columnar
from xyreward.pairs.columnar import COLUMNS, write_tables
from xyreward.pairs.formats import FORMATS, rows


def assert_is(value: Any, kind: Any, where: str) -> None:
    if isinstance(kind, list):
        assert isinstance(value, list), where
        for inner in value:
            assert_is(inner, kind[0], where)
    elif isinstance(kind, dict):
        assert list(value) == list(kind), where  # the same keys in the same order
        for name, inner in value.items():
            assert_is(inner, kind[name], f"{where}.{name}")
    else:
        assert type(value) is kind, where


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_columns_of_a_format_are_those_of_its_rows_so_that_none_is_lost(fmt: Any) -> None:
    for row in rows(pair_set(), fmt, items=items()):
        there = {name: value for name, value in row.items() if value is not None}
        assert list(row) == list(COLUMNS[fmt])
        assert_is(there, {name: COLUMNS[fmt][name] for name in there}, fmt)


@pytest.mark.parametrize(
    ("max_bytes", "groups"),
    [(columnar.MAX_BYTES, [10_000, 350]), (30_000, [200] * 51 + [150])],
)
def test_rows_of_many_chunks_come_back_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: int, groups: list[int]
) -> None:
    import datasets
    import pyarrow.parquet

    monkeypatch.setattr(columnar, "MAX_BYTES", max_bytes)
    row = rows(pair_set(), "sft")[0]
    expected = [{**row, "item_id": f"i{n}"} for n in range(10_350)]
    parquet, folder = tmp_path / "sft.parquet", tmp_path / "sft"
    write_tables(iter(expected), "sft", parquet=parquet, folder=folder)
    assert datasets.load_from_disk(str(folder)).to_list() == expected
    found = pyarrow.parquet.ParquetFile(parquet)
    assert found.read().to_pylist() == expected
    assert groups == [found.metadata.row_group(n).num_rows for n in range(found.num_row_groups)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sft", "sft.parquet"]


def test_the_fingerprint_follows_from_the_rows(tmp_path: Path) -> None:
    import datasets

    found = rows(pair_set(), "sft")
    for name, written in (("one", found), ("two", found), ("less", found[1:])):
        write_tables(written, "sft", folder=tmp_path / name)
    one, two, less = (
        datasets.load_from_disk(str(tmp_path / name))._fingerprint
        for name in ("one", "two", "less")
    )
    assert one == two
    assert one != less


def test_a_column_without_values_has_the_type_of_one_with_values(tmp_path: Path) -> None:
    import datasets

    found = rows(pair_set(), "preference")
    write_tables(found, "preference", folder=tmp_path / "all")
    bare = [{**row, "chosen_labels": None, "rejected_reward": None} for row in found]
    write_tables(bare, "preference", folder=tmp_path / "bare")
    both = [datasets.load_from_disk(str(tmp_path / name)) for name in ("all", "bare")]
    assert both[0].features == both[1].features
    assert datasets.concatenate_datasets(both).to_list() == found + bare


def test_a_value_of_another_type_is_told(tmp_path: Path) -> None:
    (row, *_) = rows(pair_set(), "sft")
    with pytest.raises(DataError, match="format 'sft': cannot be written"):
        write_tables([{**row, "reward": "high"}], "sft", parquet=tmp_path / "sft.parquet")


@pytest.mark.parametrize("change", [{"rewrad": 1.0}, {"reward": ...}])
def test_other_keys_than_the_columns_are_told(tmp_path: Path, change: dict[str, Any]) -> None:
    (row, *_) = rows(pair_set(), "sft")
    changed = {key: value for key, value in {**row, **change}.items() if value is not ...}
    with pytest.raises(DataError, match=r"format 'sft': a row has .*; expected "):
        write_tables([changed], "sft", parquet=tmp_path / "sft.parquet")
