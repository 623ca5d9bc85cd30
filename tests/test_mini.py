"""What the documentation promises of the bundled items, computed on them."""

import re
from collections import Counter

import pytest

from xyreward.items import BOTH_KINDS, CONTROL_KINDS, XY_KINDS, AnswerKind, Item, Reference
from xyreward.loading import bundled_splits, load_items
from xyreward.pairs import build_pairs
from xyreward.splits import SIDES, check_no_overlap, near_duplicates

TECHNICAL = {"python-data", "web", "shell", "sql", "git-ci", "ml"}
SAMPLED = "embedded:smollm2-135m sampled"
"""Origin of the attempts that the embedded policy wrote."""
EVERYDAY = {
    "cooking",
    "home-repair",
    "cleaning",
    "gardening",
    "pets",
    "vehicles",
    "electronics",
    "travel",
}

CUES = re.compile(
    r"\b(no|not|never|none|cannot|can't|don't|doesn't|isn't|aren't|won't|wouldn't|shouldn't|didn't"
    r"|wasn't|weren't|but|however|instead|although|though|actually|rather|unlike|despite|incorrect"
    r"|wrong|false|misconception|mistaken|myth)\b",
    re.IGNORECASE,
)
HAN = re.compile(r"[\u3400-\u9fff]")
TOKEN = re.compile(r"[\u3400-\u9fff]|[^\W_]+")


def xy(items: list[Item]) -> list[Item]:
    return [i for i in items if i.kind == "xy"]


def controls(items: list[Item]) -> list[Item]:
    return [i for i in items if i.kind == "control"]


def text(item: Item, kind: AnswerKind) -> str:
    reference = item.reference(kind)
    assert reference, f"{item.id} has no {kind} answer"
    return reference.text


def length(answer: str) -> float:
    """In words; a Chinese one has about 1.6 characters."""
    return len(HAN.findall(answer)) / 1.6 + len(HAN.sub(" ", answer).split())


def right(goal_focused: float, literal: float) -> float:
    """1 where the rule "more is goal-focused" is right, a tie counts half."""
    return 1.0 if goal_focused > literal else 0.5 if goal_focused == literal else 0.0


def attempts(items: list[Item]) -> list[tuple[Item, Reference]]:
    return [(i, r) for i in items for r in i.references if r.kind == "attempt"]


def all_texts(item: Item) -> list[str]:
    return [
        item.query_text,
        item.stated_request,
        item.intended_request,
        item.misconception,
        *item.stated_solutions,
        *item.intended_solutions,
        *(r.text for r in item.references),
    ]


# ---------------------------------------------------------------- what is in it


def test_there_are_at_least_140_items_with_a_hidden_goal_and_70_controls(mini: list[Item]) -> None:
    assert len(xy(mini)) >= 140
    assert len(controls(mini)) >= 70


def test_half_are_technical_and_half_everyday_and_no_domain_is_missing(mini: list[Item]) -> None:
    for items in (xy(mini), controls(mini)):
        count = Counter(i.domain for i in items)
        assert set(count) == TECHNICAL | EVERYDAY
        assert 0.45 <= sum(count[d] for d in TECHNICAL) / len(items) <= 0.55


def test_at_least_14_items_are_in_chinese_spanish_and_one_more_language(mini: list[Item]) -> None:
    count = Counter(i.language for i in mini)
    del count["en"]
    assert {"zh", "es"} < set(count)
    assert count.total() >= 14
    for item in mini:
        if item.language == "zh":
            # A weak model answers in any language, so what it wrote is no sign of the item's.
            sampled = {r.text for r in item.references if r.origin == SAMPLED}
            ours = [part for part in all_texts(item) if part and part not in sampled]
            assert all(HAN.search(part) for part in ours), item.id


def test_every_item_with_a_hidden_goal_has_every_field(mini: list[Item]) -> None:
    for item in xy(mini):
        for field in ("misconception", "stated_solutions", "intended_solutions", "domain"):
            assert getattr(item, field), (item.id, field)
        assert item.stated_request != item.intended_request, item.id
        assert {"goal_focused", "literal"} <= {r.kind for r in item.references}, item.id


def test_every_control_has_solutions_and_both_answers(mini: list[Item]) -> None:
    for item in controls(mini):
        assert item.stated_solutions, item.id
        assert {r.kind for r in item.references} - BOTH_KINDS == CONTROL_KINDS, item.id


