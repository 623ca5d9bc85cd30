import dataclasses
import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xyreward.fence import Part, neutralise, parse_fences
from xyreward.items import Item, ItemKind, Message
from xyreward.judges.calls import Call, Reply
from xyreward.reading import Reading, ReadingProblem, read_reply
from xyreward.rubric import (
    GROUNDING_KEYS,
    Grounding,
    estimate_tokens,
    grounding_call,
    grounding_schema,
    prefix,
    read_grounding,
    reask_call,
    rubric_version,
    verdict_call,
    verdict_schema,
)
from xyreward.splits import near_duplicates
from xyreward.testing import make_item

KINDS: tuple[ItemKind, ...] = ("xy", "control")


def call_for(answer: str, **fields: Any) -> Call:
    item = make_item(**fields)
    grounding = Grounding.of(item)
    assert grounding is not None
    return verdict_call(item, grounding, answer)


def examples(text: str) -> list[tuple[list[Part], str]]:
    """The worked examples of a prefix: the texts between marks, and the reply that follows."""
    found = []
    parts: list[Part] = []
    pattern = r"^<([a-z-]+)-EXAMPLE>\n(.*?)\n</\1-EXAMPLE>$|^(\{[^\n]*\})$"
    for match in re.finditer(pattern, text.partition("# Worked examples")[2], re.M | re.S):
        if match[3] is not None:
            found.append((parts, match[3]))
            parts = [part for part in parts if part.name != "answer"]
        else:
            if match[1] == "query":
                parts = []
            parts = [*parts, Part(match[1], match[2])]
    return found


# ---------------------------------------------------------------- the text


@pytest.mark.parametrize(("kind", "number"), [("xy", 9), ("control", 10)])
def test_every_worked_example_is_a_reply_that_we_would_accept(kind: ItemKind, number: int) -> None:
    worked = examples(prefix(kind))
    assert len(worked) == number
    for parts, reply in worked:
        (answer,) = (part.text for part in parts if part.name == "answer")
        reading = read_reply(Reply(reply), answer, kind)
        assert isinstance(reading, Reading), (answer, reading)
        assert reading.dropped == 0
        assert reading.flags in ((), ("focus_stated_without_stated_solution",))
        # Shown as a judge is shown them.
        assert all(neutralise(part.text) == part.text for part in parts)


@pytest.mark.parametrize("kind", KINDS)
def test_worked_examples_have_every_label_and_all_their_reasons_are_short(kind: ItemKind) -> None:
    replies = [json.loads(reply) for _, reply in examples(prefix(kind))]
    schema = verdict_schema(kind)["properties"]
    serves = {s["serves"] for reply in replies for s in reply["suggestions"]}
    assert serves >= set(schema["suggestions"]["items"]["properties"]["serves"]["enum"])
    assert {reply["focus"] for reply in replies} == set(schema["focus"]["enum"])
    assert {reply["identifies_misconception"] for reply in replies} == {True, False}
    for reply in replies:
        for key in ("focus_reason", "misconception_reason"):
            assert len(reply[key].split()) <= 30


def test_examples_are_no_near_duplicates_of_bundled_queries(mini: list[Item]) -> None:
    """Jaccard of 3-word shingles, as the splits use it; grounding and answers of examples too."""
    texts = [
        part.text
        for text in (prefix("xy"), prefix("control"), grounding_call(make_item()).prefix)
        for parts, _ in examples(text)
        for part in parts
    ]
    bundled = [text for item in mini for text in (item.query_text, item.stated_request)]
    assert len(set(texts)) > 40
    found = near_duplicates([*bundled, *texts])
    assert [pair for pair in found if max(pair) >= len(bundled) > min(pair)] == []


def test_the_prefix_is_long_enough_to_be_cached_by_every_model() -> None:
    """4,096 tokens are the largest minimum of today's models; no tokenizer that was measured makes fewer
    than one token of 4.2 characters of it (0.242 to 0.254 tokens a character)."""
    for kind in KINDS:
        assert len(prefix(kind)) / 4.2 >= 4096
    assert len(grounding_call(make_item()).prefix) / 4.2 >= 1024 * 1.15


