import asyncio
import bz2
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xyreward.errors import ConfigError, DataError, RunFolderError
from xyreward.items import DEFAULT_LABELS, Item
from xyreward.loading import load_items
from xyreward.pairs.answers import Growing, locked, none_belongs, read_answers, write_answers
from xyreward.pairs.candidates import PAIR_SOURCES, Candidate
from xyreward.reward import Reward
from xyreward.score_file import COLUMNS, AnswersFile, score_file
from xyreward.testing import ScriptedJudge, make_item

ITEMS = [
    make_item(id="alarm"),
    make_item(id="tea", query="How do I keep tea hot for a day?"),
    make_item(id="key", query="Where can I copy a key?", kind="control"),
    make_item(
        id="talk",
        query=[
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "How do I fold a map?"},
        ],
    ),
]


def written(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(**fields: Any) -> dict[str, Any]:
    return {"item_id": "alarm", "answer": "Sleep more.", "origin": "m", **fields}


texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    st.lists(
        st.builds(
            Candidate,
            item_id=st.sampled_from(["alarm", "tea"]),
            text=texts,
            source=st.sampled_from(PAIR_SOURCES),
            origin=texts.filter(str.strip),
            kind=st.sampled_from([None, "literal", "goal_focused", "attempt"]),
            labels=st.sampled_from([None, DEFAULT_LABELS["literal"]]),
            licence=texts,
            unsafe=st.booleans(),
            details=st.dictionaries(texts, texts | st.integers() | st.none()),
        ),
        min_size=1,
        max_size=5,
    ).filter(lambda cs: not any("truncated" in c.details for c in cs))
)
@settings(deadline=None)  # each file is brought to the disk, which takes as long as the disk takes
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, candidates: list[Candidate]
) -> None:
    path = tmp_path_factory.mktemp("a") / "answers.jsonl"
    write_answers(path, candidates)
    assert read_answers(path, ITEMS).candidates == tuple(candidates)
    assert [file.name for file in path.parent.iterdir()] == ["answers.jsonl"]


def test_an_item_may_be_named_by_its_query(tmp_path: Path) -> None:
    rows = [
        {"query": "How do I keep  tea hot for a day?", "answer": "a", "model": "m"},
        {"prompt": [{"role": "user", "content": ITEMS[2].query_text}], "output": "b", "model": "m"},
        {"query": ITEMS[3].messages, "response": "c", "origin": "m"},
        {"question": ITEMS[0].query, "completion": "d", "origin": "m"},
    ]
    found = read_answers(written(tmp_path / "a.jsonl", rows), ITEMS)
    assert [(c.item_id, c.text) for c in found.candidates] == [
        ("tea", "a"),
        ("key", "b"),
        ("talk", "c"),
        ("alarm", "d"),
    ]
    assert {(c.source, c.origin) for c in found.candidates} == {("cross_model", "m")}


def test_a_files_own_names_can_be_given(tmp_path: Path) -> None:
    rows = [{"id": "tea", "generated": "x", "who": "m", "output": "no", "source": "web", "n": 1}]
    path = written(tmp_path / "a.jsonl", rows)
    found = read_answers(
        path,
        ITEMS,
        columns={"item_id": "id", "answer": "generated", "origin": "who"},
        source="cross_model",
    )
    assert [(c.item_id, c.text, c.origin) for c in found.candidates] == [("tea", "x", "m")]
    assert found.ignored == ("n", "output")
    with pytest.raises(ConfigError, match="columns has anwser"):
        read_answers(path, ITEMS, columns={"anwser": "generated"})
    with pytest.raises(ConfigError, match="source is 'web'"):
        read_answers(path, ITEMS, source="web")  # type: ignore[arg-type]


