"""What report.json and report.md say beyond the main table; right values worked out here."""

import json
import random
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import pytest
from rows import DIRECT, GOAL, INVENTS, LITERAL, REFUSAL, evaluation, failed, row

from xyreward.evaluation import Evaluation, Row
from xyreward.policy import LogProb
from xyreward.report import build_report, to_json, to_markdown
from xyreward.verdict import FOCUS_VALUES, Labels


def of(names: str, start: int = 0, /, **fields: Any) -> list[Row]:
    """A row per letter: g goal-focused, l literal, r refusal; d direct and i inventing are controls."""
    known: dict[str, tuple[Labels, Any]] = {
        "g": (GOAL, "xy"), "l": (LITERAL, "xy"), "r": (REFUSAL, "xy"),
        "d": (DIRECT, "control"), "i": (INVENTS, "control"),
    }  # fmt: skip
    return [
        row(f"i{start + n}", *known[letter], answer="an answer", truncated=False, **fields)
        for n, letter in enumerate(names)
    ]


def section(page: str, heading: str) -> str:
    """The text under a heading, up to the next one; empty where there is none."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    return found.group(1) if found else ""


def table(page: str, heading: str) -> list[list[str]]:
    """The cells of the rows of a section's table, without its head."""
    lines = [line for line in section(page, heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


# 8 items with a hidden goal of which 3 become goal-focused and 1 becomes literal, and 4 controls of which
# 1 becomes one to which a misconception is invented.
BEFORE = evaluation(*of("llllllggdddd"), parts=("writing",))
AFTER = evaluation(*of("ggglllgldddi"), parts=("writing",))


def test_labels_are_tested_and_corrected_for_being_five() -> None:
    report = build_report(BEFORE, AFTER)
    tests = {test["key"]: test for test in report["label_tests"]}
    # 4 items changed, at least 3 of them one way: (4 + 1) / 16, and as much the other way
    p = 2 * 5 / 16
    assert tests["intended_solution"] == {
        "key": "intended_solution", "title": "intended solution", "kind": "xy",
        "n": 8, "gained": 3, "lost": 1, "p": pytest.approx(p), "p_rows": pytest.approx(p), "p_holm": 1.0,
    }  # fmt: skip
    assert (tests["stated_solution"]["gained"], tests["stated_solution"]["lost"]) == (1, 3)
    assert tests["control_direct"]["p"] == 1.0  # one control changed: as likely either way
    assert table(to_markdown(report), "Did labels change?") == [
        ["stated solution", "8", "1", "3", "0.625", "1.000"],
        ["intended solution ↑", "8", "3", "1", "0.625", "1.000"],
        ["focus intended ↑", "8", "3", "1", "0.625", "1.000"],
        ["misconception identified ↑", "8", "3", "1", "0.625", "1.000"],
        ["answers directly ↑", "4", "0", "1", "1.000", "1.000"],
    ]
    assert "McNemar's exact test" in section(to_markdown(report), "Did labels change?")


def test_where_items_share_clusters_the_test_is_over_these() -> None:
    one = [replace(r, cluster=f"c{n // 4}") for n, r in enumerate(BEFORE.rows)]
    two = [replace(r, cluster=f"c{n // 4}") for n, r in enumerate(AFTER.rows)]
    report = build_report(replace(BEFORE, rows=tuple(one)), replace(AFTER, rows=tuple(two)))
    (test,) = (t for t in report["label_tests"] if t["key"] == "intended_solution")
    # clusters of items 0-3 (+3) and 4-7 (-1): of the four signs of 3 and 1, all reach 2 in size
    assert test["p"] == 1.0
    assert test["p_rows"] == pytest.approx(10 / 16)
    text = section(to_markdown(report), "Did labels change?")
    assert "exact, over clusters (report.json also has McNemar's" in text


def test_gains_of_two_labels_are_set_against_each_other() -> None:
    (first, *_) = build_report(BEFORE, AFTER)["co_movement"]
    assert (first["first"], first["second"]) == ("intended_solution", "focus_intended")
    assert first["table"] == {
        "improved": {"improved": 3, "unchanged": 0, "worse": 0},
        "unchanged": {"improved": 0, "unchanged": 4, "worse": 0},
        "worse": {"improved": 0, "unchanged": 0, "worse": 1},
    }
    assert first["improved_too"]["value"] == 1.0
    assert first["improved_too"]["n"] == 3
    assert first["improved_otherwise"]["value"] == 0.0
    assert first["correlation"]["value"] == pytest.approx(1.0)


def test_gains_are_shown_where_twenty_items_improved() -> None:
    page = to_markdown(build_report(BEFORE, AFTER))
    assert section(page, "Do gains come together?") == ""
    named = Labels(True, False, "stated", True)  # names the misconception and solves nothing
    before = evaluation(*of("l" * 40), parts=("writing",))
    after = evaluation(*of("g" * 10), *(replace(r, verdict=asdict(named)) for r in of("l" * 30, 10)),
                       parts=("writing",))  # fmt: skip
    page = to_markdown(build_report(before, after))
    assert section(page, "Do gains come together?") == ""  # 10 improved on a solution
    after = evaluation(*of("g" * 20), *(replace(r, verdict=asdict(named)) for r in of("l" * 20, 20)),
                       parts=("writing",))  # fmt: skip
    rows = table(to_markdown(build_report(before, after)), "Do gains come together?")
    # all 20 that gained a solution gained the misconception, and so did all 20 others
    assert [row[:3] for row in rows] == [
        ["intended solution", "20", "focus intended"],
        ["intended solution", "20", "misconception identified"],
        ["focus intended", "20", "misconception identified"],
    ]
    assert [re.sub(r" \[.*", "", cell) for cell in rows[1][3:]] == ["100", "100", "0"]


def test_picking_is_set_against_writing() -> None:
    picks = [1.0, 1.0, 0.5, 0.5]
    rows = [
        replace(r, picked=p, picked_first=0.5, pick_margin=1.0)
        for r, p in zip(of("glll"), picks, strict=True)
    ]
    report = build_report(evaluation(*rows, parts=("writing", "picking")))
    gap = report["picking_writing_gap"]["before"]
    assert gap["picking"]["value"] == 3 / 4
    assert gap["writing"]["value"] == 1 / 4
    assert gap["gap"]["value"] == 2 / 4
    assert gap["picked_though_not_written"]["value"] == pytest.approx(2 / 3)
    assert set(report["picking_writing_gap"]) == {"before"}
    (cells,) = table(to_markdown(report), "Picking against writing")
    assert [re.sub(r" \[.*", "", cell) for cell in cells] == ["value", "4", "75", "25", "+50", "67"]
    assert "of a position" not in to_markdown(report)
    always_a = [replace(r, picked=0.5, picked_first=1.0) for r in rows]
    page = to_markdown(build_report(evaluation(*always_a, parts=("writing", "picking"))))
    below = section(page, "Picking against writing")
    assert "Answer A is picked 100 % of the time: picks" in below
    assert 'Read the rows with "position cancelled" instead.' in below
    by_letter = [replace(r, pick_margin=None) for r in always_a]
    page = to_markdown(build_report(evaluation(*by_letter, parts=("writing", "picking"))))
    below = section(page, "Picking against writing")
    assert "Letters of an API have no logits, from which that could be cancelled." in below
    assert "position cancelled" not in page
    assert section(to_markdown(build_report(BEFORE)), "Picking against writing") == ""


def test_groups_are_shown_where_two_have_twenty_clusters() -> None:
    before = evaluation(
        *of("l" * 20, source="so"), *of("l" * 25, 20, source="wiki"), *of("lll", 45, source="tiny"),
        parts=("writing",),
    )  # fmt: skip
    after = evaluation(
        *of("g" * 5 + "l" * 15, source="so"), *of("l" * 25, 20, source="wiki"),
        *of("lll", 45, source="tiny"), parts=("writing",),
    )  # fmt: skip
    report = build_report(before, after)
    names = [(g["name"], g["items"]) for g in report["breakdown"]["source"]]
    assert names == [("wiki", 25), ("so", 20), ("tiny", 3)]
    assert report["breakdown"]["source"][2]["metrics"] == []
    page = to_markdown(report)
    rows = table(page, "By source")
    assert [row[:2] for row in rows] == [["wiki", "25"], ["so", "20"]]
    assert rows[1][2].startswith("0 → 25: +25 [")
    assert section(page, "By domain") == ""  # all of one
    assert section(page, "By kind") == ""  # the main table is by kind
    alone = to_markdown(build_report(after))
    assert table(alone, "By source")[1][2].startswith("25 [")


def test_a_group_says_how_many_items_of_each_kind_are_behind_its_figures() -> None:
    rows = [
        *of("g" * 30 + "d" * 25, source="so"), *of("l" * 20 + "ddd", 55, source="wiki"),
        failed("lost", source="so"),
    ]  # fmt: skip
    page = to_markdown(build_report(evaluation(*rows, parts=("writing",)), max_failure_rate=1))
    assert [row[:2] for row in table(page, "By source")] == [["so", "30 / 25"], ["wiki", "20"]]


def test_that_groups_are_too_small_to_be_shown_is_said_once() -> None:
    rows = [replace(r, domain=f"d{n % 8}") for n, r in enumerate(of("l" * 60))]
    page = to_markdown(build_report(evaluation(*rows, parts=("writing",))))
    assert section(page, "By domain") == ""
    assert page.count("No table by domain: fewer than two groups have 20 clusters of items.") == 1


def test_the_same_groups_are_not_shown_twice() -> None:
    rows = [
        *of("g" * 20, source="so", domain="code"),
        *of("l" * 20, 20, source="wiki", domain="life"),
    ]
    page = to_markdown(build_report(evaluation(*rows, parts=("writing",))))
    assert [row[0] for row in table(page, "By source")] == ["so", "wiki"]
    assert section(page, "By domain") == ""


def test_many_groups_end_with_how_many_more_there_are() -> None:
    rows = [r for n in range(14) for r in of("g" * 20, 20 * n, domain=f"d{n:02}")]
    page = to_markdown(build_report(evaluation(*rows, parts=("writing",))))
    assert len(table(page, "By domain")) == 12
    assert "2 more in report.json." in section(page, "By domain")


def test_a_figure_of_the_whole_has_one_interval_throughout() -> None:
    rows = [
        *of("g" * 150 + "l" * 250, source="so", soft_reward=0.5),
        *of("d" * 100 + "i" * 60, 400, source="mini", soft_reward=0.5),
    ]
    # Labels that go their own ways: draws are ordered by all columns that are drawn together.
    yes = (False, True)
    every = [Labels(a, b, f, c) for a, b, f, c in product(yes, yes, FOCUS_VALUES, yes)]
    rng = random.Random(0)
    rows = [replace(r, verdict=asdict(rng.choice(every)), soft_reward=rng.random()) for r in rows]
    report = build_report(evaluation(*rows, parts=("writing",)))
    whole = {m["key"]: m["before"] for m in report["metrics"]}
    for by in ("source", "kind", "language"):
        groups = report["breakdown"][by]
        shown = [m for group in groups for m in group["metrics"]]
        assert len(shown) == 7, by
        assert all(m["before"] == whole[m["key"]] for m in shown), by
    parts = [whole["goal_served"], whole["control_direct"]]
    head = report["headline"]["before"]
    assert head["value"] == parts[0]["value"] + parts[1]["value"] - 1
    lower = [part["value"] - part["low"] for part in parts]
    assert head["value"] - head["low"] == pytest.approx((lower[0] ** 2 + lower[1] ** 2) ** 0.5)


def test_the_gap_and_the_told_policy_repeat_the_figures_of_the_main_table() -> None:
    rows = [
        replace(r, picked=n % 3 / 2, picked_first=0.5, pick_margin=1.0, soft_reward=n / 90)
        for n, r in enumerate(of("g" * 7 + "l" * 40 + "d" * 30))
    ]
    one = evaluation(*rows, parts=("writing", "picking"))
    told = evaluation(*of("g" * 47 + "d" * 30), parts=("writing",))
    report = build_report(one, conditions={"before.oracle": told})
    whole = {m["key"]: m["before"] for m in report["metrics"]}
    gap = report["picking_writing_gap"]["before"]
    assert (gap["picking"], gap["writing"]) == (whole["picking"], whole["focus_intended"])
    for metric in report["conditions"][1]["metrics"]:
        if metric["against"] is not None:
            assert metric["against"] == whole[metric["key"]], metric["key"]


def test_few_clusters_are_named() -> None:
    page = to_markdown(build_report(evaluation(*of("l" * 30 + "dddd"), parts=("writing",))))
    assert "Intervals over fewer than 20 clusters (controls: 4) hold the truth less often" in page
    page = to_markdown(build_report(evaluation(*of("l" * 30), parts=("writing",))))
    assert "hold the truth" not in page
    # 30 items were to be picked on, and 3 were
    some = [replace(r, picked=1.0, picked_first=0.5) for r in of("lll")] + of("l" * 27, 3)
    page = to_markdown(build_report(evaluation(*some, parts=("writing", "picking"))))
    assert (
        "20 clusters (picks goal-focused: 3, picks answer A: 3, picks nothing (no letter): 3)"
        in page
    )
    assert "20 clusters (value: 3)" in section(page, "Picking against writing")


def test_items_of_few_clusters_do_not_show_that_gains_come_together() -> None:
    def clustered(letters: str) -> Evaluation:
        rows = [replace(r, cluster=f"c{n % 19}") for n, r in enumerate(of(letters))]
        return evaluation(*rows, parts=("writing",))

    page = to_markdown(build_report(clustered("l" * 40), clustered("g" * 40)))
    assert section(page, "Do gains come together?") == ""


def test_many_changes_bring_a_word_on_chance() -> None:
    def both(shift: float) -> Evaluation:
        return evaluation(
            *(
                replace(r, better=LogProb(-10 + shift, 10), worse=LogProb(-12, 10), picked=0.5,
                        picked_first=1.0, pick_margin=0.1, soft_reward=0.5)
                for r in of("llllllggdddd")
            )
        )  # fmt: skip

    page = to_markdown(build_report(both(0), both(1)))
    # 26 metrics, of which the length has no interval, its values being all alike
    assert "if nothing had changed, about 1 of 25 would exclude 0" in page
    assert "would exclude 0" not in to_markdown(build_report(both(0)))


# ---------------------------------------------------------------- conditions


def test_a_policy_that_was_told_the_goal_is_set_against_itself() -> None:
    told = evaluation(*of("gglllgggdddd"), parts=("writing",))
    report = build_report(BEFORE, AFTER, conditions={"before.oracle": told})
    names = [(c["name"], c["condition"], c["against"]) for c in report["conditions"]]
    assert names == [
        ("before", "writing", None), ("after", "writing", None), ("before.oracle", "oracle", "before"),
    ]  # fmt: skip
    metrics = {m["key"]: m for m in report["conditions"][2]["metrics"]}
    served = metrics["intended_solution"]
    assert (served["against"]["value"], served["value"]["value"]) == (2 / 8, 5 / 8)
    assert served["change"]["value"] == 3 / 8
    rows = {row[0]: row[1:] for row in table(to_markdown(report), "Told the goal")}
    assert rows["intended solution, % ↑"][0] == "8"
    assert rows["intended solution, % ↑"][1].startswith("25 → 62: +38 [")
    assert rows["answers directly, % ↑"][0] == "4"
    assert rows["answers directly, % ↑"][1].startswith("100 → 100: +0 [")


def test_items_that_only_a_part_of_was_told_are_paired_by_item_and_answer() -> None:
    told = evaluation(*of("gg"), parts=("writing",))
    report = build_report(BEFORE, conditions={"before.oracle": told})
    (found,) = (m for m in report["conditions"][1]["metrics"] if m["key"] == "intended_solution")
    assert (found["against"]["value"], found["against"]["n"]) == (0.0, 2)
    assert found["change"]["value"] == 1.0
    other = evaluation(row("i0", GOAL, answer_index=1), parts=("writing",))
    report = build_report(BEFORE, conditions={"before.oracle": other})
    assert (
        report["conditions"][1]["against"] is None
    )  # of its second answer nothing was written before
    strange = evaluation(row("elsewhere", GOAL), parts=("writing",), condition="oracle")
    report = build_report(BEFORE, conditions={"before.oracle": strange})
    assert report["conditions"][1]["against"] is None
    assert report["conditions"][1]["metrics"][0]["against"] is None
    assert "Told the goal" in to_markdown(report)


def test_reference_answers_stand_in_a_table_of_their_own() -> None:
    conditions = {
        "reference.goal_focused": evaluation(*of("ggggggg"), failed("i7"), parts=("writing",)),
        "reference.direct": evaluation(*of("dd", 8), parts=("writing",)),
    }
    report = build_report(BEFORE, conditions=conditions)
    assert [c["condition"] for c in report["conditions"][1:]] == [
        "reference:goal_focused", "reference:direct",
    ]  # fmt: skip
    assert [c["against"] for c in report["conditions"]] == [None] * 3
    page = to_markdown(report)
    first, second = table(page, "Reference answers")
    assert first[:2] == ["goal focused", "8"]
    assert first[3].startswith("100 [")  # intended solution
    assert first[6] == first[7] == ""  # figures of controls
    assert second[:2] == ["direct", "2"]
    assert second[2] == ""
    assert second[6].startswith("100 [")
    assert (
        "without labels, reference: goal focused, items with a hidden goal: 1 of 8 answers (12.5 %): "
        "1 timeout" in page
    )
    bounds = {m["key"]: m["failure_bounds"] for m in report["conditions"][1]["metrics"]}
    assert bounds["misconception"] == [7 / 8, 1.0]


def test_notes_of_conditions_say_whose_they_are_unless_they_are_of_all() -> None:
    bare = evaluation(*(replace(r, picked=0.5) for r in of("ll")), parts=("writing", "picking"))
    (note,) = bare.notes
    assert note.startswith("2 of 2 items have no pair of reference answers")
    alone = build_report(BEFORE, conditions={"reference.literal": bare})
    assert alone["notes"] == [f"reference: literal: {note}"]
    assert build_report(bare, conditions={"reference.literal": bare})["notes"] == [note]


def test_a_condition_of_another_judge_is_refused() -> None:
    other = evaluation(*of("g"), parts=("writing",), judge="another")
    with pytest.raises(
        ValueError, match=r"before and before\.oracle differ in judge: 'j' and 'ano"
    ):
        build_report(BEFORE, conditions={"before.oracle": other})


# ---------------------------------------------------------------- noise, failures


def votes(label: Labels, yes: float) -> Mapping[str, Any]:
    """A verdict of three votes, of which a share says that there is an intended solution."""
    focus = {"stated": 1.0, "intended": 0.0, "balanced": 0.0, "neither": 0.0}
    p = {"has_stated_solution": 1.0, "has_intended_solution": yes, "focus": focus,
         "identifies_misconception": 0.0}  # fmt: skip
    return {**asdict(label), "p": p, "votes": 3}


def test_the_judges_noise_is_shown_where_there_are_votes() -> None:
    shares = [0.0, 1 / 3, 1.0, 1.0]
    rows = [
        replace(r, verdict=dict(votes(LITERAL, share)))
        for r, share in zip(of("llll"), shares, strict=True)
    ]
    report = build_report(evaluation(*rows, parts=("writing",)))
    (noise,) = (n for n in report["judge_noise"]["before"] if n["label"] == "has_intended_solution")
    # W: sum of 3 p (1 - p) / (4 answers x 2) = 3 * 2/9 / 8 = 1/12. T: P = 7/12, P (1 - P) = 35/144.
    assert noise["share"]["value"] == pytest.approx((1 / 12) / (35 / 144))
    rows_of = table(to_markdown(report), "The judge's noise")
    assert rows_of[0] == ["stated solution", "4", "3.0", "all votes alike", ""]
    assert rows_of[1][:3] == ["intended solution", "4", "3.0"]
    assert rows_of[1][3].startswith("34 [")
    assert report["notes"] == []
    assert section(to_markdown(build_report(BEFORE)), "The judge's noise") == ""


def test_a_panel_that_gives_probabilities_leaves_noise_out_and_says_so() -> None:
    rows = [replace(r, verdict=dict(votes(LITERAL, 0.7))) for r in of("ll")]
    report = build_report(evaluation(*rows, parts=("writing",)))
    assert report["judge_noise"] == {"before": []}
    (note,) = report["notes"]
    assert note.startswith(
        "no judge noise: has_intended_solution of item 'i0' has the probability 0.7"
    )


def test_failures_have_rates_with_intervals_by_kind_of_item() -> None:
    rows = [*of("g" * 8), failed("i8"), failed("i9", why="refused"), *of("dddd", 10)]
    report = build_report(evaluation(*rows, parts=("writing",)))
    xy, control = report["failure_rates"]["before"]
    assert (xy["failed"]["value"], xy["abstained"]["value"]) == (0.2, 0.1)
    assert control["failed"]["value"] == 0
    page = to_markdown(report)
    (line,) = [
        ln for ln in page.splitlines() if ln.startswith("- without labels, the policy, items")
    ]
    assert re.fullmatch(
        r".*: 2 of 10 answers \(20\.0 % \[0\.0, [\d.]+\]; the judge refused 10\.0 % \[0\.0, [\d.]+\]\): "
        r"1 refused, 1 timeout",
        line,
    )
    assert "- no judgement failed, of 12 answers" in to_markdown(build_report(BEFORE))


def test_several_answers_to_an_item_are_one_item() -> None:
    rows = [
        replace(r, item_id=f"i{n // 3}", cluster=f"i{n // 3}")
        for n, r in enumerate(of("gggllldddddd"))
    ]
    report = build_report(evaluation(*rows, parts=("writing",)))
    assert report["items"] == {"xy": 2, "control": 2}
    assert report["conditions"][0]["rows"] == 12
    assert [group["items"] for group in report["breakdown"]["kind"]] == [2, 2]
    (served,) = (m for m in report["metrics"] if m["key"] == "goal_served")
    assert (served["before"]["value"], served["before"]["n"]) == (0.5, 6)
    assert (
        report["headline"]["before"]["value"] == 0.5
    )  # 3/6 + 6/6 - 1, of answers and not of items
    page = to_markdown(report)
    assert "2 items with a hidden goal, 2 controls, 3 answers to each." in page


def test_the_same_file_gives_the_same_bytes() -> None:
    conditions = {"before.oracle": BEFORE, "reference.literal": AFTER}
    reports = [
        to_json(build_report(one, two, conditions=conditions, seed=3))
        for one, two in (
            (BEFORE, AFTER),
            (Evaluation.from_jsonl(BEFORE.to_jsonl()), Evaluation.from_jsonl(AFTER.to_jsonl())),
        )
    ]
    assert reports[0] == reports[1]
    assert to_markdown(json.loads(reports[0])) == to_markdown(
        build_report(BEFORE, AFTER, conditions=conditions, seed=3)
    )


@pytest.mark.parametrize("by", ["source", "domain", "language"])
def test_names_of_groups_reach_the_page_as_code_only(by: str) -> None:
    rows = [
        *of("g" * 20, **{by: "<b>x</b> | [a](http://evil)\n# Heading"}),
        *of("l" * 21, 20, **{by: ""}),
    ]
    page = to_markdown(build_report(evaluation(*rows, parts=("writing",))))
    (first, second) = table(page, f"By {by}")
    assert first[0] == "(none)"
    assert second[0] == "`&lt;b&gt;x&lt;/b&gt; ¦ [a](http://evil) # Heading`"
    assert "\n# Heading" not in page


def test_bounds_are_lowest_first_and_in_the_unit_of_their_metric() -> None:
    """Of what should be low the lowest is the best one; a reward is no share."""
    controls = [row(f"c{n}", DIRECT, "control", soft_reward=0.5) for n in range(9)]
    page = to_markdown(
        build_report(evaluation(*controls, failed("lost", "control"), parts=("writing",)))
    )
    bounds = {
        cells[1].strip(): cells[3].partition("(")[2].strip(" )")
        for cells in (line.split("|") for line in page.splitlines() if line.startswith("|"))
    }
    assert bounds["invents a misconception, % ↓"] == "with failures: 0 to 10"
    assert bounds["answers directly, % ↑"] == "with failures: 90 to 100"
    assert bounds["soft reward ↑"] == "with failures: 0.45 to 0.55"


def test_one_item_and_one_control_are_singular() -> None:
    page = to_markdown(build_report(evaluation(*of("gd"), parts=("writing",))))
    assert "1 item with a hidden goal, 1 control." in page


def test_verdicts_of_several_judges_are_not_pooled_without_a_word() -> None:
    def judged(name: str, judge: str) -> Row:
        return row(name, verdict={**asdict(GOAL), "judge": judge, "rubric_version": "r-1"})

    def notes(*rows: Row) -> tuple[str, ...]:
        return evaluation(*rows, parts=("writing",), judge="one", rubric_version="r-1").notes

    assert notes(judged("a", "one"), judged("b", "one")) == ()
    assert notes(judged("a", "one@http://127.0.0.1:8000"), failed("b")) == ()
    assert notes(judged("a", "one"), judged("b", "two")) == (
        "verdicts of several judges are pooled here: one, two",
    )
    other = "verdicts are of another judge than the evaluation says: two, not one"
    assert notes(judged("a", "two"), judged("b", "two")) == (other,)
    found = evaluation(judged("a", "two"), parts=("writing",), judge="one", rubric_version="r-1")
    assert f"- {other}" in to_markdown(build_report(found))
    (version,) = replace(found, judge="two", rubric_version="r-2").notes
    assert version == (
        "verdicts are of another version of the rubric than the evaluation says: r-1, not r-2"
    )
