import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xyreward.errors import ConfigError, DataError
from xyreward.items import CONTROL_KINDS, XY_KINDS, AnswerKind, Item, Reference
from xyreward.pairs import REJECTED_KINDS, PairSet, Rule, build_pairs
from xyreward.testing import make_item, make_reference


def xy(i: int, *kinds: AnswerKind, **fields: Any) -> Item:
    """An item with a goal-focused answer and answers of these kinds."""
    references = [make_reference(kind, f"{kind} {i}") for kind in ("goal_focused", *kinds)]
    return make_item(**{"id": f"xy-{i}", "query": f"query {i}", "references": references, **fields})


def control(i: int, **fields: Any) -> Item:
    references = [make_reference("direct", f"direct {i}")]
    references += [make_reference("overcorrecting", f"overcorrecting {i}")]
    base = {"id": f"control-{i}", "query": f"control {i}", "references": references}
    return make_item(kind="control", **{**base, **fields})


def made(pairs: PairSet) -> set[tuple[str, AnswerKind | None, AnswerKind | None]]:
    return {(pair.item_id, pair.chosen_kind, pair.rejected_kind) for pair in pairs.pairs}


def counts(pairs: PairSet) -> tuple[int, int]:
    kinds = Counter(pair.item_kind for pair in pairs.pairs)
    return kinds["xy"], kinds["control"]


def test_goal_focused_is_preferred_to_the_four_kinds_and_direct_to_overcorrecting() -> None:
    kinds = sorted(XY_KINDS - {"goal_focused"})
    found = build_pairs([xy(1, *kinds), control(1)], split="train", control_share=0.5)
    assert made(found) == {
        ("xy-1", "goal_focused", "literal"),
        ("xy-1", "goal_focused", "passing_mention"),
        ("xy-1", "goal_focused", "dump"),
        ("xy-1", "goal_focused", "wrong_goal"),
        ("control-1", "direct", "overcorrecting"),
    }
    for pair in found.pairs:
        number = pair.item_id.rpartition("-")[2]
        assert pair.chosen == f"{pair.chosen_kind} {number}"
        assert pair.rejected == f"{pair.rejected_kind} {number}"
    assert found.dropped == {}


def test_only_the_kinds_asked_for_are_rejected() -> None:
    items = [xy(1, "literal", "balanced", "dump")]
    found = build_pairs(items, split="train", rule=Rule(rejected_kinds=("balanced",)))
    assert made(found) == {("xy-1", "goal_focused", "balanced")}


def test_an_item_without_one_of_the_answers_gives_no_such_pair() -> None:
    bare = make_item(id="bare", references=())
    only_literal = make_item(id="half", references=[make_reference("literal", "x")])
    found = build_pairs([bare, only_literal, xy(1, "literal")], split="train")
    assert made(found) == {("xy-1", "goal_focused", "literal")}


def test_a_control_never_gives_a_literal_pair_nor_an_xy_item_a_direct_one() -> None:
    found = build_pairs([xy(i, "literal") for i in range(9)] + [control(1)], split="train")
    for pair in found.pairs:
        allowed = CONTROL_KINDS if pair.item_kind == "control" else XY_KINDS
        assert {pair.chosen_kind, pair.rejected_kind} <= allowed


# ---------------------------------------------------------------- how many


@pytest.mark.parametrize(
    ("n_xy", "n_control", "share", "limit", "expected"),
    [
        (30, 30, 0.25, None, (30, 10)),  # 10 / 40
        (30, 5, 0.25, None, (30, 5)),  # not enough controls: all there are
        (30, 30, 0.0, None, (30, 0)),
        (30, 90, 0.75, None, (30, 90)),  # 90 / 120
        (100, 100, 0.25, 40, (30, 10)),
        (100, 5, 0.25, 40, (35, 5)),  # the limit is filled up with the others
        (6, 100, 0.25, 40, (6, 2)),  # the share holds, the limit is not reached
        (100, 100, 0.25, 1, (1, 0)),
        (100, 100, 0.5, 1000, (100, 100)),
    ],
)
def test_the_share_of_controls_holds_as_far_as_there_are_controls(
    n_xy: int, n_control: int, share: float, limit: int | None, expected: tuple[int, int]
) -> None:
    items = [xy(i, "literal") for i in range(n_xy)] + [control(i) for i in range(n_control)]
    found = build_pairs(items, split="train", control_share=share, max_pairs=limit)
    assert counts(found) == expected
    assert found.control_share == pytest.approx(expected[1] / sum(expected))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 12),
    st.integers(0, 12),
    st.floats(0, 0.99),
    st.none() | st.integers(1, 30),
    st.sampled_from([REJECTED_KINDS, ("literal",), ("dump", "literal")]),
)
def test_what_is_made_and_what_is_dropped_add_up_to_the_candidates(
    n_xy: int, n_control: int, share: float, limit: int | None, kinds: Sequence[AnswerKind]
) -> None:
    items = [xy(i, "literal", "dump") for i in range(n_xy)] + [control(i) for i in range(n_control)]
    candidates = n_xy * len({"literal", "dump"} & set(kinds)) + n_control
    try:
        found = build_pairs(
            items,
            split="train",
            rule=Rule(rejected_kinds=tuple(kinds)),
            control_share=share,
            max_pairs=limit,
        )
    except DataError:
        assert n_xy == 0 or share > 0.5  # a lone pair may be a control and then be one too many
        return
    assert len(found.pairs) + sum(found.dropped.values()) == candidates
    assert len(found.pairs) <= (limit or candidates)
    # Rounding can add half a pair.
    assert counts(found)[1] <= share * len(found.pairs) + 1