def test_at_least_48_items_have_all_eight_kinds_of_answers(mini: list[Item]) -> None:
    assert len(XY_KINDS) == 8
    assert sum({r.kind for r in i.references} >= XY_KINDS for i in xy(mini)) >= 48


def test_an_item_has_one_answer_of_a_kind_and_no_two_answers_are_the_same(mini: list[Item]) -> None:
    """Of attempts it may have two, one of either origin."""
    answers = Counter(r.text for i in mini for r in i.references)
    assert [t for t, n in answers.items() if n > 1] == []
    for item in mini:
        assert max(Counter((r.kind, r.origin) for r in item.references).values()) == 1, item.id


def test_every_answer_is_ours_licensed_and_labelled(mini: list[Item]) -> None:
    assert {i.source for i in mini} == {"mini"}
    for item in mini:
        for reference in item.references:
            assert reference.labels is not None, item.id
            assert reference.licence == "Apache-2.0", item.id
            assert reference.origin == "xyreward" or (reference.kind, reference.origin) == (
                "attempt",
                SAMPLED,
            ), item.id


def test_attempts_hold_no_solution_and_are_there_on_every_side_for_both_kinds_of_items(
    mini: list[Item],
) -> None:
    splits = bundled_splits()
    for items, at_least in ((xy(mini), 90), (controls(mini), 60)):
        written = [i for i, r in attempts(items) if r.origin == "xyreward"]
        assert len(written) >= at_least
        assert {splits.side(i) for i in written} == set(SIDES)
        assert {"en", "zh", "es", "de"} == {i.language for i in written}
        labels = [r.labels for _, r in attempts(items) if r.labels]
        assert not any(x.has_stated_solution or x.has_intended_solution for x in labels)
        focus = Counter(x.focus for x in labels)
        assert min(focus["stated"], focus["neither"]) >= 0.25 * len(labels)


def test_what_a_model_wrote_is_never_on_the_test_side(mini: list[Item]) -> None:
    """There the answers of the same model are for measuring the judge, and it may not have seen any."""
    splits = bundled_splits()
    sampled = [i for i, r in attempts(mini) if r.origin == SAMPLED]
    assert len(sampled) >= 80
    assert "test" not in {splits.side(i) for i in sampled}


def test_attempts_make_no_pairs(mini: list[Item]) -> None:
    def without(item: Item) -> Item:
        kept = tuple(r for r in item.references if r.kind != "attempt")
        return item.model_copy(update={"references": kept})

    train = bundled_splits().select(mini, "train")
    with_attempts = build_pairs(train, split="train")
    assert with_attempts.hash == build_pairs([*map(without, train)], split="train").hash


def test_labels_teach_what_the_kinds_of_answers_are_for(mini: list[Item]) -> None:
    """They may depart from the table, but not in what a pair is made of."""
    for item in xy(mini):
        good, bad = item.reference("goal_focused"), item.reference("literal")
        assert good
        assert good.labels
        assert bad
        assert bad.labels
        assert good.labels.has_intended_solution, item.id
        assert good.labels.focus == "intended", item.id
        assert good.labels.identifies_misconception, item.id
        assert not bad.labels.has_intended_solution, item.id
        assert bad.labels.focus == "stated", item.id
        assert not bad.labels.identifies_misconception, item.id


# ---------------------------------------------------------------- no shortcut


def test_goal_focused_and_literal_answers_are_of_like_length(mini: list[Item]) -> None:
    wrong = []
    for item in xy(mini):
        one, other = length(text(item, "goal_focused")), length(text(item, "literal"))
        within = max(one, other) <= 1.25 * min(one, other)
        if not (60 <= one <= 160 and 60 <= other <= 160 and within):
            wrong.append((item.id, one, other))
    assert wrong == []


def test_the_longer_answer_is_goal_focused_in_half_of_the_pairs(mini: list[Item]) -> None:
    pairs = [(text(i, "goal_focused"), text(i, "literal")) for i in xy(mini)]
    share = sum(right(len(good), len(bad)) for good, bad in pairs) / len(pairs)
    assert 0.40 <= share <= 0.60, share


def test_the_answer_with_more_cue_words_is_goal_focused_in_half_of_the_pairs(
    mini: list[Item],
) -> None:
    def cues(answer: str) -> int:
        return len(CUES.findall(answer.replace("’", "'")))  # how many write it

    assert cues("No, don’t; rather not.") == 4
    pairs = [(text(i, "goal_focused"), text(i, "literal")) for i in xy(mini)]
    share = sum(right(cues(good), cues(bad)) for good, bad in pairs) / len(pairs)
    assert 0.40 <= share <= 0.60, share


