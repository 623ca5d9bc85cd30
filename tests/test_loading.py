"""load_items(): formats, schemas of the benchmark, answers as columns, all problems at once."""

import csv
import io
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xyreward.errors import DataError
from xyreward.items import ANSWER_KINDS, XY_KINDS, Item
from xyreward.loading import ANSWER_ALIASES, bundled_splits, load_items
from xyreward.splits import SIDES, Placement, Splits, assign_splits
from xyreward.testing import make_item

ROW: Mapping[str, Any] = {
    "id": "clock",
    "query": "How do I make my alarm clock louder?",
    "stated_request": "Make an alarm clock louder.",
    "intended_request": "Get up on time.",
    "misconception": "Loudness does not help someone who sleeps too little.",
    "stated_solutions": ["Put it on a metal tray."],
    "intended_solutions": ["Go to bed earlier."],
}
# The benchmark as its paper words it, flat; and as its announcement words it, nested.
PAPER: Mapping[str, Any] = {
    "query": ROW["query"],
    "S-request": ROW["stated_request"],
    "I-request": ROW["intended_request"],
    "S-solution": ROW["stated_solutions"][0],
    "S-I-misconception-identification": ROW["misconception"],
    "I-solution": ROW["intended_solutions"][0],
    "source": "stackoverflow",
}
BLOG: Mapping[str, Any] = {
    "question": ROW["query"],
    "explicit request": ROW["stated_request"],
    "intended request": ROW["intended_request"],
    "rubrics": {
        "solution for Y": ROW["stated_solutions"][0],
        "mistaken belief": ROW["misconception"],
        "solution for X": ROW["intended_solutions"][0],
    },
}
GROUNDING = (
    "query",
    "stated_request",
    "intended_request",
    "misconception",
    "stated_solutions",
    "intended_solutions",
)
CLOCK = tuple(tuple(ROW[f]) if isinstance(ROW[f], list) else ROW[f] for f in GROUNDING)


def grounding(item: Item) -> tuple[Any, ...]:
    return tuple(getattr(item, field) for field in GROUNDING)


def row(**fields: Any) -> dict[str, Any]:
    return {**ROW, **fields}


def without(*fields: str, **others: Any) -> dict[str, Any]:
    return {k: v for k, v in row(**others).items() if k not in fields}


def jsonl(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), "utf-8")
    return path


def write_csv(path: Path, rows: Sequence[Mapping[str, str]], end: str = "\n") -> Path:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator=end)
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(text.getvalue().encode("utf-8"))
    return path


def cells(**fields: Any) -> dict[str, str]:
    """The row as a CSV has it: solutions as plain text."""
    flat = {**{k: v[0] if isinstance(v, list) else v for k, v in ROW.items()}, **fields}
    return {k: str(v) for k, v in flat.items()}


def parquet(path: Path, *rows: Mapping[str, Any]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(r) for r in rows]), path)
    return path


def problems(source: Any, **arguments: Any) -> list[str]:
    with pytest.raises(DataError) as caught:
        load_items(source, **arguments)
    assert f"{len(caught.value.problems)} problem" in str(caught.value)
    return caught.value.problems


# ---------------------------------------------------------------- formats


def test_the_four_formats_give_the_same_item(tmp_path: Path) -> None:
    sources = [
        jsonl(tmp_path / "a.jsonl", ROW),
        tmp_path / "a.json",
        parquet(tmp_path / "a.parquet", ROW),
        write_csv(tmp_path / "a.csv", [cells()]),
    ]
    sources[1].write_text(json.dumps([ROW]), "utf-8")
    loaded = [load_items(source) for source in sources]
    assert all(len(items) == 1 for items in loaded)
    assert len({items[0].model_dump_json() for items in loaded}) == 1
    assert grounding(loaded[0][0]) == CLOCK
    assert loaded[0][0].source == "a"  # none given: the file's name


def test_what_we_write_we_read_in_every_format(tmp_path: Path) -> None:
    items = [
        make_item(id="xy", language="zh", query="闹钟不够响", group="g", meta={"score": 3}),
        make_item(id="control", kind="control"),
    ]
    rows = [item.model_dump(mode="json") for item in items]
    as_json = tmp_path / "a.json"
    as_json.write_text(json.dumps({"version": "1", "items": rows}), "utf-8")
    nested = [
        {k: v if isinstance(v, str) else json.dumps(v) for k, v in r.items() if v is not None}
        for r in ({**r, "group": r["group"] or ""} for r in rows)
    ]
    for source in (
        jsonl(tmp_path / "a.jsonl", *rows),
        as_json,
        parquet(tmp_path / "a.parquet", *rows),
        write_csv(tmp_path / "a.csv", nested),
    ):
        assert load_items(source) == items, source.name


def test_a_null_in_a_parquet_struct_is_an_absent_key(tmp_path: Path) -> None:
    answers = [
        {"text": "Tray.", "kind": "literal"},
        {"text": "?", "origin": "human", "unsafe": True},
    ]
    (item,) = load_items(parquet(tmp_path / "a.parquet", row(references=answers)))
    assert [(r.kind, r.origin, r.unsafe) for r in item.references] == [
        ("literal", "", False),
        (None, "human", True),
    ]


