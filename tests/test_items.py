"""What an Item takes, what it refuses and in which words, and what its hashes mean."""

import hashlib
import pickle
import unicodedata
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from xyreward.items import (
    ANSWER_KINDS,
    BOTH_KINDS,
    CONTROL_KINDS,
    DEFAULT_LABELS,
    XY_KINDS,
    Item,
    ItemKind,
    Reference,
    items_hash,
    text_hash,
)
from xyreward.testing import make_item, make_reference
from xyreward.verdict import Labels


def problems(**fields: Any) -> dict[str, str]:
    """Field -> message, of an item that must be refused."""
    with pytest.raises(ValidationError) as caught:
        make_item(**fields)
    return {".".join(map(str, e["loc"])): e["msg"] for e in caught.value.errors()}


# ---------------------------------------------------------------- the table of kinds


def test_the_kinds_of_answers_are_divided_between_xy_items_and_controls() -> None:
    assert len(ANSWER_KINDS) == 11
    assert set(ANSWER_KINDS) == CONTROL_KINDS | XY_KINDS | BOTH_KINDS
    assert not CONTROL_KINDS & XY_KINDS
    assert not BOTH_KINDS & (CONTROL_KINDS | XY_KINDS)
    assert len(CONTROL_KINDS) == 2
    assert CONTROL_KINDS.issuperset(["direct", "overcorrecting"])
    assert set(DEFAULT_LABELS) == set(ANSWER_KINDS)


def test_only_goal_focused_concentrates_on_the_goal_and_steers_to_it() -> None:
    #                                      stated, intended, focus, misconception
    assert DEFAULT_LABELS["goal_focused"] == Labels(False, True, "intended", True)
    assert [k for k, v in DEFAULT_LABELS.items() if v.focus == "intended"] == ["goal_focused"]
    assert {k for k, v in DEFAULT_LABELS.items() if v.identifies_misconception} == {
        "goal_focused",
        "balanced",
        "overcorrecting",  # it names one that is not there
    }


def test_a_reference_says_its_labels_in_the_form_of_a_verdict() -> None:
    reference = make_reference("balanced", "Do both.")
    assert reference.labels is not None
    assert reference.labels.as_labels() == Labels(True, True, "balanced", True)


def test_labels_are_never_inferred_from_the_kind() -> None:
    assert Reference(text="Do both.", kind="balanced").labels is None


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("query", ["", "  \n\t", "\u3000"])
def test_an_empty_query_is_refused(query: str) -> None:
    assert "is empty" in problems(query=query)["query"]


@pytest.mark.parametrize(
    "turns",
    [
        [],
        [{"role": "assistant", "content": "Hello."}],
        [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hello."}],
        [{"role": "user", "content": "  "}],
    ],
    ids=["no turn", "assistant only", "ends with the assistant", "blank user turn"],
)
def test_a_conversation_must_end_with_a_users_text(turns: list[dict[str, str]]) -> None:
    found = problems(query=turns)
    (message,) = found.values()
    assert "last turn is not a user's text" in message


def test_a_query_of_the_wrong_type_is_one_problem_and_not_one_per_possible_type() -> None:
    assert list(problems(query=5)) == ["query.text"]
    assert list(problems(query=[{"role": "user"}])) == ["query.messages.0.content"]


def test_all_that_is_wrong_with_an_item_is_said_at_once() -> None:
    found = problems(
        query="",
        kind="control",
        stated_request="Stop a tap from dripping.",
        intended_request="Save water.",
        misconception="None.",
        intended_solutions=("Shower less.",),
        stated_solutions=("Replace the washer.", " "),
        references=(make_reference("literal", "Replace the washer."),),
    )
    assert set(found) == {
        "query",
        "intended_request",
        "misconception",
        "intended_solutions",
        "stated_solutions",
        "references",
    }
    assert "'Stop a tap from dripping.'" in found["intended_request"]
    assert "number 2" in found["stated_solutions"]
    assert "literal" in found["references"]
    assert "direct, overcorrecting" in found["references"]


def test_an_unknown_kind_is_refused_and_the_fields_that_depend_on_it_are_not_blamed() -> None:
    assert list(problems(kind="contrl")) == ["kind"]


@pytest.mark.parametrize("field", ["stated_request", "intended_request"])
def test_a_request_says_something(field: str) -> None:
    assert "is empty" in problems(**{field: " "})[field]


@pytest.mark.parametrize(("kind", "answer"), [("xy", "direct"), ("control", "goal_focused")])
def test_an_answer_must_be_of_a_kind_that_its_item_has(kind: ItemKind, answer: Any) -> None:
    found = problems(kind=kind, references=(make_reference(answer, "An answer."),))
    assert answer in found["references"]
    assert kind in found["references"]


def test_an_answer_of_an_unknown_kind_may_stand_with_either() -> None:
    for kind in ("xy", "control"):
        item = make_item(kind=kind, references=(Reference(text="Who knows."),))
        assert item.references[0].kind is None


def test_a_blank_answer_and_a_misspelt_field_are_refused() -> None:
    with pytest.raises(ValidationError, match="blank"):
        Reference(text=" \n")
    assert "stated_requests" in problems(stated_requests="x")


# ---------------------------------------------------------------- what it is


def test_an_item_cannot_be_changed_and_can_stand_in_a_set() -> None:
    item = make_item(meta={"url": "https://example.org"})
    with pytest.raises(ValidationError, match="frozen"):
        item.query = "something else"
    same = make_item(meta={"url": "https://example.org"})
    assert item.content_hash  # cached from here on; must not make it differ from one that is not
    assert item == same
    assert {item, same} == {item}
    assert pickle.loads(pickle.dumps(item)) == item


def test_a_change_to_the_mapping_given_as_meta_does_not_reach_the_item() -> None:
    given_meta = {"score": 1}
    item = make_item(meta=given_meta)
    given_meta["score"] = 2
    assert item.meta == {"score": 1}


def test_an_item_survives_its_own_json() -> None:
    for item in (
        make_item(meta={"a": [1, None]}),
        make_item(kind="control"),
        make_item(
            query=[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "?"}]
        ),
    ):
        assert Item.model_validate_json(item.model_dump_json()) == item


