import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xyreward.errors import ConfigError
from xyreward.items import DEFAULT_LABELS, AnswerKind, Item
from xyreward.pairs import Candidate, Judged, Pair, PairSet, build_pairs
from xyreward.pairs.audit import AuditLimits, audit_pairs
from xyreward.pairs.balance import balanced
from xyreward.pairs.shortcuts import RULES, picks, traits_of


def judged(text: str, kind: AnswerKind, reward: float) -> Judged:
    answer = Candidate("item", text, "on_policy", "m")
    return Judged(answer, DEFAULT_LABELS[kind], reward, "local")


def pair(i: int, chosen: str, rejected: str, control: bool = False) -> Pair:
    return Pair(
        id=f"pair-{i}",
        item_id=f"item-{i}",
        item_kind="control" if control else "xy",
        split="train",
        cluster=f"cluster-{i}",
        prompt=({"role": "user", "content": "query"},),
        chosen_answer=judged(chosen, "direct" if control else "goal_focused", 1.0),
        rejected_answer=judged(rejected, "overcorrecting" if control else "literal", 0.0),
        source="forum",
        language="en",
    )


def shares(pairs: Sequence[Pair]) -> dict[str, float]:
    of = traits_of(pairs)
    return {rule.name: sum(picks(pairs, rule, of)) / len(pairs) for rule in RULES}


def furthest(pairs: Sequence[Pair]) -> float:
    return max(abs(share - 0.5) for share in shares(pairs).values())


def random_pairs(n: int, rng: random.Random, lean: float = 0.7) -> list[Pair]:
    """Pairs in which chosen has more of everything in about this share."""

    def text(much: bool) -> str:
        parts = ["Why? " if rng.random() < (0.3 if much else 0.1) else ""]
        parts += ["- a\n"] * rng.randint(0, 3 if much else 2)
        parts += ["not "] * rng.randint(0, 4 if much else 3)
        return "".join(parts) + "word " * rng.randint(1, 12 if much else 9)

    found = []
    for i in range(n):
        much = rng.random() < lean
        found.append(pair(i, text(much), text(not much), control=rng.random() < 0.3))
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 150),
    st.randoms(use_true_random=False),
    st.sampled_from([0.0, 0.01, 0.05, 0.2]),
    st.none() | st.integers(1, 80),
    st.none() | st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    st.sampled_from([0.3, 0.5, 0.7]),
)
def test_what_is_kept_is_balanced_and_nothing_is_lost(
    n: int,
    rng: random.Random,
    tolerance: float,
    limit: int | None,
    control_share: float | None,
    lean: float,
) -> None:
    pairs = random_pairs(n, rng, lean)
    kept, left = balanced(
        pairs, tolerance=tolerance, limit=limit, control_share=control_share, min_keep=0
    )
    assert {p.id for p in kept} | {p.id for p in left} == {p.id for p in pairs}
    assert len(kept) + len(left) == n
    assert [p for p in pairs if p in kept] == kept  # in the order in which they came
    assert len(kept) <= (limit if limit is not None else n)
    if kept:
        assert furthest(kept) <= tolerance + 1e-9
        controls = sum(p.item_kind == "control" for p in kept)
        assert controls <= (1 if control_share is None else control_share) * len(kept) + 1e-6


def test_as_many_are_kept_as_can_be() -> None:
    # 60 pairs in which chosen has a list and 20 in which rejected has one; all of one length.
    lists = [pair(i, "- aaa", "b bbb") for i in range(60)]
    others = [pair(100 + i, "b bbb", "- aaa") for i in range(20)]
    kept, left = balanced([*lists, *others], tolerance=0.0)
    assert len(kept) == 40  # 20 of either
    assert len(left) == 40
    # At 0.55 the 20 are 45 %: 20 / 0.45 = 44.4, so 44 pairs.
    kept, _ = balanced([*lists, *others])
    assert len(kept) == 44
    assert shares(kept)["markdown"] == pytest.approx(24 / 44)


def test_pairs_that_are_balanced_are_all_kept() -> None:
    pairs = [pair(i, "- aaa", "b bbb") for i in range(20)]
    pairs += [pair(20 + i, "b bbb", "- aaa") for i in range(20)]
    assert balanced(pairs) == (pairs, [])
    assert balanced([]) == ([], [])


def test_of_a_cell_those_closest_in_length_are_kept() -> None:
    lengths = (105, 120, 140, 190, 250, 280, 320, 400, 600, 900)
    longer = [pair(i, "a" * length, "a" * 100) for i, length in enumerate(lengths)]
    shorter = [pair(10 + i, "a" * 100, "a" * 105) for i in range(3)]
    kept, _ = balanced([*longer, *shorter], tolerance=0.0, min_keep=0.0)
    assert {p.id for p in kept} == {f"pair-{i}" for i in (0, 1, 2, 10, 11, 12)}


def test_the_same_seed_keeps_the_same_pairs_in_any_order_and_another_seed_others() -> None:
    pairs = random_pairs(200, random.Random(4))
    one = {p.id for p in balanced(pairs, seed=1)[0]}
    assert one == {p.id for p in balanced(pairs[::-1], seed=1)[0]}
    assert one != {p.id for p in balanced(pairs, seed=2)[0]}


