"""Guards of pairs: each objects where it should, keeps still where it should, whichever side is chosen."""

import json
import string
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from xyreward.chat_tokenizer import load_chat_tokenizer
from xyreward.errors import ConfigError, MissingDependency
from xyreward.items import Item, Reference
from xyreward.loading import bundled_splits
from xyreward.pairs.candidates import Candidate, Judged
from xyreward.pairs.guards import (
    GUARDS,
    LANGUAGE,
    LIMITS,
    NEARLY_IDENTICAL,
    PERSONAL_DATA,
    PROMPT_LENGTH,
    REASONS,
    SAME,
    SAME_TOKENS,
    Guards,
    TokenGuard,
    alike,
    answers_in_another,
)
from xyreward.pairs.held_out import (
    ANSWER_IS_HELD_OUT,
    CONTAINED,
    FEWEST,
    ITEM_IS_HELD_OUT,
    QUERY_IS_HELD_OUT,
    SHINGLE,
    SHORTEST,
    HeldOut,
)
from xyreward.pairs.language import (
    ENDS,
    Told,
    _classify,
    _ends,
    language_of,
    prose,
    speaks_another,
)
from xyreward.pairs.personal_data import PERSONAL_KINDS, mask
from xyreward.policy import load_policy
from xyreward.splits import Placement, Splits, near_duplicates, tokens
from xyreward.testing import make_item

LONG = (
    "Go to bed on Sunday as early as on any other day, and the alarm clock that you already have will be "
    "loud enough. What makes Monday hard is not the sound but the four hours of sleep before it."
)
OTHER = (
    "Stand the clock on a metal tray, at the far end of the room, so that you have to get up to switch it "
    "off. A tray makes any bell ring about twice as loud, and it costs next to nothing."
)


def judged(text: str) -> Judged:
    return Judged(Candidate("i", text, "on_policy", "a model"), None, None, "j")


def objection(one: str, other: str, guards: Guards | None = None, **also: Any) -> str | None:
    item = also.pop("item", None) or make_item()
    return (guards or Guards()).objection(item, judged(one), judged(other), **also)


# ---------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nearly_identical": 0}, r"nearly_identical is 0, expected in \(0, 1\]"),
        ({"nearly_identical": 1.5}, "nearly_identical is 1.5"),
        ({"nearly_identical": float("nan")}, "nearly_identical is nan"),
        ({"personal_data": "hide"}, "personal_data is 'hide', expected mask, drop or keep"),
        ({"personal_kinds": ("emails",)}, "expected a list of some of email, phone"),
        ({"personal_kinds": "email"}, "expected a list of some of email, phone"),
        ({"phone_regions": ("us",)}, "phone_regions has 'us', expected codes of two capitals"),
        ({"phone_regions": "US"}, "phone_regions is 'US', expected a list"),
        ({"limits": {"tone": 0.1}}, "limits has 'tone', expected same, nearly_identical"),
        ({"limits": {"same": 1.1}}, r"limits.same is 1.1, expected a share in \[0, 1\]"),
        ({"limits": {"same": True}}, "limits.same is True"),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Guards(**fields)


def test_every_guard_has_a_limit_and_reasons_of_its_own() -> None:
    assert set(GUARDS) == set(LIMITS) == set(REASONS)
    reasons = [reason for guard in GUARDS for reason in REASONS[guard]]
    assert len(set(reasons)) == len(reasons)


def test_a_guard_that_drops_more_than_its_limit_is_a_problem_that_says_what_to_do() -> None:
    dropped = {LANGUAGE: 6, SAME: 10, "tie": 90, QUERY_IS_HELD_OUT: 1}
    language, held_out = Guards().problems(dropped, 100)
    assert language == (
        "guard language: 6 of 100 pairs dropped (6.0%; an answer in another language than its query), "
        "expected at most 5.0%; look at the source's answers and at the items' language, or set "
        "limits.language"
    )
    assert "1 of 100" in held_out
    assert "assign_splits" in held_out
    assert Guards(limits={"language": 0.06, "held_out_item": 0.01}).problems(dropped, 100) == ()
    assert Guards().problems({}, 0) == ()


