"""Two policies, two metrics, two conditions on the same items; right values worked out here."""

import math
from dataclasses import replace
from typing import Any

import pytest
from rows import BALANCED, DIRECT, GOAL, INVENTS, LITERAL, REFUSAL, evaluation, failed, row
from scipy.stats import binomtest

from xyreward.evaluation import Row
from xyreward.paired import (
    FAMILY,
    co_movement,
    gap_change,
    label_tests,
    picking_writing_gap,
)


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-9)


def of(names: str, **labels: Any) -> list[Row]:
    """A row per letter: g goal-focused, l literal, r refusal, b balanced."""
    known = {"g": GOAL, "l": LITERAL, "r": REFUSAL, "b": BALANCED}
    return [row(f"i{n}", known[letter], **labels) for n, letter in enumerate(names)]


def test_items_that_changed_are_counted_and_tested_as_by_mcnemar() -> None:
    before, after = evaluation(*of("llllllllgg")), evaluation(*of("ggggggllgl"))
    (test,) = label_tests(before, after, ["intended_solution"])
    assert (test.n, test.gained, test.lost) == (10, 6, 1)
    # 7 items changed. At least 6 one way: (7 + 1) / 128, and as much the other way.
    assert test.p == near(2 * 8 / 128)
    assert test.p == near(binomtest(6, 7, 0.5).pvalue)
    assert test.p_rows == test.p  # one row per cluster
    assert test.p_holm == test.p  # a family of one


def test_clusters_count_once_and_mcnemar_would_count_their_rows() -> None:
    names = ["a", "a", "a", "b", "b", "b", "c", "c", "c"]
    before = [replace(r, cluster=c) for r, c in zip(of("lllllllll"), names, strict=True)]
    after = [replace(r, cluster=c) for r, c in zip(of("ggggggggg"), names, strict=True)]
    (test,) = label_tests(evaluation(*before), evaluation(*after), ["intended_solution"])
    assert test.p == near(2 / 2**3)  # three clusters went up: as likely as three heads, or tails
    assert test.p_rows == near(2 / 2**9)


def test_the_family_is_corrected_together_and_what_was_not_measured_is_no_member() -> None:
    before, after = evaluation(*of("llllll")), evaluation(*of("gggggb"))
    tests = {t.metric.key: t for t in label_tests(before, after)}
    assert list(tests) == [key for key in FAMILY if key != "control_direct"]  # no controls
    # stated solution: 5 lost; intended and misconception: 6 gained; focus intended: 5 gained
    p = {key: t.p for key, t in tests.items()}
    assert p == {
        "stated_solution": near(2 / 32),
        "intended_solution": near(2 / 64),
        "focus_intended": near(2 / 32),
        "misconception": near(2 / 64),
    }
    assert (tests["stated_solution"].gained, tests["stated_solution"].lost) == (0, 5)
    # Holm: 4 * 1/32, then 3 * 1/32 raised to the one before, then 2 * 1/16 and 1 * 1/16 raised
    assert [t.p_holm for t in tests.values()] == [near(4 / 32)] * 4


def test_items_on_which_a_judgement_failed_are_in_no_pair() -> None:
    before = evaluation(*of("ll"), failed("x"), row("y", LITERAL))
    after = evaluation(*of("gg"), row("x", GOAL), failed("y"))
    (test,) = label_tests(before, after, ["intended_solution"])
    assert (test.n, test.gained) == (2, 2)
    assert label_tests(evaluation(failed("x")), evaluation(failed("x"))) == []


def test_values_that_are_no_labels_have_no_such_test() -> None:
    before, after = (evaluation(row("a", GOAL, soft_reward=s)) for s in (0.2, 0.3))
    with pytest.raises(ValueError, match=r"not multiples of 0\.5"):
        label_tests(before, after, ["soft_reward"])
    with pytest.raises(ValueError, match="no such metric: focus; expected some of stated_solution"):
        label_tests(before, after, ["focus"])


def test_different_items_are_not_tested() -> None:
    with pytest.raises(ValueError, match="different items"):
        label_tests(evaluation(row("a", GOAL)), evaluation(row("b", GOAL)))


