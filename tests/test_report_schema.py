"""Every key of report.json is declared, explained, and read back, that of earlier versions too."""

import json
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import DIRECT, GOAL, LITERAL, evaluation, failed, row

from xyreward.errors import DataError
from xyreward.evaluation import Evaluation, Row
from xyreward.items import ItemKind
from xyreward.policy import LogProb
from xyreward.report import SCHEMA, build_report, read_report, to_json, to_markdown
from xyreward.report_schema import Report, json_schema, keys
from xyreward.verdict import FOCUS_VALUES, JudgeFailure, Labels

ROOT = Path(__file__).parent.parent
OLD = ROOT / "tests/data/report-1.json"
"""Of a run of the quickstart, as version 1 of the schema had it."""


def full(tuned: bool) -> list[Row]:
    rows = [
        row(
            f"i{n}",
            (GOAL if tuned and n % 2 else LITERAL) if n < 44 else DIRECT,
            "xy" if n < 44 else "control",
            source="so" if n % 2 else "wiki",
            domain=f"d{n % 9}",
            answer="text",
            truncated=False,
            soft_reward=0.5,
            better=LogProb(-10 + tuned, 10),
            worse=LogProb(-12, 10),
            picked=0.5,
            picked_first=1.0,
            pick_margin=0.3,
        )
        for n in range(66)
    ]
    verdict = {
        **asdict(GOAL),
        "votes": 2,
        "p": {
            "has_stated_solution": 0.5,
            "has_intended_solution": 1.0,
            "focus": {"stated": 0.0, "intended": 0.5, "balanced": 0.5, "neither": 0.0},
            "identifies_misconception": 1.0,
        },
    }
    return [*rows, replace(rows[0], item_id="voted", verdict=verdict), failed("lost")]


def reports() -> dict[str, dict[str, Any]]:
    before, after = (evaluation(*full(tuned)) for tuned in (False, True))
    one = evaluation(row("a", GOAL), parts=("writing",))
    return {
        "two policies": build_report(
            before,
            after,
            conditions={
                "before.oracle": replace(after, parts=("writing",)),
                "reference.literal": one,
            },
            facts={"sources": ["a"], "seconds": {"x": 1.5}, "n": 3},
            max_failure_rate=1,
        ),
        "failures": build_report(before, after, max_failure_rate=0),
        "one policy": build_report(before),
        "one row": build_report(one),
        "nothing judged": build_report(
            evaluation(row("a"), parts=("picking",), judge=None, rubric_version=None)
        ),
        "no rows": build_report(evaluation()),
    }


@pytest.mark.parametrize("name", reports())
def test_reports_have_the_declared_keys_and_no_others(name: str) -> None:
    report = json.loads(to_json(reports()[name]))
    Report.model_validate(report)
    assert set(report) == {field.alias or name for name, field in Report.model_fields.items()}
    assert read_report(to_json(report)) == report


WHOLE = build_report(evaluation(row("a", GOAL)), evaluation(row("a", LITERAL)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"more": 1}, "more: Extra inputs"),
        ({"items": {"xy": 1}}, r"items\.control: Field required"),
        ({"items": {"xy": "1", "control": 0}}, r"items\.xy: Input should be a valid integer"),
        (
            {"metrics": [{**WHOLE["metrics"][0], "better": "lowest"}]},
            r"metrics\.0\.better: Input should be 'higher', 'lower' or ''",
        ),
        (
            {"label_tests": [{**WHOLE["label_tests"][0], "p": 1.5}]},
            r"label_tests\.0\.p: Input should be less than or equal to 1",
        ),
        ({"headline": {"later": WHOLE["headline"]["before"]}}, r"headline\.later.*'before'"),
    ],
)
def test_a_key_that_is_missing_unknown_or_of_another_type_is_named(
    change: dict[str, Any], says: str
) -> None:
    read_report(json.dumps(WHOLE))
    with pytest.raises(DataError, match=says):
        read_report(json.dumps({**WHOLE, **change}))


def test_the_packaged_schema_is_that_of_the_declaration() -> None:
    packaged = resources.files("xyreward").joinpath("report.schema.json").read_text("utf-8")
    assert json.loads(packaged) == json_schema(), (
        "run: python -m xyreward.report_schema schema > xyreward/report.schema.json"
    )
    assert json_schema()["properties"]["schema"]["const"] == SCHEMA