# ---------------------------------------------------------------- the same, or nearly


def test_sides_that_read_the_same_or_nearly_so_are_no_pair() -> None:
    assert objection(LONG, f"  {LONG}\n") == SAME
    assert objection(LONG, LONG.replace("four", "five")) == NEARLY_IDENTICAL
    assert objection(LONG, LONG.replace("four", "five"), Guards(nearly_identical=None)) is None
    assert objection(LONG, OTHER) is None
    assert objection(LONG, f"{LONG} {OTHER}") is None


def test_similarity_is_twice_the_common_subsequence_over_both_lengths() -> None:
    assert alike("abcd", "abce", 0.75)  # 2 * 3 / 8
    assert not alike("abcd", "abce", 0.76)
    assert alike("a  b", "a\nb", 1.0)


# ---------------------------------------------------------------- tokens


@pytest.fixture(scope="module")
def embedded() -> TokenGuard:
    try:
        return TokenGuard.load(max_length=128)
    except MissingDependency:
        pytest.skip("the embedded policy's package is not installed")


def test_a_tokenizer_without_weights_gives_the_ids_of_the_policy(tiny: str) -> None:
    light, policy = load_chat_tokenizer(tiny), load_policy(tiny, device="cpu")
    for prompt in (make_item().messages, make_item(query="你好").messages):
        assert light.prompt_ids(prompt) == policy.prompt_ids(prompt)
        for answer in (LONG, "好", " spaces "):
            ids = policy.answer_ids(prompt, answer)
            assert light.answer_ids(prompt, answer) == ids
            assert light.answer_ids(prompt, answer, prompt=policy.prompt_ids(prompt)) == ids


def test_a_tokenizer_is_loaded_without_the_weights(tiny: str, tmp_path: Path) -> None:
    for file in Path(tiny).iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    assert TokenGuard.load(str(tmp_path)).objection(make_item().messages, LONG, OTHER) is None


def test_what_the_trainer_would_drop_or_not_tell_apart_is_no_pair(tiny: str) -> None:
    item = make_item()
    ids, begin = load_chat_tokenizer(tiny).answer_ids(item.messages, "same start: one")
    end = len(ids) - len("one") - len(["<|im_end|>", "\n"])  # a token is a byte
    sides = "same start: one", "same start: two"
    for length, expected in (
        (begin, PROMPT_LENGTH),
        (begin + 1, SAME_TOKENS),
        (end, SAME_TOKENS),
        (end + 1, None),
        (None, None),
    ):
        guard = TokenGuard.load(tiny, length)
        assert guard.objection(item.messages, *sides) == expected
        assert objection(*sides, Guards(nearly_identical=None), item=item, tokens=guard) == expected
        assert guard.cuts(item.messages, *sides) == (length is not None)
    assert not TokenGuard.load(tiny, len(ids)).cuts(item.messages, *sides)
    assert TokenGuard.load(tiny, len(ids) - 1).cuts(item.messages, *sides)
    with pytest.raises(ConfigError, match="max_length is 1, expected >= 2"):
        TokenGuard.load(tiny, 1)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.text(min_size=1, max_size=400),
    st.text(max_size=40),
    st.text(max_size=40),
    st.integers(2, 160),
)
@example("a" * 600, "b", "c", 128)
@example("e\u0301", "", "\u00e9", 160)
def test_no_pair_with_equal_ids_passes(
    embedded: TokenGuard, start: str, one: str, other: str, length: int
) -> None:
    guard = TokenGuard(embedded.tokenizer, length)
    prompt = [{"role": "user", "content": "Why?"}]
    sides = start + one, start + other
    (ids, begin), (others, _) = (embedded.tokenizer.answer_ids(prompt, s) for s in sides)
    found = guard.objection(prompt, *sides)
    assert found == guard.objection(prompt, *reversed(sides))
    if ids[:length] == others[:length]:
        assert found in (SAME_TOKENS, PROMPT_LENGTH)
    elif begin < length:
        assert found is None


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.text(max_size=60), st.text(max_size=9), st.text(max_size=9), st.integers(2, 160))
@example("", "\x04", "\x06", 160)  # the embedded policy's tokenizer has no token for either
@example("", "a", "b", 160)
def test_what_is_told_without_tokenising_is_true(
    embedded: TokenGuard, start: str, one: str, other: str, within: int
) -> None:
    of, prompt = embedded.tokenizer, [{"role": "user", "content": "Why?"}]
    texts = [of.text(prompt, start + end) for end in (one, other)]
    ids = [of.answer_ids(prompt, start + end)[0][:within] for end in (one, other)]
    if of.surely_differ(texts[0], texts[1], within):
        assert ids[0] != ids[1]


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.sampled_from(["<|im_start|>", "<|im_end|>", "<|im_", "\n", " why"]) | st.text(max_size=9)
    ),
    st.text(max_size=30),
    st.integers(1, 9),
)
def test_an_answer_that_is_said_to_fit_does(
    embedded: TokenGuard, asked: list[str], answer: str, fewer: int
) -> None:
    of, prompt = embedded.tokenizer, [{"role": "user", "content": "".join(asked)}]
    begins, ids = of.prompt_ids(prompt), of.answer_ids(prompt, answer)[0]
    text = of.text(prompt, answer)
    assert not of.surely_fits(prompt, text, len(ids) - fewer, prompt_ids=len(begins))


