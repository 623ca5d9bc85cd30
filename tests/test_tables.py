"""Files that are damaged, ambiguous or hostile: problems with file, row and field, no tracebacks."""

import csv
import io
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xyreward.errors import DataError
from xyreward.loading import load_items
from xyreward.splits import assign_splits

ROW: Mapping[str, Any] = {
    "id": "clock",
    "query": "How do I make my alarm clock louder?",
    "stated_request": "Make an alarm clock louder.",
    "intended_request": "Get up on time.",
    "misconception": "Loudness does not help someone who sleeps too little.",
    "stated_solutions": ["Put it on a metal tray."],
    "intended_solutions": ["Go to bed earlier."],
}


def row(**fields: Any) -> dict[str, Any]:
    return {**ROW, **fields}


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return path


def with_field(field: str, value: str) -> str:
    """The row as a line of JSONL, with a field whose JSON is given as text."""
    return json.dumps(ROW)[:-1] + f', "{field}": {value}}}\n'


def write_csv(path: Path, **fields: str) -> Path:
    cells = {**{k: v[0] if isinstance(v, list) else v for k, v in ROW.items()}, **fields}
    text = io.StringIO(newline="")
    csv.writer(text).writerows([cells.keys(), cells.values()])
    return written(path, text.getvalue())


def problems(source: Path) -> list[str]:
    with pytest.raises(DataError) as caught:
        load_items(source)
    return caught.value.problems


# ---------------------------------------------------------------- given twice


def test_a_key_given_twice_is_told_and_not_decided_by_the_last(tmp_path: Path) -> None:
    (problem,) = problems(written(tmp_path / "a.jsonl", with_field("query", '"Another?"')))
    assert problem == "a.jsonl row 1, 'query': is there twice, expected once"
    nested = with_field("rubrics", '{"x": 1, "more": [{"y": 1, "y": 2}]}')
    (problem,) = problems(written(tmp_path / "b.jsonl", json.dumps(ROW) + "\n" + nested))
    assert problem == "b.jsonl row 2, 'rubrics.more.0.y': is there twice, expected once"


def test_a_key_given_twice_in_a_json_file_is_told_for_rows_and_for_splits(tmp_path: Path) -> None:
    twice = with_field("query", '"Another?"').strip()
    (problem,) = problems(written(tmp_path / "a.json", f"[{json.dumps(ROW)}, {twice}]"))
    assert problem == "a.json row 2, 'query': is there twice, expected once"
    rows = json.dumps([ROW])
    (problem,) = problems(written(tmp_path / "b.json", f'{{"train": {rows}, "train": {rows}}}'))
    assert problem == "b.json, 'train': is there twice, expected once"


def test_a_key_given_twice_in_json_inside_a_cell_is_told(tmp_path: Path) -> None:
    path = write_csv(
        tmp_path / "a.csv", rubrics='{"x": 1, "x": 2}', references='[{"a": 1, "a": 2}]'
    )
    assert problems(path) == [
        "a.csv row 2, 'rubrics.x': is there twice, expected once",
        "a.csv row 2, 'references.0.a': is there twice, expected once",
    ]


