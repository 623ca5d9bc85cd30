"""Fakes that users can test their own loops with. Real objects and real files, no mock library.

make_item()                 a complete Item, any field replaced
ScriptedJudge               a judge that says what it was told to (judges/scripted.py)
FakeAPI, Faults             a real HTTP server that speaks the Messages API and chat completions,
                            with latency, faults and exact counts (fake_api/)
tiny_policy(folder)         a randomly initialised causal model with tokenizer and chat template, in
                            a folder that load_policy() and TRL take; 0.2 MB, a second of work
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from xyreward.items import DEFAULT_LABELS, AnswerKind, Item, Reference, ReferenceLabels
from xyreward.judges.scripted import ScriptedJudge
from xyreward.testing.fake_api import FakeAPI, FakeAPIProcess, Faults

__all__ = [
    "FakeAPI",
    "FakeAPIProcess",
    "Faults",
    "ScriptedJudge",
    "make_item",
    "make_reference",
    "tiny_policy",
]

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_reference(kind: AnswerKind, text: str, **fields: Any) -> Reference:
    """A reference answer with the labels that its kind has by default."""
    default = DEFAULT_LABELS[kind]
    labels = ReferenceLabels(
        has_stated_solution=default.has_stated_solution,
        has_intended_solution=default.has_intended_solution,
        focus=default.focus,
        identifies_misconception=default.identifies_misconception,
    )
    return Reference(**{"kind": kind, "text": text, "labels": labels, "origin": "test", **fields})


def make_item(**fields: Any) -> Item:
    """A complete item with a hidden goal, or a control (kind="control"); any field replaced."""
    control = fields.get("kind") == "control"
    base: dict[str, Any] = {
        "id": "item",
        "query": "How do I make my alarm clock louder? I sleep through it every Monday.",
        "source": "test",
        "domain": "everyday",
        "stated_request": "Make an alarm clock louder.",
        "stated_solutions": ("Put the clock on an empty metal tray, which amplifies the sound.",),
    }
    if control:
        base["intended_request"] = base["stated_request"]
        base["references"] = (
            make_reference("direct", "Stand the clock on a metal tray; it rings much louder."),
            make_reference("overcorrecting", "Loudness is not your problem. You dislike your job."),
        )
    else:
        base["intended_request"] = "Get up on time on Mondays."
        base["misconception"] = "A louder alarm does not help someone who sleeps too little."
        base["intended_solutions"] = ("Keep the same bedtime on Sundays as on other days.",)
        base["references"] = (
            make_reference("goal_focused", "Go to bed on Sunday as early as on other days."),
            make_reference("literal", "Stand the clock on a metal tray; it rings much louder."),
        )
    if "stated_request" in fields and control:
        base["intended_request"] = fields["stated_request"]
    return Item(**{**base, **fields})


def tiny_policy(folder: str | os.PathLike[str], *, seed: int = 0) -> str:
    """Save a randomly initialised two-layer Llama with a byte-level tokenizer; returns the folder.

    It knows nothing. It serves to test that a loop runs, fails, resumes and saves as it should.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: i for i, token in enumerate([*special, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",  # noqa: S106  # of a vocabulary
        eos_token="<|im_end|>",  # noqa: S106
        pad_token="<|endoftext|>",  # noqa: S106
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            bos_token_id=vocabulary["<|im_start|>"],
            eos_token_id=vocabulary["<|im_end|>"],
            pad_token_id=vocabulary["<|endoftext|>"],
        )
    )
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return str(Path(folder))