def test_whether_an_answer_fits_is_told_by_the_tokens_of_its_prompt(embedded: TokenGuard) -> None:
    of, prompt = embedded.tokenizer, [{"role": "user", "content": "Why is the clock loud? " * 30}]
    begins, text = of.prompt_ids(prompt), of.text(prompt, LONG)
    most = len(begins) + len(LONG) + 40
    assert not of.surely_at_most(text, most)
    assert of.surely_fits(prompt, text, most, prompt_ids=len(begins))
    assert not of.surely_fits(prompt, text + "\x04", most, prompt_ids=len(begins))  # no such token
    other = [{"role": "user", "content": "Another prompt"}]
    assert not of.surely_fits(other, text, most, prompt_ids=len(begins))


@pytest.mark.parametrize("kind", ["as it is", "NFC", "lower case"])
def test_only_what_keeps_the_text_is_told_without_tokenising(tiny: str, kind: str) -> None:
    from tokenizers import normalizers

    of = load_chat_tokenizer(tiny)
    if kind != "as it is":
        changes = {"NFC": normalizers.NFC(), "lower case": normalizers.Lowercase()}
        of.tokenizer.backend_tokenizer.normalizer = changes[kind]
    assert of.surely_differ("one", "two", 3) == (kind != "lower case")
    assert of.surely_differ("\u00e9", "\u00e8", 3) == (kind == "as it is")
    assert not of.surely_differ("same: one", "same: two", 6)


# ---------------------------------------------------------------- language


def test_no_reference_of_the_bundled_items_is_taken_for_another_language(mini: list[Item]) -> None:
    answers = [(item, r) for item in mini for r in item.references]
    objected = [(i, r) for i, r in answers if answers_in_another(i, r.text)]
    # A model's answers in English to a Chinese and a German query.
    assert [(i.language, r.kind) for i, r in objected] == [("de", "attempt"), ("zh", "attempt")]
    assert {item.language for item, _ in answers} == {"en", "zh", "es", "de"}
    abstained = sum(language_of(r.text) is None for _, r in answers)
    assert abstained < 0.02 * len(answers)


def test_an_answer_in_another_language_is_found_for_each_two_of_four(mini: list[Item]) -> None:
    asked = {item.language: item for item in mini if language_of(item.query_text)}
    tried = found = 0
    for item in mini:
        for language, other in asked.items():
            if language != item.language:
                texts = [r.text for r in item.references if r.kind != "attempt"]
                tried += len(texts)
                found += sum(answers_in_another(other, text) for text in texts)
    assert tried > 2000
    assert found > 0.985 * tried


GERMAN = (
    "Der Fehler liegt nicht am Speicher. Die Schleife legt in jedem Durchlauf eine Kopie der ganzen Tabelle "
    "an; nehmen Sie stattdessen eine Verknüpfung, die auf dem Index arbeitet."
)
CODE = (
    "\n\n```python\nfor name in sorted(frame.columns):\n    print(name, frame[name].mean())\n```\n"
)


