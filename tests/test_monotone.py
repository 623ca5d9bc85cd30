"""A rising map: it never falls, never ties, stays in [0, 1], and is near what it was fitted to."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xyreward.monotone import TILT, MonotoneMap, fit

NUMBERS = st.floats(-50, 50).map(lambda x: round(x, 3))


@settings(deadline=None)  # the first call imports scikit-learn
@given(st.lists(st.tuples(NUMBERS, st.floats(0, 1)), min_size=1, max_size=40), NUMBERS, NUMBERS)
def test_it_never_falls_and_stays_between_0_and_1(
    points: list[tuple[float, float]], one: float, other: float
) -> None:
    found = fit([x for x, _ in points], [y for _, y in points])
    low, high = sorted((one, other))
    assert 0 <= found(low) <= found(high) <= 1


def test_two_numbers_within_a_step_do_not_tie() -> None:
    found = fit([0, 1, 2, 3], [0.2, 0.2, 0.8, 0.8])
    steps = [found(x) for x in (-1, 0, 0.5, 1, 2, 3, 4)]
    assert steps == sorted(set(steps))


def test_values_out_of_order_become_one_step_of_their_mean() -> None:
    found = fit([0, 1, 2, 3], [0.1, 0.6, 0.4, 0.9])
    assert list(found.knots) == [0, 1.5, 3]
    assert found.values == pytest.approx((0.1, 0.5, 0.9))
    assert found(1.5) == pytest.approx((1 - TILT) * 0.5 + TILT * 0.5)


def test_beyond_what_it_was_fitted_to_it_goes_on_nearly_flat() -> None:
    found = fit([0, 1], [0.3, 0.6])
    assert 0.6 - TILT <= found(1) < found(10) <= 0.6 + TILT


def test_it_comes_back_from_json_as_it_was() -> None:
    found = fit([0.1, 0.7, 2], [0.1, 0.15, 0.9])
    assert MonotoneMap.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.parametrize(
    ("numbers", "values"), [([], []), ([1.0], []), ([math.nan], [0.5]), ([1.0], [math.inf])]
)
def test_what_cannot_be_fitted_is_refused(numbers: list[float], values: list[float]) -> None:
    with pytest.raises(ValueError, match="numbers and"):
        fit(numbers, values)


@pytest.mark.parametrize(
    "wrong",
    [
        {"knots": [1, 1], "values": [0, 1]},
        {"knots": [0, 1], "values": [1, 0]},
        {"knots": [0], "values": [1.1]},
        {"knots": [], "values": []},
        {"knots": [0], "values": [0.5], "width": 0},
        {"knots": [0], "values": [0.5], "centre": math.nan},
    ],
)
def test_a_map_that_is_none_is_refused(wrong: dict[str, list[float]]) -> None:
    with pytest.raises(ValueError, match="rising knots"):
        MonotoneMap.from_dict({"centre": 0, "width": 1, **wrong})


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_an_output_that_is_no_number_has_no_value(number: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        fit([0, 1], [0, 1])(number)
