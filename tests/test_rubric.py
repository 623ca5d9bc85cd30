import json
import re
from typing import Any

import pytest

from xyreward.fence import Part, neutralise
from xyreward.items import ItemKind
from xyreward.judges.calls import Call, Reply
from xyreward.reading import Reading, read_reply
from xyreward.rubric import (
    Grounding,
    prefix,
    verdict_call,
    verdict_schema,
)
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