def test_code_says_nothing_about_the_language_and_little_text_neither() -> None:
    item = make_item(
        query="Warum braucht mein Programm so viel Speicher, und wie bekomme ich ihn wieder frei?"
    )
    assert not answers_in_another(item, GERMAN)
    assert not answers_in_another(item, GERMAN + CODE * 20)
    assert not answers_in_another(item, CODE * 20)
    assert language_of(LONG[:50]) is None  # too short to tell
    assert language_of(LONG[:90]) == "en"
    assert not answers_in_another(item, "`this is a quoted name in words` " * 20)
    assert answers_in_another(item, LONG)
    assert answers_in_another(item, LONG + CODE * 20)
    assert objection(GERMAN, LONG, item=item) == LANGUAGE
    assert objection(LONG, GERMAN, item=item) == LANGUAGE
    assert objection(LONG, GERMAN, Guards(language=False), item=item) is None
    assert prose("a `b` c\n    indented\n$ ls -l\n/usr/bin x_y d") == "a c d"
    assert prose("```\nnever closed") == ""


def test_an_answer_that_begins_with_an_english_message_is_read_to_its_end() -> None:
    item = make_item(query="Warum braucht mein Programm so viel Speicher?", language="de")
    message = (
        "The kernel has killed the process, since it was out of memory and did not give any back. "
    )
    assert speaks_another(message * 7, "de")
    assert not answers_in_another(item, message * 7 + GERMAN * 9)


def test_an_answer_that_begins_in_the_language_asked_for_and_goes_on_in_another_is_found() -> None:
    greeting = " ".join(GERMAN.split())[:250]
    assert language_of(greeting) == "de"
    assert speaks_another(f"{greeting}\n\n{' '.join([LONG] * 6)}", "de")
    assert not speaks_another(" ".join([GERMAN] * 6), "de")
    # A closing line in another language makes no other language of the whole.
    assert not speaks_another(f"{' '.join([GERMAN] * 6)}\n\n{LONG[:110]}", "de")


def test_languages_are_told_together_as_one_by_one(mini: list[Item]) -> None:
    texts = [r.text for item in mini for r in item.references]
    texts += [item.query_text for item in mini]
    # Too short, code alone, no feature at all, two languages, capitals, many bytes, half a surrogate pair.
    texts += ["", "why?", CODE * 20, "\u10d0" * 300, LONG[:120] + GERMAN, LONG.upper(), GERMAN * 9]
    texts += ["\U00020000" * 300, LONG + "\ud800", "\ud800" * 300, LONG + " \u4e2d" * 90]
    texts += ["\U00020000" * 1_999, "\U00020000" * 2_001, (GERMAN + LONG) * 12]
    told = Told.of(wholes=texts, ends=texts)
    assert len(told.wholes) == len(told.ends) == len(set(texts))
    for text in texts:
        assert told.wholes[text] == language_of(text)
        written = prose(text)
        if len(written) > 2 * ENDS:
            assert _ends(text) == f"{written[:ENDS]} {written[-ENDS:]}"
        else:
            assert _ends(text) == written
        assert told.ends[text] == _classify(_ends(text))
        for expected in ("en", "zh"):
            assert speaks_another(text, expected, told) == speaks_another(text, expected)
    assert {"en", "de", "zh", "es", None} <= set(told.ends.values())
    assert Told.of(wholes=[], ends=["why?"]) == ({}, {"why?": None})


def test_the_language_that_an_item_names_counts_unless_it_is_the_default() -> None:
    german = make_item(query=LONG, language="de")  # quotes an English text
    assert not answers_in_another(german, GERMAN)
    assert not answers_in_another(german, LONG)
    unnamed = make_item(query=GERMAN)
    assert unnamed.language == "en"
    assert answers_in_another(unnamed, LONG)
    tersely = make_item(query="OOM??", language="de")
    assert answers_in_another(tersely, LONG)
    assert not speaks_another(GERMAN, "de-AT")
    assert not speaks_another(GERMAN, "DE_ch")


