"""Calibration records: made from figures, kept, found for one judge and rubric only; stored verdicts."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from xyreward import Item, load_judge
from xyreward.agreement import figures
from xyreward.calibrate import (
    Record,
    add_stored,
    ask_judge,
    covered_by,
    keep,
    open_answers,
    record_for,
    records_folder,
    records_of,
)
from xyreward.errors import DataError, StoreError
from xyreward.items import text_hash
from xyreward.judges.scripted import ScriptedJudge
from xyreward.ratings import Labelled, read_answers
from xyreward.scoring import run_sync
from xyreward.store import StoredVerdict, VerdictStore
from xyreward.testing import make_item
from xyreward.verdict import JudgeFailure, Labels

GOAL = Labels(False, True, "intended", True)
LITERAL = Labels(True, False, "stated", False)
MODEL_ANSWERS = Path(__file__).parent / "data/model_answers.jsonl"
HASH = "0" * 64


def record(**fields: Any) -> Record:
    base = {
        "judge": "chat:qwen",
        "rubric_version": "xy-1-abc",
        "date": "2026-11-30",
        "xyreward": "0.1.0",
        "answers": 50,
        "annotators": 2,
        "source": [{"name": "labels.jsonl", "sha256": HASH}],
        "labels": {
            "focus": {"agreement": {"value": 0.8, "low": 0.7, "high": 0.9, "n": 50}, "failed": 3},
            "has_stated_solution": {"agreement": {"value": 1.0, "n": 50}, "failed": 0},
        },
    }
    return Record.model_validate({**base, **fields})


def labelled(tmp_path: Path, n: int = 4, people: int = 1) -> Labelled:
    """Answers 0..n-1 of `make_item` items; the people say goal, literal, goal, ..."""
    path = tmp_path / "labels.jsonl"
    rows = [
        {
            "item_id": f"i{i}",
            "answer": f"answer {i}",
            "annotator": f"p{p}",
            "labels": {
                "has_stated_solution": bool(i % 2),
                "has_intended_solution": not i % 2,
                "focus": "stated" if i % 2 else "intended",
                "identifies_misconception": not i % 2,
            },
        }
        for i in range(n)
        for p in range(people)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return read_answers([path])


def items(n: int = 4) -> dict[str, Item]:
    return {f"i{i}": make_item(id=f"i{i}", query=f"query {i}") for i in range(n)}


# ---------------------------------------------------------------- records


def test_a_record_holds_judge_rubric_source_date_and_the_figures(tmp_path: Path) -> None:
    found = labelled(tmp_path, people=2)
    script: dict[tuple[str | None, str], Labels | JudgeFailure] = {
        (f"i{i}", f"answer {i}"): GOAL for i in range(3)
    }
    script["i3", "answer 3"] = JudgeFailure("timeout", "x")
    judge = ScriptedJudge(script)
    assert run_sync(ask_judge(found, judge, open_answers(found, items()))) == 1
    labels = [figures(r) for r in found.ratings()]
    (made,) = records_of(labels, found, note="toy", on=date(2026, 11, 30))
    assert (made.judge, made.rubric_version) == ("scripted", judge.rubric_version)
    assert (made.answers, made.annotators, made.grounded) == (3, 2, True)
    assert made.source[0].name == "labels.jsonl"
    assert len(made.source[0].sha256) == 64
    focus = made.labels["focus"]
    assert focus.agreement.value == pytest.approx(2 / 3)
    assert focus.failed == 1
    assert focus.people is not None
    assert focus.people.value == 1
    assert Record.model_validate_json(made.to_json()) == made
    assert json.loads(made.to_json())["schema"] == 1


def test_without_a_judge_or_without_people_there_is_nothing_to_record(tmp_path: Path) -> None:
    found = labelled(tmp_path, people=2)
    with pytest.raises(DataError, match="nothing to record"):
        records_of([figures(r) for r in found.ratings()], found)


def test_two_sets_of_verdicts_of_one_judge_are_not_recorded_as_one(tmp_path: Path) -> None:
    found = labelled(tmp_path)
    for where, labels in (("a", GOAL), ("b", LITERAL)):
        found.add_judge("j", "r", dict.fromkeys(found.answers, labels), where=where)
    with pytest.raises(DataError, match="which of them is to be recorded"):
        records_of([figures(r) for r in found.ratings()], found)


def test_the_address_of_a_server_is_no_part_of_a_record(tmp_path: Path) -> None:
    found = labelled(tmp_path)
    outcomes = dict.fromkeys(found.answers, GOAL)
    found.add_judge("chat:qwen@http://127.0.0.1:8000/v1", "xy-1-abc", outcomes)
    (made,) = records_of([figures(r) for r in found.ratings()], found)
    assert made.judge == "chat:qwen"
    keep(made, tmp_path)
    again = record_for("chat:qwen@http://other:1/v1", "xy-1-abc", folder=tmp_path)
    assert again == made


def test_a_record_of_another_judge_or_rubric_does_not_count(tmp_path: Path) -> None:
    keep(record(), tmp_path)
    assert record_for("chat:qwen", "xy-1-abc", folder=tmp_path) is not None
    assert record_for("chat:qwen", "xy-1-abd", folder=tmp_path) is None
    assert record_for("chat:qwen2", "xy-1-abc", folder=tmp_path) is None
    assert record_for("chat:qwen", "xy-1-abc", grounded=False, folder=tmp_path) is None
    assert covered_by("chat:qwen", "xy-1-abd", folder=tmp_path) == (
        "no calibration record covers chat:qwen (xy-1-abd); there are records of xy-1-abc, which do not "
        "count: how far it agrees with people is not known; xyreward annotate and xyreward agree --record "
        "make one"
    )


def test_of_several_records_the_one_of_most_answers_counts_then_the_latest(tmp_path: Path) -> None:
    for n, (answers, day) in enumerate([(50, "01"), (80, "02"), (80, "03"), (20, "04")]):
        source = [{"name": "l", "sha256": f"{n}" * 64}]
        keep(record(answers=answers, date=f"2026-11-{day}", source=source), tmp_path)
    found = record_for("chat:qwen", "xy-1-abc", folder=tmp_path)
    assert found is not None
    assert (found.answers, str(found.date)) == (80, "2026-11-03")


def test_measuring_the_same_labels_again_replaces_the_record(tmp_path: Path) -> None:
    first, second = keep(record(), tmp_path), keep(record(date="2026-12-01"), tmp_path)
    assert first == second
    assert [p.name for p in tmp_path.iterdir()] == [first.name]
    assert keep(record(rubric_version="other"), tmp_path) != first


def test_the_line_has_figures_intervals_failures_and_date(tmp_path: Path) -> None:
    keep(record(note="hand-picked"), tmp_path)
    assert covered_by("chat:qwen", "xy-1-abc", folder=tmp_path) == (
        "chat:qwen (xy-1-abc) agrees with 2 people on 50 answers: stated solution 100 %, "
        "focus 80 % [70, 90]; failed on 3 (hand-picked; 2026-11-30)"
    )


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "\ud800", '{"schema": 2}', "[" * 100_000],
)
def test_a_damaged_record_is_named_and_no_obstacle(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    keep(record(), tmp_path)
    told = covered_by("chat:qwen", "xy-1-abc", folder=tmp_path)
    assert told.startswith("chat:qwen (xy-1-abc) agrees")
    assert "bad.json" in told
    assert told.endswith("no calibration record)")


@pytest.mark.parametrize(
    "fields",
    [
        {"schema": 2},
        {"answers": 0},
        {"judge": ""},
        {"source": []},
        {"labels": {}},
        {"labels": {"emphasis": {"agreement": {"value": 1, "n": 1}, "failed": 0}}},
        {"labels": {"focus": {"agreement": {"value": float("nan"), "n": 1}, "failed": 0}}},
        {"more": 1},
    ],
)
def test_what_is_no_record_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        record(**fields)


def test_the_folder_is_named_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XYREWARD_CALIBRATION", str(tmp_path / "cal"))
    assert records_folder() == tmp_path / "cal"
    assert "no calibration record covers" in covered_by("x", "y")  # no folder yet
    keep(record())
    assert record_for("chat:qwen", "xy-1-abc") is not None


def test_the_shipped_record_covers_the_local_judge_as_it_is_today(mini: list[Item]) -> None:
    judge = load_judge("local")
    found = read_answers([MODEL_ANSWERS])
    by_id = {item.id: item for item in mini}
    run_sync(ask_judge(found, judge, open_answers(found, by_id)))
    (made,) = records_of([figures(r) for r in found.ratings()], found)
    shipped = record_for("local", judge.rubric_version)
    command = (
        "xyreward agree tests/data/model_answers.jsonl --ask local --record --record-folder "
        "xyreward/data/calibration --note ..., and remove the old file"
    )
    assert shipped is not None, command
    assert shipped.source == made.source, command
    for label, figure in made.labels.items():
        assert shipped.labels[label].agreement.value == pytest.approx(figure.agreement.value), (
            command
        )
    assert "agrees with 1 person on 50 answers" in covered_by("local", judge.rubric_version)


# ---------------------------------------------------------------- a judge that is asked now


def test_verdicts_by_inferred_goals_are_another_rater(tmp_path: Path) -> None:
    found = labelled(tmp_path)
    of = {**items(), "i0": make_item(id="i0", query="query 0", meta={"inferred": True})}
    judge = ScriptedJudge({(f"i{i}", f"answer {i}"): GOAL for i in range(4)})
    assert run_sync(ask_judge(found, judge, open_answers(found, of))) == 0
    made = records_of([figures(r) for r in found.ratings()], found)
    assert {one.grounded: one.answers for one in made} == {True: 3, False: 1}


def test_rows_that_cannot_be_asked_about_are_all_named(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    rows = [
        {"item_id": "absent", "answer": "x"},
        {"item_id": "i0", "answer_hash": HASH},
        {"item_id": "i1", "answer": " "},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError) as error:
        open_answers(read_answers([path]), items())
    assert [p.partition(": ")[0] for p in error.value.problems] == [
        "l.jsonl row 1",
        "l.jsonl row 2",
    ]
    path.write_text(json.dumps(rows[2]) + "\n")
    assert open_answers(read_answers([path]), items()) == {}


def test_only_answers_that_a_verdict_can_be_compared_on_are_asked_about(tmp_path: Path) -> None:
    labelled(tmp_path, n=2)
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps({"item_id": "i3", "answer": "nobody labelled this"}) + "\n")
    asked = open_answers(read_answers([tmp_path / "labels.jsonl", more]), items())
    assert [text for _, text in asked.values()] == ["answer 0", "answer 1"]
    assert len(open_answers(read_answers([more]), items())) == 1


# ---------------------------------------------------------------- stored verdicts


def stored(
    n: int,
    labels: Labels,
    *,
    judge: str = "chat:old",
    vote: int = 0,
    key: str = "",
    rubric: str = "xy-0",
) -> StoredVerdict:
    item = items()[f"i{n}"]
    identity = {
        "judge": judge,
        "rubric_version": rubric,
        "query": item.content_hash[:16],
        "answer": text_hash(f"answer {n}")[:16],
        "vote": str(vote),
    }
    payload = {
        "labels": {
            "has_stated_solution": labels.has_stated_solution,
            "has_intended_solution": labels.has_intended_solution,
            "focus": labels.focus,
            "identifies_misconception": labels.identifies_misconception,
        },
        "suggestions": [],
        "reason": "",
        "flags": [],
    }
    name = key or f"{judge}-{rubric}-{n}-{vote}"
    return StoredVerdict(
        key=text_hash(name),
        kind="verdict",
        identity=identity,
        payload=json.dumps(payload),
        raw_text="",
    )


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with VerdictStore.open(tmp_path / "s" / "v.sqlite") as opened:
        yield opened


def cells_of(found: Labelled, judge: str, label: str = "focus") -> list[Any]:
    ratings = next(r for r in found.ratings() if r.label == label)
    return list(next(r for r in ratings.raters if r.name == judge).cells)


def test_stored_verdicts_of_a_judge_become_a_rater(store: VerdictStore, tmp_path: Path) -> None:
    store.add_many([stored(0, GOAL), stored(1, GOAL), stored(2, LITERAL, judge="chat:other")])
    found = labelled(tmp_path)
    assert add_stored(found, store, "chat:old@http://gone:1/v1", items()) == {"xy-0": 2}
    assert [c if isinstance(c, str) else c.value for c in cells_of(found, "chat:old")] == [
        "intended",
        "intended",
        "missing",
        "missing",
    ]
    agreement = next(figures(r) for r in found.ratings() if r.label == "focus").judges[0].mean
    assert agreement is not None
    assert (agreement.value, agreement.n) == (0.5, 2)


def test_votes_are_the_judges_own_majority(store: VerdictStore, tmp_path: Path) -> None:
    store.add_many([stored(0, one, vote=v) for v, one in enumerate([GOAL, LITERAL, GOAL])])
    store.add_many([stored(1, one, vote=v) for v, one in enumerate([GOAL, LITERAL])])
    found = labelled(tmp_path)
    add_stored(found, store, "chat:old", items())
    # Of two votes that are tied the focus that pays least counts.
    assert cells_of(found, "chat:old")[:2] == ["intended", "stated"]


def test_rubric_versions_are_not_pooled(store: VerdictStore, tmp_path: Path) -> None:
    store.add_many(
        [stored(0, GOAL), stored(0, LITERAL, rubric="xy-2"), stored(1, GOAL, rubric="xy-2")]
    )
    found = labelled(tmp_path)
    assert add_stored(found, store, "chat:old", items()) == {"xy-0": 1, "xy-2": 2}
    assert cells_of(found, "chat:old (xy-0)")[0] == "intended"
    assert cells_of(found, "chat:old (xy-2)")[:2] == ["stated", "intended"]


def test_verdicts_that_contradict_each_other_under_one_vote_are_left_out_and_counted(
    store: VerdictStore, tmp_path: Path
) -> None:
    store.add_many([stored(0, GOAL), stored(0, LITERAL, key="other effort"), stored(1, GOAL)])
    store.add_many([stored(1, GOAL, key="the same said again")])
    found = labelled(tmp_path)
    assert add_stored(found, store, "chat:old", items()) == {"xy-0": 1}
    assert found.notes[0].startswith("1 answers have stored verdicts of chat:old that contradict")


def test_a_store_without_the_judge_or_these_answers_says_what_it_has(
    store: VerdictStore, tmp_path: Path
) -> None:
    store.add_many([stored(0, GOAL, judge="chat:other")])
    with pytest.raises(StoreError, match="no verdict of chat:old; it has those of chat:other"):
        add_stored(labelled(tmp_path), store, "chat:old", items())
    with pytest.raises(StoreError, match="1 verdicts of chat:other, none on these answers"):
        add_stored(
            labelled(tmp_path),
            store,
            "chat:other",
            {k: make_item(id=k, query="new") for k in items()},
        )
    with pytest.raises(DataError, match="item_id 'i0' is not among the 0 items"):
        add_stored(labelled(tmp_path), store, "chat:other", {})


def test_an_edited_record_is_a_store_error(store: VerdictStore, tmp_path: Path) -> None:
    one = stored(0, GOAL)
    store.add_many(
        [
            StoredVerdict(
                key=one.key, kind="verdict", identity=one.identity, payload="{}", raw_text=""
            )
        ]
    )
    with pytest.raises(StoreError, match="is no verdict as this release writes it"):
        add_stored(labelled(tmp_path), store, "chat:old", items())
