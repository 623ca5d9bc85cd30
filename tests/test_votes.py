"""Several outcomes for one answer become one, whatever they are."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xyreward.items import ItemKind
from xyreward.judges.votes import Outcome, combine
from xyreward.reward import Reward
from xyreward.verdict import (
    FAILURE_KINDS,
    FOCUS_VALUES,
    JudgeFailure,
    LabelProbabilities,
    Labels,
    Suggestion,
    Usage,
    Verdict,
    odd_combinations,
)

YES_NO = ("has_stated_solution", "has_intended_solution", "identifies_misconception")
KINDS: tuple[ItemKind, ...] = ("xy", "control")

GOOD = Labels(False, True, "intended", True)
BAD = Labels(True, False, "stated", False)
OPEN = Labels(False, False, "neither", False)


def verdict(labels: Labels, **fields: Any) -> Verdict:
    return Verdict(
        labels=labels,
        p=fields.pop("p", LabelProbabilities.certain(labels)),
        judge="one",
        rubric_version="1",
        flags=odd_combinations(labels),
        **fields,
    )


def whole(outcomes: list[Outcome], kind: ItemKind = "xy") -> Any:
    return combine(outcomes, kind, judge="all", rubric_version="1+2")


labels = st.builds(
    Labels, st.booleans(), st.booleans(), st.sampled_from(FOCUS_VALUES), st.booleans()
)
costs = st.none() | st.floats(0, 10)
usages = st.builds(Usage, *[st.integers(0, 10_000)] * 4)
verdicts = st.builds(
    verdict, labels, usage=usages, cost_usd=costs, cached=st.booleans(), grounded=st.booleans()
)
failures = st.builds(
    JudgeFailure, st.sampled_from(FAILURE_KINDS), st.text(), usage=usages, cost_usd=costs
)
outcomes = st.lists(verdicts | failures, min_size=1, max_size=9)
kinds = st.sampled_from(KINDS)


@given(outcomes, kinds)
def test_what_is_judged_by_more_than_half_has_a_verdict_and_all_else_a_failure(
    given: list[Outcome], kind: ItemKind
) -> None:
    found = whole(given, kind)
    judged = [o for o in given if isinstance(o, Verdict)]
    failed = [o for o in given if isinstance(o, JudgeFailure)]
    if len(judged) > len(failed):
        assert isinstance(found, Verdict)
        assert found.judge == "all"
        assert found.rubric_version == "1+2"
        assert found.votes == len(judged)
        assert (f"failed_votes:{len(failed)}" in found.flags) == bool(failed)
    else:
        assert isinstance(found, JudgeFailure)
        counts = Counter(f.kind for f in failed)
        assert counts[found.kind] == max(counts.values())
    # Nobody is paid less for a vote that was lost.
    assert found.usage == sum((o.usage for o in given), Usage())
    if any(o.cost_usd is None for o in given):
        assert found.cost_usd is None
    else:
        assert found.cost_usd == pytest.approx(sum(o.cost_usd for o in given))  # type: ignore[misc]


@given(st.lists(verdicts, min_size=1, max_size=9), kinds)
def test_p_is_the_share_of_votes_and_labels_are_the_majoritys(
    given: list[Verdict], kind: ItemKind
) -> None:
    found = whole(list(given), kind)
    n = len(given)
    assert sum(found.p.focus.values()) == pytest.approx(1, abs=1e-9)
    for name in YES_NO:
        ayes = sum(getattr(v, name) for v in given)
        assert getattr(found.p, name) == pytest.approx(ayes / n)
        if 2 * ayes != n:
            assert getattr(found, name) == (2 * ayes > n)
    votes = Counter(v.focus for v in given)
    for focus in FOCUS_VALUES:
        assert found.p.focus[focus] == pytest.approx(votes[focus] / n)
    assert votes[found.focus] == max(votes.values())


@given(st.lists(verdicts, min_size=1, max_size=9), kinds, st.randoms())
def test_the_order_of_votes_does_not_matter(given: list[Verdict], kind: ItemKind, r: Any) -> None:
    shuffled = list(given)
    r.shuffle(shuffled)
    one, other = whole(list(given), kind), whole(list(shuffled), kind)
    assert one.labels == other.labels
    assert one.p.focus == pytest.approx(other.p.focus)


@given(st.lists(labels, min_size=2, max_size=2), kinds)
def test_of_two_votes_that_differ_the_worse_label_counts(
    given: list[Labels], kind: ItemKind
) -> None:
    # An answer that splits the judges is worth no more than the worst of what they say, label by label.
    found = whole([verdict(one) for one in given], kind)
    worst = Reward()(found, kind)
    for one in given:
        assert worst <= Reward()(verdict(one), kind)


@given(verdicts, kinds, st.integers(1, 9))
def test_votes_that_agree_change_nothing(given: Verdict, kind: ItemKind, n: int) -> None:
    found = whole([given] * n, kind)
    assert found.labels == given.labels
    assert found.p.focus == pytest.approx(given.p.focus)
    assert found.flags == given.flags
    for soft in (False, True):
        reward = Reward(soft=soft)
        assert reward(found, kind) == pytest.approx(reward(given, kind))


@pytest.mark.parametrize(
    ("kind", "tied", "expected"),
    [
        ("xy", ("intended", "balanced"), "balanced"),
        ("xy", ("intended", "stated"), "stated"),
        ("xy", ("stated", "neither"), "neither"),
        ("xy", ("intended", "balanced", "stated", "neither"), "neither"),
        ("control", ("stated", "balanced"), "balanced"),
        ("control", ("stated", "intended"), "intended"),
        ("control", ("intended", "neither"), "neither"),
    ],
)
def test_of_tied_focuses_the_one_that_pays_least_wins(
    kind: ItemKind, tied: tuple[Any, ...], expected: str
) -> None:
    found = whole([verdict(Labels(True, True, focus, True)) for focus in tied], kind)
    assert found.focus == expected


def test_of_a_tied_misconception_the_one_that_pays_least_wins() -> None:
    split: list[Outcome] = [verdict(GOOD), verdict(BAD)]
    assert not whole(split, "xy").identifies_misconception
    # On a control identifying one means inventing it.
    assert whole(split, "control").identifies_misconception


def test_probabilities_of_a_judge_that_has_its_own_are_averaged() -> None:
    unsure = LabelProbabilities(
        0.5, 0.25, {"stated": 0.5, "intended": 0.25, "balanced": 0.25, "neither": 0.0}, 0.0
    )
    found = whole([verdict(GOOD), verdict(BAD, p=unsure)])
    assert found.p.has_stated_solution == pytest.approx((0 + 0.5) / 2)
    assert found.p.has_intended_solution == pytest.approx((1 + 0.25) / 2)
    assert found.p.focus["intended"] == pytest.approx((1 + 0.25) / 2)
    assert found.p.identifies_misconception == pytest.approx((1 + 0) / 2)


def test_the_vote_that_agrees_most_speaks_for_all() -> None:
    said = [Suggestion("earlier on Sunday", "intended", "more sleep")]
    found = whole(
        [
            verdict(BAD, reason="the clock is louder"),
            verdict(GOOD, reason="more sleep", suggestions=tuple(said)),
            verdict(GOOD, reason="more sleep again"),
        ]
    )
    assert found.reason == "more sleep"
    assert found.suggestions == tuple(said)


def test_what_is_odd_about_one_vote_is_not_said_of_all() -> None:
    odd = Labels(False, False, "intended", True)
    assert odd_combinations(odd)
    assert whole([verdict(GOOD), verdict(GOOD), verdict(odd)]).flags == ()
    assert whole([verdict(odd), verdict(odd), verdict(GOOD)]).flags == odd_combinations(odd)


def test_other_flags_of_votes_are_kept_once() -> None:
    dropped = Verdict(GOOD, LabelProbabilities.certain(GOOD), "one", "1", flags=("quote_dropped",))
    assert whole([verdict(GOOD), dropped, dropped]).flags == ("quote_dropped",)


def test_a_failure_of_votes_says_how_many_failed_and_keeps_a_reply() -> None:
    lost = JudgeFailure("refused", "category x", raw_text="no", cost_usd=0.1)
    found = whole([lost, JudgeFailure("timeout", "late"), lost, verdict(GOOD, cost_usd=0.2)])
    assert found.kind == "refused"
    assert found.detail == "3 of 4 votes failed, one with: category x"
    assert found.raw_text == "no"
    assert found.cost_usd == pytest.approx(0.1 + 0.0 + 0.1 + 0.2)


def test_one_outcome_alone_is_itself() -> None:
    lost = JudgeFailure("timeout", "late")
    assert whole([lost]) == lost
    assert whole([verdict(OPEN)]).labels == OPEN


def test_it_is_grounded_and_cached_only_where_all_are() -> None:
    mixed = whole([verdict(GOOD, cached=True), verdict(GOOD, grounded=False)])
    assert not mixed.cached
    assert not mixed.grounded
    same = whole([verdict(GOOD, cached=True), verdict(GOOD, cached=True)])
    assert same.cached
    assert same.grounded