# ---------------------------------------------------------------- co-movement


def test_gains_on_one_metric_are_set_against_those_on_another() -> None:
    # intended solution: + + + 0 0 -        focus intended: + 0 0 0 + -
    solves = replace(BALANCED, focus="stated")
    before = [LITERAL, LITERAL, LITERAL, GOAL, BALANCED, GOAL]
    after = [GOAL, BALANCED, solves, GOAL, GOAL, LITERAL]
    old, new = (
        evaluation(*[row(f"i{n}", labels) for n, labels in enumerate(side)])
        for side in (before, after)
    )
    (found,) = co_movement(old, new, ["intended_solution", "focus_intended"])
    assert found.table == {
        (1, 1): 1, (1, 0): 2, (1, -1): 0,
        (0, 1): 1, (0, 0): 1, (0, -1): 0,
        (-1, 1): 0, (-1, 0): 0, (-1, -1): 1,
    }  # fmt: skip
    assert found.improved_too is not None
    assert (found.improved_too.value, found.improved_too.n) == (near(1 / 3), 3)
    assert found.worsened is not None
    assert found.worsened.value == 0
    assert found.worsened.high == near(1 - 0.05 ** (1 / 3))  # none of three
    assert found.improved_otherwise is not None
    assert (found.improved_otherwise.value, found.improved_otherwise.n) == (near(1 / 3), 3)
    # x = 1 1 1 0 0 -1, y = 1 0 0 0 1 -1: sums 2 and 1, squares 4 and 3, products 2, n = 6
    assert found.correlation is not None
    assert found.correlation.value == near(
        (6 * 2 - 2 * 1) / math.sqrt((6 * 4 - 2**2) * (6 * 3 - 1))
    )


def test_an_improvement_of_what_should_fall_is_a_fall() -> None:
    before = [row(f"c{n}", INVENTS, "control") for n in range(3)]
    after = [row("c0", DIRECT, "control"), row("c1", DIRECT, "control"), before[2]]
    (found,) = co_movement(
        evaluation(*before), evaluation(*after), ["control_invents", "control_direct"]
    )
    assert found.table[1, 1] == 2
    assert found.table[0, 0] == 1
    assert found.correlation is not None
    assert found.correlation.value == near(1)


def test_where_nothing_changed_there_is_no_correlation_and_no_share() -> None:
    same = evaluation(*of("glr"))
    (found, _, _) = co_movement(same, same)
    assert found.table[0, 0] == 3
    assert found.correlation is None
    assert found.improved_too is None
    assert found.improved_otherwise is not None
    assert found.improved_otherwise.value == 0


def test_metrics_of_different_items_do_not_move_together() -> None:
    rows = [*of("gl"), row("c", DIRECT, "control")]
    assert (
        co_movement(evaluation(*rows), evaluation(*rows), ["misconception", "control_direct"]) == []
    )


# ---------------------------------------------------------------- picking and writing


def test_the_gap_is_paired_and_over_items_with_both() -> None:
    rows = [
        row("a", GOAL, picked=1.0),
        row("b", LITERAL, picked=1.0),
        row("c", LITERAL, picked=0.5),
        row("d", LITERAL, picked=0.0),
        row("e", GOAL),  # no pair to pick from
        failed("f", picked=1.0),
        row("g", DIRECT, "control", picked=1.0),
    ]
    found = picking_writing_gap(evaluation(*rows))
    assert found is not None
    assert found.picking.value == 2.5 / 4
    assert found.writing.value == 1 / 4
    assert found.gap.value == 2.5 / 4 - 1 / 4
    assert found.gap.n == 4
    assert found.gap.low is not None
    assert found.gap.high is not None
    assert found.gap.low < 1.5 / 4 < found.gap.high
    assert found.picked_though_not_written is not None
    assert (found.picked_though_not_written.value, found.picked_though_not_written.n) == (0.5, 3)


def test_the_gap_may_be_to_another_measure_of_writing() -> None:
    rows = [row("a", BALANCED, picked=1.0), row("b", LITERAL, picked=1.0)]
    found = [
        picking_writing_gap(evaluation(*rows), writing=writing)
        for writing in ("focus_intended", "misconception")
    ]
    assert [f.gap.value for f in found if f] == [1.0, 0.5]


