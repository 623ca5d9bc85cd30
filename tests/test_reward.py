import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xyreward.items import DEFAULT_LABELS, AnswerKind, ItemKind
from xyreward.reward import WORST_LABELS, Reward, parts
from xyreward.verdict import FOCUS_VALUES, Focus, LabelProbabilities, Labels, Verdict

KINDS: tuple[ItemKind, ...] = ("xy", "control")
ALL_LABELS = [
    Labels(stated, intended, focus, misconception)
    for stated, intended, focus, misconception in itertools.product(
        (False, True), (False, True), FOCUS_VALUES, (False, True)
    )
]
FOCUS_VALUE: dict[ItemKind, dict[Focus, float]] = {
    "xy": {"intended": 1.0, "balanced": 0.5, "stated": 0.0, "neither": 0.0},
    "control": {"stated": 1.0, "balanced": 0.5, "intended": 0.0, "neither": 0.0},
}

NAMES = ("solution", "focus", "misconception", "stated")
unit = st.floats(0, 1)
weight = st.just(0.0) | st.floats(1e-3, 1e3)
kinds = st.sampled_from(KINDS)
labels = st.sampled_from(ALL_LABELS)


@st.composite
def rewards(draw: st.DrawFn, soft: bool | None = None) -> Reward:
    weights = draw(st.tuples(weight, weight, weight, weight).filter(any))
    return Reward(*weights, soft=draw(st.booleans()) if soft is None else soft)


@st.composite
def probabilities(draw: st.DrawFn) -> LabelProbabilities:
    cuts = sorted(draw(st.tuples(unit, unit, unit)))
    shares = [b - a for a, b in itertools.pairwise([0.0, *cuts, 1.0])]
    focus = dict(zip(FOCUS_VALUES, shares, strict=True))
    return LabelProbabilities(draw(unit), draw(unit), focus, draw(unit))


def certain(labels: Labels) -> Verdict:
    return judged(labels, LabelProbabilities.certain(labels))


def judged(labels: Labels, p: LabelProbabilities) -> Verdict:
    return Verdict(labels, p, judge="test", rubric_version="1")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("goal_focused", 1.0),  # (1 + 1 + 1) / 3
        ("balanced", (1 + 0.5 + 1) / 3),
        ("passing_mention", (1 + 0 + 0) / 3),
        ("dump", (1 + 0 + 0) / 3),
        ("literal", 0.0),
        ("clarify_only", 0.0),
        ("refusal", 0.0),
        ("wrong_goal", 0.0),
    ],
)
def test_hard_reward_of_each_kind_of_answer_to_an_item_with_a_hidden_goal(
    kind: AnswerKind, expected: float
) -> None:
    assert Reward()(certain(DEFAULT_LABELS[kind]), "xy") == pytest.approx(expected)