def test_with_max_pairs_every_first_kind_is_taken_before_any_second() -> None:
    items = [xy(i, "literal", "dump") for i in range(10)]
    found = build_pairs(
        items,
        split="train",
        rule=Rule(rejected_kinds=("dump", "literal")),
        control_share=0,
        max_pairs=13,
    )
    assert Counter(pair.rejected_kind for pair in found.pairs) == {"dump": 10, "literal": 3}
    assert found.dropped == {"above max_pairs": 7}


# ---------------------------------------------------------------- seeds and order


ITEMS = [xy(i, "literal", "dump") for i in range(20)] + [control(i) for i in range(20)]


def test_the_same_seed_gives_the_same_pairs_in_the_same_order_whatever_the_order_of_items() -> None:
    one = build_pairs(ITEMS, split="train", max_pairs=16, seed=3)
    other = build_pairs(ITEMS[::-1], split="train", max_pairs=16, seed=3)
    assert one.pairs == other.pairs
    assert one.hash == other.hash


def test_another_seed_takes_other_pairs_in_another_order() -> None:
    one = build_pairs(ITEMS, split="train", max_pairs=16, seed=0)
    other = build_pairs(ITEMS, split="train", max_pairs=16, seed=1)
    assert {pair.id for pair in one.pairs} != {pair.id for pair in other.pairs}
    assert one.hash != other.hash
    all_one = build_pairs(ITEMS, split="train", seed=0).pairs
    all_other = build_pairs(ITEMS, split="train", control_share=0.25, seed=1).pairs
    xy_ids = [[p.id for p in pairs if p.item_kind == "xy"] for pairs in (all_one, all_other)]
    assert sorted(xy_ids[0]) == sorted(xy_ids[1])
    assert xy_ids[0] != xy_ids[1]


def test_controls_and_kinds_are_mixed_and_not_in_blocks() -> None:
    kinds = [pair.item_kind for pair in build_pairs(ITEMS, split="train").pairs]
    changes = sum(a != b for a, b in itertools.pairwise(kinds))
    assert changes > 5  # in blocks there would be one


def test_ids_are_distinct_stable_and_follow_item_and_answers() -> None:
    pairs = build_pairs(ITEMS, split="train").pairs
    assert len({pair.id for pair in pairs}) == len(pairs)
    (one,) = build_pairs([xy(1, "literal")], split="train").pairs
    (again,) = build_pairs([xy(1, "literal")], split="dev", seed=5).pairs
    (renamed,) = build_pairs([xy(1, "literal", id="other")], split="train").pairs
    assert one.id == again.id
    assert one.id != renamed.id


def test_the_hash_sees_a_changed_prompt_which_the_ids_do_not() -> None:
    one = build_pairs([xy(1, "literal")], split="train")
    other = build_pairs([xy(1, "literal", query="another query")], split="train")
    assert one.pairs[0].id == other.pairs[0].id
    assert one.hash != other.hash


# ---------------------------------------------------------------- what is left out


def with_answers(chosen: Reference, rejected: Reference, **fields: Any) -> Item:
    return make_item(**{"id": "odd", "references": [chosen, rejected], **fields})


def dropped(item: Item) -> dict[str, int]:
    share = 0.6  # so that one control beside one xy item is wanted
    found = build_pairs([xy(1, "literal"), item], split="train", control_share=share)
    assert "odd" not in {pair.item_id for pair in found.pairs}
    return dict(found.dropped)