def test_no_query_contains_a_solution_for_its_goal_nearly_verbatim(mini: list[Item]) -> None:
    def runs(part: str) -> set[tuple[str, ...]]:
        """Four words in a row."""
        tokens = TOKEN.findall(part.lower())
        return {tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)}

    for item in xy(mini):
        query = runs(item.query_text)
        for solution in item.intended_solutions:
            given_away = len(runs(solution) & query) / max(1, len(runs(solution)))
            assert given_away < 0.4, (item.id, solution)
            assert solution.lower() not in item.query_text.lower(), (item.id, solution)


def test_queries_vary_in_length_and_many_carry_code(mini: list[Item]) -> None:
    words = sorted(length(i.query_text) for i in mini)
    tenth = len(words) // 10
    assert words[-tenth] >= 1.5 * words[tenth]
    technical = [i for i in mini if i.domain in TECHNICAL]
    assert sum("\n" in i.query_text or "`" in i.query_text for i in technical) >= 20


# ---------------------------------------------------------------- no harm


def test_an_unsafe_answer_is_marked_and_never_chosen(mini: list[Item]) -> None:
    unsafe = {r.text for i in mini for r in i.references if r.unsafe}
    assert len(unsafe) >= 10
    for side in SIDES:
        pairs = build_pairs(load_items("mini", split=side), split=side).pairs
        assert pairs
        assert not unsafe & {pair.chosen for pair in pairs}
    good = [r for i in mini for r in i.references if r.kind in ("goal_focused", "direct")]
    assert not any(r.unsafe for r in good)


PRIVATE = {
    # `module@v1.4.1` of a package manager is none, nor is `git@github.com:`
    "e-mail address": r"\b[\w.+-]+@(?!v?\d)(?!example\.)[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}\b(?!:)",
    "API key": r"\b(?:sk-[\w-]{16,}|AKIA[0-9A-Z]{16}|gh[pousr]_\w{20,}|xox[abp]-\S{10,})",
    "private key": r"-----BEGIN [A-Z ]*PRIVATE KEY",
    "phone number": r"(?<![\w.,:/-])(?:\+\d{1,3}[ ()/-]*|\(?0\d{2,5}\)?[ /-]+)\d[\d ()/-]{5,}\d\b",
}


@pytest.mark.parametrize(
    ("what", "seen"),
    [
        ("e-mail address", "write to anna.b@mail.firm.de please"),
        ("API key", "export KEY=sk-abcdefghijklmnop1234"),
        ("private key", "-----BEGIN RSA PRIVATE KEY-----"),
        ("phone number", "call +49 (0)30 1234567"),
        ("phone number", "call 030 / 123 45 67"),
    ],
)
def test_the_patterns_of_private_data_find_what_they_are_for(what: str, seen: str) -> None:
    assert re.search(PRIVATE[what], seen)


@pytest.mark.parametrize("what", PRIVATE)
def test_there_is_no_private_data(mini: list[Item], what: str) -> None:
    found = [
        (item.id, hit[0])
        for item in mini
        for part in all_texts(item)
        for hit in re.finditer(PRIVATE[what], part)
    ]
    assert found == []


# ---------------------------------------------------------------- sides


def test_the_shipped_sides_are_those_of_the_items_and_of_no_others(mini: list[Item]) -> None:
    splits = bundled_splits()
    assert set(splits.placements) == {i.content_hash for i in mini}
    assert None not in {p.side for p in splits.placements.values()}
    assert len({i.content_hash for i in mini}) == len(mini)


def test_the_shipped_sides_have_their_shares_within_each_kind(mini: list[Item]) -> None:
    splits = bundled_splits()
    for items in (xy(mini), controls(mini)):
        count = Counter(splits.side(i) for i in items)
        for side, share in (("train", 0.60), ("dev", 0.15), ("test", 0.25)):
            assert count[side] / len(items) == pytest.approx(share, abs=0.03)  # type: ignore[index]


def test_no_item_nearly_repeats_one_of_another_side(mini: list[Item]) -> None:
    sides = {side: load_items("mini", split=side) for side in SIDES}
    check_no_overlap(sides["train"], [*sides["dev"], *sides["test"]])
    check_no_overlap(sides["dev"], sides["test"])


def test_no_item_nearly_repeats_another_at_all(mini: list[Item]) -> None:
    found = [
        (mini[i].id, mini[j].id) for i, j in near_duplicates([m.query_text for m in mini], 0.3)
    ]
    assert found == []