def test_a_conversation_is_a_query_in_every_format(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How?"}]
    talk = without("query", messages=turns)
    for source in (
        jsonl(tmp_path / "a.jsonl", talk),
        parquet(tmp_path / "a.parquet", talk),
        write_csv(tmp_path / "a.csv", [{**cells(), "query": json.dumps(turns)}]),
    ):
        assert load_items(source)[0].messages == turns, source.name


def test_a_csv_may_have_a_bom_crlf_and_line_breaks_in_quotes(tmp_path: Path) -> None:
    # Line breaks, and the separators at which str.splitlines() breaks though no CSV row ends there.
    query = 'First,\r\nthen "this"\n\n\x0b\x0c\x1c\x85\u2028\u2029 and that?'
    path = write_csv(tmp_path / "a.csv", [cells(query=query), cells(id="b")], end="\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    first, second = load_items(path)
    assert (first.id, first.query) == ("clock", query)
    assert (second.id, second.query) == ("b", ROW["query"])


def test_jsonl_may_have_a_bom_crlf_blank_lines_and_unicode_separators(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    one, two = row(query="a\u2028b\x85c"), row(id="b")
    text = "\ufeff" + "\r\n".join([json.dumps(one, ensure_ascii=False), "", json.dumps(two), "  "])
    path.write_bytes(text.encode("utf-8"))
    assert [i.query for i in load_items(path)] == ["a\u2028b\x85c", ROW["query"]]


texts = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30
).filter(str.strip)


@settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(texts, min_size=1, max_size=4), st.sampled_from(["\n", "\r\n"]))
def test_any_text_survives_csv_and_jsonl(tmp_path: Path, queries: list[str], end: str) -> None:
    rows = [cells(id=f"i{n}", query=query) for n, query in enumerate(queries)]
    for path in (
        write_csv(tmp_path / "a.csv", rows, end=end),
        jsonl(tmp_path / "a.jsonl", *rows),
    ):
        assert [i.query for i in load_items(path)] == queries


def test_a_query_in_brackets_is_text_and_a_solution_in_brackets_a_list(tmp_path: Path) -> None:
    path = write_csv(
        tmp_path / "a.csv", [cells(query="[1, 2]", stated_solutions='["One.", "Two."]')]
    )
    (item,) = load_items(path)
    assert item.query == "[1, 2]"
    assert item.stated_solutions == ("One.", "Two.")


def test_an_empty_cell_of_a_csv_is_no_value(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [cells(id="", kind="", language="", domain="")])
    (item,) = load_items(path)
    assert (item.kind, item.language, item.domain) == ("xy", "en", "")
    assert len(item.id) == 16  # by content


def test_a_csv_cell_may_be_longer_than_python_allows_by_default(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    path = write_csv(tmp_path / "a.csv", [cells(query="log " * 50_000)])
    assert len(load_items(path)[0].query) == 200_000
    assert csv.field_size_limit() == before


def test_json_that_is_jsonl_or_has_a_list_per_split_is_read(tmp_path: Path) -> None:
    lines = jsonl(tmp_path / "lines.json", ROW, row(id="b"))
    assert [i.id for i in load_items(lines)] == ["clock", "b"]
    per_split = tmp_path / "splits" / "all.json"
    per_split.parent.mkdir()
    per_split.write_text(json.dumps({"train": [ROW], "test": [row(id="b")]}), "utf-8")
    assert [i.meta["hub_split"] for i in load_items(per_split)] == ["train", "test"]


def test_a_number_is_an_id_and_a_null_is_no_value(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", row(id=7, group=12, domain=None, kind=None, url=None))
    (item,) = load_items(path)
    assert (item.id, item.group, item.domain, item.kind) == ("7", "12", "", "xy")
    assert dict(item.meta) == {}


def test_what_has_no_field_goes_to_meta(tmp_path: Path) -> None:
    given_meta = row(votes=3, meta={"url": "u"}, extra={"a": 1, "b": None})
    (item,) = load_items(jsonl(tmp_path / "a.jsonl", given_meta))
    assert dict(item.meta) == {"votes": 3, "url": "u", "extra": {"a": 1}}


def test_a_blank_solution_is_none(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", row(stated_solutions=" "))
    assert load_items(path)[0].stated_solutions == ()


# ---------------------------------------------------------------- the benchmark's schema


def test_a_folder_of_parquet_files_in_the_papers_words_is_read(tmp_path: Path) -> None:
    parquet(tmp_path / "data" / "train-00000-of-00001.parquet", PAPER, {**PAPER, "query": "Two?"})
    parquet(tmp_path / "data" / "test-00000-of-00001.parquet", {**PAPER, "query": "Three?"})
    (tmp_path / "README.md").write_text("---\n", "utf-8")
    (tmp_path / "dataset_infos.json").write_text("{}", "utf-8")
    hidden = tmp_path / ".cache" / "huggingface" / "x.jsonl"
    jsonl(hidden, {"not": "items"})
    items = load_items(tmp_path)
    assert [(i.query, i.meta["hub_split"]) for i in items] == [
        ("Three?", "test"),
        (ROW["query"], "train"),
        ("Two?", "train"),
    ]
    assert grounding(items[1]) == CLOCK
    assert {i.source for i in items} == {"stackoverflow"}
    assert len({i.id for i in items}) == 3  # ids are absent: made of the content


def test_jsonl_in_the_announcements_words_with_nested_rubrics_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "xybench"
    jsonl(folder / "train.jsonl", BLOG)
    jsonl(folder / "validation.jsonl", {**BLOG, "question": "Two?"})
    items = load_items(folder)
    assert [grounding(i) for i in items] == [CLOCK, ("Two?", *CLOCK[1:])]
    assert [i.meta["hub_split"] for i in items] == ["train", "validation"]
    assert {i.source for i in items} == {"xybench"}
    assert load_items(folder)[0].id == items[0].id


def test_rubrics_as_json_in_text_are_read_too(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {**BLOG, "rubrics": json.dumps(BLOG["rubrics"])})
    assert grounding(load_items(path)[0]) == CLOCK
    as_csv = write_csv(tmp_path / "a.csv", [{**BLOG, "rubrics": json.dumps(BLOG["rubrics"])}])
    assert grounding(load_items(as_csv)[0]) == CLOCK


def test_a_nested_field_does_not_hide_the_column_of_the_same_name(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "a.jsonl", row(rubrics={"query": "inner", "source": "inner"}, source="so")
    )
    (item,) = load_items(path)
    assert (item.query, item.source) == (ROW["query"], "so")


def test_anything_else_is_mapped(tmp_path: Path) -> None:
    strange = {
        "frage": ROW["query"],
        "asked": ROW["stated_request"],
        "criteria": {
            "goal": ROW["intended_request"],
            "texts": {"s": ROW["stated_solutions"], "i": ROW["intended_solutions"]},
        },
        "kind": "a column of another meaning",
    }
    path = jsonl(tmp_path / "a.jsonl", strange)
    columns = {
        "query": "frage",
        "stated_request": "asked",
        "intended_request": "criteria.goal",
        "stated_solutions": "criteria.texts.s",
        "intended_solutions": "criteria.texts.i",
        "misconception": None,
        "kind": None,
    }
    (item,) = load_items(path, columns=columns)
    assert grounding(item) == (*CLOCK[:3], "", *CLOCK[4:])
    assert item.kind == "xy"
    assert dict(item.meta) == {"kind": "a column of another meaning"}


def test_a_column_that_is_mapped_is_not_also_found_by_its_name(tmp_path: Path) -> None:
    # "x" is an alias of intended_request; here the caller says that it is the misconception.
    path = jsonl(tmp_path / "a.jsonl", without("misconception", "intended_request", x="Wrong."))
    (problem,) = problems(path, columns={"misconception": "x"})
    assert "no column for intended_request" in problem


def test_a_file_of_controls_needs_no_columns_of_a_hidden_goal(tmp_path: Path) -> None:
    control = without("intended_request", "misconception", "intended_solutions")
    for path, kind in (
        (jsonl(tmp_path / "a.jsonl", {**control, "kind": "control"}), "xy"),
        (jsonl(tmp_path / "b.jsonl", control), "control"),
    ):
        (item,) = load_items(path, kind=kind)  # type: ignore[arg-type]
        assert (item.kind, item.intended_request) == ("control", ROW["stated_request"])
    both = jsonl(tmp_path / "c.jsonl", {**control, "kind": "control"}, {**control, "id": "b"})
    assert len(problems(both)) == 3


def test_items_that_lack_what_a_judge_compares_with_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = jsonl(tmp_path / "a.jsonl", ROW, row(id="b", intended_solutions=[], query="Two?"))
    with caplog.at_level(logging.WARNING, "xyreward.loading"):
        assert len(load_items(path)) == 2
    assert "1 of 2 xy items have no intended_solutions (first: a.jsonl row 2)" in caplog.text
    assert caplog.text.count("have no") == 1


# ---------------------------------------------------------------- answers as columns


def test_answers_that_come_as_columns_become_references_without_labels(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "bench.jsonl", row(x_answer="Sleep more.", y_answer="Use a tray."))
    (item,) = load_items(path)
    assert [(r.kind, r.text) for r in item.references] == [
        ("goal_focused", "Sleep more."),
        ("literal", "Use a tray."),
    ]
    assert {r.origin for r in item.references} == {"bench"}
    assert all(r.labels is None for r in item.references)
    assert dict(item.meta) == {}


@pytest.mark.parametrize("kind", ANSWER_KINDS)
def test_every_kind_of_answer_is_found_by_each_of_its_names(tmp_path: Path, kind: str) -> None:
    aliases = ANSWER_ALIASES[kind]  # type: ignore[index]
    assert {kind, f"{kind}_answer"} <= set(aliases)
    control = kind in ("direct", "overcorrecting")
    base = without("intended_request", "misconception", "intended_solutions") if control else ROW
    for number, alias in enumerate(aliases):
        title = alias.replace("_", "-").title()  # `Goal-Focused-Answer`
        path = jsonl(tmp_path / f"{number}.jsonl", {**base, title: "An answer."})
        (item,) = load_items(path, kind="control" if control else "xy")
        assert [(r.kind, r.text) for r in item.references] == [(kind, "An answer.")]


def test_answers_are_mapped_where_their_column_has_another_name(tmp_path: Path) -> None:
    path = write_csv(
        tmp_path / "a.csv", [cells(gold="Sleep more.", bad="Use a tray.", x_answer="?")]
    )
    columns = {"goal_focused": "gold", "passing_mention": "bad"}
    (item,) = load_items(path, columns=columns)
    assert [(r.kind, r.text) for r in item.references] == [
        ("goal_focused", "Sleep more."),
        ("passing_mention", "Use a tray."),
    ]
    assert dict(item.meta) == {"x_answer": "?"}  # the mapping took the alias's place


def test_an_empty_cell_gives_no_answer(tmp_path: Path) -> None:
    rows = [cells(x_answer="Sleep more.", literal=""), cells(id="b", x_answer=" ", literal="Tray.")]
    items = load_items(write_csv(tmp_path / "a.csv", rows))
    assert [[r.kind for r in i.references] for i in items] == [["goal_focused"], ["literal"]]
    nulls = jsonl(tmp_path / "b.jsonl", row(x_answer=None, literal="\n"))
    assert load_items(nulls)[0].references == ()


def test_answers_of_columns_follow_those_of_the_references_column(tmp_path: Path) -> None:
    own = {"text": "Do both.", "kind": "balanced", "origin": "human", "unsafe": True}
    (item,) = load_items(jsonl(tmp_path / "a.jsonl", row(references=[own], literal="Tray.")))
    assert [(r.kind, r.origin, r.unsafe) for r in item.references] == [
        ("balanced", "human", True),
        ("literal", "a", False),
    ]


def test_a_wrong_answer_column_is_named_by_its_kind_and_column(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", row(y_answer=3, refusal=False, references=[{"text": 5}]))
    found = problems(path)
    assert len(found) == 3
    assert any(p.startswith("a.jsonl row 1, literal (column 'y_answer'): ") for p in found)
    assert any(p.startswith("a.jsonl row 1, refusal: ") and "(found False)" in p for p in found)
    assert any(p.startswith("a.jsonl row 1, references.0.text: ") for p in found)
    kept = jsonl(tmp_path / "b.jsonl", row(refusal=False))
    assert load_items(kept, columns={"refusal": None})[0].meta == {"refusal": False}


def test_an_answer_column_that_does_not_fit_the_item_is_a_problem(tmp_path: Path) -> None:
    (problem,) = problems(jsonl(tmp_path / "a.jsonl", row(direct="Use a tray.")))
    assert problem.startswith("a.jsonl row 1, references: has direct, but those of xy items are")
    assert all(kind in problem for kind in XY_KINDS)


# ---------------------------------------------------------------- problems


def test_every_problem_of_every_file_is_told_at_once(tmp_path: Path) -> None:
    jsonl(
        tmp_path / "a.jsonl",
        ROW,
        row(id="empty", query=" "),
        row(id="clock", query="Another?"),
        row(id="type", query=5, misconception=["a"]),
        row(id="kind", kind="contrl"),
        row(id="solution", stated_solutions=["fine", 3]),
    )
    with (tmp_path / "a.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"id": \n[1]\n')
    (tmp_path / "b.csv").write_bytes(
        b"id,query,stated_request,intended_request,misconception,S-solution,I-solution\n"
        b"one,How?,Ask.,Know.,None.,Say.,Sh\xf6w.\n"
        b"two,How?\n"
    )
    (tmp_path / "c.parquet").write_bytes(b"PAR1 not really")
    jsonl(tmp_path / "d.jsonl", without("misconception", id="d"))
    (tmp_path / "e.json").write_text("3", "utf-8")
    found = problems(tmp_path)
    expected = [
        ("a.jsonl row 2, query: ", "is empty"),
        ("a.jsonl row 3, id: ", "'clock' is also the id of a.jsonl row 1"),
        ("a.jsonl row 4, query: ", "valid string (found 5)"),
        ("a.jsonl row 4, misconception: ", "valid string"),
        ("a.jsonl row 5, kind: ", "'xy' or 'control' (found 'contrl')"),
        ("a.jsonl row 6, stated_solutions.1: ", "valid string (found 3)"),
        ("a.jsonl row 7: ", "not valid JSON"),
        ("a.jsonl row 8: ", "is a list, expected an object"),
        ("b.csv row 2, 'I-solution': ", "not valid UTF-8 (byte 0xf6 at character 3)"),
        ("b.csv row 3: ", "2 cells, the header has 7"),
        ("c.parquet: ", "not a readable Parquet file"),
        ("d.jsonl: ", "no column for misconception; looked for misconception, s_i_misconception"),
        ("e.json: ", "is a int without a list of rows"),
    ]
    for start, said in expected:
        assert any(p.startswith(start) and said in p for p in found), (start, found)
    assert len(found) == len(expected)


def test_a_missing_column_is_told_with_what_was_looked_for_and_what_is_there(
    tmp_path: Path,
) -> None:
    path = write_csv(tmp_path / "a.csv", [{"id": "1", "text": "How?", "S-request": "Ask."}])
    found = problems(path)
    assert len(found) == 5  # query, intended_request, misconception and both solutions
    assert found[0].startswith("a.csv: no column for query; looked for query, question, prompt")
    assert "there is id, text, S-request" in found[0]
    assert 'say which: columns={"query": ...}' in found[0]


def test_each_file_of_a_folder_may_name_its_columns_in_its_own_way(tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl", PAPER)
    jsonl(tmp_path / "b.jsonl", {**BLOG, "question": "Two?"})
    assert [i.query for i in load_items(tmp_path)] == [ROW["query"], "Two?"]


def test_a_row_without_a_field_that_other_rows_have_is_told(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", ROW, without("query", "stated_request", id="b"))
    assert [p[: p.index(":")] for p in problems(path)] == [
        "a.jsonl row 2, query",
        "a.jsonl row 2, stated_request",
    ]


def test_a_problem_names_the_field_and_the_column(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [{**PAPER, "S-request": ""}])
    (problem,) = problems(path)
    assert problem.startswith("a.csv row 2, stated_request (column 'S-request'): is empty")


def test_two_columns_that_could_be_one_field_are_asked_about(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", without("query", question="How?", prompt="Sys."))
    (problem,) = problems(path)
    assert "'question' and 'prompt' could both be query; say which" in problem
    assert load_items(path, columns={"query": "prompt"})[0].query == "Sys."
    exact = jsonl(tmp_path / "b.jsonl", row(question="no"))
    assert load_items(exact)[0].query == ROW["query"]


def test_a_wrong_mapping_is_told(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", ROW)
    found = problems(path, columns={"qurey": "q", "group": "thread", "stated_request": None})
    assert len(found) == 3
    assert "columns= names 'qurey' (did you mean 'query'?); it can name id, query, " in found[0]
    assert "goal_focused" in found[0]
    assert "a.jsonl: columns= says there is no stated_request; no item goes without" in found
    assert found[2].startswith("a.jsonl: columns= maps group to 'thread'; there is id, query, ")


def test_the_column_that_is_close_to_what_is_missing_or_mapped_comes_first(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "a.jsonl", {k: v for k, v in ROW.items() if k != "query"} | {"qurey": "q?"}
    )
    (missing,) = problems(path)
    assert "no column for query (is it 'qurey'?); looked for query, question, " in missing
    (mapped,) = problems(path, columns={"query": "qury"})
    assert "columns= maps query to 'qury' (did you mean 'qurey'?); there is " in mapped


def test_a_csv_row_is_the_row_of_a_spreadsheet_with_its_line(tmp_path: Path) -> None:
    rows = [cells(query="One\ntwo\nthree?"), cells(id="b", query=""), cells(id="c", kind="?")]
    path = write_csv(tmp_path / "a.csv", [{"kind": "xy", **r} for r in rows])
    second, third = problems(path)
    # Header: row 1, line 1. First item: row 2, lines 2-4. So the second is row 3, on line 5.
    assert second.startswith("a.csv row 3 (line 5), query: is empty")
    assert third.startswith("a.csv row 4 (line 6), kind: ")
    lines = path.read_text("utf-8").splitlines()
    assert lines[5 - 1].startswith("xy,b,")


def test_blank_lines_count_as_they_do_in_an_editor(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", ROW, row(id="b", query=""))
    path.write_text("\n" + path.read_text("utf-8").replace("\n", "\n\n"), "utf-8")
    (problem,) = problems(path)
    assert problem.startswith("a.jsonl row 4, ")
    as_csv = write_csv(tmp_path / "a.csv", [cells(), cells(id="b", query="")])
    as_csv.write_text(as_csv.read_text("utf-8").replace("\n", "\n\n"), "utf-8")
    (problem,) = problems(as_csv)
    assert problem.startswith("a.csv row 5, ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('id,query\n1,"How?\n', "a.csv row 2 (line 2): not valid CSV (unexpected end of data)"),
        ('id,query\n1,"How"?"\n', "a.csv row 2 (line 2): not valid CSV"),
        ("id;query\n1;How?\n", "no comma in 'id;query'; separate cells by commas"),
        ("id,query,id\n1,How?,2\n", "a.csv row 1: the header has 'id' twice"),
        ("id,query\n1,How?,x\n", "a.csv row 2: 3 cells, the header has 2"),
        ("", "a: no rows"),
        ("id,query\n", "a: no rows"),
    ],
)
def test_what_is_wrong_with_a_csv_is_said(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text, "utf-8")
    assert any(said in p for p in problems(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "a.json: not valid JSON"),
        ("[1, 2]", "a.json row 2: is a int, expected an object"),
        ('"text"', "is text without a list of rows"),
        ('{"query": "How?", "stated_solutions": ["a"]}', "is an object without a list of rows"),
        ('{"train": [{}, 1]}', "a.json row 2: is a int"),
        ("[]", "a: no rows"),
    ],
)
def test_what_is_wrong_with_a_json_file_is_said(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, "utf-8")
    assert any(said in p for p in problems(path))


def test_invalid_utf_8_is_told_with_file_row_and_field_in_several_files_at_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "x").mkdir()
    for name in ("a.jsonl", "x/a.jsonl"):
        text = "".join(json.dumps(r) + "\n" for r in (ROW, row(id="b", query="Fr@sh?")))
        (tmp_path / name).write_bytes(text.encode().replace(b"@", b"\xe9"))
    (tmp_path / "b.json").write_bytes(
        json.dumps([row(id="c", domain="@")]).encode().replace(b"@", b"\x80")
    )
    found = problems(tmp_path)
    said = "is not valid UTF-8 (byte 0xe9 at character 3)"
    for start, what in (
        ("a.jsonl row 2, 'query': ", said),
        ("x/a.jsonl row 2, 'query': ", said),
        ("b.json row 1, 'domain': ", "byte 0x80 at character 1"),
    ):
        assert any(p.startswith(start) and what in p for p in found), found
    assert all("'clock' is also the id" in p for p in found if "UTF-8" not in p)


def test_invalid_utf_8_inside_a_parquet_file_is_told_with_row_and_field(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    broken = pa.array([b"fine", b"Fr\xe9sh?"]).view(pa.string())
    table = pa.table({"id": ["a", "b"], "query": broken})
    pq.write_table(table, tmp_path / "a.parquet")
    assert any(
        p.startswith("a.parquet row 2, 'query': is not valid UTF-8 (byte 0xe9 at byte 3)")
        for p in problems(tmp_path)
    )


def test_invalid_utf_8_deep_inside_a_row_is_told_by_its_column(tmp_path: Path) -> None:
    text = json.dumps(row(references=[{"text": "Tr@y.", "kind": "literal"}])) + "\n"
    (tmp_path / "a.jsonl").write_bytes(text.encode().replace(b"@", b"\xe4"))
    (problem,) = problems(tmp_path)
    assert problem.startswith("a.jsonl row 1, 'references': is not valid UTF-8 (byte 0xe4")


def test_half_an_emoji_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row(query="cut \ud83d")) + "\n", "utf-8")
    (problem,) = problems(path)
    assert problem.startswith("a.jsonl row 1, 'query': has half a surrogate pair (\\ud83d")


def test_utf_16_is_one_problem_and_not_one_for_each_line(tmp_path: Path) -> None:
    for name in ("a.csv", "a.jsonl", "a.json"):
        path = tmp_path / name
        path.write_text("id,query\n1,How?\n", "utf-16")
        assert problems(path) == [f"{name}: is UTF-16, expected UTF-8; save it as UTF-8"]


def test_a_long_list_of_problems_is_cut_in_the_message_and_whole_in_problems(
    tmp_path: Path,
) -> None:
    path = jsonl(tmp_path / "a.jsonl", *(row(id=f"i{n}", query="") for n in range(50)))
    with pytest.raises(
        DataError, match=r"50 problems in the data[\s\S]*\.\.\. and 30 more"
    ) as caught:
        load_items(path)
    assert len(caught.value.problems) == 50


def test_what_is_found_is_shown_short_and_with_control_characters_escaped(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", row(kind="\x1b[31m" + "x" * 500))
    (problem,) = problems(path)
    assert "\x1b" not in problem
    assert len(problem) < 250


# ---------------------------------------------------------------- ids and repeated rows


def test_the_same_row_twice_is_left_out_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = jsonl(tmp_path / "a.jsonl", ROW, ROW, without("id"), without("id"))
    with caplog.at_level(logging.WARNING, "xyreward.loading"):
        assert len(load_items(path)) == 2
    assert "2 rows repeat an earlier row in every field; left out" in caplog.text


@pytest.mark.parametrize(
    ("names", "split"),
    [
        (["a-test", "b-train"], "test"),
        (["a-train", "b-test"], "test"),
        (["a-train", "b-dev"], "validation"),
        (["a-dev", "b-train"], "validation"),
        (["a-dev", "b-test", "c-train"], "test"),
    ],
)
def test_a_row_in_two_official_splits_is_of_the_one_that_is_held_out(
    tmp_path: Path, names: list[str], split: str
) -> None:
    for name in names:
        jsonl(tmp_path / f"{name}.jsonl", PAPER)
    (item,) = load_items(tmp_path)
    assert item.meta["hub_split"] == split


def test_rows_without_ids_that_differ_only_in_other_fields_are_told_so(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", PAPER, {**PAPER, "I-solution": "Other."})
    (problem,) = problems(path)
    assert problem == (
        "a.jsonl row 2: query and requests repeat a.jsonl row 1, other fields differ; "
        "keep one of them, or give each an id"
    )


def test_an_id_made_of_the_content_does_not_depend_on_the_file(tmp_path: Path) -> None:
    one = load_items(jsonl(tmp_path / "a.jsonl", PAPER))
    other = load_items(parquet(tmp_path / "sub" / "b.parquet", {**PAPER, "query": "?"}, PAPER))
    assert one[0].id == other[1].id != other[0].id


# ---------------------------------------------------------------- official splits


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-00000-of-00002.jsonl", "train"),
        ("test.jsonl", "test"),
        ("xybench_test.jsonl", "test"),
        ("eval.jsonl", "test"),
        ("dev.jsonl", "validation"),
        ("data/val/part-1.jsonl", "validation"),
        ("test/part-1.jsonl", "test"),
        ("test/train.jsonl", "test"),
        ("train_test.jsonl", "test"),
        ("xybench-testset.jsonl", "test"),
        ("XYBenchTest/part-1.jsonl", "test"),
        ("held_out/train.jsonl", "test"),
        ("hidden/a/b/c/part-1.jsonl", "test"),
        ("validation/train.jsonl", "validation"),
        ("latest.jsonl", None),
        ("contest/attestation.jsonl", None),
        ("trainers.jsonl", None),
        ("items.jsonl", None),
    ],
)
def test_the_name_of_a_file_says_its_official_split(
    tmp_path: Path, name: str, split: str | None
) -> None:
    # pytest's folder is called test_the_name...: a name that it makes says nothing
    jsonl(tmp_path / name, ROW)
    assert load_items(tmp_path)[0].meta.get("hub_split") == split


TEST_NAMES = ["test", "tests", "testset", "testv2", "XYBenchTest", "held_out", "held-out", "hidden"]
OTHER_NAMES = ["train", "latest", "contest", "attestation", "greatest", "wikihow"]


def nothing_to_train_on(source: Path) -> bool:
    loaded = load_items(source)
    assert loaded
    return load_items(source, split="train") == []


@pytest.mark.parametrize("name", TEST_NAMES)
def test_a_test_split_is_held_out_wherever_its_name_stands(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "data"
    for source in (
        jsonl(folder / f"{name}.jsonl", ROW),
        jsonl(folder / "column.jsonl", row(split=name)),
        jsonl(folder / "partition.jsonl", row(partition=name)),
        jsonl(folder / "mapped.jsonl", row(part=name)),
        jsonl(folder / "meta.jsonl", row(meta={"hub_split": name})),
        jsonl(folder / "nested.jsonl", row(info={"from": {"split": name}})),
        write_csv(folder / "a.csv", [{**cells(), "meta": json.dumps({"split": name})}]),
        parquet(folder / "a.parquet", row(split=name)),
    ):
        columns = {"hub_split": "part"} if source.stem == "mapped" else {}
        assert load_items(source, columns=columns, split="train") == [], source.name
        assert len(load_items(source, columns=columns, split="test")) == 1
    by_key = folder / "keys.json"
    by_key.write_text(json.dumps({"train": [ROW], name: [row(id="b", query="Two?")]}), "utf-8")
    assert [i.id for i in load_items(by_key, split="test") if i.id == "b"] == ["b"]
    assert not [i for i in load_items(by_key, split="train") if i.id == "b"]


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_other_names_hold_nothing_out(tmp_path: Path, name: str) -> None:
    for source in (
        jsonl(tmp_path / name / f"{name}.jsonl", row(split=name, meta={"split": name})),
        tmp_path / name,
    ):
        assert len(load_items(source, split="train")) == 1


@pytest.mark.parametrize("name", TEST_NAMES)
def test_a_path_that_itself_names_a_test_split_holds_out(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "XYBench" / name
    file = jsonl(folder / "data.jsonl", ROW)
    deeper = jsonl(tmp_path / "deep" / name / "data" / "data.jsonl", ROW)
    for source in (folder, file, deeper, deeper.parent, folder / ".." / name):
        assert nothing_to_train_on(source), source
    # Neither does a link with another name take it out, nor a path that is relative to it.
    link, linked_file = tmp_path / "mine", tmp_path / "plain" / "mine.jsonl"
    link.symlink_to(folder)
    linked_file.parent.mkdir()
    linked_file.symlink_to(file)
    for source in (link, link / "data.jsonl", linked_file, linked_file.parent):
        assert nothing_to_train_on(source), source
    monkeypatch.chdir(folder)
    assert nothing_to_train_on(Path())
    assert nothing_to_train_on(Path("data.jsonl"))
    # and a link that names it counts, whatever it leads to
    plain = jsonl(tmp_path / "items" / "items.jsonl", ROW)
    named = tmp_path / "links" / name
    named.parent.mkdir()
    named.symlink_to(plain.parent)
    assert nothing_to_train_on(named)
    assert not nothing_to_train_on(plain)


def test_a_folder_far_above_says_nothing_and_the_one_above_only_by_its_whole_name(
    tmp_path: Path,
) -> None:
    for above in ("test/xybench/data", "my-test-project/data", "llm-eval/items", "dev/data"):
        file = jsonl(tmp_path / "work" / above / "items.jsonl", ROW)
        assert not nothing_to_train_on(file), above
        assert not nothing_to_train_on(file.parent), above
    assert nothing_to_train_on(jsonl(tmp_path / "my-test-project" / "items.jsonl", ROW))


def test_the_strictest_name_wins(tmp_path: Path) -> None:
    def said(source: Path) -> list[str]:
        return [i.meta["hub_split"] for i in load_items(source)]

    assert said(jsonl(tmp_path / "a" / "train.jsonl", row(split="test_hard"))) == ["test_hard"]
    assert said(jsonl(tmp_path / "b" / "test.jsonl", row(split="train"))) == ["test"]
    assert said(jsonl(tmp_path / "c" / "val.jsonl", row(split="train"))) == ["validation"]
    assert said(jsonl(tmp_path / "d" / "train.jsonl", row(meta={"hub_split": "dev"}))) == ["dev"]
    assert said(jsonl(tmp_path / "e" / "train.jsonl", row(split="wikihow"))) == ["train"]
    assert said(jsonl(tmp_path / "f" / "items.jsonl", row(split="wikihow"))) == ["wikihow"]
    keys = tmp_path / "test.json"
    keys.write_text(json.dumps({"train": [ROW], "dev": [row(id="b", query="Two?")]}), "utf-8")
    assert said(keys) == ["test", "test"]


def test_items_that_are_written_and_read_again_stay_held_out(tmp_path: Path) -> None:
    items = load_items(jsonl(tmp_path / "test.jsonl", ROW))
    again = jsonl(tmp_path / "train.jsonl", *(i.model_dump(mode="json") for i in items))
    assert load_items(again) == items
    assert nothing_to_train_on(again)


def test_what_is_held_out_because_of_a_name_is_said_with_the_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "xybench"
    jsonl(folder / "part-1.jsonl", ROW, row(id="b", query="Two?", split="held-out"))
    jsonl(folder / "testset.jsonl", *(row(id=f"c{n}", query=f"Three{n}?") for n in range(3)))
    with caplog.at_level(logging.WARNING, "xyreward.loading"):
        load_items(folder)
    assert caplog.messages == [
        "xybench: 4 of 5 items are held out and never trained on, because of a name: 3 by file "
        "'testset.jsonl', 1 by 'held-out' in column 'split'. Where a name means something else "
        "than a split, rename it"
    ]
    caplog.clear()
    load_items(jsonl(tmp_path / "latest.jsonl", ROW))
    assert caplog.messages == []


def test_a_single_file_and_a_column_say_it_too(tmp_path: Path) -> None:
    alone = jsonl(tmp_path / "test.jsonl", ROW)
    assert load_items(alone)[0].meta["hub_split"] == "test"
    column = jsonl(tmp_path / "all.jsonl", row(split="test"), row(id="b", split="train"))
    assert [i.meta["hub_split"] for i in load_items(column)] == ["test", "train"]
    assert "hub_split" not in load_items(column, columns={"hub_split": None})[0].meta


def benchmark(folder: Path, train: int = 30, test: int = 10) -> Path:
    for name, start, n in (("train", 0, train), ("test", 1000, test)):
        rows = [
            {**PAPER, "query": " ".join(f"word{(start + i) * 7 + k}" for k in range(8))}
            for i in range(n)
        ]
        parquet(folder / f"{name}-00000-of-00001.parquet", *rows)
    return folder


def test_an_official_test_split_is_never_on_our_train_side(tmp_path: Path) -> None:
    folder = benchmark(tmp_path)
    sides = {side: load_items(folder, split=side) for side in SIDES}
    assert {i.meta["hub_split"] for i in sides["train"] + sides["dev"]} == {"train"}
    assert sum(i.meta["hub_split"] == "test" for i in sides["test"]) == 10
    assert sum(map(len, sides.values())) == 40
    only_test = load_items(folder / "test-00000-of-00001.parquet", split="train")
    assert only_test == []


def test_a_split_of_the_source_is_selected_by_its_name(tmp_path: Path) -> None:
    folder = benchmark(tmp_path)
    assert len(load_items(folder, hub_split="test")) == 10
    assert len(load_items(folder, hub_split="train")) == 30
    (problem,) = problems(folder, hub_split="dev")
    assert "no split 'dev'; found test, train" in problem
    (problem,) = problems(jsonl(tmp_path / "one" / "items.jsonl", ROW), hub_split="test")
    assert "found no named splits" in problem


def test_a_side_does_not_depend_on_what_else_is_asked_for(tmp_path: Path) -> None:
    folder = benchmark(tmp_path)
    on_train = {i.id for i in load_items(folder, split="train")}
    assert {i.id for i in load_items(folder, split="train", hub_split="train")} == on_train


def test_given_sides_are_used(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", ROW, row(id="b", query="Two?"))
    first, second = load_items(path)
    given_sides = Splits(
        {
            first.content_hash: Placement("test", first.content_hash),
            second.content_hash: Placement("dev", second.content_hash),
        }
    )
    assert load_items(path, split="test", splits=given_sides) == [first]
    assert load_items(path, split="train", splits=given_sides) == []


def test_a_misspelt_side_is_refused(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", ROW)
    with pytest.raises(ValueError, match=r"split is 'validation', expected .*train, dev, test"):
        load_items(path, split="validation")  # type: ignore[arg-type]


# ---------------------------------------------------------------- sources


def test_the_bundled_items_keep_the_sides_of_the_package(mini: list[Item]) -> None:
    sides = bundled_splits()
    loaded = {side: load_items("mini", split=side) for side in SIDES}
    for side, items in loaded.items():
        assert items == [i for i in mini if sides.side(i) == side]
    assert sum(map(len, loaded.values())) == len(mini)


def test_a_folder_called_mini_is_loaded_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jsonl(tmp_path / "mini" / "a.jsonl", ROW)
    monkeypatch.chdir(tmp_path)
    assert len(load_items(Path("mini"))) == 1
    assert len(load_items("./mini")) == 1
    assert len(load_items("mini")) > 1


def test_a_local_folder_wins_over_a_hub_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jsonl(tmp_path / "allenai" / "XYBench-dataset" / "train.jsonl", ROW)
    monkeypatch.chdir(tmp_path)
    (item,) = load_items("allenai/XYBench-dataset")
    assert item.source == "XYBench-dataset"


@pytest.mark.parametrize("name", ["nowhere.jsonl", "no/such/folder", "minni", "data/items.csv"])
def test_a_path_where_nothing_is_says_so_at_once(name: str) -> None:
    with pytest.raises(FileNotFoundError, match="no such file or folder, and not a hub name"):
        load_items(name)


def test_a_home_folder_is_found_without_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    jsonl(tmp_path / "data" / "a.jsonl", ROW)
    assert len(load_items("~/data")) == len(load_items(Path("~/data/a.jsonl"))) == 1
    with pytest.raises(FileNotFoundError, match=r"items '~nobody-here/a\.jsonl': no such file"):
        load_items("~nobody-here/a.jsonl")


@pytest.mark.parametrize("source", ["", "  "])
def test_an_empty_source_is_not_the_folder_that_one_happens_to_be_in(source: str) -> None:
    (problem,) = problems(source)
    assert problem == 'the source of items is empty, expected "mini", a path or a hub name'


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b.jsonl"])
def test_a_path_that_no_file_system_takes_is_a_path_where_nothing_is(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"^items .{,400}$"):
        load_items(name)


def test_a_folder_or_file_without_items_says_what_is_read(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path)
    assert "no .jsonl, .json, .parquet, .csv file in this folder" in problem
    (tmp_path / "a.tsv").write_text("id\tquery\n", "utf-8")
    (problem,) = problems(tmp_path / "a.tsv")
    assert problem == "a.tsv: cannot read '.tsv' files; use .jsonl, .json, .parquet, .csv"


def test_a_lock_beside_the_data_is_not_read_as_data(tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl", ROW)
    items = load_items(tmp_path)
    assign_splits(items, tmp_path / "splits.json")
    assert load_items(tmp_path) == items
