"""Pairs of judged answers: what holds for every set, whatever the answers and verdicts."""

import dataclasses
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xyreward.errors import ConfigError, DataError, JudgeError
from xyreward.items import DEFAULT_LABELS, Item
from xyreward.judges import load_judge
from xyreward.judges.scripted import ScriptedJudge
from xyreward.pairs import Candidate, PairSet, Rule, build_pairs
from xyreward.pairs.audit import Audit, audit_pairs
from xyreward.pairs.candidates import check_numbers
from xyreward.pairs.formats import pair_of_record, record_of, rows
from xyreward.pairs.guards import Guards, TokenGuard
from xyreward.pairs.held_out import HeldOut
from xyreward.splits import Placement, Splits
from xyreward.testing import FakeAPI, make_item, make_reference
from xyreward.verdict import JudgeFailure, Labels

XY = [make_item(id=f"xy-{i}", query=f"How do I paint the number {i} wall?") for i in range(3)]
CONTROLS = [
    make_item(kind="control", id=f"c-{i}", query=f"Which wheel fits my cart {i}?") for i in range(2)
]
HELD = make_item(
    id="held",
    query="A query that nobody may train on, about boats.",
    references=[make_reference("goal_focused", "Sell the boat and rent one " * 4)],
)
# Few, and some alike or alike at first, so that ties, repetitions and equal beginnings happen.
TEXTS = [
    "Take a brush and begin at the top of the wall.",
    "Take a brush and begin at the top of the wall. Then wait for a day before the second coat.",
    "You want a dry room, so open the windows, and leave the paint alone.",
    "Painting will not help against damp; find out where the water comes from.",
    "It is not the wall that is wrong. You dislike your flat.",
    "  ",
    "Sell the boat and rent one " * 4,
]
LABELS = [DEFAULT_LABELS[kind] for kind in ("goal_focused", "literal", "dump", "direct")] + [
    DEFAULT_LABELS["overcorrecting"]
]
OUTCOMES: list[Labels | JudgeFailure] = [
    *LABELS,
    JudgeFailure("timeout", "too slow"),
    JudgeFailure("unparseable", "prose"),
]


def answer(item: Item, text: str, origin: str = "model", number: int = 0) -> Candidate:
    return Candidate(item.id, text, "on_policy", origin, details={"sample": number})


