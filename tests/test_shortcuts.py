import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xyreward.items import DEFAULT_LABELS
from xyreward.pairs import Candidate, Judged, Pair
from xyreward.pairs.shortcuts import (
    RULES,
    Learned,
    Traits,
    bag_of_words,
    by_origin,
    picks,
    reward_picks,
    swapped,
    traits,
    traits_of,
)


def answer(text: str, reward: float, origin: str = "m") -> Judged:
    labels = DEFAULT_LABELS["goal_focused" if reward > 0.5 else "literal"]
    return Judged(Candidate("item", text, "on_policy", origin), labels, reward, "local")


def pair(
    i: int, chosen: str, rejected: str, origins: tuple[str, str] = ("m", "m"), cluster: str = ""
) -> Pair:
    return Pair(
        id=f"pair-{i}",
        item_id=f"item-{i}",
        item_kind="xy",
        split="train",
        cluster=cluster or f"cluster-{i}",
        prompt=({"role": "user", "content": "query"},),
        chosen_answer=answer(chosen, 1.0, origins[0]),
        rejected_answer=answer(rejected, 0.0, origins[1]),
        source="forum",
        language="en",
    )


def rate(pairs: Sequence[Pair], name: str) -> float:
    (rule,) = (r for r in RULES if r.name == name)
    found = picks(pairs, rule, traits_of(pairs))
    return sum(found) / len(found)


def accuracy(found: Learned | str) -> float:
    assert isinstance(found, Learned)
    return sum(found.picks) / len(found.picks)


# ---------------------------------------------------------------- counting


@pytest.mark.parametrize(
    ("text", "cues"),
    [
        ("", 0),
        ("Do not. NEVER! However", 3),
        ("can't and can\u2019t and cannot", 3),
        ("notable buttons, knot, fortnight", 0),  # inside other words
        ("don't", 1),  # not one for don and one for t
        ("not-not", 2),
        ("n't, cant, dont", 0),
        ("a MYTH, wrong; false?", 3),
    ],
    ids=repr,
)
def test_cue_words_are_whole_words_of_the_list_in_any_case_and_with_either_apostrophe(
    text: str, cues: int
) -> None:
    assert traits(text).cues == cues


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("plain text - with a dash, 3. and # and *", 0),
        ("# Title\n\n### Part", 2),
        ("#hashtag", 0),
        ("- a\n* b\n+ c\n  - d", 4),
        ("1. a\n2) b", 2),
        ("2024. A year that begins a line", 0),
        ("**bold** and __bold__ and 2 ** 3 ** 4", 3),
        ("snake__case__name", 0),
        ("| a | b |\n|---|---|\n| 1 | 2 |", 3),
        ("```python\n# a comment\n- 1\n```\ntext", 1),
        ("~~~\n# a\n~~~\n\n```\nx\n```", 2),
        ("```\n# never closed", 2),
    ],
    ids=repr,
)
def test_markdown_is_counted_in_lines_pieces_and_blocks(text: str, amount: int) -> None:
    assert traits(text).markdown == amount


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("What do you want? Do this.", True),
        ("  \n**What do you want?** This.", True),
        ("Do you use node.js? Then", True),
        ("Use node.js. Right?", False),
        ("A title\nWhat for?", False),
        ("\u4f60\u60f3\u8981\u4ec0\u4e48\uff1f\u597d\u3002", True),
        ("\u597d\u3002\u4f60\u60f3\u8981\u4ec0\u4e48\uff1f", False),
        ("No end at all", False),
        ("", False),
    ],
    ids=repr,
)
def test_an_answer_starts_with_a_question_where_its_first_sentence_is_one(
    text: str, asks: bool
) -> None:
    assert traits(text).asks_first is asks


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "piece",
    ["**", "__a", "```\n", "~~~\n```\n", "\n\t", "| ", "|\n", "#", "1.", " \n- ", "don'", "*a**"],
    ids=repr,
)
def test_no_text_takes_more_than_linear_time(piece: str) -> None:
    assert traits(piece * 200_000).characters == len(piece) * 200_000


# ---------------------------------------------------------------- fixed rules


@pytest.mark.parametrize(
    ("name", "chosen", "rejected"),
    [
        ("longer", "two words", "word"),
        ("cue words", "not this but that", "this and that, nothing else at all"),
        ("cue words per word", "not this", "not this but that and this and that and more of these"),
        ("markdown", "- a\n- b", "- a"),
        ("starts with a question", "Why? Because.", "Because. Why?"),
        ("question marks", "a? b?", "a?"),
    ],
)
def test_each_rule_picks_the_side_that_has_more_and_half_where_both_have_as_much(
    name: str, chosen: str, rejected: str
) -> None:
    assert rate([pair(0, chosen, rejected)], name) == 1
    assert rate([pair(0, rejected, chosen)], name) == 0
    assert rate([pair(0, chosen, chosen)], name) == 0.5
    assert rate([pair(0, chosen, rejected), pair(1, chosen, chosen)], name) == 0.75  # 1.5 / 2


some_traits = st.builds(
    Traits,
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 3),
)


@given(some_traits, some_traits)
def test_no_rule_prefers_a_side_for_being_named_first(a: Traits, b: Traits) -> None:
    for rule in RULES:
        assert rule.picks(a, b) + rule.picks(b, a) == 1


def test_the_reward_prefers_the_answer_that_is_worth_more() -> None:
    one = pair(0, "a", "b")
    unjudged = replace(one, chosen_answer=replace(one.chosen_answer, labels=None, reward=None))
    assert reward_picks([one, *swapped([one]), unjudged]) == [1, 0, 0.5]


# ---------------------------------------------------------------- who wrote it


