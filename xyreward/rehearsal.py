"""One step of TRL's trainer on a toy model, with the settings of a run, before the run begins.

TRL, peft and torch look at many values only when the trainer is built or takes its first step, which in a
run comes after minutes of evaluation. A model of two layers and 0.2 MB shows the same errors in under a
second, and as it is cheap, trying again without each key in turn tells which key it was.

Not here: what depends on the model (names of its modules, memory). `recipe.building` finds the former by
building the real trainer before the evaluation.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

ROWS = 4

LORA_OF_ANY_MODEL = frozenset(
    {
        "r",
        "lora_alpha",
        "lora_dropout",
        "bias",
        "use_rslora",
        "use_dora",
        "init_lora_weights",
        "lora_bias",
    }
)
"""Keys of `lora` that mean the same for every model; the others name modules or layers."""

REHEARSED_AS: Mapping[str, Any] = {
    "max_steps": 1,
    "dataloader_drop_last": False,
    "save_strategy": "no",
    "logging_strategy": "no",
    "logging_nan_inf_filter": False,
    "report_to": "none",
    "torch_compile": False,
    "disable_tqdm": True,
}
"""Settings that would make the rehearsal slow, visible, or fail for want of data."""

DPO_REHEARSED_AS: Mapping[str, Any] = {"pad_token": None, "dataset_num_proc": None}

CUT = 28
"""Tokens: longer than the prompt, shorter than prompt and answer, so that something is cut."""


Step = Callable[[str, Mapping[str, Any], Mapping[str, Any] | None], None]
"""One step in a folder, with arguments of TRL's configuration and of peft's."""


def rehearse(
    settings: Mapping[str, Any], lora: Mapping[str, Any] | None, step: Step | None = None
) -> Exception | None:
    """The error that one step of training with these settings ends in; None where it works.

    Args:
        settings: arguments of TRL's configuration.
        lora: arguments of peft's LoraConfig; None: all weights are trained.
        step: which training. None: DPO's (`dpo_step`).

    Nothing is rehearsed where DeepSpeed or FSDP shard the model: they want the real one. Of several
    processes the first rehearses, alone; the others wait for it where they are told of each other.
    """
    if settings.get("deepspeed") or settings.get("fsdp") or _sharded_by_accelerate():
        return None
    if os.environ.get("RANK", "0") != "0":
        return None
    with _quiet(), _alone(), tempfile.TemporaryDirectory() as folder:
        try:
            (step or dpo_step)(folder, settings, lora)
        except Exception as error:  # of any of five libraries; it is told, not hidden
            return error
    return None


Attempt = Callable[[Mapping[str, Any], Mapping[str, Any] | None], Exception | None]


def culprits(
    settings: Mapping[str, Any],
    lora: Mapping[str, Any] | None,
    given: Sequence[str],
    attempt: Attempt = rehearse,
) -> list[str]:
    """Which of the keys in `given` (`dpo.beta`, `lora.r`) the attempt, which failed, works without."""
    found = []
    for name in given:
        section, _, key = name.partition(".")
        of_lora = section == "lora"
        without = {k: v for k, v in (lora or {} if of_lora else settings).items() if k != key}
        if attempt(*((settings, without) if of_lora else (without, lora))) is None:
            found.append(name)
    return found


def dpo_step(folder: str, dpo: Mapping[str, Any], lora: Mapping[str, Any] | None) -> None:
    """One step of DPO."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    cut = {"max_length": CUT} if dpo.get("max_length", CUT) is not None else {}
    settings = DPOConfig(
        **{**dpo, **REHEARSED_AS, **DPO_REHEARSED_AS, **cut, "output_dir": f"{folder}/out"}
    )
    row = {
        "prompt": [{"role": "user", "content": "Why?"}],
        "chosen": [{"role": "assistant", "content": "Because."}],
        "rejected": [{"role": "assistant", "content": "Never mind."}],
    }
    _train(
        DPOTrainer(
            args=settings, train_dataset=Dataset.from_list([row] * ROWS), **_toy(folder, lora)
        )
    )


GRPO_REHEARSED_AS: Mapping[str, Any] = {
    "num_generations": 2,
    "num_generations_eval": None,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "generation_batch_size": None,
    "steps_per_generation": None,
    "max_completion_length": 4,
    "use_vllm": False,
    "log_completions": False,
    "log_completions_hub_repo": None,
    "use_transformers_continuous_batching": False,
    "cast_lm_head_to_fp32": False,
    "chat_template_kwargs": None,
    "reward_weights": None,
}
"""What depends on the number of processes, on the model, or on a server; `GRPOConfig` itself checks the
batches' sizes."""