def test_what_scoring_wrote_is_a_file_of_answers_without_its_verdicts(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", [row(), row(answer=""), row(answer="unknown")])
    out = tmp_path / "scored.jsonl"
    judge = ScriptedJudge({(None, "Sleep more."): DEFAULT_LABELS["goal_focused"]})
    report = asyncio.run(score_file(AnswersFile(path, ITEMS), out, judge, Reward()))
    assert report.rows == 3
    found = read_answers(out, ITEMS)
    assert [c.text for c in found.candidates] == ["Sleep more.", "", "unknown"]
    assert set(found.ignored) == set(COLUMNS)
    assert all(c.labels is None for c in found.candidates)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (row(item_id="nobody"), "item_id 'nobody' is not among the 4 items"),
        (row(item_id=["x"]), "item_id a list is not among"),
        (row(answer=None), "answer is not there, expected a text"),
        (row(answer=3), "answer is 3, expected a text"),
        ({"item_id": "tea", "origin": "m"}, "has no answer, expected one of answer, response"),
        (row(origin=" "), "origin is ' ', expected who wrote the answer"),
        ({"item_id": "tea", "answer": "x"}, "origin is not there"),
        ({"answer": "x", "origin": "m"}, "names no item, expected item_id, or the query's text"),
        ({"query": "What?", "answer": "x", "origin": "m"}, "query 'What?' is not among those of"),
        ({"query": 3, "answer": "x", "origin": "m"}, "query is 3, expected a text, or messages"),
        (row(query="What?"), "query is not the one of item 'alarm'"),
        (row(output="y"), None),  # its own name wins over an alias
        (
            {"item_id": "tea", "output": "x", "response": "y", "origin": "m"},
            "has response and output, either of which may be the answer",
        ),
        (row(source="web"), "source is 'web', expected one of references, on_policy"),
        (row(kind="direct"), "kind is 'direct', expected one of goal_focused"),
        (row(kind="nice"), "kind is 'nice'"),
        (row(labels={"focus": "x"}), "labels.has_stated_solution"),
        (row(unsafe="no"), "unsafe is 'no', expected true or false"),
        (row(licence=3), "licence is 3, expected a text"),
        (row(details=[]), "details is a list, expected an object"),
        (row(truncated="yes"), "truncated is 'yes', expected true or false"),
        (row(answer="\ud83d"), "answer has half a surrogate pair"),
        ([], "is a list, expected an object"),
        (3, "is a int, expected an object"),
    ],
    ids=str,
)
def test_every_bad_row_is_told_with_its_line(tmp_path: Path, bad: Any, said: str | None) -> None:
    path = written(tmp_path / "a.jsonl", [row(), bad, row(item_id="no"), row()])
    with pytest.raises(DataError) as caught:
        read_answers(path, ITEMS)
    problems = caught.value.problems
    assert "a.jsonl line 3: item_id 'no' is not among" in problems[-1]
    if said is None:
        assert len(problems) == 1
    else:
        assert any(p.startswith("a.jsonl line 2: ") and said in p for p in problems), problems


@pytest.mark.parametrize(
    ("section", "columns", "origin"),
    [
        (None, 'columns={"answer": "THEIR_COLUMN"}', 'give origin="NAME"'),
        ("", "--set 'columns={answer: THEIR_COLUMN}'", "give --set origin=NAME"),
        ("pairs.", "--set 'pairs.columns={answer: THEIR_COLUMN}'", "give --set pairs.origin=NAME"),
    ],
)
def test_a_message_says_the_option_where_the_file_was_named(
    tmp_path: Path, section: str | None, columns: str, origin: str
) -> None:
    path = written(tmp_path / "a.jsonl", [{"item_id": "alarm", "text": "Sleep more."}])
    with pytest.raises(DataError) as caught:
        read_answers(path, ITEMS, section=section)
    answer, who = caught.value.problems
    assert answer.endswith(columns)
    assert who.endswith(origin)
    two = written(tmp_path / "b.jsonl", [{**row(), "answer": None, "output": "", "response": ""}])
    two.write_text(two.read_text().replace('"answer": null, ', ""))
    with pytest.raises(DataError, match="has response and output, either") as caught:
        read_answers(two, ITEMS, section=section)
    assert str(caught.value).endswith(columns.replace("THEIR_COLUMN", "response"))


