"""Labels from files: what is joined, what is missing, what failed, and every problem named at once."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from xyreward.agreement import Gap, Ratings
from xyreward.errors import DataError
from xyreward.items import text_hash
from xyreward.ratings import LABELS, Labelled, read_answers, read_columns

GOOD = {
    "has_stated_solution": False,
    "has_intended_solution": True,
    "focus": "intended",
    "identifies_misconception": True,
}
BAD = {
    "has_stated_solution": True,
    "has_intended_solution": False,
    "focus": "stated",
    "identifies_misconception": False,
}


def write(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def columns(path: Path, **options: Any) -> tuple[Ratings, list[str]]:
    return read_columns(path, **{"humans": ["a", "b"], **options})


def cells(ratings: Ratings, name: str) -> list[Any]:
    return list(next(r for r in ratings.raters if r.name == name).cells)


# ---------------------------------------------------------------- columns


def test_missing_cells_failures_and_mapped_labels(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        [
            {"id": 1, "a": "1", "b": "Tie", "j": "garbage"},
            {"id": 2, "a": None, "b": "", "j": " 1 "},
            {"id": 3, "a": "0", "j": "2"},
        ],
    )
    found, notes = columns(path, judges=["j"], failure_labels=["garbage"], mapping={"Tie": "0"})
    assert cells(found, "a") == ["1", Gap.MISSING, "0"]
    assert cells(found, "b") == ["0", Gap.MISSING, Gap.MISSING]
    assert cells(found, "j") == [Gap.FAILED, "1", "2"]
    assert [r.role for r in found.raters] == ["human", "human", "judge"]
    assert notes == []


def test_a_table_of_any_kind_gives_the_same_labels(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"id": "x", "a": "1", "b": "2"}, {"id": "y", "a": "0", "b": None}]
    write(tmp_path / "t.jsonl", rows)
    (tmp_path / "t.csv").write_text("id,a,b\nx,1,2\ny,0,\n")
    (tmp_path / "t.json").write_text(json.dumps(rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    found = [columns(tmp_path / f"t.{s}")[0] for s in ("jsonl", "csv", "json", "parquet")]
    assert all(one == found[0] for one in found)
    assert cells(found[0], "b") == ["2", Gap.MISSING]


def test_whole_numbers_that_pandas_made_floats_are_numbers(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"a": [1.0, float("nan"), 0.0], "b": [1, 2, 0]})
    pq.write_table(table, tmp_path / "t.parquet")
    found, _ = columns(tmp_path / "t.parquet")
    assert cells(found, "a") == ["1", Gap.MISSING, "0"]
    assert cells(found, "b") == ["1", "2", "0"]


def test_a_label_that_is_text_here_and_a_number_there_is_a_problem(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [{"id": 1, "a": 0, "b": "0"}, {"id": 2, "a": "1", "b": "1"}])
    with pytest.raises(DataError) as error:
        columns(path)
    assert error.value.problems == [
        "label '0' is a number ('a', t.jsonl row 1) and text ('b', t.jsonl row 1); write it alike, or say "
        "that text is meant (--as-text)"
    ]
    found, _ = columns(path, as_text=True)
    assert cells(found, "a") == cells(found, "b") == ["0", "1"]


def test_true_is_not_1(tmp_path: Path) -> None:
    found, _ = columns(write(tmp_path / "t.jsonl", [{"id": 1, "a": True, "b": 1}]))
    assert cells(found, "a") == ["true"]
    assert cells(found, "b") == ["1"]


def test_all_problems_of_a_table_are_named_at_once(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        [
            {"id": 1, "a": "x", "b": [1], "annotator3": "x", "thread": "t"},
            {"id": 1, "a": 0.5, "b": "y", "annotator3": "x", "thread": None},
            {"a": "x", "b": "y", "annotator3": None, "thread": "t"},
            5,
        ],
    )
    with pytest.raises(DataError) as error:
        columns(path, judges=["anotator3", "a"], cluster_column="thread")
    text = "\n".join(error.value.problems)
    for part in (
        "t.jsonl row 4: is a int, expected an object",
        "columns named twice: 'a'",
        "no column 'anotator3'; did you mean 'annotator3'?",
        "row 2, 'id': 1 is there twice, first in t.jsonl row 1",
        "row 3, 'id': is empty",
        "row 1, 'b': is a list, expected text",
        "row 2, 'a': is a float, expected text, a whole number",
        "row 2, 'thread': is empty",
    ):
        assert part in text


def test_a_column_without_a_label_and_a_single_rater_are_problems(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [{"id": 1, "a": "x", "b": None}])
    with pytest.raises(DataError, match="column 'b' has no label in any row"):
        columns(path)
    with pytest.raises(DataError, match="1 columns named, expected two or more"):
        columns(path, humans=["a"])
    with pytest.raises(DataError, match="no such file"):
        columns(tmp_path / "absent.jsonl")
    with pytest.raises(DataError, match="has no rows"):
        columns(write(tmp_path / "empty.jsonl", []))


def test_what_was_asked_for_and_does_not_occur_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [{"a": "x", "b": "y"}])
    _, notes = columns(path, failure_labels=["garbge"], mapping={"tie": "0"})
    assert notes == [
        "'garbge' is a failure label and occurs in no column",
        "'tie' is mapped to another and occurs in no column",
        "no id column: rows given twice would be counted twice",
    ]


def test_clusters_come_from_their_column(tmp_path: Path) -> None:
    rows = [{"id": i, "a": "x", "b": "y", "thread": i // 2} for i in range(4)]
    found, _ = columns(write(tmp_path / "t.jsonl", rows), cluster_column="thread")
    assert found.clusters == ["0", "0", "1", "1"]


# ---------------------------------------------------------------- answers with the four labels


def person(n: int, labels: Any = GOOD, name: str | None = None, **more: Any) -> dict[str, Any]:
    row = {"item_id": f"i{n}", "answer": f"answer {n}", "labels": labels, **more}
    return row if name is None else {**row, "annotator": name}


def scored(
    n: int, labels: Any = GOOD, judge: str = "j", rubric: str = "r1", **more: Any
) -> dict[str, Any]:
    verdict = None if labels is None else {**labels, "grounded": True}
    return {
        "item_id": f"i{n}",
        "answer": f"answer {n}",
        "reward": None if labels is None else 1.0,
        "verdict": verdict,
        "failure": None if labels is not None else {"kind": "timeout"},
        "judge": judge,
        "rubric_version": None if labels is None else rubric,
        **more,
    }


def names(found: Labelled) -> list[str]:
    return [rater.name for rater in found.ratings()[0].raters]


def test_people_and_a_scored_file_are_joined_by_item_and_answer(tmp_path: Path) -> None:
    labels = write(
        tmp_path / "labels.jsonl",
        [person(1), person(2, BAD), person(3, name="ann"), person(1, BAD, name="ann")],
    )
    # Another order, another white space, one that nobody labelled, one that failed.
    rows = [scored(9), scored(2), {**scored(1, BAD), "answer": "answer  1\n"}, scored(3, None)]
    found = read_answers([write(tmp_path / "v.jsonl", rows), labels])
    assert names(found) == ["labels", "ann", "j"]
    by_label = {r.label: {x.name: list(x.cells) for x in r.raters} for r in found.ratings()}
    keys = [found.answers[k].item_id for k in found.answers]
    assert keys == ["i9", "i2", "i1", "i3"]
    missing, failed = Gap.MISSING, Gap.FAILED
    assert by_label["focus"]["labels"] == [missing, "stated", "intended", missing]
    assert by_label["focus"]["ann"] == [missing, missing, "stated", "intended"]
    assert by_label["focus"]["j"] == ["intended", "intended", "stated", failed]
    assert by_label["has_stated_solution"]["j"] == ["no", "no", "yes", failed]
    assert set(by_label) == {*LABELS, "focus, neither left out"}
    assert found.judges() == {"j": ("j", "r1", True)}


def test_the_papers_focus_leaves_neither_out(tmp_path: Path) -> None:
    rows = [person(1, {**GOOD, "focus": "neither"}), person(2)]
    found = read_answers(
        [write(tmp_path / "a.jsonl", rows), write(tmp_path / "v.jsonl", [scored(1), scored(2)])]
    )
    three = next(r for r in found.ratings() if r.label.startswith("focus,"))
    assert [list(r.cells) for r in three.raters] == [
        [Gap.MISSING, "intended"],
        ["intended", "intended"],
    ]


def test_labels_may_be_columns_and_some_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "l.csv"
    path.write_text(
        "item_id,answer,annotator,has_stated_solution,focus\n"
        "i1,answer 1,ann,no,intended\ni2,answer 2,ann,TRUE,\n"
    )
    found = read_answers([path, write(tmp_path / "v.jsonl", [scored(1), scored(2)])])
    by_label = {r.label: list(r.raters[0].cells) for r in found.ratings()}
    assert by_label["has_stated_solution"] == ["no", "yes"]
    assert by_label["focus"] == ["intended", Gap.MISSING]
    assert by_label["identifies_misconception"] == [Gap.MISSING, Gap.MISSING]


def test_labels_that_a_scored_file_carried_over_are_no_second_person(tmp_path: Path) -> None:
    both = write(tmp_path / "v.jsonl", [{**scored(1), "labels": BAD}])
    alone = read_answers([both])
    assert names(alone) == ["v", "j"]
    labels = write(tmp_path / "labels.jsonl", [person(1, BAD)])
    assert names(read_answers([both, labels])) == ["labels", "j"]


def test_verdicts_of_other_rubrics_and_files_are_other_raters(tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", [scored(1), scored(2, rubric="r2")])
    assert names(read_answers([one, write(tmp_path / "l.jsonl", [person(1)])])) == [
        "l",
        "j (r1)",
        "j (r2)",
    ]
    again = write(tmp_path / "again.jsonl", [scored(1, BAD)])
    first = write(tmp_path / "first.jsonl", [scored(1)])
    found = names(read_answers([first, again]))
    assert found == ["j (first.jsonl)", "j (again.jsonl)"]


def test_verdicts_on_inferred_goals_are_another_rater(tmp_path: Path) -> None:
    bare = scored(2)
    bare["verdict"] = {**GOOD, "grounded": False}
    del bare["item_id"]
    bare["query"] = "how do I?"
    found = read_answers([write(tmp_path / "v.jsonl", [scored(1), bare])])
    assert set(found.judges().values()) == {("j", "r1", True), ("j", "r1", False)}


def test_a_bare_query_is_joined_by_its_text(tmp_path: Path) -> None:
    labels = {"query": "how do\nI?", "answer": "so", "labels": BAD}
    judged = scored(0)
    judged.update(query=[{"role": "user", "content": "how do I?"}], answer="so")
    del judged["item_id"]
    judged["verdict"] = {**GOOD, "grounded": False}
    paths = [write(tmp_path / "l.jsonl", [labels]), write(tmp_path / "v.jsonl", [judged])]
    assert [len(r.cells) for r in read_answers(paths).ratings()[0].raters] == [1, 1]


def test_empty_answers_are_left_out_since_no_judge_saw_them(tmp_path: Path) -> None:
    rows = [scored(1), {**scored(2, BAD, judge="empty answer"), "answer": " "}]
    found = read_answers(
        [write(tmp_path / "v.jsonl", rows), write(tmp_path / "l.jsonl", [person(1)])]
    )
    assert names(found) == ["l", "j"]
    assert found.notes == ["1 empty answers are left out: no judge is asked about them"]


def test_an_answer_may_be_named_by_its_hash(tmp_path: Path) -> None:
    row = {"item_id": "i1", "answer_hash": text_hash("answer 1"), "labels": BAD}
    found = read_answers(
        [write(tmp_path / "l.jsonl", [row]), write(tmp_path / "v.jsonl", [scored(1)])]
    )
    assert len(found.answers) == 1
    assert next(iter(found.answers.values())).text == "answer 1"


def test_all_problems_of_all_files_are_named_at_once(tmp_path: Path) -> None:
    labels = write(
        tmp_path / "l.jsonl",
        [
            person(1),
            {**person(1), "labels": BAD},
            person(2, {**GOOD, "focus": "both"}),
            person(3, {**GOOD, "identifies_misconception": 1}),
            person(4, {**GOOD, "emphasis": "x"}),
            {"answer": "x", "labels": GOOD},
            {"item_id": "i5", "labels": GOOD},
            person(6, name=""),
            person(7, "good"),
        ],
    )
    verdicts = write(
        tmp_path / "v.jsonl",
        [
            {**scored(1), "rubric_version": None},
            {**scored(2), "verdict": {"focus": "stated"}},
            {**scored(3), "verdict": None},
            {**scored(4), "judge": 3},
            scored(5),
            scored(6, rubric="r2"),
            scored(7, None),
        ],
    )
    with pytest.raises(DataError) as error:
        read_answers([labels, verdicts, tmp_path / "absent.jsonl"])
    text = "\n".join(error.value.problems)
    for part in (
        "l.jsonl row 2: 'l' labelled this answer to 'i1' already, in l.jsonl row 1",
        "l.jsonl row 3: focus is 'both', expected one of stated",
        "l.jsonl row 4: identifies_misconception is a int 1, expected true or false",
        "l.jsonl row 5: labels has 'emphasis'; known are",
        "l.jsonl row 6: has neither item_id nor query",
        "l.jsonl row 7: has no answer, expected the text",
        "l.jsonl row 8: annotator is ''",
        "l.jsonl row 9: labels is text, expected an object",
        "v.jsonl row 1: rubric_version is None",
        "v.jsonl row 2: verdict has no has_stated_solution",
        "v.jsonl row 3: has neither verdict nor failure",
        "v.jsonl row 4: judge is 3",
        "v.jsonl row 7: a failure of 'j', whose verdicts in this file have several rubric versions (r1, r2)",
        "absent.jsonl: no such file",
    ):
        assert part in text
    assert len(error.value.problems) == 14


def test_a_single_rater_and_labels_without_overlap_are_told(tmp_path: Path) -> None:
    labels = write(tmp_path / "l.jsonl", [person(1)])
    with pytest.raises(DataError, match="raters found: l; expected two or more"):
        read_answers([labels]).ratings()
    with pytest.raises(DataError, match="no answer was labelled by two raters"):
        read_answers([labels, write(tmp_path / "v.jsonl", [scored(2)])]).ratings()


def test_answers_to_one_item_are_a_cluster(tmp_path: Path) -> None:
    rows = [person(1), {**person(1), "answer": "other"}, person(2)]
    judged = [scored(1), {**scored(1), "answer": "other"}, scored(2)]
    paths = [write(tmp_path / "l.jsonl", rows), write(tmp_path / "v.jsonl", judged)]
    found = read_answers(paths)
    assert found.ratings()[0].clusters == ["i1", "i1", "i2"]
    assert found.ratings({"i2": "i1"})[0].clusters == ["i1", "i1", "i1"]