def test_there_is_no_gap_without_both() -> None:
    assert picking_writing_gap(evaluation(row("a", GOAL), failed("b", picked=1.0))) is None


def test_the_change_of_the_gap_is_that_of_both_gaps() -> None:
    picked = (1.0, 1.0, 0.5, 0.0)
    before = evaluation(*[replace(r, picked=p) for r, p in zip(of("llll"), picked, strict=True)])
    after = evaluation(*[replace(r, picked=1.0) for r in of("gggl")])
    change = gap_change(before, after)
    old, new = picking_writing_gap(before), picking_writing_gap(after)
    assert old is not None
    assert new is not None
    assert change is not None
    assert (old.gap.value, new.gap.value) == (2.5 / 4, 1 / 4)
    assert change.value == near(1 / 4 - 2.5 / 4)
    # -1 0 ... per item: before 1 1 .5 0, after 0 0 0 1
    assert change.value == (-1 - 1 - 0.5 + 1) / 4


def test_of_several_answers_the_gap_takes_all_and_not_the_first() -> None:
    """The pick stands on the row of the first answer, which is literal; the other three serve the goal."""
    answers = [
        row(f"i{n}", labels, answer_index=k, picked=(1.0 if n else 0.0) if k == 0 else None)
        for n in range(4)
        for k, labels in enumerate((LITERAL, GOAL, GOAL, GOAL))
    ]
    never = [row("never", LITERAL, answer_index=k, picked=None if k else 0.5) for k in range(4)]
    unjudged = [failed("late", picked=1.0), row("late", GOAL, answer_index=1)]
    found = picking_writing_gap(evaluation(*answers, *never, *unjudged))
    assert found is not None
    assert (found.gap.n, found.writing.n) == (6, 6)  # items
    assert found.writing.value == near((4 * 0.75 + 0 + 1) / 6)
    assert found.picking.value == near((3 + 0.5 + 1) / 6)
    assert found.gap.value == near(found.picking.value - found.writing.value)
    though = found.picked_though_not_written
    assert though is not None
    assert (though.n, though.value) == (1, 0.5)

    better = [
        replace(r, verdict=answers[1].verdict) if r.item_id == "i1" and r.answer_index == 0 else r
        for r in answers
    ]
    change = gap_change(evaluation(*answers), evaluation(*better))
    assert change is not None
    assert (change.n, change.value) == (4, near(-0.25 / 4))


def several(letters: str) -> list[Row]:
    """Words of letters as of `of`: an item per word, an answer per letter."""
    known = {"g": GOAL, "l": LITERAL}
    return [
        row(f"i{n}", known[letter], answer_index=k)
        for n, word in enumerate(letters.split())
        for k, letter in enumerate(word)
    ]


def test_the_order_of_several_answers_is_no_change() -> None:
    before, after = evaluation(*several("ggll lggl glgl")), evaluation(*several("llgg glgl lglg"))
    (test,) = label_tests(before, after, ["intended_solution"])
    assert (test.n, test.gained, test.lost, test.p, test.p_rows) == (3, 0, 0, 1, 1)
    (moved,) = co_movement(before, after, ["intended_solution", "misconception"])
    assert moved.table[0, 0] == 3
    assert moved.improved_too is None
    assert moved.correlation is None


def test_items_are_counted_where_answers_changed() -> None:
    before, after = evaluation(*several("llll gggl llll")), evaluation(*several("lglg gllg gggg"))
    (test,) = label_tests(before, after, ["intended_solution"])
    assert (test.n, test.gained, test.lost) == (3, 2, 1)
    # sums of changes 2, -1 and 4: of the eight signs four reach 5, those of 4 and 2 being the same
    assert test.p == test.p_rows == near(4 / 8)
    (moved,) = co_movement(before, after, ["intended_solution", "misconception"])
    assert (moved.table[1, 1], moved.table[-1, -1]) == (2, 1)
    assert moved.improved_too is not None
    assert (moved.improved_too.n, moved.improved_too.clusters) == (2, 2)