# ---------------------------------------------------------------- what is held out


def test_an_item_is_held_out_by_id_query_group_cluster_or_near_duplicate() -> None:
    held = make_item(id="h", query="How do I make my alarm clock louder on Mondays?", group="g")
    far = make_item(id="far", query="Which bread is the softest?")
    placements = {
        held.content_hash: Placement("test", "one"),
        far.content_hash: Placement("train", "one"),
    }
    guard = HeldOut([held], Splits(placements))
    assert guard.item_objection(held) == ITEM_IS_HELD_OUT
    assert guard.item_objection(far) == QUERY_IS_HELD_OUT  # of one cluster
    assert HeldOut([held]).item_objection(far) is None
    for fields in (
        {"query": " How do I make my  alarm clock louder on Mondays?"},
        {"query": "How do I make my alarm clock much louder on Mondays?"},
        {"query": "Something else entirely, as far as words go", "group": "g"},
    ):
        assert guard.item_objection(make_item(id="t", **fields)) == QUERY_IS_HELD_OUT
    unrelated = make_item(id="t", query="How do I make bread softer on Mondays?")
    assert guard.item_objection(unrelated) is None
    assert objection(LONG, OTHER, item=held, held_out=guard) == ITEM_IS_HELD_OUT


def test_sides_of_the_bundled_items_are_free_of_each_other(mini: list[Item]) -> None:
    splits = bundled_splits()
    train = splits.select(mini, "train")
    held = [*splits.select(mini, "dev"), *splits.select(mini, "test")]
    guard = HeldOut(held, splits)
    assert {guard.item_objection(item) for item in train} == {None}
    assert {guard.answer_objection(r.text) for i in train for r in i.references} == {None}
    assert {guard.answer_objection(r.text) for i in held for r in i.references} == {
        ANSWER_IS_HELD_OUT
    }


@pytest.mark.parametrize("language", ["en", "zh", "de", "es"])
def test_a_held_out_answer_is_found_inside_another(mini: list[Item], language: str) -> None:
    guard = HeldOut([item for item in mini if item.language == language])
    others = [r.text for i in mini if i.language == language for r in i.references]
    for item in mini:
        if item.language != language:
            continue
        text = next(r.text for r in item.references if r.kind in ("goal_focused", "direct"))
        assert guard.answer_objection(f"Sure!\n\n{text.upper()}\n\n{LONG}") == ANSWER_IS_HELD_OUT
        changed = " ".join("CHANGED" if i % 20 == 10 else w for i, w in enumerate(text.split(" ")))
        assert guard.answer_objection(changed) == ANSWER_IS_HELD_OUT
        assert guard.answer_objection(text[: int(0.8 * len(text))]) == ANSWER_IS_HELD_OUT
    assert guard.answer_objection(LONG) is None
    assert len(others) > 30


def test_short_answers_and_solutions_are_looked_for_from_end_to_end() -> None:
    short = "keep the very same bedtime on every Sunday too"  # 9 tokens, 5 shingles
    item = make_item(references=(Reference(text=short),), intended_solutions=("Go to bed early.",))
    guard = HeldOut([item])
    assert len(tokens(short)) >= SHORTEST
    assert guard.answer_objection(f"Well: {short.title()}!") == ANSWER_IS_HELD_OUT
    assert guard.answer_objection(short.replace("Sunday", "Monday")) is None
    assert guard.answer_objection("Go to bed early.") is None  # anybody's
    named = make_item(intended_solutions=(LONG,), references=())
    assert HeldOut([named]).answer_objection(LONG) == ANSWER_IS_HELD_OUT
    assert HeldOut([named], solutions=False).answer_objection(LONG) is None
    assert HeldOut([]).answer_objection(LONG) is None
    held = HeldOut([make_item(id="h", query=OTHER, references=(Reference(text=LONG),))])
    assert objection(LONG, OTHER, held_out=held) == ANSWER_IS_HELD_OUT
    assert objection(OTHER, LONG, held_out=held) == ANSWER_IS_HELD_OUT