def test_a_file_of_which_nothing_belongs_to_the_items_is_a_problem(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", [row(item_id=7), {**row(), "item_id": "no"}])
    found = read_answers(path, ITEMS, skip_unknown=True)
    (problem,) = none_belongs(found, path, "the dev side", ITEMS)
    assert "no answer of the file belongs to an item of the dev side (4 items, the" in problem
    assert "found 2 answers, the first to '7'." in problem
    query = {"query": "Not here?", "answer": "x", "origin": "m"}
    found = read_answers(written(path, [query]), ITEMS, skip_unknown=True)
    assert "found 1 answer, the first to 'Not here?'." in none_belongs(found, path, "x", ITEMS)[0]
    cut = read_answers(written(path, [query, row(truncated=True)]), ITEMS, skip_unknown=True)
    assert (cut.candidates, none_belongs(cut, path, "x", ITEMS)) == ((), [])


def test_what_is_no_json_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xff\n{"answer": NaN}\n{"a": 1, "a": 2}\n\n{"item_id": ')
    with pytest.raises(DataError) as caught:
        read_answers(path, ITEMS)
    assert [p.partition(": ")[0] for p in caught.value.problems] == [
        f"a.jsonl line {n}" for n in (1, 2, 3, 5)
    ]
    path.write_bytes(b"\n")
    with pytest.raises(DataError, match="has no rows"):
        read_answers(path, ITEMS)
    with pytest.raises(DataError, match="cannot be read"):
        read_answers(tmp_path / "none.jsonl", ITEMS)
    with pytest.raises(DataError, match="no such file"):
        read_answers(tmp_path / "none.csv", ITEMS)


def test_one_query_of_two_items_has_to_be_named_by_id(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", [{"query": ITEMS[0].query, "answer": "x", "origin": "m"}])
    twin = make_item(id="twin")
    with pytest.raises(DataError, match=r"query is that of 2 items \(alarm, twin\)"):
        read_answers(path, [ITEMS[0], twin])


def test_rows_add_up_and_say_why_they_are_no_candidates(tmp_path: Path) -> None:
    rows = [
        row(),
        row(answer="Sleep  more."),  # repeats the first
        row(origin="other"),
        row(item_id="elsewhere"),
        {"query": "Not here?", "answer": "x", "origin": "m"},
        row(answer="Sleep m", details={"truncated": True}),
        row(answer="Sle", truncated=True),
    ]
    path = written(tmp_path / "a.jsonl", rows)
    found = read_answers(path, ITEMS, skip_unknown=True)
    assert (found.rows, found.unknown, found.truncated, found.repeated) == (7, 2, 2, 1)
    assert len(found.candidates) == 3
    kept = read_answers(path, ITEMS, skip_unknown=True, keep_truncated=True)
    assert (len(kept.candidates), kept.truncated) == (5, 0)
    assert kept.candidates[-1].details == {"truncated": True}


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_other_formats_hold_the_same(tmp_path: Path, suffix: str) -> None:
    rows = [
        row(answer='a, "b"\nc', unsafe=True, temperature=0.5),
        row(item_id="tea", licence="CC0"),
    ]
    path = tmp_path / f"a.{suffix}"
    if suffix == "json":
        path.write_text(json.dumps(rows))
    elif suffix == "csv":
        path.write_text(
            "item_id,answer,origin,unsafe,temperature,licence\n"
            'alarm,"a, ""b""\nc",m,True,0.5,\ntea,Sleep more.,m,,,CC0\n'
        )
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist([{**dict.fromkeys(rows[0]), **r} for r in rows]), path)
    one, two = read_answers(path, ITEMS).candidates
    assert (one.text, one.unsafe, one.details) == ('a, "b"\nc', True, {"temperature": 0.5})
    assert (two.item_id, two.unsafe, two.details) == ("tea", False, {})
    if suffix != "parquet":
        assert two.licence == "CC0"


# ---------------------------------------------------------------- a file in the making

JOB = {"seed": 0}


def of(item: Item, n: int) -> list[Candidate]:
    return [Candidate(item.id, f"answer {i}", "on_policy", "m") for i in range(n)]


def grown(out: Path, job: Mapping[str, Any] = JOB) -> Growing:
    return Growing(out, job, ["alarm", "alarm", "tea", "tea"])


def test_a_killed_process_leaves_whole_groups(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    first = grown(out)
    first.append(of(ITEMS[0], 2))
    first.append(of(ITEMS[1], 2))
    partial = tmp_path / "a.jsonl.partial"
    whole = partial.read_bytes()
    for cut in range(len(whole) + 1):
        partial.write_bytes(whole[:cut])
        again = grown(out)
        assert again.rows == whole[:cut].count(b"\n")
        again.keep(again.rows // 2 * 2)
        for item in (ITEMS[0], ITEMS[1])[again.rows // 2 :]:
            again.append(of(item, 2))
        assert partial.read_bytes() == whole
    assert not out.exists()
    again.finish()
    assert out.read_bytes() == whole
    assert grown(out).complete


def test_a_file_of_another_job_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    growing = grown(out)
    growing.append(of(ITEMS[0], 2))
    with pytest.raises(RunFolderError, match="is of another job \\(seed was 0, is 1\\)"):
        grown(out, {"seed": 1})
    partial = tmp_path / "a.jsonl.partial"
    partial.write_bytes(partial.read_bytes().replace(b"alarm", b"alram", 1))
    with pytest.raises(RunFolderError, match="line 1 is not as a run left it"):
        grown(out)
    partial.rename(out)
    (tmp_path / "a.jsonl.job").unlink()
    with pytest.raises(RunFolderError, match=r"says how it was made, expected a.jsonl.job"):
        grown(out)


def test_two_do_not_write_one_file(tmp_path: Path) -> None:
    with locked(tmp_path / "a.jsonl"):
        pass
    with (
        locked(tmp_path / "a.jsonl"),
        pytest.raises(RunFolderError, match="another process is writing it"),
        locked(tmp_path / "a.jsonl"),
    ):
        pass


def test_details_that_could_not_be_written_beside_the_pairs_are_refused_at_once(
    tmp_path: Path,
) -> None:
    """They are read before a judge is paid and written after it."""
    import datetime

    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    for value in (datetime.datetime(2026, 1, 2), b"\xff", float("nan")):
        rows = [row(details={"of": value}, seed=None), row(details=None, seed=value)]
        pq.write_table(pa.Table.from_pylist(rows), path)
        with pytest.raises(DataError, match="details cannot be kept as JSON") as raised:
            read_answers(path, ITEMS)
        assert len(raised.value.problems) == 2
    half = tmp_path / "a.jsonl"
    half.write_text(json.dumps(row(details={"of": "\ud800"})) + "\n")
    with pytest.raises(DataError, match="line 1: details cannot be kept as JSON"):
        read_answers(half, ITEMS)


@pytest.mark.parametrize("name", ["answers.jsonl.gz", "answers.jsonl"])
def test_a_compressed_file_is_told_by_what_it_holds(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(gzip.compress(json.dumps(row()).encode() + b"\n"))
    with pytest.raises(DataError) as caught:
        read_answers(file, ITEMS)
    assert caught.value.problems == [
        f"{file}: is compressed (gzip), expected JSONL; unpack it first"
    ]
    with pytest.raises(DataError, match=r"is compressed \(gzip\), expected JSONL; unpack it first"):
        AnswersFile(file, ITEMS)


@pytest.mark.parametrize("suffix", [".json", ".csv", ".jsonl"])
def test_a_compressed_file_by_another_name_is_told_too(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"answers{suffix}"
    file.write_bytes(bz2.compress(b"[]"))
    with pytest.raises(DataError, match=r"is compressed \(bzip2\), expected"):
        read_answers(file, ITEMS)
    with pytest.raises(DataError, match=r"is compressed \(bzip2\), expected text; unpack it first"):
        load_items(str(file))