def test_an_unsafe_answer_is_never_chosen_but_may_be_rejected() -> None:
    good, literal = make_reference("goal_focused", "good"), make_reference("literal", "literal")
    unsafe = good.model_copy(update={"unsafe": True})
    assert dropped(with_answers(unsafe, literal)) == {"chosen is unsafe": 1}
    direct = make_reference("direct", "direct", unsafe=True)
    over = make_reference("overcorrecting", "over")
    assert dropped(with_answers(direct, over, kind="control")) == {"chosen is unsafe": 1}
    item = with_answers(good, literal.model_copy(update={"unsafe": True}))
    assert [p.item_id for p in build_pairs([item], split="train").pairs] == ["odd"]


@pytest.mark.parametrize("same", ["the  same", "the same\n", "the same"], ids=repr)
def test_a_pair_whose_sides_read_the_same_is_dropped(same: str) -> None:
    item = with_answers(make_reference("goal_focused", "the same"), make_reference("literal", same))
    assert dropped(item) == {"both sides read the same": 1}


NOT_TAUGHT = "chosen is not labelled as what it should teach"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("has_intended_solution", False),
        ("focus", "stated"),
        ("focus", "balanced"),
        ("identifies_misconception", False),
    ],
)
def test_a_goal_focused_answer_labelled_as_something_else_is_not_chosen(
    field: str, value: Any
) -> None:
    good = make_reference("goal_focused", "good")
    assert good.labels is not None
    odd = good.model_copy(update={"labels": good.labels.model_copy(update={field: value})})
    assert dropped(with_answers(odd, make_reference("literal", "literal"))) == {NOT_TAUGHT: 1}


@pytest.mark.parametrize(
    ("field", "value"), [("has_stated_solution", False), ("identifies_misconception", True)]
)
def test_a_direct_answer_labelled_as_something_else_is_not_chosen(field: str, value: Any) -> None:
    direct = make_reference("direct", "direct")
    assert direct.labels is not None
    odd = direct.model_copy(update={"labels": direct.labels.model_copy(update={field: value})})
    item = with_answers(odd, make_reference("overcorrecting", "over"), kind="control")
    assert dropped(item) == {NOT_TAUGHT: 1}


def test_a_goal_focused_answer_may_also_say_why_the_request_cannot_be_met() -> None:
    good = make_reference("goal_focused", "good")
    assert good.labels is not None
    labels = good.labels.model_copy(update={"has_stated_solution": True})
    item = with_answers(
        good.model_copy(update={"labels": labels}), make_reference("literal", "literal")
    )
    assert len(build_pairs([item], split="train").pairs) == 1


def test_a_rejected_answer_labelled_as_good_as_the_chosen_one_teaches_nothing() -> None:
    good = make_reference("goal_focused", "good")
    literal = make_reference("literal", "in truth goal-focused", labels=good.labels)
    assert dropped(with_answers(good, literal)) == {"rejected is labelled as good as chosen": 1}


def test_answers_that_nobody_labelled_are_taken_at_their_kind() -> None:
    item = with_answers(
        make_reference("goal_focused", "good", labels=None),
        make_reference("literal", "literal", labels=None),
    )
    assert len(build_pairs([item], split="train").pairs) == 1


def test_references_that_say_nothing_of_their_worth_make_no_pair_and_are_counted() -> None:
    unknown = [Reference(text="one of these"), Reference(text="another of these")]
    item = xy(1, "literal")
    item = item.model_copy(update={"references": (*item.references, *unknown)})
    found = build_pairs([item], split="train")
    assert (len(found.pairs), found.candidates) == (1, 2)
    assert found.dropped == {"not judged": 1}


def test_no_pair_at_all_is_an_error_that_says_what_is_needed_and_what_was_dropped() -> None:
    with pytest.raises(DataError, match=r"no pair can be made of 0 dev items.*dropped: nothing"):
        build_pairs([], split="dev")
    unsafe = with_answers(
        make_reference("goal_focused", "good", unsafe=True), make_reference("literal", "literal")
    )
    with pytest.raises(
        DataError, match=r"of 1 train item with 2 answers; dropped: chosen is unsafe 1\."
    ):
        build_pairs([unsafe], split="train")
    bare = with_answers(Reference(text="one of these"), Reference(text="another of these"))
    with pytest.raises(
        DataError, match=r"not judged 1\. Answers without labels make none: name a judge"
    ):
        build_pairs([bare], split="train")