def grpo_step(folder: str, grpo: Mapping[str, Any], lora: Mapping[str, Any] | None) -> None:
    """One step of GRPO, rewarded for length."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    settings = GRPOConfig(
        **{**grpo, **REHEARSED_AS, **GRPO_REHEARSED_AS, "output_dir": f"{folder}/out"}
    )

    def length(completions: Sequence[Any], **_: Any) -> list[float]:
        return [float(len(completion[0]["content"])) for completion in completions]

    rows = [{"prompt": [{"role": "user", "content": "Why?"}]}] * ROWS
    _train(
        GRPOTrainer(
            args=settings,
            train_dataset=Dataset.from_list(rows),
            reward_funcs=length,
            **_toy(folder, lora),
        )
    )


def sft_step(folder: str, sft: Mapping[str, Any], lora: Mapping[str, Any] | None) -> None:
    """One step of SFT."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    cut = {"max_length": CUT} if sft.get("max_length", CUT) is not None else {}
    settings = SFTConfig(
        **{
            **sft,
            **REHEARSED_AS,
            **cut,
            "dataset_num_proc": None,
            "output_dir": f"{folder}/out",
        }
    )
    row = {
        "prompt": [{"role": "user", "content": "Why?"}],
        "completion": [{"role": "assistant", "content": "Because."}],
    }
    _train(
        SFTTrainer(
            args=settings, train_dataset=Dataset.from_list([row] * ROWS), **_toy(folder, lora)
        )
    )


def reward_step(
    folder: str, reward_model: Mapping[str, Any], lora: Mapping[str, Any] | None
) -> None:
    """One step of training a reward model."""
    from datasets import Dataset
    from trl import RewardConfig, RewardTrainer

    settings = RewardConfig(
        **{
            **reward_model,
            **REHEARSED_AS,
            "dataset_num_proc": None,
            "max_length": CUT,
            "output_dir": f"{folder}/out",
        }
    )
    row = {"chosen_ids": [5, 6, 7], "rejected_ids": [5, 6], "margin": 0.5}
    _train(
        RewardTrainer(
            args=settings,
            train_dataset=Dataset.from_list([row] * ROWS),
            **_toy(folder, lora, head=True),
        )
    )


def _toy(folder: str, lora: Mapping[str, Any] | None, *, head: bool = False) -> dict[str, Any]:
    """A trainer's arguments that are about the model: one that writes, or one with a head for rewards."""
    from peft import LoraConfig
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
    )

    from xyreward.testing import tiny_policy

    toy = tiny_policy(f"{folder}/toy")
    adapter = None
    if lora is not None:
        of_any = {key: value for key, value in lora.items() if key in LORA_OF_ANY_MODEL}
        task = "SEQ_CLS" if head else "CAUSAL_LM"
        adapter = LoraConfig(**{"task_type": task, "target_modules": "all-linear", **of_any})
    return {
        "model": AutoModelForSequenceClassification.from_config(
            AutoConfig.from_pretrained(toy, num_labels=1)
        )
        if head
        else AutoModelForCausalLM.from_pretrained(toy),
        "processing_class": AutoTokenizer.from_pretrained(toy),
        "peft_config": adapter,
    }


def _train(trainer: Any) -> None:
    loss = trainer.train().training_loss
    if not math.isfinite(loss):
        raise ValueError(f"the loss of the first step is {loss}")


def _sharded_by_accelerate() -> bool:
    return any(
        os.environ.get(name, "").lower() in {"1", "true", "yes", "on"}
        for name in ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP")
    )


OF_OTHER_PROCESSES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_SIZE",
    "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE",
)  # fmt: skip
"""Variables by which accelerate and transformers find out that they are one of several processes."""


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """As if this process were the only one. The next DPOConfig makes accelerate look again."""
    kept = {name: os.environ.pop(name) for name in OF_OTHER_PROCESSES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the rehearsal's bars, figures and warnings off the terminal; the run itself shows them."""
    import datasets
    from transformers.utils import logging

    bars = (datasets.are_progress_bars_disabled(), logging.is_progress_bar_enabled())
    datasets.disable_progress_bars()
    logging.disable_progress_bar()
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        if not bars[0]:
            datasets.enable_progress_bars()
        if bars[1]:
            logging.enable_progress_bar()