def test_a_column_that_a_parquet_file_has_twice_is_told(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([dict(ROW)])
    pq.write_table(table.append_column("query", pa.array(["Another?"])), tmp_path / "a.parquet")
    assert problems(tmp_path / "a.parquet") == ["a.parquet, 'query': is there twice, expected once"]
    struct = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    pq.write_table(
        table.append_column("rubrics", pa.ListArray.from_arrays(pa.array([0, 1]), struct)),
        tmp_path / "b.parquet",
    )
    (problem,) = problems(tmp_path / "b.parquet")
    assert problem.startswith("b.parquet, 'rubrics.")
    assert problem.endswith(".x': is there twice, expected once")


def test_a_column_that_is_also_in_meta_with_another_value_is_told(tmp_path: Path) -> None:
    lines = json.dumps(row(votes=3, meta={"votes": 3})) + "\n"
    (item,) = load_items(written(tmp_path / "a.jsonl", lines))
    assert item.meta == {"votes": 3}
    (problem,) = problems(
        written(tmp_path / "a.jsonl", lines.replace('{"votes": 3}', '{"votes": 5}'))
    )
    assert problem == (
        "a.jsonl row 1, 'votes': is a column and a field of meta, with different values; "
        "leave one of them out"
    )


# ---------------------------------------------------------------- of another form


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("meta", [1], "meta: is a list, expected an object"),
        ("meta", "text", "meta: is text, expected an object"),
        ("meta", 3, "meta: is a int, expected an object"),
        ("kind", ["xy"], "kind: Input should be 'xy' or 'control' (found a list)"),
        ("kind", {"a": 1}, "kind: Input should be 'xy' or 'control' (found an object)"),
        ("id", ["a"], "id: Input should be a valid string (found a list)"),
        ("query", {"a": 1}, "query: Input should be a valid string (found an object)"),
        ("group", [1], "group: Input should be a valid string (found a list)"),
        ("misconception", True, "misconception: Input should be a valid string (found True)"),
        ("stated_solutions", {"a": 1}, "stated_solutions: Input should be a valid tuple"),
    ],
)
def test_a_value_of_the_wrong_form_is_told(
    tmp_path: Path, field: str, value: Any, said: str
) -> None:
    (problem,) = problems(written(tmp_path / "a.jsonl", json.dumps(row(**{field: value}))))
    assert problem.startswith(f"a.jsonl row 1, {said}")


def test_meta_in_a_cell_must_be_json_of_an_object(tmp_path: Path) -> None:
    assert load_items(write_csv(tmp_path / "a.csv", meta='{"a": 1}'))[0].meta == {"a": 1}
    assert problems(write_csv(tmp_path / "a.csv", meta="a=1")) == [
        "a.csv row 2, meta: is text, expected an object"
    ]
    (problem,) = problems(write_csv(tmp_path / "a.csv", meta='{"a": }'))
    assert problem.startswith("a.csv row 2, 'meta': not valid JSON (Expecting value")


@pytest.mark.parametrize("depth", [100, 900, 100_000])
def test_deep_nesting_is_told_in_every_format(tmp_path: Path, depth: int) -> None:
    lists, objects = "[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth
    for n, value in enumerate((lists, objects)):
        (problem,) = problems(written(tmp_path / f"{n}.jsonl", with_field("extra", value)))
        assert problem.startswith(f"{n}.jsonl row 1")
        assert "nested more than 64 deep" in problem
        (problem,) = problems(
            written(tmp_path / f"{n}.json", f"[{with_field('extra', value).strip()}]")
        )
        assert problem.startswith(f"{n}.json")
        assert "nested more than 64 deep" in problem
    assert "nested more than 64 deep" in problems(write_csv(tmp_path / "a.csv", meta=objects))[0]
    assert (
        "nested more than 64 deep" in problems(written(tmp_path / "b.json", lists))[0]
        or depth < 999
    )
    as_cell = write_csv(tmp_path / "c.csv", stated_solutions=lists)
    if depth == 100_000:
        (problem,) = problems(as_cell)
        assert problem.startswith("c.csv row 2, 'stated_solutions': not valid JSON (is nested")
    else:
        assert load_items(as_cell)[0].stated_solutions == (lists,)  # no list of texts, so a text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("NaN", "NaN is not a number in JSON, expected null"),
        ("[Infinity]", "Infinity is not a number in JSON"),
        ("1e999", "1e999 is too large a number"),
        ("9" * 5000, "is a number of 5000 digits"),
    ],
)
def test_numbers_that_are_none_are_told(tmp_path: Path, value: str, said: str) -> None:
    (problem,) = problems(written(tmp_path / "a.jsonl", with_field("score", value)))
    assert problem.startswith("a.jsonl row 1: not valid JSON (")
    assert said in problem
    (problem,) = problems(write_csv(tmp_path / "a.csv", meta=f'{{"score": {value}}}'))
    assert problem.startswith("a.csv row 2, 'meta': not valid JSON (")


