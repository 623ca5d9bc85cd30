"""Taking OpenRLHF's texts apart: where the answer begins and ends, and what of it the user would read."""

import pytest

from xyreward.serve.openrlhf import answer_of

PROMPT = "<|im_start|>user\nHow?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("behind", "answer"),
    [
        ("Like this.<|im_end|>\n", "Like this."),
        ("Like this.<|im_end|><|endoftext|><|endoftext|>", "Like this."),
        ("Like this.<|eot_id|>", "Like this."),
        ("Like this.</s>", "Like this."),
        ("Like this.<end_of_turn>\n<pad><pad>", "Like this."),
        ("Like this.<eos>", "Like this."),
        ("Like this.<\uff5cend\u2581of\u2581sentence\uff5c>", "Like this."),
        ("Like this.", "Like this."),  # cut at the limit
        ("Use <|im_end|> as the mark.<|im_end|>", "Use <|im_end|> as the mark."),
        ("a < b |> c", "a < b |> c"),
        ("x = [1]\n", "x = [1]"),
        ("<|im_end|>", ""),
        ("", ""),
    ],
)
def test_the_answer_ends_before_special_tokens(behind: str, answer: str) -> None:
    assert answer_of(PROMPT + behind, PROMPT) == answer


def test_a_token_before_the_prompt_is_passed_over() -> None:
    assert answer_of(f"<|begin_of_text|>{PROMPT}Yes.", PROMPT) == "Yes."


def test_an_answer_that_repeats_its_prompt_is_an_answer() -> None:
    assert answer_of(f"{PROMPT}{PROMPT}Yes.", PROMPT) == f"{PROMPT}Yes."


def test_a_prompt_that_was_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="does not begin with its prompt"):
        answer_of(PROMPT[10:] + "Yes.", PROMPT)
    # Not found further behind, where the policy could have written it.
    with pytest.raises(ValueError, match="does not begin with its prompt"):
        answer_of(f"{PROMPT[1:]}{'x' * 40}{PROMPT}Yes.", PROMPT)


@pytest.mark.parametrize(
    ("behind", "prompt", "answer"),
    [
        ("<think>\nlet me see\n</think>\n\nYes.", PROMPT, "Yes."),
        ("let me see</think>Yes.", PROMPT + "<think>\n", "Yes."),
        ("let me see", PROMPT + "<think>\n", ""),
        ("<think>let me see", PROMPT, ""),
        ("<think>a</think>No.<think>b</think>Yes.", PROMPT, "No.<think>b</think>Yes."),
        ("It ends with </think>, begun by <think>.", PROMPT, ", begun by <think>."),
        ("Between <think> and </think>.", PROMPT, "Between <think> and </think>."),
        ("Write <think> before it.", PROMPT, "Write <think> before it."),
        ("Yes.", PROMPT, "Yes."),
        ('Yes.<tool_call>{"name": "x"}</tool_call>', PROMPT, "Yes."),
    ],
)
def test_thinking_and_calls_of_tools_are_not_judged(behind: str, prompt: str, answer: str) -> None:
    assert answer_of(prompt + behind, prompt) == answer
    if "<tool_call>" not in behind:
        assert answer_of(prompt + behind, prompt, thinking=True) == behind