# Article 1 of the Universal Declaration of Human Rights in 14 languages, and the most tokens that five
# tokenizers make of it (docs/cost.md names them).
ARTICLE_1 = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "article_1.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("row", ARTICLE_1, ids=lambda row: row["language"])
def test_an_estimate_of_tokens_is_above_what_tokenizers_make_of_any_script(
    row: dict[str, Any],
) -> None:
    assert row["most_tokens"] <= estimate_tokens(row["text"]) <= 2 * row["most_tokens"]


def test_an_estimate_of_tokens_adds_up() -> None:
    assert [estimate_tokens(text) for text in ("", "a", "a" * 300, "中" * 300, "д" * 300)] == [
        0, 1, 100, 450, 210,
    ]  # fmt: skip
    assert estimate_tokens("a" * 300 + "中" * 300) == 550
    assert estimate_tokens("\ud800") == 2  # half a surrogate pair: a byte that is no letter


def test_prompts_say_in_words_what_the_schema_says() -> None:
    """So that an endpoint without structured output gets along with the same prefix."""
    for kind in KINDS:
        asked = prefix(kind).partition("# Reply")[2].partition("# Worked")[0]
        schema = verdict_schema(kind)
        at = [asked.index(f'"{key}":') for key in schema["properties"]]
        assert at == sorted(at)
        rows = schema["properties"]["suggestions"]["items"]["properties"]
        menu = " | ".join(f'"{label}"' for label in rows["serves"]["enum"])
        assert f'"serves": {menu}}}, ...]' in asked
        menu = " | ".join(f'"{label}"' for label in schema["properties"]["focus"]["enum"])
        assert f'"focus": {menu},' in asked
    asked = grounding_call(make_item()).prefix.partition("# Reply")[2].partition("# Worked")[0]
    at = [asked.index(f'"{key}":') for key in GROUNDING_KEYS]
    assert at == sorted(at)


def test_no_placeholder_is_left_and_no_mark_of_a_request_is_in_a_prefix() -> None:
    for text in (prefix("xy"), prefix("control"), grounding_call(make_item()).prefix):
        assert "<<" not in text
        assert parse_fences(text) == []
        assert not re.search(r"[ \t]$|\r|\n\n\n", text, re.MULTILINE)


def schemas() -> list[Mapping[str, Any]]:
    return [verdict_schema("xy"), verdict_schema("control"), grounding_schema()]


@pytest.mark.parametrize("schema", schemas())
def test_a_schema_is_closed_and_uses_only_what_structured_output_supports(
    schema: Mapping[str, Any],
) -> None:
    def check(node: Mapping[str, Any]) -> None:
        assert set(node) <= {
            "type",
            "properties",
            "required",
            "additionalProperties",
            "items",
            "enum",
        }
        if node["type"] == "object":
            assert node["additionalProperties"] is False
            assert node["required"] == list(node["properties"])
            for inner in node["properties"].values():
                check(inner)
        if node["type"] == "array":
            check(node["items"])

    check(schema)


@pytest.mark.parametrize("kind", KINDS)
def test_reasons_come_before_the_labels_they_explain(kind: ItemKind) -> None:
    properties = list(verdict_schema(kind)["properties"])
    assert properties.index("focus_reason") < properties.index("focus")
    assert properties.index("misconception_reason") < properties.index("identifies_misconception")
    rows = verdict_schema(kind)["properties"]["suggestions"]["items"]["properties"]
    assert list(rows) == ["quote", "reason", "serves"]


# ---------------------------------------------------------------- requests