def test_hard_reward_of_answers_to_a_control() -> None:
    assert Reward()(certain(DEFAULT_LABELS["direct"]), "control") == 1.0
    assert Reward()(certain(DEFAULT_LABELS["overcorrecting"]), "control") == 0.0
    # Answers what was asked, dwells on it half the time, and invents a misconception all the same.
    inventing = Labels(True, False, "balanced", True)
    assert Reward()(certain(inventing), "control") == pytest.approx((1 + 0.5 + 0) / 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("labels", ALL_LABELS, ids=str)
def test_hard_reward_is_the_table_of_the_design_for_every_combination_of_labels(
    kind: ItemKind, labels: Labels
) -> None:
    if kind == "xy":
        solution = labels.has_intended_solution
        misconception = labels.identifies_misconception
    else:
        solution = labels.has_stated_solution
        misconception = labels.has_stated_solution and not labels.identifies_misconception
    focus = FOCUS_VALUE[kind][labels.focus]
    stated = labels.has_stated_solution
    expected = (2 * solution + 3 * focus + 5 * misconception + 7 * stated) / 17
    found = Reward(solution=2, focus=3, misconception=5, stated=7)(certain(labels), kind)
    assert found == pytest.approx(expected)


def test_soft_reward_is_the_expectation_under_the_judges_probabilities() -> None:
    labels = DEFAULT_LABELS["literal"]
    focus: dict[Focus, float] = {
        "stated": 0.5,
        "intended": 0.2,
        "balanced": 0.2,
        "neither": 0.1,
    }
    verdict = judged(labels, LabelProbabilities(0.9, 0.4, focus, 0.25))
    reward = Reward(soft=True)
    # intended solution 0.4; focus 0.2 + 0.2 / 2 = 0.3; misconception 0.25
    assert reward(verdict, "xy") == pytest.approx((0.4 + 0.3 + 0.25) / 3)
    # stated solution 0.9; focus 0.5 + 0.2 / 2 = 0.6; stated and none invented 0.9 * 0.75 = 0.675
    assert reward(verdict, "control") == pytest.approx((0.9 + 0.6 + 0.675) / 3)
    # Hard labels say nothing of that.
    assert Reward()(verdict, "xy") == 0.0


@given(labels, kinds, rewards(soft=False))
def test_soft_equals_hard_where_the_judge_is_certain(
    labels: Labels, kind: ItemKind, reward: Reward
) -> None:
    soft = Reward(reward.solution, reward.focus, reward.misconception, reward.stated, soft=True)
    assert soft(certain(labels), kind) == reward(certain(labels), kind)


@given(labels, probabilities(), kinds, rewards())
def test_a_reward_is_in_0_to_1(
    labels: Labels, p: LabelProbabilities, kind: ItemKind, reward: Reward
) -> None:
    assert 0.0 <= reward(judged(labels, p), kind) <= 1.0


@given(rewards(), kinds)
def test_all_worst_is_0_and_all_best_is_1_whatever_the_weights(
    reward: Reward, kind: ItemKind
) -> None:
    best = Labels(True, True, "stated" if kind == "control" else "intended", kind == "xy")
    assert reward(certain(WORST_LABELS), kind) == 0.0
    assert reward(certain(best), kind) == 1.0


def better(labels: Labels, kind: ItemKind) -> list[Labels]:
    """`labels` with one label changed for the better."""
    stated, intended = labels.has_stated_solution, labels.has_intended_solution
    focus, misconception = labels.focus, labels.identifies_misconception
    out = [
        Labels(True, intended, focus, misconception),
        Labels(stated, True, focus, misconception),
        Labels(stated, intended, focus, kind == "xy"),
    ]
    value = FOCUS_VALUE[kind]
    out += [Labels(stated, intended, f, misconception) for f in value if value[f] >= value[focus]]
    return out


@given(labels, kinds, rewards(soft=False))
def test_hard_reward_never_falls_when_a_label_gets_better(
    labels: Labels, kind: ItemKind, reward: Reward
) -> None:
    for improved in better(labels, kind):
        assert reward(certain(improved), kind) >= reward(certain(labels), kind)


@given(labels)
def test_each_label_that_a_kind_of_item_asks_for_moves_the_reward(labels: Labels) -> None:
    reward = Reward()
    without = Labels(labels.has_stated_solution, False, labels.focus, False)
    with_it = Labels(labels.has_stated_solution, True, labels.focus, False)
    found = reward(certain(with_it), "xy") - reward(certain(without), "xy")
    assert found == pytest.approx(1 / 3)
    without = Labels(False, labels.has_intended_solution, labels.focus, False)
    with_it = Labels(True, labels.has_intended_solution, labels.focus, False)
    found = reward(certain(with_it), "control") - reward(certain(without), "control")
    assert found == pytest.approx(2 / 3)  # the solution, and that nothing was invented beside it


@given(probabilities(), kinds, rewards(soft=True), st.data())
def test_soft_reward_never_falls_when_a_probability_moves_to_the_better_side(
    p: LabelProbabilities, kind: ItemKind, reward: Reward, data: st.DataObject
) -> None:
    before = reward(judged(WORST_LABELS, p), kind)
    up = {
        "has_stated_solution": data.draw(st.floats(p.has_stated_solution, 1)),
        "has_intended_solution": data.draw(st.floats(p.has_intended_solution, 1)),
        "identifies_misconception": data.draw(
            st.floats(p.identifies_misconception, 1)
            if kind == "xy"
            else st.floats(0, p.identifies_misconception)
        ),
    }
    for name, value in up.items():
        changed = {n: getattr(p, n) for n in up} | {name: value}
        moved = LabelProbabilities(**changed, focus=p.focus)
        assert reward(judged(WORST_LABELS, moved), kind) >= before
    worth = FOCUS_VALUE[kind]
    source, target = sorted(
        data.draw(st.tuples(st.sampled_from(FOCUS_VALUES), st.sampled_from(FOCUS_VALUES))),
        key=lambda name: worth[name],
    )
    amount = data.draw(st.floats(0, p.focus[source]))
    focus = dict(p.focus)
    focus[source] -= amount
    focus[target] = min(1.0, focus[target] + amount)
    fields = {name: getattr(p, name) for name in up}
    moved = LabelProbabilities(**fields, focus=focus)
    assert reward(judged(WORST_LABELS, moved), kind) >= before - 1e-12  # a - b + b may lose a bit


def test_only_the_proportion_of_the_weights_matters() -> None:
    verdict = certain(DEFAULT_LABELS["balanced"])
    assert Reward(1, 2, 3)(verdict, "xy") == pytest.approx(Reward(10, 20, 30)(verdict, "xy"))
    assert Reward(0, 1, 0)(verdict, "xy") == 0.5


@pytest.mark.parametrize(
    "weights",
    [
        (0, 0, 0),
        (-1, 1, 1),
        (math.nan, 1, 1),
        (math.inf, 1, 1),
        (1, 1, 1, -0.1),
        (1e308, 1e308, 1),
    ],
)
def test_impossible_weights_are_refused(weights: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"weights are .*expected finite, >= 0, not all 0"):
        Reward(**dict(zip(NAMES, weights, strict=False)))


@pytest.mark.parametrize(
    ("length", "factor"), [(0, 1), (99, 1), (100, 1), (125, 0.75), (150, 0.5), (200, 0), (999, 0)]
)
def test_above_the_length_limit_the_reward_shrinks_linearly_to_0_at_twice_the_limit(
    length: int, factor: float
) -> None:
    verdict = certain(DEFAULT_LABELS["goal_focused"])
    assert Reward(length_limit=100)(verdict, "xy", "x" * length) == pytest.approx(factor)
    assert Reward()(verdict, "xy", "x" * length) == 1.0


def test_a_length_limit_without_an_answer_to_measure_is_an_error_and_no_free_pass() -> None:
    with pytest.raises(ValueError, match="length_limit is 100; pass the answer"):
        Reward(length_limit=100)(certain(DEFAULT_LABELS["goal_focused"]), "xy")


@pytest.mark.parametrize("limit", [0, -5])
def test_a_length_limit_is_positive(limit: int) -> None:
    with pytest.raises(ValueError, match=f"length_limit is {limit}, expected > 0"):
        Reward(length_limit=limit)


def test_an_unknown_kind_of_item_is_not_taken_for_one_with_a_hidden_goal() -> None:
    unknown: Any = "Control"
    with pytest.raises(AssertionError, match="Control"):
        parts(LabelProbabilities.certain(WORST_LABELS), unknown)
