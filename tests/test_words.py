"""Words of messages."""

import pytest

from xyreward.words import counted, did_you_mean, dollars, is_empty, noun, of_whom


def test_one_thing_is_singular_and_all_else_plural() -> None:
    assert [noun(n, "call") for n in (0, 1, 2)] == ["calls", "call", "calls"]
    assert [noun(n, "batch", "batches") for n in (0, 1, 2)] == ["batches", "batch", "batches"]


def test_a_count_comes_with_its_word_and_with_commas() -> None:
    assert [counted(n, "pair") for n in (0, 1, 1200)] == ["0 pairs", "1 pair", "1,200 pairs"]
    assert counted(2, "row has", "rows have") == "2 rows have"


def test_only_what_is_close_is_suggested() -> None:
    assert did_you_mean("stated_requst", ["query", "stated_request"]) == (
        "did you mean 'stated_request'?"
    )
    assert did_you_mean("zzz", ["query", "stated_request"]) == ""
    assert did_you_mean("x", []) == ""


@pytest.mark.parametrize(
    ("usd", "unpriced", "told"),
    [
        (0.0, 0, "0.0000"),
        (1234.5, 0, "1,234.5000"),
        (0.5, 1, "0.5000 and 1 call of unknown price"),
        (0.0, 1, "unknown, for 1 call of unknown price"),
        (0.0, 1200, "unknown, for 1,200 calls of unknown price"),
    ],
)
def test_an_unknown_price_is_never_0(usd: float, unpriced: int, told: str) -> None:
    assert dollars(usd, unpriced) == told


@pytest.mark.parametrize(
    ("name", "alone", "of_two"),
    [
        ("before", "the policy", "before"),
        ("before.oracle", "the policy, told the goal", "before, told the goal"),
        ("after", "after", "after"),
        ("after.oracle", "after, told the goal", "after, told the goal"),
        ("reference.goal_focused", "reference: goal focused", "reference: goal focused"),
    ],
)
def test_there_is_a_before_only_where_there_is_an_after(name: str, alone: str, of_two: str) -> None:
    assert (of_whom(name, two=False), of_whom(name, two=True)) == (alone, of_two)


@pytest.mark.parametrize(
    "answer",
    [
        "", " \n\t", "\u3000\xa0", "\u200b", "\ufeff\u2060\u200d", "\u202e\u2066", "\xad", "\x00\x1b",
        "\u2028", "\u3164\uffa0\u115f", "\u2800", "\u034f\ufe0f", "\U000e0100\U000e0041", " \u200b\n" * 999,
    ],
    ids=ascii,
)  # fmt: skip
def test_what_no_reader_would_see_is_empty(answer: str) -> None:
    assert is_empty(answer)


@pytest.mark.parametrize(
    "answer", [".", "\u200bno", "\u4f60", "\U0001f600", "e\u0301", "\u28ff", "\ufffd", "0"]
)
def test_whatever_takes_ink_is_not(answer: str) -> None:
    assert not is_empty(answer)
    assert not is_empty(f"\u200b{answer}\ufe0f")