def test_every_key_of_the_schema_has_a_meaning_and_stands_in_the_docs() -> None:
    schema = json_schema()
    for node in [schema, *schema["$defs"].values()]:
        assert node["description"]
        assert all(field["description"] for field in node["properties"].values())
    page = (ROOT / "docs/report.md").read_text("utf-8")
    assert keys().strip() in page, "run: python -m xyreward.report_schema keys"


def test_a_report_of_schema_1_is_read_and_shown() -> None:
    old = json.loads(OLD.read_text("utf-8"))
    assert old["schema"] == 1
    page = to_markdown(old)
    assert "| stated solution, % | 41 | 2 [0, 12] | 5 [0, 17] | +2 [+0, +12] |" in page
    assert "## What training moved" in page
    assert "Did labels change?" not in page
    read = read_report(OLD.read_text("utf-8"))
    assert read["schema"] == SCHEMA
    assert read["label_tests"] == read["conditions"] == read["breakdown"]["source"] == []
    assert read["picking_writing_gap"] == {"before": None, "after": None, "change": None}
    assert to_markdown(read) == page
    assert {key: read[key] for key in old if key != "schema"} == {
        key: value for key, value in old.items() if key != "schema"
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"run/report\.json: is no JSON \(Expecting value.*\), expected a report"),
        ("[1]", "schema is None, expected 1 or 2"),
        ('{"schema": 3}', "schema is 3, expected 1 or 2; a report of a later version needs"),
        ('{"schema": true}', "schema is True, expected"),
        ('{"schema": 1}', "policies: Field required"),
        ('{"schema": 1, "policies": 3}', "policies: Input should be"),
        ('{"schema": 2, "judge": NaN}', "is no JSON"),
    ],
)
def test_what_is_no_report_is_named(text: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        read_report(text, "run/report.json")


# ---------------------------------------------------------------- any rows

LABELS = st.builds(
    Labels, st.booleans(), st.booleans(), st.sampled_from(FOCUS_VALUES), st.booleans()
)


@st.composite
def an_item(draw: st.DrawFn, n: int) -> tuple[Row, Row]:
    """One item as two policies were measured on it, by chance without labels, picks, log-probabilities."""
    kinds: list[ItemKind] = ["xy", "control"]
    kind = draw(st.sampled_from(kinds))
    shared = {name: draw(st.sampled_from(["a", "b", ""])) for name in ("source", "domain")}
    cluster = draw(st.sampled_from(["c", f"i{n}"]))

    def one() -> Row:
        labels = draw(st.one_of(st.none(), LABELS))
        answer = draw(st.one_of(st.just(""), st.text(max_size=8)))
        known = draw(st.booleans())
        return row(
            f"i{n}", labels, kind, **shared, cluster=cluster, answer=answer, truncated=known,
            failure=None if labels else asdict(JudgeFailure("refused", "no")),
            soft_reward=draw(st.floats(0, 1)) if labels else None,
            better=LogProb(draw(st.floats(-1e3, 0)), 5) if known else None,
            worse=LogProb(draw(st.floats(-1e3, 0)), 7) if known else None,
            picked=draw(st.sampled_from([0.0, 0.5, 1.0])) if known else None,
            picked_first=0.5 if known else None,
            pick_margin=draw(st.floats(-9, 9)) if known else None,
        )  # fmt: skip

    return one(), one()


@settings(max_examples=15, deadline=None)
@given(st.data(), st.integers(1, 12))
def test_of_any_rows_a_report_is_valid_shown_and_the_same_from_its_files(
    data: st.DataObject, n: int
) -> None:
    pairs = [data.draw(an_item(i)) for i in range(n)]
    before, after = (evaluation(*(pair[i] for pair in pairs)) for i in (0, 1))
    conditions = {"before.oracle": replace(after, parts=("writing",))}
    text = to_json(build_report(before, after, conditions=conditions, max_failure_rate=0.5))
    report = read_report(text)
    page = to_markdown(report)
    assert "nan" not in page
    files = [Evaluation.from_jsonl(one.to_jsonl()) for one in (before, after)]
    again = build_report(*files, conditions=conditions, max_failure_rate=0.5)
    assert to_json(again) == text
    assert to_markdown(again) == page
