import dataclasses
import json
import pickle
from typing import Any

import numpy as np
import pytest

from xyreward.errors import DataError, LeakError, XYRewardError
from xyreward.items import DEFAULT_LABELS
from xyreward.verdict import (
    FAILURE_KINDS,
    FOCUS_VALUES,
    Focus,
    JudgeFailure,
    LabelProbabilities,
    Labels,
    Verdict,
    odd_combinations,
)

EVEN: dict[Focus, float] = {"stated": 0.25, "intended": 0.25, "balanced": 0.25, "neither": 0.25}


def probabilities(**changed: Any) -> LabelProbabilities:
    fields: dict[str, Any] = {
        "has_stated_solution": 0.5,
        "has_intended_solution": 0.5,
        "focus": EVEN,
        "identifies_misconception": 0.5,
    }
    return LabelProbabilities(**{**fields, **changed})


def test_a_focus_off_the_menu_is_refused_with_the_menu() -> None:
    with pytest.raises(ValueError, match="'both', expected one of stated, intended, balanced, nei"):
        Labels(True, True, "both", True)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["no", "yes", None, 1, 0.0, np.bool_(True)], ids=repr)
@pytest.mark.parametrize(
    "name", ["has_stated_solution", "has_intended_solution", "identifies_misconception"]
)
def test_a_label_is_true_or_false_and_nothing_that_merely_counts_as_it(
    name: str, value: Any
) -> None:
    with pytest.raises(TypeError, match=rf"{name} is .*expected True or False.*bool\("):
        dataclasses.replace(DEFAULT_LABELS["literal"], **{name: value})


@pytest.mark.parametrize("value", [-0.01, 1.01, float("nan"), float("inf"), None, "0.5"], ids=repr)
def test_a_probability_outside_0_to_1_is_refused_wherever_it_stands(value: Any) -> None:
    for name in ("has_stated_solution", "has_intended_solution", "identifies_misconception"):
        with pytest.raises(ValueError, match=rf"{name} is .*expected a probability in \[0, 1\]"):
            probabilities(**{name: value})
    with pytest.raises(ValueError, match=r"focus\['stated'\] is .*expected a probability"):
        probabilities(focus={**EVEN, "stated": value})


@pytest.mark.parametrize(
    "focus",
    [
        {},
        {"stated": 0.5, "intended": 0.5},
        {**EVEN, "stated": 0.5},
        {"stated": 0.4, "intended": 0.2, "balanced": 0.2, "neither": 0.2, "both": 0.0},
        {"stated": 0.3, "intended": 0.3, "balanced": 0.3, "neither": 0.0},
    ],
    ids=["none", "two of four", "sum 1.25", "five", "sum 0.9"],
)
def test_focus_probabilities_are_of_all_four_and_sum_to_one(focus: Any) -> None:
    with pytest.raises(ValueError, match=r"expected all of stated, .*sum 1"):
        probabilities(focus=focus)


def test_probabilities_of_numpy_become_plain_floats_that_json_can_write() -> None:
    p = probabilities(
        has_stated_solution=np.float32(0.25), focus={k: np.float32(0.25) for k in FOCUS_VALUES}
    )
    assert json.loads(json.dumps(dataclasses.asdict(p))) == {
        "has_stated_solution": 0.25,
        "has_intended_solution": 0.5,
        "focus": EVEN,
        "identifies_misconception": 0.5,
    }


def test_probabilities_keep_their_values_when_the_mapping_they_came_from_changes() -> None:
    focus = dict(EVEN)
    p = probabilities(focus=focus)
    focus["stated"] = 7.0
    assert p.focus["stated"] == 0.25


def test_certain_probabilities_say_just_what_the_labels_say() -> None:
    assert LabelProbabilities.certain(Labels(True, False, "balanced", False)) == LabelProbabilities(
        has_stated_solution=1.0,
        has_intended_solution=0.0,
        focus={"stated": 0.0, "intended": 0.0, "balanced": 1.0, "neither": 0.0},
        identifies_misconception=0.0,
    )


def test_a_verdict_shows_the_four_labels_as_its_own() -> None:
    labels = Labels(True, False, "neither", True)
    verdict = Verdict(labels, LabelProbabilities.certain(labels), "test", "1")
    shown = (
        verdict.has_stated_solution,
        verdict.has_intended_solution,
        verdict.focus,
        verdict.identifies_misconception,
    )
    assert shown == (True, False, "neither", True)


def test_a_verdict_cannot_be_changed_and_survives_a_trip_to_another_process() -> None:
    labels = DEFAULT_LABELS["dump"]
    verdict = Verdict(labels, LabelProbabilities.certain(labels), "test", "1", flags=("x",))
    with pytest.raises(dataclasses.FrozenInstanceError):
        verdict.judge = "other"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(verdict)) == verdict


@pytest.mark.parametrize("kind", FAILURE_KINDS)
def test_every_kind_of_failure_can_be_made(kind: Any) -> None:
    failure = JudgeFailure(kind, "detail", raw_text="what it said", cost_usd=None)
    assert (failure.kind, failure.raw_text, failure.cost_usd) == (kind, "what it said", None)


def test_an_unknown_kind_of_failure_is_refused() -> None:
    with pytest.raises(ValueError, match="'oops', expected one of transport, rate_limited"):
        JudgeFailure("oops", "")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", DEFAULT_LABELS)
def test_of_the_kinds_of_reference_answer_only_a_failed_attempt_is_odd(kind: Any) -> None:
    odd = ("focus_stated_without_stated_solution",) if kind == "attempt" else ()
    assert odd_combinations(DEFAULT_LABELS[kind]) == odd


@pytest.mark.parametrize(
    ("labels", "flags"),
    [
        (Labels(False, False, "intended", True), ("focus_intended_without_intended_solution",)),
        (Labels(False, True, "stated", False), ("focus_stated_without_stated_solution",)),
        (Labels(True, False, "balanced", False), ("focus_balanced_without_both_solutions",)),
        (Labels(False, True, "balanced", False), ("focus_balanced_without_both_solutions",)),
        (Labels(True, False, "stated", True), ("misconception_identified_with_focus_stated",)),
        (
            Labels(False, False, "stated", True),
            ("focus_stated_without_stated_solution", "misconception_identified_with_focus_stated"),
        ),
    ],
)
def test_odd_combinations_are_named_and_not_rejected(
    labels: Labels, flags: tuple[str, ...]
) -> None:
    assert odd_combinations(labels) == flags


def test_a_data_error_shows_the_first_problems_and_keeps_all_also_in_another_process() -> None:
    error = DataError([f"row {i}: bad" for i in range(25)])
    for seen in (error, pickle.loads(pickle.dumps(error))):
        assert len(seen.problems) == 25
        text = str(seen)
        assert text.startswith("25 problems in the data:\n  row 0: bad\n")
        assert text.endswith("  row 19: bad\n  ... and 5 more")
    assert str(DataError(["row 1: bad"])) == "1 problem in the data:\n  row 1: bad"


def test_a_leak_error_keeps_the_offending_ids_also_in_another_process() -> None:
    error = pickle.loads(pickle.dumps(LeakError("two leak", ["a", "b"])))
    assert (str(error), error.offending) == ("two leak", ["a", "b"])
    assert isinstance(error, XYRewardError)
    assert isinstance(error, ValueError)