def test_a_query_reads_as_messages_and_as_text() -> None:
    plain = make_item(query="How?")
    assert plain.messages == [{"role": "user", "content": "How?"}]
    assert plain.query_text == "How?"
    turns = [
        {"role": "user", "content": "How?"},
        {"role": "assistant", "content": "What?"},
        {"role": "user", "content": "That."},
    ]
    talk = make_item(query=turns)
    assert talk.messages == turns
    assert talk.query_text == "How?\n\nWhat?\n\nThat."


def test_the_first_reference_of_a_kind_is_the_one_that_is_given() -> None:
    first, second = make_reference("literal", "One."), make_reference("literal", "Two.")
    item = make_item(references=(first, second))
    assert item.reference("literal") is first
    assert item.reference("balanced") is None


def test_the_fakes_are_complete_items_of_both_kinds() -> None:
    xy, control = make_item(), make_item(kind="control", stated_request="Boil an egg.")
    assert xy.intended_request != xy.stated_request
    assert {r.kind for r in xy.references} == {"goal_focused", "literal"}
    assert control.intended_request == control.stated_request == "Boil an egg."
    assert {r.kind for r in control.references} == CONTROL_KINDS
    assert all(r.labels for r in (*xy.references, *control.references))


# ---------------------------------------------------------------- hashes


def test_a_content_hash_is_the_sha256_of_the_query_with_white_space_folded() -> None:
    assert make_item(query=" a\n\n b ").content_hash == hashlib.sha256(b"a b").hexdigest()


@given(st.lists(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1), min_size=1))
def test_white_space_and_unicode_form_do_not_change_a_hash(words: list[str]) -> None:
    text = " ".join(words)
    for form in ("NFC", "NFD"):
        assert text_hash(unicodedata.normalize(form, "\n ".join(words))) == text_hash(text)


def test_a_content_hash_depends_on_the_query_alone() -> None:
    item = make_item(query="How?")
    assert make_item(query="How?", stated_solutions=("Other.",)).content_hash == item.content_hash
    assert make_item(query="How?", id="other").content_hash == item.content_hash
    assert make_item(query="How ?").content_hash != item.content_hash


def test_the_hash_of_a_data_set_ignores_order_and_nothing_else() -> None:
    a, b = make_item(id="a", meta={"x": 1, "y": 2}), make_item(id="b")
    assert items_hash([a, b]) == items_hash((b, a))
    assert items_hash([make_item(id="a", meta={"y": 2, "x": 1}), b]) == items_hash([a, b])
    assert items_hash([a, make_item(id="b", language="de")]) != items_hash([a, b])
    assert items_hash([a, b, b]) != items_hash([a, b])


def test_a_data_set_with_dates_and_images_in_its_meta_has_a_hash() -> None:
    with_date = make_item(meta={"asked": date(2026, 1, 2), "image": b"\xff\xd8"})
    other_date = make_item(meta={"asked": date(2026, 1, 3), "image": b"\xff\xd8"})
    assert items_hash([with_date]) != items_hash([other_date])


def test_a_copy_with_another_query_has_the_text_and_hash_of_that_query() -> None:
    """pydantic copies what a cached property has worked out, too: a masked query kept its text."""
    item = make_item(query="Write to ada@lovelace.org?")
    assert "ada@" in item.query_text
    known = item.content_hash
    masked = item.model_copy(update={"query": "Write to [email]?"})
    assert masked.query_text == "Write to [email]?"
    assert masked.content_hash == make_item(query="Write to [email]?").content_hash != known
    assert item.model_copy(update={"source": "x"}).content_hash == known
