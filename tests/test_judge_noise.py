"""The judge's share of the variance, on votes made by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rows import DIRECT, GOAL, LITERAL, evaluation, failed, row

from xyreward.evaluation import Row
from xyreward.judge_noise import JudgeNoise, judge_noise
from xyreward.verdict import FOCUS_VALUES


def voted(name: str, yes: int, votes: int, focus: dict[str, int] | None = None) -> Row:
    """`yes` of `votes` votes say yes to each label."""
    counts = focus or {"intended": yes, "stated": votes - yes}
    p = {
        "has_stated_solution": yes / votes,
        "has_intended_solution": yes / votes,
        "identifies_misconception": yes / votes,
        "focus": {value: counts.get(value, 0) / votes for value in FOCUS_VALUES},
    }
    base = row(name, GOAL)
    return replace(base, verdict={**(base.verdict or {}), "p": p, "votes": votes})


def by_label(*rows: Row, **options: Any) -> dict[str, JudgeNoise]:
    return {n.label: n for n in judge_noise([evaluation(*rows)], **options)}


def test_the_share_is_the_variance_among_votes_over_that_of_all_votes() -> None:
    ayes = {"a": 4, "b": 0, "c": 2, "d": 3}
    found = by_label(*[voted(f"{name}{n}", ayes[name], 4) for name in ayes for n in range(5)])
    noise = found["identifies_misconception"]
    assert (noise.n, noise.votes) == (20, 4)
    # p(1 - p): 0, 0, 1/4, 3/16; mean 7/64; unbiased times 4/3: 7/48. All votes: 9 of 16 say yes.
    within, total = 7 / 48, 9 / 16 * 7 / 16
    assert noise.share is not None
    assert noise.share.value == pytest.approx(within / total)
    assert noise.share_of_mean == pytest.approx((within / 4) / (total - within + within / 4))
    assert noise.share.low is not None
    assert noise.share.high is not None
    assert noise.share.low < noise.share.value < noise.share.high
    # Of two answers, a quarter of resamples hold "a" twice, and then nothing varies.
    few = by_label(voted("a", 4, 4), voted("c", 2, 4))["focus"].share
    assert few is not None
    assert few.value == pytest.approx((1 / 8 * 4 / 3) / (6 / 8 * 2 / 8))
    assert (few.low, few.why) == (None, "too few rows decide it")


def test_it_is_one_minus_fleiss_kappa() -> None:
    # Fleiss' own form: mean over answers of agreeing pairs of votes, and by chance.
    votes = [(3, 0), (2, 1), (0, 3), (1, 2), (3, 0)]
    pairs = [(a * (a - 1) + b * (b - 1)) / (3 * 2) for a, b in votes]
    agree = sum(pairs) / 5
    yes = sum(a for a, _ in votes) / 15
    chance = yes**2 + (1 - yes) ** 2
    kappa = (agree - chance) / (1 - chance)
    found = by_label(*[voted(f"i{n}", a, 3) for n, (a, _) in enumerate(votes)])
    share = found["has_intended_solution"].share
    assert share is not None
    assert share.value == pytest.approx(1 - kappa)


def test_focus_sums_the_variances_of_its_values() -> None:
    found = by_label(
        voted("a", 0, 3, {"intended": 3}),
        voted("b", 0, 3, {"intended": 1, "stated": 1, "neither": 1}),
        voted("c", 0, 3, {"stated": 3}),
    )
    # p(1 - p) summed: 0, 3 * 2/9 = 2/3, 0; mean 2/9; unbiased times 3/2: 1/3.
    # All votes: 4/9, 4/9, 1/9: 1 - (16 + 16 + 1) / 81 = 48/81
    share = found["focus"].share
    assert share is not None
    assert share.value == pytest.approx((1 / 3) / (48 / 81))


def test_a_steady_judge_has_no_share_and_one_that_guesses_has_all() -> None:
    steady = by_label(*[voted(f"i{n}", 3 * (n % 2), 3) for n in range(40)])
    assert steady["focus"].share is not None
    assert steady["focus"].share.value == 0
    rng = np.random.default_rng(0)
    guesses = by_label(*[voted(f"i{n}", int(rng.binomial(5, 0.5)), 5) for n in range(2000)])
    share = guesses["focus"].share
    assert share is not None
    # sd of the share over 2000 answers of 5 votes: about sqrt(2 / (2000 * 5 * 4)) = 0.007
    assert share.value == pytest.approx(1, abs=0.03)
    assert by_label(voted("a", 3, 3), voted("b", 3, 3))["focus"].share is None  # nothing varies


def test_repeats_of_one_vote_count_as_votes() -> None:
    repeats = [
        evaluation(row("a", first, answer="x"), row("b", LITERAL, answer="y"))
        for first in (GOAL, GOAL, LITERAL)
    ]
    found = {n.label: n for n in judge_noise(repeats)}
    # a: 2 of 3, b: 0 of 3. Within: (2/9 + 0) / 2 * 3/2 = 1/6. All: 2 of 6, 2/9.
    share = found["identifies_misconception"].share
    assert share is not None
    assert share.value == pytest.approx((1 / 6) / (2 / 9))


def test_answers_with_unequally_many_votes_weigh_by_them() -> None:
    found = by_label(voted("a", 1, 2), voted("b", 3, 4))
    # sum k p q = 2/4 + 4 * 3/16 = 5/4; sum k - 1 = 4; all: 4 of 6
    share = found["focus"].share
    assert share is not None
    assert share.value == pytest.approx((5 / 4) / 4 / (4 / 6 * 2 / 6))


def test_single_votes_and_failures_tell_nothing() -> None:
    assert judge_noise([]) == []
    assert judge_noise([evaluation(row("a", GOAL), failed("b"))]) == []
    assert by_label(voted("a", 2, 3), failed("b"), row("c", GOAL))["focus"].n == 1


def test_a_kind_can_be_asked_for() -> None:
    control = replace(voted("c", 1, 3), kind="control")
    assert by_label(voted("a", 3, 3), control, kind="xy")["focus"].n == 1


def test_probabilities_of_a_fitted_head_are_no_votes() -> None:
    one = voted("a", 1, 2)
    assert one.verdict is not None
    odd = {**one.verdict, "p": {**one.verdict["p"], "identifies_misconception": 0.37}}
    with pytest.raises(
        ValueError, match=r"item 'a' has the probability 0\.37, which is no share of 2"
    ):
        by_label(replace(one, verdict=odd))


def test_repeats_must_be_of_the_same_answers_by_the_same_judge() -> None:
    one = evaluation(row("a", DIRECT, answer="x"))
    with pytest.raises(ValueError, match="not of the same answers"):
        judge_noise([one, evaluation(row("a", DIRECT, answer="y"))])
    with pytest.raises(ValueError, match="differ in judge: 'j' and 'k'"):
        judge_noise([one, replace(one, judge="k")])
