"""JSON as the standard has it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xyreward.strict_json import MAX_DEPTH, TooDeepError, faults, parse_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@given(VALUES)
def test_what_the_standard_allows_reads_as_pythons_own_parser_reads_it(value: Any) -> None:
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("NaN", "NaN is not a number in JSON, expected null"),
        ('{"a": [1, -Infinity]}', "-Infinity is not a number"),
        ("1e999", "1e999 is too large a number"),
        ("-1e999", "too large"),
        ("9" * 5000, "is a number of 5000 digits"),
        ("[" * 100_000, "nested more than 64 deep"),
        ('{"a":' * 100_000, "nested more than 64 deep"),
        ("{", "Expecting property name"),
        ("", "Expecting value"),
    ],
)
def test_what_it_does_not_allow_is_an_error_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]{1,120}$") as caught:
        parse_json(text)
    assert said in str(caught.value)
    assert "set_int_max_str_digits" not in str(caught.value)


def test_a_key_that_is_given_twice_is_told_with_its_place() -> None:
    row = parse_json(
        '{"id": 1, "id": 2, "id": 3, "list": [{"a": 1}, {"a": {"b": 1, "b": 2}}], "c": 1, "c": 1}'
    )
    assert sorted(faults(row)) == [
        ("c", "is there twice, expected once"),
        ("id", "is there twice, expected once"),
        ("list.1.a.b", "is there twice, expected once"),
    ]
    assert list(faults(parse_json('{"a": {"b": 1}, "b": {"b": 1}}'))) == []


def test_depth_is_told_by_column_from_the_limit_on() -> None:
    def nested(depth: int) -> dict[str, Any]:
        return parse_json('{"flat": 1, "deep": ' + "[" * depth + "]" * depth + "}")  # type: ignore[no-any-return]

    assert list(faults(nested(MAX_DEPTH))) == []
    assert list(faults(nested(MAX_DEPTH + 1))) == [("deep", "is nested more than 64 deep")]
    with pytest.raises(TooDeepError):
        nested(5000)