# ---------------------------------------------------------------- impossible wishes


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"rejected_kinds": []}, r"rejected_kinds is \[\], expected a list of some of balanced"),
        ({"rejected_kinds": ["goal_focused"]}, r"\['goal_focused'\], expected a list of some of"),
        ({"rejected_kinds": ["overcorrecting"]}, r"\['overcorrecting'\], expected"),
        ({"rejected_kinds": ["litteral"]}, r"\['litteral'\], expected"),
        ({"rejected_kinds": ["literal", "literal"]}, "each once"),
        ({"rejected_kinds": "literal"}, "rejected_kinds is 'literal', expected a list"),
        ({"control_share": 1.0}, r"control_share is 1.0, expected in \[0, 1\)"),
        ({"control_share": -0.1}, "control_share is -0.1"),
        ({"control_share": float("nan")}, "control_share is nan"),
        ({"max_pairs": 0}, "max_pairs is 0, expected > 0, or None"),
        ({"max_pairs": -3}, "max_pairs is -3"),
    ],
)
def test_impossible_wishes_are_refused(wish: dict[str, Any], message: str) -> None:
    rule = {k: v for k, v in wish.items() if k in Rule.__dataclass_fields__}
    rest = {k: v for k, v in wish.items() if k not in rule}
    with pytest.raises(ConfigError, match=message):
        build_pairs(ITEMS, split="train", rule=Rule(**rule), **rest)


# ---------------------------------------------------------------- columns


def test_a_row_is_in_trls_explicit_prompt_form_and_says_where_it_comes_from() -> None:
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How?"},
    ]
    item = xy(1, "literal", query=conversation, source="forum")
    (pair,) = build_pairs([item], split="train").pairs
    assert pair.as_row() == {
        "prompt": conversation,
        "chosen": [{"role": "assistant", "content": "goal_focused 1"}],
        "rejected": [{"role": "assistant", "content": "literal 1"}],
        "margin": 1.0,
        "id": pair.id,
        "item_id": "xy-1",
        "item_kind": "xy",
        "split": "train",
        "cluster": item.content_hash,
        "language": "en",
        "source": "forum",
        "licence": "unknown",
        "rule": "goal_focused",
        "pair_source": "references",
        "judge": "labels",
        "rubric_version": "",
        "grounded": True,
        "chosen_kind": "goal_focused",
        "chosen_origin": "test",
        "chosen_reward": 1.0,
        "chosen_labels": {
            "has_stated_solution": False,
            "has_intended_solution": True,
            "focus": "intended",
            "identifies_misconception": True,
        },
        "chosen_details": "{}",
        "rejected_kind": "literal",
        "rejected_origin": "test",
        "rejected_reward": 0.0,
        "rejected_labels": {
            "has_stated_solution": True,
            "has_intended_solution": False,
            "focus": "stated",
            "identifies_misconception": False,
        },
        "rejected_details": "{}",
    }


def test_licences_of_both_sides_are_named() -> None:
    def licence(a: str | None, b: str | None) -> str:
        chosen = make_reference("goal_focused", "good", licence=a)
        rejected = make_reference("literal", "literal", licence=b)
        return build_pairs([with_answers(chosen, rejected)], split="train").pairs[0].licence

    assert licence("MIT", "MIT") == "MIT"
    assert licence("MIT", "CC-BY-4.0") == "CC-BY-4.0, MIT"
    assert licence("MIT", None) == "MIT, unknown"


def test_trl_reads_the_rows_as_conversational_preferences(tiny: str) -> None:
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.data_utils import apply_chat_template, is_conversational

    (pair,) = build_pairs([xy(1, "literal")], split="train").pairs
    row = next(iter(Dataset.from_list([pair.as_row()])))
    assert is_conversational(row)
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    columns = {name: row[name] for name in ("prompt", "chosen", "rejected")}
    text = apply_chat_template(columns, tokenizer)
    assert text["prompt"] == "<|im_start|>user\nquery 1<|im_end|>\n<|im_start|>assistant\n"
    assert text["chosen"] == "goal_focused 1<|im_end|>\n"
    assert text["rejected"] == "literal 1<|im_end|>\n"


def test_the_bundled_items_give_pairs_of_every_kind_and_a_quarter_of_them_are_controls(
    mini: list[Item],
) -> None:
    found = build_pairs(mini, split="all", rule=Rule(rejected_kinds=("literal",)))
    n_xy, n_control = counts(found)
    assert n_xy >= 140
    assert n_control == round(n_xy / 3)
    assert {p.rejected_kind for p in build_pairs(mini, split="all").pairs} == {
        *REJECTED_KINDS,
        "overcorrecting",
    }
