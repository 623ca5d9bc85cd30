"""Figures: what is drawn where, what is said of it, and that no text of the data becomes mark-up."""

import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

import pytest
from pair_sets import HOSTILE
from rows import DIRECT, GOAL, LITERAL, evaluation, row

from xyreward import figures
from xyreward.figures import Figure, changes, drawn, goals, page_css, picking, short
from xyreward.published import Published
from xyreward.report import build_report

SVG = "{http://www.w3.org/2000/svg}"


def estimate(value: float, width: float = 0.1, **fields: Any) -> dict[str, Any]:
    return {
        "value": value,
        "low": value - width,
        "high": value + width,
        "n": 9,
        "why": "",
        **fields,
    }


def metric(key: str, **fields: Any) -> dict[str, Any]:
    return {
        "key": key, "title": key, "kind": "xy", "part": "writing", "better": "higher", "unit": "%",
        "before": estimate(0.2), "after": estimate(0.5), "change": estimate(0.3), **fields,
    }  # fmt: skip


def report(*sources: str, **fields: Any) -> dict[str, Any]:
    keys = ("intended_solution", "focus_intended", "paper_focus_intended", "misconception")
    gap = {"picking": estimate(0.7), "writing": estimate(0.3), "gap": estimate(0.4)}
    told = [{"key": "intended_solution", "value": estimate(0.9)}]
    return {
        "policies": {"before": "a", "after": "b"},
        "metrics": [metric(key) for key in keys],
        "picking_writing_gap": {"before": gap, "after": None, "change": None},
        "conditions": [
            {"name": "before", "metrics": []},
            {"name": "after.oracle", "metrics": told},
            {"name": "reference.passing_mention", "metrics": told},
        ],
        "published": Published.load().to_report(sources),
        **fields,
    }  # fmt: skip


def parsed(figure: Figure | None) -> ElementTree.Element:
    assert figure is not None
    return ElementTree.fromstring(figure.svg())


def words(figure: Figure | None) -> list[str]:
    return [text.text or "" for text in parsed(figure).iter(f"{SVG}text")]


def placed(figure: Figure | None, css: str) -> list[float]:
    """x of all marks of a style, in the order of panels."""
    assert figure is not None
    return [mark["x"] for mark in figure.marks if mark["css"] == css]


def test_a_mark_stands_at_its_value_and_its_whisker_on_the_interval() -> None:
    figure = goals(report())
    assert figure is not None
    mark = figure.marks[0]
    left, right = (next(t["x"] for t in figure.texts if t["text"] == tick) for tick in ("0", "100"))
    for name, share in (("low", 0.1), ("x", 0.2), ("high", 0.3)):
        assert mark[name] == pytest.approx(left + share * (right - left), abs=0.2)


def test_every_policy_condition_and_reference_has_a_row_and_a_look() -> None:
    figure = goals(report())
    for name in ("before", "after", "after, told the goal", "reference: passing mention"):
        assert name in words(figure)
    assert len(placed(figure, "s0")) == 4
    assert len(placed(figure, "s1")) == 4
    assert len(placed(figure, "s1 hollow")) == 1
    assert len(placed(figure, "s2")) == 1
    assert words(figure).count("n/a") == 6  # what these two were not measured on
    assert figure is not None
    assert {m["path"] for m in figure.marks if m["css"] == "s0"}.isdisjoint(
        m["path"] for m in figure.marks if m["css"] in ("s1", "s2")
    )


def test_all_that_is_drawn_is_said() -> None:
    figure = goals(report("stackoverflow"))
    assert figure is not None
    for said in (
        "before mentions it: 20 [10, 30]", "after steers to it: 50 [40, 60]",
        "reference: passing mention focuses on it: n/a",
        "published, five models, Stack Overflow: 59-71",
    ):  # fmt: skip
        assert said in figure.description
    root = parsed(figure)
    ids = {e.attrib["id"] for e in root.iter() if "id" in e.attrib}
    assert root.attrib["role"] == "img"
    assert set(root.attrib["aria-labelledby"].split()) <= ids


@pytest.mark.parametrize(
    ("sources", "heading", "rows"),
    [
        (["stackoverflow"], "on Stack Overflow: ranges", ["five models, Stack Overflow"]),
        (
            ["stackoverflow", "wikihow"],
            "on all sources: ranges",
            ["five models, all sources", "human answers, all sources"],
        ),
        (
            ["mini"],
            "on other items, not for comparison: ranges",
            [
                "five models, Stack Overflow",
                "five models, all sources",
                "human answers, all sources",
            ],
        ),
    ],
)
def test_published_ranges_have_rows_of_their_own_below_and_say_whether_they_compare(
    sources: list[str], heading: str, rows: list[str]
) -> None:
    figure = goals(report(*sources))
    assert figure is not None
    found = words(figure)
    assert any(text.endswith(heading) and "Claude Sonnet 4.5" in text for text in found)
    assert [text for text in found if text.startswith(("five", "human"))] == rows
    lowest = max(mark["y"] for mark in figure.marks)
    assert figure.bands
    assert all(band["y"] > lowest + 12 for band in figure.bands)


def test_ranges_of_people_stand_beside_answers_that_are_no_policys() -> None:
    all_sources = ("stackoverflow", "wikihow")
    assert "79-90" in words(goals(report(*all_sources)))
    assert "79-90" not in words(goals(report(*all_sources, conditions=[])))