WORDS = st.lists(st.sampled_from("abcdef"), max_size=40).map(" ".join)


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS.filter(str.strip), min_size=1, max_size=6), WORDS, st.data())
def test_the_index_finds_what_a_comparison_with_all_finds(
    held: list[str], answer: str, data: st.DataObject
) -> None:
    if data.draw(st.booleans()):  # a part of one of them, changed in a place
        words = data.draw(st.sampled_from(held)).split()
        at = data.draw(st.integers(0, len(words)))
        answer = " ".join([*words[at // 3 : at], "x", *words[at:]])
    guard = HeldOut([make_item(references=tuple(Reference(text=t) for t in held))], None)

    def windows(text: str) -> set[tuple[str, ...]]:
        found = tokens(text)
        return {tuple(found[i : i + SHINGLE]) for i in range(len(found) - SHINGLE + 1)}

    expected = False
    for text in held:
        theirs = windows(text)
        if len(tokens(text)) >= SHORTEST:
            common = len(theirs & windows(answer))
            expected |= common == len(theirs) or (
                common >= FEWEST and common >= CONTAINED * len(theirs)
            )
    assert (guard.answer_objection(answer) is not None) == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(WORDS.filter(str.strip), min_size=2, max_size=8))
def test_near_duplicates_are_those_of_the_splits(queries: list[str]) -> None:
    *held, mine = queries
    guard = HeldOut([make_item(id=str(i), query=q) for i, q in enumerate(held)])
    pairs = near_duplicates(queries)
    expected = any(len(held) in pair for pair in pairs)
    found = guard.item_objection(make_item(id="mine", query=mine))
    assert (found is not None) == expected


# ---------------------------------------------------------------- personal data

# Put together here, so that no scanner of this repository takes them for real ones.
BODY = "q7Rt2LmZ8vWk3XcY9bNd4PfH6sJg5TaE1uQe0oKiVxCwBz"
FOUND = [
    ("Write to maria.huber@uni-graz.at, please.", "Write to [email], please."),
    ("<a href='mailto:jo.b@gmail.com'>", "<a href='mailto:[email]'>"),
    ("mail: r.wang@163.com：好的", "mail: [email]：好的"),
    ("Call +43 316 380 1234 or", "Call [phone] or"),
    ("(+1 (212) 736-5000)", "([phone])"),
    ("IBAN AT48 3200 0000 1234 5864 OK", "IBAN [iban] OK"),
    ("iban=DE02120300000000202051;", "iban=[iban];"),
    ("4539 1488 0343 6467", "[card]"),
    ("Visa: 4539148803436467.", "Visa: [card]."),
    (f"ANTHROPIC_API_KEY=sk-ant-api03-{BODY}", "ANTHROPIC_API_KEY=[key]"),
    (f'api_key="sk-{BODY[:40]}"', 'api_key="[key]"'),
    (f"sk-proj-{BODY}", "[key]"),
    (f"login(token='hf_{'QwErTyUiOpAsDfGhJkLzXcVbNmQaZwSxEd'}')", "login(token='[key]')"),
    (f"AKIA{'QXJ7M2ZK5VTR3WNP'}", "[key]"),
    (f"git clone https://ghp_{BODY[:36]}@github.com/a/b", "git clone https://[key]@github.com/a/b"),
    (f"github_pat_{BODY[:22]}_{(BODY * 2)[:59]}", "[key]"),
    (f"glpat-{BODY[:20]}", "[key]"),
    (f"AIza{BODY[:35]}", "[key]"),
    ("postgres://ada:Tr0ub4dor&3@db.acme.io/x", "postgres://[key]@db.acme.io/x"),
    (f"GOCSPX-{BODY[:28]}", "[key]"),
    (f"ASIA{'QXJ7M2ZK5VTR3WNP'}", "[key]"),
    (f"xoxb-{'729164083512'}-{BODY[:24]}", "[key]"),
    (f"https://hooks.slack.com/services/T{BODY[:9]}/B{BODY[:9]}/{BODY[:24]}", "https://[key]"),
    (f"sk_live_{BODY[:24]}", "[key]"),
    (f"SG.{BODY[:22]}.{BODY[:43]}", "[key]"),
    (f"npm_{BODY[:36]}", "[key]"),
    (f"pypi-AgE{(BODY * 2)[:70]}", "[key]"),
    (f"dop_v1_{'9c3e71f0a8d25b64' * 4}", "[key]"),
    (f"dapi{'9c3e71f0a8d25b64' * 2}", "[key]"),
    (f"/729164083:AA{BODY[:33]}/", "/[key]/"),
    (f"AccountKey={(BODY * 2)[:86]}==;", "[key];"),
    (f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI0MiJ9.{BODY[:43]}", "[key]"),
    (f"-----BEGIN RSA PRIVATE KEY-----\n{BODY * 4}\n-----END RSA PRIVATE KEY-----", "[key]"),
]
NOT_FOUND = [
    "user@example.com, a@b.test, root@localhost, you@gmail.com, john.doe@yahoo.com",
    "support@paypal.com and info@acme.com",
    "git clone git@github.com:owner/name.git; ssh -p 22 deploy@shop.io; scp a deploy@shop.io:/srv",
    "systemctl status getty@tty1.service; icon@2x.png; npm i left-pad@1.3.0; @app.route",
    "https://medium.com/@someone.else/a-title and //user:password@host.com/",
    "postgres://user:password@db.internal:5432/app and redis://:hunter2@cache.io",
    "amqp://guest:guest-pass1@localhost:5672",
    "call 0123456789 or 555-0123, +1 212 555 0142, id 16502530000, +1 is 2, x = y + 1234567890",
    "1700000000000 4539148803436467 8c1f0e7a9b3d4c5e6f708192a3b4c5d6 192.168.0.1 10.0.0.1",
    "4242 4242 4242 4242, 4111-1111-1111-1111, 4539 1488 0343 6468",
    "DE89 3704 0044 0532 0130 00, DE02120300000000202052, AB12CDEF34567890ABCD",
    "sk-your-api-key-here sk-ant-api03-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx sk-ant-...",
    "AKIAIOSFODNN7EXAMPLE ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx hf_xxx glpat-abcdefghij0123456789",
    "sha256:b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4//8/w38GIAXD",
    "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----",
    "backup@nas.shop.io:/srv, +1 555 123 4567, sk-" + "foldingcubewithmanysidesandedges",
    "redis://default:correcthorse@cache.shop.io, hf_" + "abba" * 8 + "ab",
    f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI0MiJ9.{'SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c'}",
    "v1.2.3.4 255.255.255.0 8.8.8.8 550e8400-e29b-41d4-a716-446655440000",
]


@pytest.mark.parametrize(("text", "masked"), FOUND)
def test_personal_data_and_keys_are_replaced_by_what_they_are(text: str, masked: str) -> None:
    found, counts = mask(text)
    assert found == masked
    assert counts.total() == 1
    assert Guards(personal_data="keep").mask(text) == (text, Counter())
    assert Guards(personal_data="drop").mask(text) == (text, Counter())
    dropping = Guards(personal_data="drop", language=False)
    assert objection(text, LONG, dropping) == objection(LONG, text, dropping) == PERSONAL_DATA
    assert objection(LONG, OTHER, dropping, item=make_item(query=f"Why? {text}")) == PERSONAL_DATA
    assert objection(LONG, OTHER, dropping, item=make_item(query="Why?")) is None


@pytest.mark.parametrize("text", NOT_FOUND)
def test_what_is_nobodys_stays(text: str) -> None:
    assert mask(text) == (text, Counter())


def test_of_two_that_overlap_one_is_replaced_and_then_what_is_left_of_the_other() -> None:
    text = f"glpat-{BODY[:26]}-ASIA{'QXJ7M2ZK5VTR3WNP'}."
    assert mask(text) == ("[key][key].", Counter(key=2))


def test_phone_numbers_without_a_plus_need_their_region_and_addresses_must_be_asked_for() -> None:
    assert mask("call 212-736-5000", phone_regions=["US"])[0] == "call [phone]"
    assert mask("8.8.8.8, 10.0.0.1, 192.0.2.1, 2a00:1450:4001:830::200e", ["ip"])[0] == (
        "[ip], 10.0.0.1, 192.0.2.1, [ip]"
    )


def test_answers_of_the_bundled_items_hold_no_personal_data(mini: list[Item]) -> None:
    texts = [t for i in mini for t in (i.query_text, *(r.text for r in i.references))]
    assert sum((mask(text)[1] for text in texts), Counter()) == Counter()


def test_third_party_answers_neither_hold_personal_data_nor_change_language(
    external_data: Path,
) -> None:
    found: Counter[Any] = Counter()
    for name in ("misguided_attention", "sycon_crepe", "counter_coconot_overrefusal"):
        for row in map(
            json.loads, (external_data / f"{name}.jsonl").read_text("utf-8").splitlines()
        ):
            item = make_item(query=row["query"])
            for side in ("chosen", "rejected"):
                found += mask(row[side])[1]
                found["language"] += answers_in_another(item, row[side])
    assert found.total() == 0


PIECES = st.sampled_from(
    [*(piece for text, _ in FOUND for piece in text.split()), *NOT_FOUND, "@", ":", "+", " ", "://", "-"]
)  # fmt: skip
TEXTS = st.lists(PIECES | st.text(alphabet=string.printable, max_size=8), max_size=8)


@settings(max_examples=300, deadline=None)
@given(st.tuples(TEXTS, st.sampled_from(["", " ", "\n"])).map(lambda t: t[1].join(t[0])))
@example(" ".join(text for text, _ in FOUND))
def test_masking_what_is_masked_changes_nothing(text: str) -> None:
    once, counts = mask(text, PERSONAL_KINDS, phone_regions=["US"])
    assert mask(once, PERSONAL_KINDS, phone_regions=["US"]) == (once, Counter())
    assert (once == text) == (not counts)
    for kind, count in counts.items():
        assert once.count(f"[{kind}]") >= min(count, 1)


@pytest.mark.parametrize(
    "text",
    ["@a." * 30_000, "eyJ-" * 30_000, "x@y.zz " * 5_000, "+1 " * 10_000, "sk-ant-" * 15_000,
     "AB12 " * 20_000, "4444-" * 20_000, "://a:" * 20_000, "-----BEGIN PRIVATE KEY-----" * 4_000,
     "a" * 100_000, "1" * 100_000, "1:" * 50_000],
)  # fmt: skip
@pytest.mark.timeout(20)
def test_hostile_texts_take_no_longer_than_others(text: str) -> None:
    mask(text, PERSONAL_KINDS)
    language_of(text)
    HeldOut([make_item()]).answer_objection(text)


# ---------------------------------------------------------------- all together


def sides(mini: list[Item]) -> Iterator[tuple[Item, str, str]]:
    for item in mini[:60]:
        texts = [r.text for r in item.references][:4]
        for one in texts:
            for other in (*texts, one.replace("the", "a"), f"{LONG} jo.b@gmail.com", LONG):
                yield item, one, other


def test_which_side_is_chosen_does_not_matter(mini: list[Item]) -> None:
    guards = Guards(personal_data="drop")
    held_out = HeldOut(mini[30:45])
    reasons = Counter()  # type: ignore[var-annotated]
    for item, one, other in sides(mini):
        found = objection(one, other, guards, item=item, held_out=held_out)
        assert found == objection(other, one, guards, item=item, held_out=held_out)
        reasons[found] += 1
    assert {None, SAME, NEARLY_IDENTICAL, PERSONAL_DATA, ITEM_IS_HELD_OUT} <= set(reasons)


@pytest.mark.parametrize("unseen", ["\u200b", "\u00ad", "\u2060", "\ufeff"])
def test_a_held_out_answer_is_found_with_characters_that_nobody_sees_in_it(unseen: str) -> None:
    guard = HeldOut([make_item(references=(Reference(text=LONG),))])
    assert guard.answer_objection(unseen.join(LONG)) == ANSWER_IS_HELD_OUT
    hidden = HeldOut([make_item(references=(Reference(text=unseen.join(LONG)),))])
    assert hidden.answer_objection(LONG) == ANSWER_IS_HELD_OUT
