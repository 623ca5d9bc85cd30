"""What two jobs differ in."""

from typing import Any

import pytest

from xyreward.differing import differences, was_and_is

TOKENS = {"model": None, "revision": None, "max_length": 448, "template": {"think": False}}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ({"seed": 0}, {"seed": 1}, ["seed was 0, is 1"]),
        (
            {"tokens": TOKENS},
            {"tokens": None},
            [
                "tokens.max_length was 448, is None",
                "tokens.template.think was False, is None",
            ],
        ),
        ({}, {"tokens": {"max_length": 448}}, ["tokens.max_length was None, is 448"]),
        ({"items": [{"limit": 1}]}, {"items": [{"limit": 2}]}, ["items.limit was 1, is 2"]),
        ({"kinds": ["a"]}, {"kinds": ["a", "b"]}, ["kinds was ['a'], is ['a', 'b']"]),
        ({"options": {}}, {"options": None}, ["options was {}, is None"]),
        ({"hash": "a" * 64}, {"hash": None}, [f"hash was '{'a' * 12}...', is None"]),
        ({"same": TOKENS}, {"same": TOKENS}, []),
    ],
)
def test_the_innermost_setting_is_named_and_no_nest_is_cut_in_the_middle(
    old: dict[str, Any], new: dict[str, Any], told: list[str]
) -> None:
    assert [f"{at} {was_and_is(*values)}" for at, *values in differences(old, new)] == told


def test_a_long_value_ends_with_dots() -> None:
    assert was_and_is("x" * 500, 1) == f"was '{'x' * 116}..., is 1"
