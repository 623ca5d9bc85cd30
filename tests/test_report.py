"""report.json and report.md say what was measured, with intervals, and nothing that was not."""

import json
from dataclasses import asdict, replace

from xyreward.evaluation import PARTS, Evaluation, Row
from xyreward.policy import LogProb
from xyreward.report import build_report, to_json, to_markdown
from xyreward.verdict import JudgeFailure, Labels

GOAL = Labels(False, True, "intended", True)
LITERAL = Labels(True, False, "stated", False)
DIRECT = Labels(True, True, "stated", False)


def rows(tuned: bool) -> list[Row]:
    shift = 1.0 if tuned else 0.0
    out = []
    for i in range(12):
        control = i >= 8
        labels = DIRECT if control else (GOAL if tuned and i < 4 else LITERAL)
        out.append(
            Row(
                item_id=f"i{i}",
                kind="control" if control else "xy",
                source="t",
                domain="d",
                language="en",
                cluster=f"i{i}",
                answer="<script>alert(1)</script> | pipe",
                answer_tokens=7,
                truncated=False,
                verdict=asdict(labels),
                reward=1.0,
                soft_reward=0.5,
                better=LogProb(-10 + shift, 10),
                worse=LogProb(-10 - shift * (i % 2), 10),
                picked=0.5,
                picked_first=1.0,
                pick_margin=0.1,
            )
        )
    return out


def evaluation(tuned: bool, *more: Row) -> Evaluation:
    return Evaluation("p", (*rows(tuned), *more), "local", "local-1-abc", PARTS)


def test_every_number_of_the_table_has_an_interval() -> None:
    page = to_markdown(build_report(evaluation(False), evaluation(True)))
    rows_of_numbers = [ln for ln in page.splitlines() if ln.startswith("| ") and " n |" not in ln]
    rows_of_numbers = [ln for ln in rows_of_numbers if "**" not in ln]
    assert len(rows_of_numbers) == 23 + 2  # metrics, and what training moved
    for line in rows_of_numbers:
        for cell in line.split("|")[3:-1]:
            assert "[" in cell, line
            assert "]" in cell, line


def test_the_headline_and_the_change_are_those_of_the_rows() -> None:
    report = build_report(evaluation(False), evaluation(True))
    assert report["headline"]["before"]["value"] == 0.0  # 0/8 served + 4/4 direct - 1
    assert report["headline"]["after"]["value"] == 0.5  # 4/8 served + 4/4 direct - 1
    assert report["headline"]["change"]["value"] == 0.5
    (served,) = (m for m in report["metrics"] if m["key"] == "intended_solution")
    assert served["change"]["value"] == 0.5
    assert served["change"]["low"] <= 0.5 <= served["change"]["high"]
    assert report["implicit_reward"]["xy"]["accuracy"]["value"] == 1.0
    assert report["items"] == {"xy": 8, "control": 4}


def test_one_policy_alone_has_values_and_no_changes() -> None:
    report = build_report(evaluation(True))
    assert report["implicit_reward"] == {}
    assert all(m["after"] is None and m["change"] is None for m in report["metrics"])
    assert "| value |" in to_markdown(report)


def test_failures_stand_beside_the_metrics_with_their_bounds() -> None:
    lost = Row("lost", "xy", "t", "d", "en", "lost", answer="a", answer_tokens=1, truncated=False,
               failure=asdict(JudgeFailure("timeout", "late")))  # fmt: skip
    page = to_markdown(build_report(evaluation(False, lost), evaluation(True, lost)))
    assert "judge failures before, xy items: 1 of 9 (11.1%): 1 timeout" in page
    assert "11.1% of judgements on xy items failed" in page  # and no headline
    assert "(failures worst/best: 0 to 11)" in page


def test_text_from_data_does_not_reach_the_page() -> None:
    hostile = "<script>alert(1)</script> | `x`\n# Heading"
    report = build_report(
        replace(evaluation(False), policy=hostile),
        replace(evaluation(True), policy=hostile),
        facts={"sources": [hostile], hostile: {"a": hostile}},
    )
    report["notes"].append(hostile)
    page = to_markdown(report)
    assert "<script>" not in page
    assert "\n# Heading" not in page
    assert page.count("alert(1)") == 2 + 1 + 2 + 1  # policies, sources, key and value, a note


def test_the_json_is_strict_and_holds_what_the_page_shows() -> None:
    report = build_report(evaluation(False), evaluation(True), facts={"seed": 0})
    assert json.loads(to_json(report)) == json.loads(json.dumps(report))
    assert report["judge"] == "local"
    assert report["facts"] == {"seed": 0}


def test_a_report_of_the_same_rows_has_the_same_bytes() -> None:
    first = to_json(build_report(evaluation(False), evaluation(True)))
    assert first == to_json(build_report(evaluation(False), evaluation(True)))
