"""The policy on a tiny random model: batching, padding and tokenisation must not change a number."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from xyreward.embedded import POLICY_NAME
from xyreward.errors import ConfigError
from xyreward.locate import Mark
from xyreward.policy import Policy, load_policy, visible
from xyreward.testing import tiny_policy

PROMPTS = [
    [{"role": "user", "content": "Why?"}],
    [{"role": "user", "content": "A much longer question, asked in many words, again and again."}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "你好，请问怎么办？"},
    ],
]
ANSWERS = ["Because.", "No idea whatsoever, but here is a long text about it.", "好"]


@pytest.fixture(scope="module")
def policy(tiny: str) -> Policy:
    return load_policy(tiny, device="cpu")


def by_hand(policy: Policy, prompt: list[dict[str, str]], answer: str) -> tuple[float, int]:
    """One sequence, all logits, no padding: the definition."""
    template = policy.tokenizer.apply_chat_template
    start = len(template(prompt, add_generation_prompt=True, return_dict=False))
    ids = template([*prompt, {"role": "assistant", "content": answer}], return_dict=False)
    with torch.inference_mode():
        logs = policy.model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return sum(logs[i - 1, ids[i]].item() for i in range(start, len(ids))), len(ids) - start


def test_log_probabilities_are_those_of_each_sequence_alone(policy: Policy) -> None:
    found = policy.log_probs(PROMPTS, ANSWERS)
    for prompt, answer, value in zip(PROMPTS, ANSWERS, found, strict=True):
        total, tokens = by_hand(policy, prompt, answer)
        assert value.tokens == tokens
        assert value.total == pytest.approx(total, abs=1e-3)
        assert value.per_token == pytest.approx(total / tokens, abs=1e-4)


def test_the_end_of_turn_counts_as_part_of_an_answer(policy: Policy) -> None:
    (value,) = policy.log_probs(PROMPTS[:1], ["ab"])
    assert value.tokens == len("ab") + len(["<|im_end|>", "\n"])


def test_answers_do_not_depend_on_the_batch(policy: Policy) -> None:
    alone = [policy.answer([p], max_new_tokens=12)[0] for p in PROMPTS]
    together = policy.answer(PROMPTS, max_new_tokens=12, batch_size=3)
    assert [a.text for a in alone] == [a.text for a in together]


def test_an_answer_that_reaches_the_limit_is_marked(policy: Policy) -> None:
    (answer,) = policy.answer(PROMPTS[:1], max_new_tokens=3)
    assert answer.tokens == 3
    assert answer.truncated


def test_the_models_own_generation_settings_change_nothing(tiny: str) -> None:
    plain = load_policy(tiny, device="cpu")
    expected = plain.answer(PROMPTS, max_new_tokens=12)
    own = plain.model.generation_config
    own.do_sample, own.temperature, own.repetition_penalty, own.num_beams = True, 5.0, 9.0, 3
    own.no_repeat_ngram_size = 1
    assert plain.answer(PROMPTS, max_new_tokens=12) == expected


def test_option_logits_are_those_right_after_the_prompt(policy: Policy) -> None:
    found = policy.option_logits(PROMPTS, ("A", "B"))
    a, b = (policy.tokenizer.encode(x, add_special_tokens=False)[0] for x in "AB")
    for prompt, (first, second) in zip(PROMPTS, found, strict=True):
        ids = policy.prompt_ids(prompt)
        with torch.inference_mode():
            logits = policy.model(torch.tensor([ids])).logits[0, -1]
        assert first == pytest.approx(logits[a].item(), abs=1e-4)
        assert second == pytest.approx(logits[b].item(), abs=1e-4)


def test_an_option_of_several_tokens_is_refused(policy: Policy) -> None:
    with pytest.raises(ConfigError, match="'AB' is 2 tokens, expected 1"):
        policy.option_logits(PROMPTS, ("AB", "C"))


def test_progress_starts_at_nothing_and_ends_at_all(policy: Policy) -> None:
    done: list[int] = []
    policy.log_probs(PROMPTS, ANSWERS, progress=done.append)
    assert done[0] == 0
    assert sum(done) == len(PROMPTS)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("Hello <think> is a tag.", "Hello <think> is a tag."),
        ("<think>\nhm\n</think>\n\nYes.", "Yes."),
        ("<think>\n\n</think>\nYes.", "Yes."),
        ("<think> cut off before the end", ""),
    ],
)
def test_only_what_a_reader_sees_is_the_answer(text: str, seen: str) -> None:
    assert visible(text) == seen


def test_a_model_without_a_chat_template_is_refused(tiny: str, tmp_path: Path) -> None:
    for file in Path(tiny).iterdir():
        if file.name != "chat_template.jinja":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ConfigError, match="no chat template"):
        load_policy(str(tmp_path), device="cpu")


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"enable_thinkng": False}, "enable_thinkng, which its chat template does not use"),
        ({"add_generation_prompt": True}, "add_generation_prompt, which is set for each prompt"),
    ],
)
def test_template_arguments_that_do_nothing_or_are_ours_are_refused(
    tiny: str, kwargs: dict[str, bool], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load_policy(tiny, device="cpu", chat_template_kwargs=kwargs)


def test_an_adapter_is_loaded_on_the_base_that_it_names(tiny: str, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    base = load_policy(tiny, device="cpu")
    before = base.log_probs(PROMPTS, ANSWERS)
    tuned = get_peft_model(base.model, LoraConfig(r=2, target_modules="all-linear"))
    with torch.no_grad():
        for name, weight in tuned.named_parameters():
            if "lora_B" in name:
                weight.fill_(0.05)
    tuned.save_pretrained(tmp_path)
    loaded = load_policy(str(tmp_path), device="cpu")
    after = loaded.log_probs(PROMPTS, ANSWERS)
    assert loaded.adapter
    # Merged, where that changes nothing.
    attached = load_policy(str(tmp_path), device="cpu", trainable=True)
    assert hasattr(attached.model, "peft_config")
    assert not hasattr(loaded.model, "merge_and_unload")
    assert [v.total for v in attached.log_probs(PROMPTS, ANSWERS)] == pytest.approx(
        [v.total for v in after], abs=1e-3
    )
    assert all(abs(a.total - b.total) > 0.01 for a, b in zip(after, before, strict=True))

    (tmp_path / "xyreward.json").write_text(json.dumps({"name": tiny}))
    again = load_policy(str(tmp_path), device="cpu").log_probs(PROMPTS, ANSWERS)
    assert [v.total for v in again] == pytest.approx([v.total for v in after])


def adapter_of(base: str, folder: Path) -> str:
    from peft import LoraConfig, get_peft_model

    tuned = get_peft_model(
        load_policy(base, device="cpu").model, LoraConfig(r=2, target_modules="all-linear")
    )
    tuned.save_pretrained(folder)
    return str(folder)


def cut(file: Path, kept: float) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: int(kept * len(data))])


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_damaged_model_is_told_on_one_line(tmp_path: Path, name: str, kept: float) -> None:
    folder = tiny_policy(tmp_path / "p")
    cut(tmp_path / "p" / name, kept)
    with pytest.raises(
        ConfigError, match=r"cannot be (loaded from|read) .*If it is damaged, fetch"
    ) as caught:
        load_policy(folder, device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_damaged_adapter_is_told_on_one_line(
    tiny: str, tmp_path: Path, name: str, kept: float
) -> None:
    folder = adapter_of(tiny, tmp_path / "a")
    cut(tmp_path / "a" / name, kept)
    with pytest.raises(ConfigError) as caught:
        load_policy(folder, device="cpu")
    assert "\n" not in str(caught.value)


def test_weights_that_are_not_in_the_files_are_no_random_numbers(tiny: str, tmp_path: Path) -> None:
    folder = tiny_policy(tmp_path / "p")
    file = tmp_path / "p/model.safetensors"
    weights = load_file(file)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(
        ConfigError, match=r"1 weights are not in its files: model\.layers\.1\.mlp\.up"
    ):
        load_policy(folder, device="cpu")
    adapter = adapter_of(tiny, tmp_path / "a")
    file = tmp_path / "a/adapter_model.safetensors"
    weights = load_file(file)
    weights.pop(next(key for key in weights if "lora_B" in key))
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(ConfigError, match="Found missing adapter keys"):
        load_policy(adapter, device="cpu")


def test_an_adapter_of_another_model_is_refused(tiny: str, tmp_path: Path) -> None:
    folder = adapter_of(tiny, tmp_path / "a")
    (tmp_path / "a/xyreward.json").write_text(json.dumps({"name": POLICY_NAME}))
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_policy(folder, device="cpu")


def test_a_model_that_a_recipe_trained_is_prompted_as_in_its_training(
    tiny: str, tmp_path: Path
) -> None:
    folder = tiny_policy(tmp_path / "p")
    template = tmp_path / "p/chat_template.jinja"
    template.write_text(template.read_text() + "{{ 'thinking' if thinking }}")
    mark = Mark("base", None, {"thinking": True}, ())
    (tmp_path / "p/xyreward.json").write_text(mark.to_json())
    assert load_policy(folder, device="cpu").chat_template_kwargs == {"thinking": True}
    off = load_policy(folder, device="cpu", chat_template_kwargs={"thinking": False})
    assert off.chat_template_kwargs == {"thinking": False}


def test_the_embedded_policy_answers_in_words() -> None:
    policy = load_policy(POLICY_NAME, device="cpu")
    (answer,) = policy.answer(
        [[{"role": "user", "content": "What is the capital of France? One word."}]],
        max_new_tokens=16,
    )
    assert "Paris" in answer.text