def test_a_range_without_an_end_goes_to_the_edge() -> None:
    figure = goals(report("stackoverflow", "wikihow", conditions=[]))
    assert figure is not None
    assert "at most 63" in words(figure)
    zero = [t["x"] for t in figure.texts if t["text"] == "0"]
    assert figure.bands[-1]["x"] == zero[-1]


def test_picking_is_drawn_against_writing_over_the_same_items() -> None:
    figure = picking(report())
    assert figure is not None
    writes, picks = figure.marks
    assert picks["x"] > writes["x"]
    assert picks["path"] != writes["path"]
    assert "+40 [+30, +50]" in words(figure)
    assert words(figure).count("after") == 0  # it has no items with both
    assert "six models pick, all sources" in words(figure)
    assert picking(report(picking_writing_gap={"before": None})) is None


def test_a_range_of_three_labels_beside_marks_of_four_says_so_in_the_figure() -> None:
    for source in ("stackoverflow", "mini"):  # mini: for orientation
        figure = picking(report(source))
        assert figure is not None
        assert "five models write, Stack Overflow" in words(figure)
        (said,) = (text for text in words(figure) if "the paper's three labels of focus" in text)
        assert said.removesuffix(".") in figure.description
    assert "three" not in str(words(picking(report("wikihow"))))  # no such range is known of these


def test_where_nothing_was_picked_there_is_no_figure_of_it() -> None:
    assert picking({k: v for k, v in report().items() if k != "picking_writing_gap"}) is None


def test_changes_that_may_be_chance_are_hollow_and_the_axis_holds_all() -> None:
    figure = changes(
        report(
            metrics=[
                metric("sure"), metric("chance", change=estimate(0.02)),
                metric("of controls", kind="control", change=estimate(-0.3)),
                metric("a length", kind=None), metric("a reward", unit=""),
                metric("paper_focus_stated"), metric("not measured twice", change=None),
            ]
        )
    )  # fmt: skip
    assert figure is not None
    assert [mark["css"] for mark in figure.marks] == ["s1", "s1 hollow", "s1"]
    found = words(figure)
    assert "controls" in found
    assert {"-50", "-25", "0", "25", "50"} <= set(found)
    assert figure.marks[2]["x"] < next(t["x"] for t in figure.texts if t["text"] == "0")
    assert changes(report(metrics=[metric("alone", change=None)])) is None


def test_a_figure_without_an_interval_says_why_in_words_only() -> None:
    alone = estimate(0.5, low=None, high=None, why="one cluster")
    figure = goals(report(metrics=[metric("intended_solution", before=alone)]))
    assert figure is not None
    assert figure.marks[0]["low"] is None
    assert "before mentions it: 50 [no interval: one cluster]" in figure.description
    assert "50" in words(figure)


def test_figures_of_a_real_report_are_well_formed_and_the_same_each_time() -> None:
    before = evaluation(
        row("a", LITERAL, picked=1.0), row("b", GOAL, picked=0.5), row("c", DIRECT, "control")
    )
    found = build_report(before, before)
    assert drawn(found)[0].name == "goals"
    for figure in drawn(found):
        assert figure.svg() == next(f for f in drawn(found) if f.name == figure.name).svg()
        assert "NaN" not in figure.svg()
        ElementTree.fromstring(figure.svg())
    unwritten = build_report(evaluation(row("a", picked=1.0), parts=("picking",)))
    assert drawn(unwritten) == []


def test_texts_of_the_data_are_no_mark_up() -> None:
    conditions = [
        {"name": text, "metrics": [{"key": "misconception", "value": estimate(0.1)}]}
        for text in HOSTILE
    ]
    figure = goals(report(conditions=conditions))
    root = parsed(figure)
    known = {
        "svg",
        "title",
        "desc",
        "style",
        "defs",
        "pattern",
        "rect",
        "line",
        "text",
        "circle",
        "path",
    }
    assert {e.tag.removeprefix(SVG) for e in root.iter()} <= known
    assert figure is not None
    assert "\u202e" not in figure.svg()


def test_a_long_name_loses_its_middle() -> None:
    assert short("a" * 10, 10) == "a" * 10
    assert short("runs/very-long-name/adapter", 13) == "runs…/adapter"
    assert len(short("x" * 100, 31)) == 31


def contrast(a: str, b: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [figures.LIGHT, figures.DARK])
def test_words_and_marks_stand_out_from_their_ground(colours: Mapping[str, str]) -> None:
    for name in ("ink", "quiet"):
        assert contrast(colours[name], colours["ground"]) >= 4.5, name  # WCAG 2.2, AA
    for name in (*figures.STYLES, "rule"):
        assert contrast(colours[name], colours["ground"]) >= 3, name
    assert "$" not in page_css()
    assert set(re.findall(r"s\d", page_css())) == set(figures.STYLES)


def test_png_is_drawn_where_the_extra_is_installed() -> None:
    pytest.importorskip("resvg_py", reason="the extra figures is not installed")
    if not figures.can_render():
        pytest.skip("this machine has no font")
    figure = goals(report())
    assert figure is not None
    once, twice = figure.png(scale=1), figure.png()
    assert once is not None
    assert twice is not None
    for png, scale in ((once, 1), (twice, 2)):
        assert png.startswith(b"\x89PNG\r\n")
        assert int.from_bytes(png[16:20], "big") == scale * (figure.width + 24)
