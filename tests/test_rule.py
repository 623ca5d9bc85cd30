from typing import Any

import pytest

from xyreward.errors import ConfigError
from xyreward.items import DEFAULT_LABELS, AnswerKind, Item
from xyreward.pairs.candidates import Candidate, Judged
from xyreward.pairs.rule import NEITHER, NEITHER_OVERCORRECTS, Rule
from xyreward.testing import make_item
from xyreward.verdict import Labels

XY, CONTROL = make_item(), make_item(kind="control", id="control")


def judged(
    like: AnswerKind | Labels, reward: float, *, text: str = "", item: Item = XY, **fields: Any
) -> Judged:
    """An answer of a policy that a judge gave the labels of this kind."""
    labels = like if isinstance(like, Labels) else DEFAULT_LABELS[like]
    base = {"source": "on_policy", "origin": "model"}
    answer = Candidate(item.id, text or f"{like} {reward}", **{**base, **fields})
    return Judged(answer, labels, reward, "judge")


GOOD, BAD = judged("goal_focused", 0.9), judged("literal", 0.1)


def test_a_goal_focused_answer_is_chosen_over_one_that_is_not_in_either_order() -> None:
    assert Rule().decide(XY, GOOD, BAD) == (GOOD, BAD, "goal_focused")
    assert Rule().decide(XY, BAD, GOOD) == (GOOD, BAD, "goal_focused")


@pytest.mark.parametrize("kind", ["balanced", "passing_mention", "dump", "refusal", "wrong_goal"])
def test_whatever_is_not_goal_focused_can_be_rejected(kind: AnswerKind) -> None:
    other = judged(kind, 0.5)
    assert Rule().decide(XY, other, GOOD) == (GOOD, other, "goal_focused")


def test_two_answers_alike_make_no_pair_however_wide_their_margin() -> None:
    better = judged("goal_focused", 0.99)
    assert Rule().decide(XY, better, judged("goal_focused", 0.5)) == (
        "both sides are what training should teach"
    )
    assert Rule().decide(XY, judged("literal", 0.4), judged("refusal", 0.0)) == NEITHER


def test_what_chosen_needs_can_be_less_than_everything() -> None:
    unaware = judged(Labels(False, True, "intended", False), 0.6)
    assert Rule().decide(XY, unaware, BAD) == NEITHER
    assert Rule(needs=("intended_solution", "intended_focus")).decide(XY, unaware, BAD) == (
        unaware,
        BAD,
        "goal_focused",
    )
    # and then the two differ in nothing that matters
    assert Rule(needs=("intended_focus",)).decide(XY, unaware, GOOD) == (
        "both sides are what training should teach"
    )


def test_a_failed_judgement_makes_no_pair_on_either_side() -> None:
    failed = Judged(GOOD.answer, None, None, "judge", failure="timeout")
    assert Rule().decide(XY, failed, BAD) == "failed verdict: timeout"
    assert Rule().decide(XY, GOOD, failed) == "failed verdict: timeout"
    empty = Judged(GOOD.answer, None, None, "judge", failure="empty answer")
    assert Rule().decide(XY, GOOD, empty) == "empty answer"
    assert Rule(margin_pairs=0.1).decide(XY, GOOD, empty, by_margin=True) == "empty answer"


def test_ties_and_narrow_margins_are_told_apart() -> None:
    near = judged("literal", 0.7)
    assert Rule(margin=0.3).decide(XY, GOOD, near) == "margin below 0.3"
    assert Rule(margin=0.2).decide(XY, GOOD, near) == (GOOD, near, "goal_focused")
    assert Rule().decide(XY, GOOD, judged("literal", 0.9)) == "tie"
    assert "rejected is labelled as good" in Rule().decide(XY, GOOD, judged("literal", 0.95))


def test_sides_of_different_origin_or_source_make_a_pair_only_where_that_is_allowed() -> None:
    for other in (judged("literal", 0.1, origin="human"), judged("literal", 0.1, source="x")):
        assert Rule().decide(XY, GOOD, other) == "different origins"
        assert Rule(same_origin=False).decide(XY, GOOD, other) == (GOOD, other, "goal_focused")


