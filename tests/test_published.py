"""Published ranges stand beside figures on the benchmark's own items, and nowhere in statistics."""

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from rows import DIRECT, GOAL, LITERAL, evaluation, row

from xyreward.evaluation import Evaluation
from xyreward.metrics import METRICS
from xyreward.published import ALL_SOURCES, STACK_OVERFLOW, Band, Published, beside_of_report
from xyreward.report import build_report, to_json, to_markdown
from xyreward.report_page import write_page


def on(*sources: str, judge: str | None = "local") -> Evaluation:
    rows = [row(f"i{n}", GOAL if n % 2 else LITERAL, source=s, picked=1.0, picked_first=0.5,
                pick_margin=1.0) for n, s in enumerate(sources * 4)]  # fmt: skip
    rows += [row(f"c{n}", DIRECT, "control", source="mini") for n in range(3)]
    return evaluation(*rows, judge=judge)


def test_the_file_holds_ranges_of_our_metrics_and_no_row_of_a_model() -> None:
    published = Published.load()
    assert published.judge == "Claude Sonnet 4.5"
    assert {b.metric for b in published.bands} <= {m.key for m in METRICS}
    assert {b.over for b in published.bands} == {
        "five models", "six models (GPT-4.1 added)", "human answers",
    }  # fmt: skip
    for band in published.bands:
        assert band.items in (STACK_OVERFLOW, ALL_SOURCES)
        known = [end for end in (band.low, band.high) if end is not None]
        assert known == sorted(known)
        assert all(1 < end <= 100 for end in known)  # per cent
    text = resources.files("xyreward").joinpath("published.json").read_text("utf-8")
    (models,) = [line for line in text.splitlines() if '"models"' in line]
    for name in json.loads(text)["models"].split(", "):
        assert text.count(name) == models.count(name) == 1


def test_a_band_reads_as_a_range() -> None:
    assert str(Band("m", "i", 75, 86, "five models")) == "75-86"
    assert str(Band("m", "i", None, 63, "five models")) == "at most 63"
    assert str(Band("m", "i", 2.5, None, "five models")) == "at least 2.5"


@pytest.mark.parametrize("name", ["Stack Overflow", "stackoverflow", "stack_overflow"])
def test_on_stack_overflow_alone_its_bands_stand_beside(name: str) -> None:
    found = Published.load().beside([name, name])
    assert found is not None
    items, bands = found
    assert items == STACK_OVERFLOW
    assert {key: str(band) for key, band in bands.items()} == {
        "stated_solution": "75-86",
        "intended_solution": "59-71",
        "paper_focus_intended": "35-41",
        "paper_focus_stated": "47-57",
    }


@pytest.mark.parametrize(
    "sources", [["Stack Overflow", "WikiHow"], ["allenai/XYBench-dataset"], ["curated"]]
)
def test_on_other_items_of_the_benchmark_those_of_all_sources_do(sources: list[str]) -> None:
    found = Published.load().beside(sources)
    assert found is not None
    items, bands = found
    assert items == ALL_SOURCES
    assert str(bands["misconception"]) == "at most 63"  # the models', not the 79-90 of people
    assert str(bands["picking"]) == "71-84"


@pytest.mark.parametrize("sources", [["mini"], ["Stack Overflow", "mini"], [""], []])
def test_on_any_other_item_none_does(sources: list[str]) -> None:
    assert Published.load().beside(sources) is None


def test_the_table_has_the_column_only_for_the_benchmarks_items() -> None:
    page = to_markdown(build_report(on("Stack Overflow")))
    (focus,) = [ln for ln in page.splitlines() if ln.startswith("| focus intended, of the paper's")]
    assert focus.endswith("| 35-41 |")
    (ours,) = [ln for ln in page.splitlines() if ln.startswith("| focus intended, % ")]
    assert ours.endswith("|  |")  # of our four shares, which the paper does not have
    assert "judge Claude Sonnet 4.5; yours is `local`." in page
    main = page.partition("\n## ")[0]
    tables = [ln.count("|") for ln in main.splitlines() if ln.startswith("|")]
    assert set(tables) == {5}
    assert "What the paper published" not in page

    page = to_markdown(build_report(on("mini")))
    assert "published range" not in page
    assert page.index("## Notes") > page.index("## What the paper published")
    assert "For orientation, not for comparison: other items and another judge." in page
    assert "five models on Stack Overflow: stated solution 75-86, intended solution 59-71" in page
    assert "human answers on all sources: misconception identified 79-90" in page


def test_bands_change_no_figure() -> None:
    def figures(evaluation: Evaluation) -> object:
        report = build_report(evaluation, evaluation)
        del report["breakdown"]["source"]  # named by the sources
        return {k: v for k, v in report.items() if k != "published"}

    assert figures(on("Stack Overflow")) == figures(on("mini"))
    report = build_report(on("mini"))
    assert json.loads(to_json(report))["published"]["beside"] is None
    old = {k: v for k, v in report.items() if k != "published"}  # a report of an earlier version
    assert "Published" not in to_markdown(old)


def test_where_nothing_was_judged_no_judge_is_named() -> None:
    bare = replace(on("curated", judge=None), parts=("picking",))
    page = to_markdown(build_report(bare))
    assert "here nothing was judged" in page
    assert "| 71-84 |" in page


# ---------------------------------------------------------------- the other tables