def test_an_origin_that_mostly_wins_is_found_out() -> None:
    origins = [("human", "m") if i % 10 else ("m", "human") for i in range(100)]
    pairs = [pair(i, "a", "b", o) for i, o in enumerate(origins)]
    found = by_origin(pairs, swapped(pairs), 0)
    assert accuracy(found) == pytest.approx(0.9)
    assert isinstance(found, Learned)
    assert sum(found.swapped_picks) / 100 == pytest.approx(0.1)


def test_the_same_author_in_another_source_is_another_origin() -> None:
    pairs = []
    for i in range(50):
        one = pair(i, "a", "b")
        candidate = replace(one.rejected_answer.answer, source="cross_model")
        pairs.append(replace(one, rejected_answer=replace(one.rejected_answer, answer=candidate)))
    assert accuracy(by_origin(pairs, swapped(pairs), 0)) == 1


def test_with_one_origin_in_each_pair_there_is_nothing_to_guess_by() -> None:
    pairs = [pair(i, "a", "b", ("m", "m") if i % 2 else ("n", "n")) for i in range(40)]
    found = by_origin(pairs, swapped(pairs), 0)
    assert isinstance(found, Learned)
    assert set(found.picks) == {0.5}


def test_an_origin_is_not_judged_by_the_cluster_that_it_is_tested_on() -> None:
    # Each cluster has authors of its own, so nothing can be learned from the others.
    pairs = [
        pair(i, "a", "b", (f"x{i // 10}", f"y{i // 10}"), f"cluster-{i // 10}") for i in range(100)
    ]
    found = by_origin(pairs, swapped(pairs), 0)
    assert isinstance(found, Learned)
    assert set(found.picks) == {0.5}


@pytest.mark.parametrize("seed", range(5))
def test_origins_that_win_equally_often_are_not_guessed_wrong(seed: int) -> None:
    pairs = [pair(i, "a", "b", ("h", "m") if i % 2 else ("m", "h")) for i in range(60)]
    assert accuracy(by_origin(pairs, swapped(pairs), seed)) == pytest.approx(0.5, abs=0.1)


def test_one_cluster_says_why_nothing_was_learned() -> None:
    pairs = [pair(i, "a", "b", ("h", "m"), "one") for i in range(9)]
    assert by_origin(pairs, swapped(pairs), 0) == "needs pairs of at least 2 clusters"


# ---------------------------------------------------------------- bag of words

WORDS = [f"word{i}" for i in range(300)]


def noise(rng: random.Random, n: int = 30) -> str:
    return " ".join(rng.choices(WORDS, k=n))


def bag(pairs: Sequence[Pair], max_pairs: int = 1000) -> Learned | str:
    return bag_of_words(pairs, swapped(pairs), 0, max_pairs=max_pairs)


@pytest.mark.parametrize(
    ("chosen", "rejected"),
    [
        ("goal", "other"),
        ("alpha beta gamma", "beta alpha gamma"),  # the same words in another order
        ("\u6211\u7684\u76ee\u7684\u662f", "\u6211\u8981\u8fd9\u4e2a"),
    ],
    ids=["a word", "two words", "Chinese"],
)
def test_what_gives_the_chosen_answer_away_is_found(chosen: str, rejected: str) -> None:
    rng = random.Random(0)
    pairs = [
        pair(i, f"{noise(rng, 8)} {chosen}", f"{noise(rng, 8)} {rejected}") for i in range(200)
    ]
    found = bag(pairs)
    assert accuracy(found) > 0.9
    assert isinstance(found, Learned)
    assert sum(found.swapped_picks) / 200 == pytest.approx(1 - accuracy(found))


def test_where_words_say_nothing_it_is_right_half_the_time() -> None:
    rng = random.Random(1)
    pairs = [pair(i, noise(rng), noise(rng)) for i in range(400)]
    assert accuracy(bag(pairs)) == pytest.approx(0.5, abs=0.08)  # 3 standard errors of 0.025


def test_it_is_tested_on_other_clusters_than_it_learned_from() -> None:
    # The words of a cluster give its pairs away, but only its own: folds over pairs would find 1.0.
    rng = random.Random(2)
    pairs = []
    for i in range(400):
        c = i // 10
        chosen, rejected = f"{noise(rng, 5)} yes{c}", f"{noise(rng, 5)} no{c}"
        pairs.append(pair(i, chosen, rejected, cluster=f"cluster-{c}"))
    assert accuracy(bag(pairs)) == pytest.approx(0.5, abs=0.1)


def test_too_few_clusters_say_so() -> None:
    pairs = [pair(i, "a b", "b c", cluster=f"c{i % 19}") for i in range(100)]
    assert bag(pairs) == "needs pairs of at least 20 clusters, there are 19"


def test_of_many_pairs_a_sample_is_taken_that_depends_on_ids_alone() -> None:
    rng = random.Random(3)
    pairs = [pair(i, f"{noise(rng)} goal", noise(rng)) for i in range(300)]
    found, again = bag(pairs, 60), bag(pairs[::-1], 60)
    assert isinstance(found, Learned)
    assert isinstance(again, Learned)
    assert len(found.rows) == len(found.picks) == 60
    assert [pairs[i].id for i in found.rows] == [pairs[::-1][i].id for i in again.rows]
    assert found.picks == again.picks


@settings(max_examples=10, deadline=None)
@given(st.randoms(use_true_random=False))
def test_exchanging_the_sides_of_some_pairs_exchanges_what_is_said_of_them(
    rng: random.Random,
) -> None:
    pairs = [pair(i, f"{noise(rng, 9)} goal", noise(rng, 9)) for i in range(60)]
    found = bag(pairs)
    assert isinstance(found, Learned)
    assert [a + b for a, b in zip(found.picks, found.swapped_picks, strict=True)] == [1] * 60
