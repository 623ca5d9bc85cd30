from typing import Any

import pytest

from xyreward.completions import Visible


@pytest.mark.parametrize(
    ("completion", "seen"),
    [
        (" Go to bed. \n", "Go to bed."),
        ("<think>He wants X.</think>\n\nGo to bed.", "Go to bed."),
        ("He wants X.</think>Go to bed.", "Go to bed."),  # the template opened it in the prompt
        ("<think>He wants", ""),
        ("Write <think> and </think> around it.", "Write <think> and </think> around it."),
        ('Let me see.<tool_call>{"name": "look"}</tool_call>', "Let me see."),
        ('Let me see.<tool_call>{"name": "lo', "Let me see."),
        ("", ""),
    ],
)
def test_of_a_text_only_what_a_user_would_read_is_judged(completion: str, seen: str) -> None:
    assert Visible()(completion) == seen
    assert Visible()([{"role": "assistant", "content": completion}]) == seen


def test_of_messages_the_assistants_texts_are_taken_and_nothing_of_tools() -> None:
    completion: list[dict[str, Any]] = [
        {"role": "assistant", "content": "I look it up.", "reasoning_content": "Hm.", "tool_calls": []},
        {"role": "tool", "name": "look", "content": "42"},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "look"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "It is "}, {"text": "42."}]},
    ]  # fmt: skip
    assert Visible()(completion) == "I look it up.\n\nIt is 42."


def test_thinking_that_a_template_began_and_that_was_cut_off_is_an_empty_answer() -> None:
    assert Visible(begun=True)("He wants to") == ""
    assert Visible(begun=True)("He wants X.</think>Go.") == "Go."


def test_other_marks_can_be_set_and_none_are_looked_for_where_they_are_none() -> None:
    other = Visible(thinking=("[THINK]", "[/THINK]"), tool_calls=None)
    assert other("[THINK]x[/THINK]y <tool_call>z") == "y <tool_call>z"
    assert Visible(thinking=None)("<think>x</think>y") == "<think>x</think>y"


def test_what_is_no_completion_is_named() -> None:
    with pytest.raises(TypeError, match="expected a text or a list of messages"):
        Visible()(["text"])  # type: ignore[list-item]