def test_a_missing_number_of_a_parquet_file_is_no_value(tmp_path: Path) -> None:
    # pandas writes NaN where a number is missing.
    rows = [row(score=float("nan"), group=None), row(id="b", query="Two?", score=1.5)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert [dict(i.meta) for i in load_items(tmp_path / "a.parquet")] == [{}, {"score": 1.5}]
    rows = [{**ROW, "query": float("nan")}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "b.parquet")
    (problem,) = problems(tmp_path / "b.parquet")
    assert problem.startswith("b.parquet row 1, query: is empty")


def test_what_python_has_no_value_for_is_told_by_row_and_column(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([dict(ROW), row(id="b")])
    far = pa.array([0, 2**31 - 1], pa.date32())
    pq.write_table(table.append_column("asked", far), tmp_path / "a.parquet")
    (problem,) = problems(tmp_path / "a.parquet")
    assert problem.startswith("a.parquet row 2, 'asked': cannot be read (")


# ---------------------------------------------------------------- files


def test_a_file_that_cannot_be_opened_is_told_beside_the_others(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", "{")
    for suffix in ("jsonl", "csv", "json", "parquet"):
        (tmp_path / f"gone.{suffix}").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.jsonl").symlink_to(tmp_path / "loop.jsonl")
    found = problems(tmp_path)
    assert len(found) == 6
    assert "gone.jsonl: cannot be read (No such file or directory)" in found


def test_a_lock_by_another_name_beside_the_data_is_not_read_as_data(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", json.dumps(ROW))
    items = load_items(tmp_path)
    assign_splits(items, tmp_path / "my-lock.json")
    assert load_items(tmp_path) == items


def test_names_of_files_and_columns_cannot_play_with_the_terminal(tmp_path: Path) -> None:
    red = "\x1b[31mred\u202e"
    path = written(tmp_path / f"{red}.jsonl", json.dumps({red: 1, "query": "How?"}))
    found = problems(path)
    assert len(found) == 5
    for problem in found:
        assert problem.isprintable()
        assert problem.startswith(r"\x1b[31mred\u202e.jsonl: no column for ")
        assert r"there is \x1b[31mred\u202e, query; say which" in problem


def test_a_table_of_hundreds_of_columns_does_not_fill_the_screen(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", json.dumps({f"column{n}": n for n in range(500)}))
    assert "column39, ... (500 in all)" in problems(path)[0]
    assert "column40" not in problems(path)[0]


# ---------------------------------------------------------------- anything at all

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*ROW, "meta", "split", "a"]), inner, max_size=3)
    ),
    max_leaves=8,
)
often = settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def loads_or_tells(path: Path) -> None:
    try:
        found = [item.query_text for item in load_items(path)]
    except DataError as error:
        found = [p for p in error.problems if p.isprintable()]
    assert found


@often
@given(
    st.dictionaries(
        st.sampled_from([*ROW, "kind", "references", "meta", "rubrics", "split", "literal", "x"]),
        ANYTHING,
        max_size=4,
    )
)
def test_a_row_of_any_values_becomes_an_item_or_problems(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    loads_or_tells(written(tmp_path / "a.jsonl", json.dumps(row(**fields))))
    cells = {k: v if isinstance(v, str) else json.dumps(v) for k, v in fields.items()}
    loads_or_tells(write_csv(tmp_path / "a.csv", **cells))


@often
@given(st.sampled_from(["jsonl", "json", "csv", "parquet"]), st.integers(0, 10**6))
def test_a_damaged_file_becomes_items_or_problems(tmp_path: Path, suffix: str, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / f"a.{suffix}"
    rows = [row(id=f"i{n}", query=f"How {n}?", meta={"n": n}) for n in range(5)]
    match suffix:
        case "jsonl":
            written(path, "".join(json.dumps(r) + "\n" for r in rows))
        case "json":
            written(path, json.dumps({"train": rows, "test": rows[:2]}))
        case "csv":
            write_csv(path, meta='{"a": [1, 2]}', references='[{"text": "No."}]')
        case _:
            pq.write_table(pa.Table.from_pylist(rows), path, compression="none")
    data = bytearray(path.read_bytes())
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    written(path, bytes(data[: chance.choice([len(data), chance.randrange(1, len(data))])]))
    loads_or_tells(path)
