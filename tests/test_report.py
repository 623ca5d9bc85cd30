"""report.json and report.md say what was measured, with intervals, and nothing that was not."""

import json
import re
import unicodedata
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from xyreward.config import PARTS
from xyreward.evaluation import Evaluation, Row
from xyreward.markdown import printable
from xyreward.policy import LogProb
from xyreward.report import EXPLAINED, build_report, to_json, to_markdown
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


def test_every_row_and_column_is_explained_with_its_direction() -> None:
    page = (Path(__file__).parent.parent / "docs/report.md").read_text("utf-8")
    report = build_report(evaluation(False), evaluation(True))
    printed = to_markdown(report)
    assert EXPLAINED in printed
    rows_of_table = [ln.split("|")[1].strip() for ln in printed.splitlines() if ln[:2] == "| "]
    header = next(ln for ln in printed.splitlines() if ln.startswith("|  | n | moved"))
    wanted = [r for r in rows_of_table if r and "**" not in r]
    # metrics, tested labels, what training moved, picking against writing
    assert len(wanted) == 26 + 5 + 2 + 3
    for row in wanted:
        assert f"| {row} |" in page or f"*{row}*" in page, row
    for column in header.split("|")[3:-1]:
        assert f"| {column.strip()} |" in page, column


def test_why_there_is_no_interval_and_what_three_counts_mean_is_said() -> None:
    before, after = evaluation(False), evaluation(True)
    page = to_markdown(build_report(before, after))
    assert "[no interval: 12 all alike]" in page  # the length of 12 equal answers
    assert "Where n is three numbers" not in page
    neither = replace(after.rows[0], verdict=asdict(Labels(False, False, "neither", False)))
    page = to_markdown(build_report(before, replace(after, rows=(neither, *after.rows[1:]))))
    assert "| focus stated, of the paper's three, % | 8 / 7 / 7 |" in page
    assert "Where n is three numbers: measured before / after / both times" in page
    alone = replace(before, rows=before.rows[:1])
    page = to_markdown(build_report(alone))
    assert "[no interval: one cluster]" in page
    assert "no controls; add {source: mini, kinds: [control]} to items" in page


def test_every_number_of_the_table_has_an_interval() -> None:
    page = to_markdown(build_report(evaluation(False), evaluation(True)))
    page, _, tests = page.partition("## Did labels change?")
    page += tests.partition("##")[2]  # tests have no intervals
    rows_of_numbers = [ln for ln in page.splitlines() if ln.startswith("| ") and " n |" not in ln]
    rows_of_numbers = [ln for ln in rows_of_numbers if "**" not in ln]
    # metrics, what training moved, picking against writing
    assert len(rows_of_numbers) == 26 + 2 + 3
    for line in rows_of_numbers:
        for cell in filter(str.strip, line.split("|")[3:-1]):
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
    assert "without labels, before, items with a hidden goal: 1 of 9 answers (11.1 % [" in page
    assert "]): 1 timeout\n" in page
    assert "11.1 % of judgements on items with a hidden goal failed" in page  # and no headline
    assert "(with failures: 0 to 11)" in page


HOSTILE = [
    "<script>alert(1)</script> | `x`\n# Heading",
    "![track](https://evil.example/p.png) alert(1)",
    "[alert(1)](javascript:alert)",
    "https://evil.example/alert(1)",
    "www.evil.example alert(1)",
    "a@evil.example alert(1)",
    "<https://evil.example> alert(1)",
    "**alert(1)** _x_ ~~y~~",
    "\x1b]8;;https://evil.example\x07alert(1)\x1b[31m\x9b2J",
    "\u202egro.live\u2066 alert(1)",
    "``` alert(1)",
    "&#60;b&#62; alert(1) \\",
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_text_from_data_does_not_reach_the_page_but_as_code(hostile: str) -> None:
    report = build_report(
        replace(evaluation(False), policy=hostile, judge=hostile, rubric_version=hostile),
        replace(evaluation(True), policy=hostile, judge=hostile, rubric_version=hostile),
        facts={"sources": [hostile], hostile: {"a": hostile}},
    )
    report["notes"].append(hostile)
    page = to_markdown(report)
    # policies, judge, rubric, source, key and value, a note
    assert page.count("alert(1)") == 8 * hostile.count("alert(1)")
    outside = re.sub("`[^`\n]*`", "", page)  # what Markdown reads as text
    assert "alert" not in outside
    assert "evil" not in outside
    assert "<script>" not in page
    assert "\n# Heading" not in page
    assert {unicodedata.category(c)[0] for c in page.replace("\n", "")} & {"C"} == set()
    assert printable(page) == page


@pytest.mark.parametrize(
    "text",
    ["mini: 240 of 240 items", "prompt longer than max_length", "8.27", "0%", "Größe, 大小 (x/y)"],
)
def test_harmless_text_is_shown_as_it_is(text: str) -> None:
    report = build_report(evaluation(False), facts={"sources": [text]})
    assert f"- sources: {text}\n" in to_markdown(report)


def test_what_steers_a_terminal_is_shown_as_an_escape() -> None:
    assert printable("a\x1b[31m\x9b\u202eb\n\tc\ud800") == "a\\x1b[31m\\x9b\\u202eb\n\tc\\ud800"
    assert printable("Größe 大小 \U0001f600") == "Größe 大小 \U0001f600"


def test_the_json_is_strict_and_holds_what_the_page_shows() -> None:
    report = build_report(evaluation(False), evaluation(True), facts={"seed": 0})
    assert json.loads(to_json(report)) == json.loads(json.dumps(report))
    assert report["judge"] == "local"
    assert report["facts"]["seed"] == 0


def test_a_report_does_not_depend_on_the_machine_that_builds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A record of the user's that covers the judge, none, and a folder that cannot be read."""
    of_user = tmp_path / "records"
    of_user.mkdir()
    told = set()
    for folder in (of_user, tmp_path / "none", Path(__file__)):
        monkeypatch.setenv("XYREWARD_CALIBRATION", str(folder))
        for judge in ("local", None):
            found = replace(evaluation(False), judge=judge)
            assert build_report(found)["facts"] == {}
            told.add(to_json(build_report(found, facts={"judge against people": "as recorded"})))
        if folder.is_dir():
            (of_user / "theirs.json").write_text("no record, and so told where anybody looks")
    assert len(told) == 2


def test_a_report_of_the_same_rows_has_the_same_bytes() -> None:
    first = to_json(build_report(evaluation(False), evaluation(True)))
    assert first == to_json(build_report(evaluation(False), evaluation(True)))