def test_an_unsafe_answer_is_never_chosen() -> None:
    unsafe = judged("goal_focused", 0.9, unsafe=True)
    assert Rule().decide(XY, unsafe, BAD) == "chosen is unsafe"
    dangerous = judged("literal", 0.1, unsafe=True)
    assert Rule().decide(XY, GOOD, dangerous) == (GOOD, dangerous, "goal_focused")
    weak = judged("dump", 0.5, unsafe=True)
    assert Rule(margin_pairs=0.1).decide(XY, weak, BAD, by_margin=True) == "chosen is unsafe"


def test_a_control_prefers_a_direct_answer_to_one_that_invents_a_misconception() -> None:
    direct = judged("direct", 0.9, item=CONTROL)
    overcorrecting = judged("overcorrecting", 0.1, item=CONTROL)
    refusal = judged("refusal", 0.0, item=CONTROL)
    assert Rule().decide(CONTROL, overcorrecting, direct) == (
        direct,
        overcorrecting,
        "goal_focused",
    )
    assert Rule().decide(CONTROL, direct, refusal) == NEITHER_OVERCORRECTS


def test_margin_pairs_take_the_better_of_two_that_are_both_not_to_be_taught() -> None:
    better, worse = judged("dump", 0.5), judged("literal", 0.2)
    rule = Rule(margin_pairs=0.25)
    assert rule.decide(XY, worse, better, by_margin=True) == (better, worse, "margin")
    assert Rule(margin_pairs=0.35).decide(XY, better, worse, by_margin=True) == "margin below 0.35"
    # the general threshold holds as well
    assert Rule(margin=0.4, margin_pairs=0.1).decide(XY, better, worse, by_margin=True) == (
        "margin below 0.4"
    )


def test_lengths_that_differ_too_much_make_no_pair() -> None:
    long, short = judged("goal_focused", 0.9, text="a" * 31), judged("literal", 0.1, text="b" * 20)
    assert (
        Rule(max_length_ratio=1.5).decide(XY, long, short) == "one side more than 1.5 times as long"
    )
    assert Rule(max_length_ratio=1.55).decide(XY, short, long) == (long, short, "goal_focused")


def test_answers_without_a_kind_are_proposed_two_by_two_and_references_by_their_kinds() -> None:
    policy = [judged("literal", n / 10, text=str(n)) for n in range(4)]
    assert len(list(Rule().proposals(XY, policy))) == 6
    kinds: tuple[AnswerKind, ...] = ("goal_focused", "literal", "dump", "balanced")
    by_kind = [judged(kind, 0.5, kind=kind, source="references") for kind in kinds]
    proposed = [
        (a.answer.kind, b.answer.kind) for a, b in Rule().proposals(XY, [*policy, *by_kind])
    ]
    assert proposed[:2] == [("goal_focused", "literal"), ("goal_focused", "dump")]
    assert proposed[2:] == [(None, None)] * 6


def test_references_meet_answers_of_others_where_authors_may_differ() -> None:
    worth: dict[AnswerKind, float] = {"goal_focused": 1.0, "literal": 0.0, "balanced": 0.7}
    human = [
        judged(kind, reward, kind=kind, source="references", origin="human")
        for kind, reward in worth.items()
    ]
    rule = Rule(same_origin=False)
    found = [rule.decide(XY, *sides) for sides in rule.proposals(XY, [GOOD, BAD, *human])]
    chosen = [(one[0].reward, one[1].reward) for one in found if not isinstance(one, str)]
    # References among themselves, the policy's two, and either of these with what may be a side.
    assert chosen == [(1.0, 0.0), (0.9, 0.1), (0.9, 0.0), (1.0, 0.1)]
    assert len(found) == 6


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("needs", (), "needs is"),
        ("needs", ("intended",), "expected some of intended_solution"),
        ("needs", "misconception", "needs is 'misconception'"),
        ("margin", -0.1, "margin is -0.1"),
        ("margin", float("nan"), "margin is nan"),
        ("margin", 1.1, "in \\[0, 1\\]"),
        ("margin_pairs", 0.0, "margin_pairs is 0.0"),
        ("margin_pairs", float("nan"), "margin_pairs is nan"),
        ("max_pairs_per_item", 0, "max_pairs_per_item is 0"),
        ("max_length_ratio", 0.9, "max_length_ratio is 0.9"),
        ("max_length_ratio", float("nan"), "max_length_ratio is nan"),
    ],
)
def test_impossible_rules_are_refused(field: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Rule(**{field: value})