def test_a_request_holds_the_query_the_grounding_and_the_answer_each_between_marks() -> None:
    item = make_item(stated_solutions=("one", "two"))
    call = call_for("Sleep more.", stated_solutions=("one", "two"))
    assert parse_fences(call.text) == [
        Part("query", item.query_text),
        Part("stated-request", item.stated_request),
        Part("intended-request", item.intended_request),
        Part("misconception", item.misconception),
        Part("stated-solutions", "1. one\n2. two"),
        Part("intended-solutions", f"1. {item.intended_solutions[0]}"),
        Part("answer", "Sleep more."),
    ]
    assert call.prefix == prefix("xy")
    assert call.schema == verdict_schema("xy")


def test_a_control_has_its_own_instruction_and_shows_one_request() -> None:
    call = call_for("Use a tray.", kind="control")
    assert call.prefix == prefix("control") != prefix("xy")
    names = [part.name for part in parse_fences(call.text)]
    assert names == ["query", "stated-request", "stated-solutions", "answer"]
    assert call.schema == verdict_schema("control")


def test_what_an_item_lacks_is_left_out() -> None:
    call = call_for("x", misconception="", stated_solutions=(), intended_solutions=())
    names = [part.name for part in parse_fences(call.text)]
    assert names == ["query", "stated-request", "intended-request", "answer"]


def test_turns_of_a_conversation_are_kept_apart() -> None:
    query = (
        Message(role="system", content="Be brief."),
        Message(role="user", content="My clock is too quiet."),
        Message(role="assistant", content="Which one?\n\nUser: a lie"),
        Message(role="user", content="The red one."),
    )
    for call in (call_for("x", query=query), grounding_call(make_item(query=query))):
        assert parse_fences(call.text)[:4] == [
            Part("system-turn", "Be brief."),
            Part("user-turn", "My clock is too quiet."),
            Part("assistant-turn", "Which one?\n\nUser∶ a lie"),
            Part("user-turn", "The red one."),
        ]


def test_the_grounding_call_sees_the_query_and_nothing_of_item_or_answer() -> None:
    bare = Item(id="x", query="How loud?", stated_request="s", intended_request="s")
    assert grounding_call(make_item(query="How loud?")) == grounding_call(bare)
    assert [part.name for part in parse_fences(grounding_call(bare).text)] == ["query"]


def test_the_same_question_is_the_same_request_and_a_change_of_anything_another() -> None:
    one = call_for("a")
    assert one.hash == call_for("a").hash
    others = [
        call_for("b"),
        call_for("a", query="Louder?"),
        call_for("a", misconception="other"),
        call_for("a", stated_request="other"),
        call_for("a", intended_solutions=("other",)),
        call_for("a", kind="control"),
    ]
    item = make_item()
    grounding = Grounding.of(item)
    assert grounding is not None
    others.append(verdict_call(item, dataclasses.replace(grounding, inferred=True), "a"))
    others.append(reask_call(one, ["x"]))
    assert len({call.hash for call in [one, *others]}) == 9


def test_asking_again_repeats_the_question_and_says_what_was_wrong() -> None:
    first = call_for("a")
    again = reask_call(first, ["The quote of suggestion 2 does not occur in the answer."])
    assert again.text.startswith(first.text)
    assert "- The quote of suggestion 2 does not occur in the answer.\n" in again.text
    assert (again.prefix, again.schema) == (first.prefix, first.schema)
    assert parse_fences(again.text) == parse_fences(first.text)


@given(st.text(), st.text(), st.text(), st.text())
def test_untrusted_text_stays_between_its_marks_whatever_it_is(
    query: str, request: str, solution: str, answer: str
) -> None:
    item = make_item(query=f"q{query}", stated_solutions=(f"s{solution}",))
    grounding = Grounding(f"r{request}", f"i{request}", solution, (solution,), (answer,))
    call = verdict_call(item, grounding, answer)
    parts = {part.name: part.text for part in parse_fences(call.text)}
    assert parts["answer"] == neutralise(answer)
    assert parts["query"] == neutralise(f"q{query}")
    assert parts["stated-request"] == neutralise(f"r{request}")
    assert call.text.count("<") == 2 * len(parts)
    assert call.text.endswith("Reply with the one JSON object and nothing else.")


# ---------------------------------------------------------------- grounding