def test_a_limit_takes_a_part_of_every_cell() -> None:
    # Four cells: lists on one side or the other, of controls or not.
    pairs = [
        pair(i, *(("- aaa", "b bbb") if i % 2 else ("b bbb", "- aaa")), control=i % 4 < 2)
        for i in range(400)
    ]
    kept, _ = balanced(pairs, limit=40)
    assert len(kept) == 40
    assert 9 <= sum(p.item_kind == "control" and p.chosen == "- aaa" for p in kept) <= 11
    assert 18 <= sum(p.item_kind == "control" for p in kept) <= 22


def test_controls_are_kept_up_to_their_share() -> None:
    xy = [pair(i, "aaa", "bbb") for i in range(60)]
    controls = [pair(100 + i, "aaa", "bbb", control=True) for i in range(60)]
    kept, _ = balanced([*xy, *controls], control_share=0.25)
    assert len(kept) == 80
    assert sum(p.item_kind == "control" for p in kept) == 20
    kept, _ = balanced([*xy, *controls], control_share=0.25, limit=40)
    assert (len(kept), sum(p.item_kind == "control" for p in kept)) == (40, 10)


def test_where_it_is_one_pair_or_another_controls_are_taken_up_to_their_share() -> None:
    pairs = [pair(i, "b bbb", "- aaa") for i in range(20)]
    pairs += [pair(100 + i, "- aaa", "b bbb") for i in range(30)]
    pairs += [pair(200 + i, "- aaa", "b bbb", control=True) for i in range(30)]
    kept, _ = balanced(pairs, tolerance=0.0, control_share=0.25)
    assert len(kept) == 40
    assert sum(p.item_kind == "control" for p in kept) == 10


@settings(max_examples=30, deadline=None)
@given(
    st.integers(2, 60),
    st.randoms(use_true_random=False),
    st.sampled_from([0.0, 0.01, 0.05]),
    st.none() | st.integers(2, 30),
    st.sampled_from([0.5, 0.8, 1.0]),
)
def test_half_of_the_pairs_stay_whatever_balance_would_cost(
    n: int, rng: random.Random, tolerance: float, limit: int | None, lean: float
) -> None:
    kept, _ = balanced(random_pairs(n, rng, lean), tolerance=tolerance, limit=limit)
    assert len(kept) >= min(n, limit or n) // 2


# ---------------------------------------------------------------- what cannot be balanced


def test_what_cannot_be_balanced_stays_and_the_rest_is_balanced() -> None:
    # Chosen is always longer; three in four have a list, which can be balanced by leaving some out.
    pairs = [
        pair(i, *(("- aaaaa", "b bbb") if i % 4 else ("b bbbbb", "- aaa"))) for i in range(200)
    ]
    kept, left = balanced(pairs)
    found = shares(kept)
    assert found["longer"] == 1
    # 50 pairs are lists on the other side. Without the floor 111 would do: 50 / 0.45.
    assert len(kept) == 111
    assert found["markdown"] == pytest.approx(0.55, abs=0.005)
    audit = audit_pairs(
        PairSet(tuple(kept), {"for balance": len(left)}, candidates=200),
        limits=AuditLimits(balanced=True),
    )
    assert [p.split(":")[0] for p in audit.problems] == ["shortcut longer"]


def test_a_rule_that_stands_in_the_way_gives_as_little_as_keeps_half() -> None:
    # 90 with a list, 10 against: balance within 5 % would leave 22 pairs.
    pairs = [pair(i, "- aaa", "b bbb") for i in range(90)]
    pairs += [pair(90 + i, "b bbb", "- aaa") for i in range(10)]
    kept, _ = balanced(pairs)
    assert len(kept) == 50
    assert shares(kept)["markdown"] == 0.8  # 40 of 50
    assert len(balanced(pairs, min_keep=0.0)[0]) == 22
    kept, _ = balanced(pairs, min_keep=1.0)
    assert kept == pairs


def test_the_floor_counts_what_the_limit_and_the_controls_leave() -> None:
    pairs = [pair(i, "- aaa", "b bbb") for i in range(90)]
    pairs += [pair(90 + i, "b bbb", "- aaa") for i in range(10)]
    kept, _ = balanced(pairs, limit=20)  # 22 can be balanced, so the floor of 10 holds nothing up
    assert len(kept) == 20
    assert furthest(kept) <= 0.05 + 1e-9


def test_all_longer_leaves_all_pairs() -> None:
    pairs = [pair(i, "aaaa", "bbb") for i in range(30)]
    assert balanced(pairs) == (pairs, [])


def test_the_bundled_items_can_be_balanced(mini: list[Item]) -> None:
    found = build_pairs(mini, split="all")
    assert furthest(found.pairs) > 0.1
    kept, left = balanced(found.pairs, control_share=0.25)
    assert furthest(kept) <= 0.05 + 1e-9
    assert len(kept) >= 300
    assert len(kept) + len(left) == len(found.pairs)
    made = PairSet(tuple(kept), {"for balance": len(left)}, candidates=len(found.pairs))
    assert audit_pairs(made, limits=AuditLimits(balanced=True)).ok


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"tolerance": 0.6}, r"tolerance is 0.6, expected in \[0, 0.5\]"),
        ({"tolerance": float("nan")}, "tolerance is nan"),
        ({"min_keep": 2}, r"min_keep is 2, expected in \[0, 1\]"),
        ({"control_share": -1}, "control_share is -1"),
        ({"limit": 0}, "limit is 0, expected > 0, or None for any number"),
    ],
)
def test_impossible_wishes_are_refused(wish: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        balanced([], **wish)