def script(outcomes: Sequence[Labels | JudgeFailure]) -> ScriptedJudge:
    return ScriptedJudge({(None, t): o for t, o in zip(TEXTS, outcomes, strict=True)})


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenGuard:
    from xyreward.testing import tiny_policy

    # Bytes are its tokens: the prompt fits, and the first two texts are alike as far as it sees.
    return TokenGuard.load(tiny_policy(tmp_path_factory.mktemp("tiny")), 130)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    answers=st.lists(
        st.tuples(
            st.sampled_from([*XY, *CONTROLS, HELD]),
            st.sampled_from(TEXTS),
            st.sampled_from(["model", "human"]),
        ),
        max_size=24,
    ),
    outcomes=st.tuples(*[st.sampled_from(OUTCOMES)] * len(TEXTS)),
    rule=st.builds(
        Rule,
        margin=st.sampled_from([0.0, 0.3, 0.7]),
        margin_pairs=st.none() | st.sampled_from([0.1, 0.5]),
        same_origin=st.booleans(),
        max_pairs_per_item=st.none() | st.integers(1, 3),
    ),
    share=st.sampled_from([0.0, 0.25, 0.6]),
    limit=st.none() | st.integers(1, 6),
    balance=st.none() | st.just(0.1),
    seed=st.integers(0, 3),
)
def test_whatever_the_answers_no_pair_breaks_a_promise_and_every_candidate_is_accounted_for(
    tokens: TokenGuard,
    answers: list[tuple[Item, str, str]],
    outcomes: tuple[Labels | JudgeFailure, ...],
    rule: Rule,
    share: float,
    limit: int | None,
    balance: float | None,
    seed: int,
) -> None:
    items = [*XY, *CONTROLS, HELD]

    def build() -> PairSet:
        return build_pairs(
            items,
            split="train",
            answers=[answer(i, t, o, n) for n, (i, t, o) in enumerate(answers)],
            judge=script(outcomes),
            rule=rule,
            held_out=HeldOut([HELD]),
            tokens=tokens,
            balance=balance,
            control_share=share,
            max_pairs=limit,
            seed=seed,
        )

    try:
        found = build()
    except DataError as error:
        assert re.search("no pair (can be made|is left) of", str(error))  # noqa: PT017
        return
    said = dict(zip(TEXTS, outcomes, strict=True))
    for pair in found.pairs:
        prompt = pair.prompt
        ids = [
            tokens.tokenizer.answer_ids(prompt, text)[0][:130]
            for text in (pair.chosen, pair.rejected)
        ]
        assert ids[0] != ids[1]
        assert pair.item_id != HELD.id
        assert "Sell the boat" not in pair.chosen + pair.rejected
        for text in (pair.chosen, pair.rejected):
            assert text.strip()
            assert isinstance(said[text], Labels)
        assert pair.margin > 0
        assert pair.margin >= rule.margin
        if pair.rule == "margin":
            assert rule.margin_pairs is not None
            assert pair.margin >= rule.margin_pairs
        if rule.same_origin:
            assert pair.chosen_answer.answer.origin == pair.rejected_answer.answer.origin
    per_item = Counter(pair.item_id for pair in found.pairs)
    assert max(per_item.values()) <= (rule.max_pairs_per_item or len(answers) ** 2)
    # Every two answers of one item are a candidate pair, and each is kept or dropped for one reason.
    of_item = Counter(item.id for item, _, _ in answers)
    assert found.candidates == sum(n * (n - 1) // 2 for n in of_item.values())
    assert found.candidates == len(found.pairs) + sum(found.dropped.values())
    assert found.hash == build().hash


def test_a_set_of_which_half_the_verdicts_failed_has_none_of_those_answers(
    mini: list[Item],
) -> None:
    items = [item for item in mini if item.kind == "xy" and item.language == "en"][:60]
    words = [f"word{n}" for n in range(300)]
    answers: list[Candidate] = []
    outcomes: dict[tuple[str | None, str], Labels | JudgeFailure] = {}
    for item in items:
        for n in range(8):
            text = f"{' '.join(random.Random(f'{item.id} {n}').sample(words, 30))}."
            answers.append(answer(item, text, number=n))
            failed = (n + len(item.id)) % 2 == 0
            good = LABELS[0] if n < 4 else LABELS[1]
            outcomes[(item.id, text)] = JudgeFailure("timeout", "slow") if failed else good
    judge = ScriptedJudge(outcomes)
    found = build_pairs(items, split="train", answers=answers, judge=judge)
    assert len(found.pairs) >= 60
    for pair in found.pairs:
        for text in (pair.chosen, pair.rejected):
            assert isinstance(outcomes[(pair.item_id, text)], Labels)
    # Of 28 candidate pairs of an item 22 have a failed side.
    assert found.dropped["failed verdict: timeout"] == 22 * 60
    assert found.candidates == 28 * 60


def test_what_is_judged_and_trained_on_is_masked_and_counted() -> None:
    item = make_item(query="Write to ada@lovelace.org about the loom: how?")
    secret, plain = "Ring +44 20 7183 8750 and ask for a date.", "Write a letter by hand instead."
    seen: list[str] = []

    class Recorder(ScriptedJudge):
        async def judge(self, items, answers):  # type: ignore[no-untyped-def]
            seen.extend([*(item.query_text for item in items), *answers])
            return await super().judge(items, answers)

    masked = "Ring [phone] and ask for a date."
    judge = Recorder({(None, masked): LABELS[1], (None, plain): LABELS[0]})
    found = build_pairs(
        [item], split="train", answers=[answer(item, secret), answer(item, plain)], judge=judge
    )
    (pair,) = found.pairs
    assert (pair.chosen, pair.rejected) == (plain, masked)
    assert pair.prompt[-1]["content"] == "Write to [email] about the loom: how?"
    assert not any("ada@" in text or "7183" in text for text in seen)
    assert found.masked == {"email": 1, "phone": 1}
    assert pair.cluster == item.content_hash  # of the query as it came


def test_the_tokens_that_are_compared_are_those_of_the_masked_prompt(tokens: TokenGuard) -> None:
    key = f"sk-{'k3Yq7Zp9Xw2Lr8Tv' * 2}"  # masked, it leaves room for the answers
    item = make_item(query=f"Why does {key} fail?")
    answers = [answer(item, TEXTS[2]), answer(item, TEXTS[3])]
    judge = ScriptedJudge({(None, TEXTS[2]): LABELS[0], (None, TEXTS[3]): LABELS[1]})

    def build(max_length: int | None) -> PairSet:
        guard = TokenGuard(tokens.tokenizer, max_length)
        return build_pairs([item], split="train", answers=answers, judge=judge, tokens=guard)

    (pair,) = build(None).pairs
    begins = tokens.tokenizer.answer_ids(pair.prompt, pair.chosen)[1]
    shown = len(tokens.tokenizer.prompt_ids(item.messages))
    assert begins + 20 < shown
    assert len(build(begins + 20).pairs) == 1  # the query as it came would fill that
    assert (build(begins + 20).cut, build(None).cut) == (1, 0)
    with pytest.raises(DataError, match="prompt longer than max_length"):
        build(begins)


def test_what_notes_of_an_item_quote_is_masked_too() -> None:
    """They are shown to the judge, and are columns of rows of prompts."""
    note = "Reach ada@lovelace.org fast"
    item = make_item(
        stated_request=note, intended_request=f"{note}!", misconception=note,
        stated_solutions=(note,), intended_solutions=(note,),
    )  # fmt: skip
    one, other = "Ring and ask for a date.", "Write a letter by hand instead."
    seen: list[str] = []

    class Recorder(ScriptedJudge):
        async def judge(self, items, answers):  # type: ignore[no-untyped-def]
            seen.extend(item.model_dump_json(exclude={"references"}) for item in items)
            return await super().judge(items, answers)

    judge = Recorder({(None, one): LABELS[1], (None, other): LABELS[0]})
    found = build_pairs(
        [item], split="train", answers=[answer(item, one), answer(item, other)], judge=judge
    )
    assert seen
    assert all(text.count("Reach [email] fast") == 5 and "ada@" not in text for text in seen)
    assert found.masked == {"email": 5}
    masked, counts = Guards().mask_item(item)
    assert counts == {"email": 5}
    assert "ada@" not in json.dumps(rows(found, "prompts", items=[masked]))
    assert Guards(personal_data="keep").mask_item(item)[0] is item


def test_what_guards_drop_is_counted_and_too_much_of_it_is_a_problem() -> None:
    item = make_item()
    texts = [
        "Sleep more on Sundays, and leave the clock alone.",
        "Sleep more on Sundays, and leave the clock alone!",
    ]
    judge = ScriptedJudge({(None, texts[0]): LABELS[0], (None, texts[1]): LABELS[1]})
    far = ["Go to bed early.", "Put the clock on a tray of metal."]
    both = ScriptedJudge(
        {
            (None, texts[0]): LABELS[0],
            (None, texts[1]): LABELS[1],
            (None, far[1]): LABELS[1],
        }
    )
    with pytest.raises(DataError, match="dropped: both sides nearly identical 1"):
        build_pairs([item], split="train", answers=[answer(item, t) for t in texts], judge=judge)
    answers = [answer(item, t) for t in (*texts, far[1])]
    found = build_pairs([item], split="train", answers=answers, judge=both)
    assert [(p.chosen, p.rejected) for p in found.pairs] == [(texts[0], far[1])]
    assert found.examined == 2
    (problem,) = found.problems
    assert "guard nearly_identical: 1 of 2 pairs dropped" in problem
    relaxed = Guards(limits={"nearly_identical": 0.5})
    assert not build_pairs(
        [item], split="train", answers=answers, judge=both, guards=relaxed
    ).problems


def test_answers_that_differ_in_white_space_alone_do_not_make_two_pairs() -> None:
    item = make_item()
    twice = [
        "First look for the leak.\n\nThen dry the wall.",
        "First look for the leak.\nThen dry the wall.",
    ]
    judge = ScriptedJudge(
        {**{(None, text): LABELS[0] for text in twice}, (None, TEXTS[0]): LABELS[1]}
    )
    answers = [answer(item, text) for text in (*twice, TEXTS[0])]
    found = build_pairs([item], split="train", answers=answers, judge=judge)
    assert len(found.pairs) == 1
    assert found.dropped["repeats another pair of its item"] == 1
    assert audit_pairs(found).ok


def test_the_widest_margin_comes_first_and_answers_are_used_afresh() -> None:
    item = make_item()
    good = [LABELS[0], LABELS[0]]
    bad = [DEFAULT_LABELS["balanced"], DEFAULT_LABELS["literal"]]
    texts = [TEXTS[2], TEXTS[3], TEXTS[0], TEXTS[4]]
    judge = ScriptedJudge({(None, t): o for t, o in zip(texts, [*good, *bad], strict=True)})
    answers = [answer(item, t) for t in texts]
    rule = Rule(max_pairs_per_item=1)
    one = build_pairs([item], split="train", answers=answers, judge=judge, rule=rule)
    assert one.pairs[0].rejected == TEXTS[4]  # literal, worth 0; balanced is worth more
    two = build_pairs(
        [item], split="train", answers=answers, judge=judge, rule=Rule(max_pairs_per_item=2)
    )
    assert {p.chosen for p in two.pairs} == {TEXTS[2], TEXTS[3]}
    assert {p.rejected for p in two.pairs} == {TEXTS[0], TEXTS[4]}
    assert two.dropped == {
        "above max_pairs_per_item": 2,
        "both sides are what training should teach": 1,
        "neither side is what training should teach": 1,
    }


def test_margin_pairs_are_taken_only_of_items_without_an_answer_to_be_chosen() -> None:
    rare, usual = make_item(id="rare", query="One?"), make_item(id="usual", query="Two?")
    outcomes: dict[tuple[str | None, str], Labels | JudgeFailure] = {
        ("rare", TEXTS[0]): DEFAULT_LABELS["balanced"],
        ("rare", TEXTS[2]): DEFAULT_LABELS["literal"],
        ("usual", TEXTS[0]): DEFAULT_LABELS["balanced"],
        ("usual", TEXTS[2]): DEFAULT_LABELS["literal"],
        ("usual", TEXTS[3]): DEFAULT_LABELS["goal_focused"],
    }
    answers = [answer(make_item(id=i), t) for i, t in outcomes if i]
    found = build_pairs(
        [rare, usual],
        split="train",
        answers=answers,
        judge=ScriptedJudge(outcomes),
        rule=Rule(margin_pairs=0.2),
    )
    assert {(p.item_id, p.rule) for p in found.pairs} == {
        ("rare", "margin"),
        ("usual", "goal_focused"),
    }


def test_a_chosen_answer_that_something_stands_in_the_way_of_is_not_replaced_by_a_margin_pair() -> (
    None
):
    item = make_item()
    judge = ScriptedJudge(
        {
            (None, TEXTS[3]): DEFAULT_LABELS["goal_focused"],
            (None, TEXTS[0]): DEFAULT_LABELS["balanced"],
            (None, TEXTS[2]): DEFAULT_LABELS["literal"],
        }
    )
    answers = [answer(item, TEXTS[3], "another"), answer(item, TEXTS[0]), answer(item, TEXTS[2])]
    other = make_item(id="other", query="Two?")
    answers += [answer(other, TEXTS[3]), answer(other, TEXTS[2])]
    found = build_pairs(
        [item, other], split="train", answers=answers, judge=judge, rule=Rule(margin_pairs=0.2)
    )
    assert [(p.item_id, p.rule) for p in found.pairs] == [("other", "goal_focused")]
    assert found.dropped == {
        "different origins": 2,
        "neither side is what training should teach": 1,
    }


def test_a_control_of_which_no_answer_overcorrects_gives_a_margin_pair() -> None:
    item = make_item(kind="control")
    judge = ScriptedJudge(
        {(None, TEXTS[3]): DEFAULT_LABELS["direct"], (None, TEXTS[2]): DEFAULT_LABELS["refusal"]}
    )
    xy = make_item(id="xy", query="Two?")
    scripted = [answer(i, t) for i in (item, xy) for t in (TEXTS[3], TEXTS[2])]

    def build(rule: Rule) -> PairSet:
        return build_pairs(
            [item, xy], split="train", answers=scripted, judge=judge, rule=rule, control_share=0.9
        )

    with pytest.raises(DataError, match="control without an answer that overcorrects"):
        build(Rule())
    found = build(Rule(margin_pairs=0.1))
    assert {(p.item_kind, p.rule, p.chosen) for p in found.pairs} == {
        ("control", "margin", TEXTS[3]),
        ("xy", "margin", TEXTS[3]),
    }


def test_items_without_any_candidate_pair_are_counted_by_what_they_lack() -> None:
    """A guide's control has one answer, the direct one: no candidate pair counts it."""
    xy = make_item(id="xy", query="What now?")  # goal-focused and literal
    direct = make_reference("direct", "Turn the key.")
    control = make_item(id="c", kind="control", query="How do I start it?", references=[direct])
    alone = make_item(id="one", query="And then?", references=[xy.references[0]])
    pairs = build_pairs([xy, control, alone], split="train", control_share=0.5)
    assert len(pairs.pairs) == pairs.candidates == 1
    assert pairs.dropped == {}
    assert pairs.unpaired == {
        "control without an answer that overcorrects": 1,
        "no two answers that could be a pair": 1,
    }
    audit = audit_pairs(pairs)
    page = audit.to_markdown()
    assert "| **no candidate pair (items, not pairs)** | |" in page
    assert "| control without an answer that overcorrects | 1 |" in page
    assert audit.is_of(pairs)
    assert not audit.is_of(dataclasses.replace(pairs, unpaired={}))
    assert Audit.from_dict(audit.to_dict()) == audit
    before = {k: v for k, v in audit.to_dict().items() if k != "unpaired"}  # as written earlier
    assert Audit.from_dict(before).unpaired == {}


def test_answers_to_strange_items_and_answers_nobody_judged_are_errors() -> None:
    item = make_item()
    with pytest.raises(DataError, match="answer to item 'other', which is not among the 1"):
        build_pairs([item], split="train", answers=[answer(make_item(id="other"), "x")])
    with pytest.raises(DataError, match="1 of 1 answer has neither labels nor kind; give a judge"):
        build_pairs([item], split="train", answers=[answer(item, "x")])
    with pytest.raises(ConfigError, match="order_check needs a judge"):
        build_pairs([item], split="train", order_check=True)
    with pytest.raises(ConfigError, match=r"balance is 0\.7"):
        build_pairs([item], split="train", balance=0.7)


def test_a_judge_must_prefer_chosen_in_both_orders_where_that_is_asked_for(tmp_path: Path) -> None:
    with FakeAPI() as api:
        judge = load_judge(
            f"chat:judge@{api.base_url}/v1", store=tmp_path / "s.sqlite", api_key="none"
        )
        items = [make_item(id=f"i{n}", query=f"Question {n}?") for n in range(6)]
        answers = [answer(i, t) for i in items for t in (TEXTS[0], TEXTS[2], TEXTS[3])]
        free = build_pairs(
            items, split="train", answers=answers, judge=judge, rule=Rule(margin_pairs=0.01)
        )
        checked = build_pairs(
            items,
            split="train",
            answers=answers,
            judge=judge,
            rule=Rule(margin_pairs=0.01),
            order_check=True,
        )
    reasons = {r: n for r, n in checked.dropped.items() if r.startswith("order-swapped")}
    assert sum(reasons.values()) == len(free.pairs) - len(checked.pairs)
    assert checked.candidates == len(checked.pairs) + sum(checked.dropped.values())


def test_items_that_nearly_repeat_each_other_are_one_cluster_without_being_told() -> None:
    queries = [
        "How do I keep the cellar of an old house dry in spring?",
        "How do I keep the cellar of my old house dry in spring?",
        "Where can I buy fresh yeast on a Sunday evening?",
    ]
    items = [make_item(id=f"i{n}", query=query) for n, query in enumerate(queries)]
    scripted: dict[tuple[str | None, str], Labels | JudgeFailure] = {
        (None, TEXTS[0]): LABELS[0],
        (None, TEXTS[2]): LABELS[1],
    }
    answers = [answer(i, t) for i in items for t in (TEXTS[0], TEXTS[2])]

    def clusters(**fields: Any) -> dict[str, str]:
        judge = ScriptedJudge(scripted)
        found = build_pairs(items, split="train", answers=answers, judge=judge, **fields)
        assert audit_pairs(found).clusters == len({pair.cluster for pair in found.pairs})
        return {pair.item_id: pair.cluster for pair in found.pairs}

    found = clusters()
    assert found["i0"] == found["i1"] != found["i2"]
    splits = Splits({item.content_hash: Placement("train", f"c-{item.id}") for item in items})
    own = {"i0": "c-i0", "i1": "c-i1", "i2": "c-i2"}
    assert clusters(splits=splits) == own
    elsewhere = make_item(id="held out", query="Is sourdough safe for a dog?")
    assert clusters(held_out=HeldOut([elsewhere], splits)) == own
    assert clusters(held_out=HeldOut([elsewhere])) == found


def test_a_set_knows_what_was_held_out_and_the_limits_of_its_guards() -> None:
    item = make_item(query="How do I mend a fence?")
    judge = ScriptedJudge({(None, TEXTS[0]): LABELS[0], (None, TEXTS[2]): LABELS[1]})
    answers = [answer(item, TEXTS[0]), answer(item, TEXTS[2])]
    plain = build_pairs([item], split="train", answers=answers, judge=judge)
    assert (plain.held_out_hash, plain.limits) == (None, {})
    others = [
        make_item(id="x", query="Is sourdough safe for a dog?"),
        make_item(id="y", query="And milk?"),
    ]
    found = build_pairs(
        [item],
        split="train",
        answers=answers,
        judge=judge,
        held_out=HeldOut(others),
        guards=Guards(limits={"same_tokens": 0.3}),
    )
    assert found.held_out_hash == HeldOut(others[::-1]).hash
    assert found.limits == {"same_tokens": 0.3}


def bare_items(n: int) -> list[Item]:
    words = ["fence", "cellar", "yeast", "dog", "clock", "kite", "lamp", "boat", "roof", "tree"]
    return [Item.of_query(f"What is best for a {word} at night?") for word in words[:n]]


def test_pairs_of_bare_queries_say_that_their_goal_was_inferred(tmp_path: Path) -> None:
    items = bare_items(10)
    answers = [answer(i, t) for i in items for t in (TEXTS[0], TEXTS[2], TEXTS[3])]
    with FakeAPI() as api:
        judge = load_judge(f"chat:judge@{api.base_url}", store=tmp_path / "s.sqlite")
        found = build_pairs(
            items, split="train", answers=answers, judge=judge, rule=Rule(margin_pairs=0.01)
        )
    assert found.pairs
    assert not any(pair.grounded for pair in found.pairs)
    audit = audit_pairs(found)
    n = len(found.pairs)
    assert any(w.startswith(f"{n} of {n} pairs were judged by goals") for w in audit.warnings)
    back = pair_of_record(json.loads(json.dumps(record_of(found.pairs[0]))))
    assert not back.chosen_answer.grounded
    assert back == found.pairs[0]


def test_an_order_check_of_items_without_a_goal_is_refused_before_anything_is_asked(
    tmp_path: Path,
) -> None:
    items = bare_items(4)
    answers = [answer(i, t) for i in items for t in (TEXTS[0], TEXTS[2])]
    with FakeAPI() as api:
        judge = load_judge(f"chat:judge@{api.base_url}", store=tmp_path / "s.sqlite")
        with pytest.raises(JudgeError, match="4 items say nothing of a goal, the first is 'query-"):
            build_pairs(items, split="train", answers=answers, judge=judge, order_check=True)
        with pytest.raises(JudgeError, match="looks at one answer at a time"):
            build_pairs(
                items, split="train", answers=answers, judge=ScriptedJudge({}), order_check=True
            )
        assert api.stats.requests == 0


def test_more_answers_to_an_item_than_can_be_compared_are_refused_before_any_is_judged() -> None:
    many = [answer(item, TEXTS[0], number=n) for item in XY[:2] for n in range(100_000)]
    judge = script([JudgeFailure("timeout", "was asked")] * len(TEXTS))
    with pytest.raises(
        DataError, match="item 'xy-0': 100,000 answers, expected at most 1,000"
    ) as e:
        build_pairs(XY, split="train", answers=many, judge=judge)
    assert len(e.value.problems) == 2
    check_numbers({"xy-0": 1_000})