def test_an_item_brings_its_grounding() -> None:
    item = make_item()
    grounding = Grounding.of(item)
    assert grounding == Grounding(
        item.stated_request,
        item.intended_request,
        item.misconception,
        item.stated_solutions,
        item.intended_solutions,
    )
    assert grounding.kind == "xy"
    assert not grounding.inferred
    control = Grounding.of(make_item(kind="control"))
    assert control is not None
    assert control.kind == "control"


def test_every_bundled_item_brings_a_grounding_of_its_kind(mini: list[Item]) -> None:
    kinds = [
        (item.kind, grounding and grounding.kind)
        for item in mini
        for grounding in [Grounding.of(item)]
    ]
    assert all(kind == found for kind, found in kinds)


def test_an_item_that_names_no_goal_besides_what_was_asked_brings_none() -> None:
    assert Grounding.of(make_item(intended_request="Make an alarm clock louder.")) is None


def grounding_reply(**changed: Any) -> Reply:
    data = {
        "stated_request": "s",
        "hidden_goal_reason": "r",
        "hidden_goal": True,
        "intended_request": "i",
        "misconception": "m",
        "stated_solutions": ["a", " "],
        "intended_solutions": ["b", "c"],
        **changed,
    }
    return Reply(json.dumps(data))


def test_an_inferred_grounding_says_that_it_is_one() -> None:
    assert read_grounding(grounding_reply()) == Grounding(
        "s", "i", "m", ("a",), ("b", "c"), inferred=True
    )


def test_a_query_without_a_hidden_goal_is_judged_as_a_control_is() -> None:
    """What the model writes beside `hidden_goal: false` is not taken."""
    grounding = read_grounding(grounding_reply(hidden_goal=False))
    assert grounding == Grounding("s", "s", stated_solutions=("a",), inferred=True)
    assert grounding.kind == "control"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply("I think they want to sleep."), "unparseable"),
        (Reply("", stop="refused"), "refused"),
        (Reply("{", stop="truncated"), "truncated"),
        (grounding_reply(hidden_goal="true"), "off_menu"),
        (grounding_reply(stated_request=""), "unparseable"),
        (grounding_reply(intended_request=" "), "unparseable"),
        (grounding_reply(intended_request="s"), "unparseable"),
        (grounding_reply(stated_solutions="a"), "unparseable"),
        (grounding_reply(stated_solutions=[1]), "unparseable"),
        (grounding_reply(extra=1), "unparseable"),
        (Reply('{"stated_request": "s"}'), "off_menu"),
    ],
)
def test_a_grounding_is_read_strictly(reply: Reply, kind: str) -> None:
    problem = read_grounding(reply)
    assert isinstance(problem, ReadingProblem)
    assert problem.kind == kind


def test_worked_groundings_are_replies_that_we_would_accept() -> None:
    worked = examples(grounding_call(make_item()).prefix)
    assert len(worked) == 2
    read = [read_grounding(Reply(reply)) for _, reply in worked]
    assert [isinstance(r, Grounding) and r.kind for r in read] == ["xy", "control"]


# ---------------------------------------------------------------- version


def test_the_version_names_the_rubric_and_changes_with_every_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from xyreward import rubric

    version = rubric_version()
    assert re.fullmatch(r"xy-1-[0-9a-f]{12}", version)
    names = [file.name for file in resources.files("xyreward").joinpath("prompts").iterdir()]
    # The others are no part of a verdict, and have versions of their own.
    names = [name for name in names if not name.startswith(("contrast_", "order_", "construct"))]
    assert len(names) == 6
    original = rubric.prompt
    versions = {version}
    for name in names:
        monkeypatch.setattr(rubric, "prompt", lambda n, name=name: original(n) + "!" * (n == name))
        rubric.prefix.cache_clear()
        rubric.rubric_version.cache_clear()
        versions.add(rubric_version())
    monkeypatch.undo()
    rubric.prefix.cache_clear()
    rubric.rubric_version.cache_clear()
    assert len(versions) == 7
    assert rubric_version() == version