def many(*sources: str) -> Evaluation:
    """20 items of each source, half of them answered by the goal; all picked right."""
    rows = [
        row(f"{s}{n}", GOAL if n % 2 else LITERAL, source=s, domain=f"d{n % 2}", language="en", picked=1.0,
            picked_first=0.5, pick_margin=1.0)
        for s in sources for n in range(20)
    ]  # fmt: skip
    return evaluation(*rows)


def section(page: str, heading: str) -> str:
    return page.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def last_rows(page: str, heading: str) -> list[list[str]]:
    """The rows of a section's table that are published ranges, by cell; they come last."""
    lines = [ln for ln in section(page, heading).splitlines() if ln.startswith("|")]
    rows = [[cell.strip() for cell in ln.strip("|").split("|")] for ln in lines[2:]]
    assert {len(one) for one in rows} == {lines[0].count("|") - 1}
    of_paper = [one for one in rows if one[0].startswith("published: ")]
    assert rows[len(rows) - len(of_paper) :] == of_paper
    return of_paper


OF_FIVE = "published: five models on {}"


def with_conditions(found: Evaluation) -> dict[str, Any]:
    told = replace(found, parts=("writing",), condition="oracle")
    own = replace(found, parts=("writing",), condition="reference:goal_focused")
    return build_report(found, conditions={"before.oracle": told, "reference.goal_focused": own})


def test_groups_have_the_ranges_of_their_items_below_them() -> None:
    page = to_markdown(build_report(many("Stack Overflow", "WikiHow")))
    # n, intended solution, focus intended (of our four, which the paper lacks), misconception
    assert last_rows(page, "By source") == [
        [OF_FIVE.format("Stack Overflow"), "", "59-71", "", ""],
        [OF_FIVE.format("all sources"), "", "33-71", "", "at most 63"],
    ]
    assert last_rows(page, "By domain") == [
        [OF_FIVE.format("all sources"), "", "33-71", "", "at most 63"]
    ]
    for heading in ("By source", "By domain"):
        assert "judge Claude Sonnet 4.5" in section(page, heading)
        assert "yours is `j`." in section(page, heading)
    page = to_markdown(build_report(many("Stack Overflow", "stackoverflow")))
    assert last_rows(page, "By source") == last_rows(page, "By domain")
    assert last_rows(page, "By domain") == [[OF_FIVE.format("Stack Overflow"), "", "59-71", "", ""]]


def test_told_policies_references_and_picks_have_the_ranges_of_their_columns() -> None:
    page = to_markdown(with_conditions(many("Stack Overflow", "WikiHow")))
    told = section(page, "Told the goal")
    assert "published range, not told, %" in told
    ends = {
        ln.split("|")[1].strip(): ln.split("|")[-2].strip() for ln in told.splitlines() if "|" in ln
    }
    assert ends["stated solution, %"] == "75-92"
    assert ends["intended solution, % ↑"] == "33-71"
    assert ends["focus intended, % ↑"] == ends["intended solution and focus, % ↑"] == ""
    assert ends["misconception identified, % ↑"] == "at most 63"
    assert last_rows(page, "Reference answers") == [
        [OF_FIVE.format("all sources"), "", "75-92", "33-71", "", "at most 63"],
        ["published: human answers on all sources", "", "", "", "", "79-90"],
    ]
    assert last_rows(page, "Picking against writing") == [
        ["published: six models (GPT-4.1 added) on all sources", "", "71-84", "", "", ""]
    ]
    for heading in ("Told the goal", "Reference answers", "Picking against writing"):
        assert "XYBench (Ai2, EMNLP 2026)" in section(page, heading)


def test_the_page_with_charts_has_the_same_rows(tmp_path: Path) -> None:
    found = many("Stack Overflow", "WikiHow")
    write_page(tmp_path, with_conditions(found), {"before": found})
    page = (tmp_path / "report.html").read_text("utf-8")
    # By source; picking, below its figure; reference answers. A row's name is its header.
    for name in (
        "five models on Stack Overflow",
        "six models (GPT-4.1 added) on all sources",
        "human answers on all sources",
    ):
        assert page.count(f">published: {name}</th>") == 1
    assert "published range, not told, %" in page
    assert page.count("Published ranges: the paper of XYBench (Ai2, EMNLP 2026)") == 5


def test_tables_of_other_items_have_no_range_in_them() -> None:
    for sources in (["mini"], ["Stack Overflow", "mini"]):
        report = with_conditions(many(*sources))
        page = to_markdown(report)
        assert "published: " not in page
        assert "published range" not in page
        assert "Published ranges" not in page
        assert section(page, "What the paper published").startswith("\nFor orientation, not for")


def test_a_report_that_was_edited_brings_no_mark_up_into_a_row() -> None:
    report = with_conditions(many("Stack Overflow", "WikiHow"))
    for band in report["published"]["bands"]:
        band["over"] += " <b>|models|</b>"
    page = to_markdown(report)
    assert "| `published: five models &lt;b&gt;¦models¦&lt;/b&gt; on all sources` |" in page


def test_bands_can_be_had_of_a_part_of_the_items_and_of_people() -> None:
    told: Mapping[str, Any] = Published.load().to_report(["Stack Overflow", "WikiHow"])
    assert str(beside_of_report(told)["intended_solution"]) == "33-71"
    of_part = beside_of_report(told, items=STACK_OVERFLOW)
    assert str(of_part["intended_solution"]) == "59-71"
    assert str(beside_of_report(told, over="human")["misconception"]) == "79-90"
    for over in ("models", "human"):
        other = Published.load().to_report(["mini"])
        assert beside_of_report(other, items=STACK_OVERFLOW, over=over) == {}
