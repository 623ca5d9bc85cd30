"""A short SFT on chosen answers, with which GRPO may begin.

GRPO strengthens what a policy writes now and then. One that never writes what is rewarded learns nothing
from it; a few steps on good answers show it what they look like.

The SFT has a folder of its own in the run's, `sft/`, with all that a run's folder has, and GRPO goes on from
what was saved there. What the run calls before is the policy as it was named, without the SFT.

Not here: which pairs there are (`training_pairs.py`), the training itself, which is TRL's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from xyreward.config import EvaluationConfig, GRPORecipe, PairsConfig, Places, SFTRecipe
from xyreward.errors import RunFolderError
from xyreward.evaluation import Evaluation
from xyreward.pairs import PairSet, formats
from xyreward.pairs.formats import is_model, one_of_each_model
from xyreward.policy import Policy
from xyreward.recipe import (
    SET_BY_RECIPE,
    TRAINER_LIMITS,
    Data,
    Run,
    as_loaded,
    building,
    fit,
    fit_to_length,
    free_memory,
    planned_steps,
    trainer_settings,
    wrong_sections,
)
from xyreward.rehearsal import rehearse, sft_step
from xyreward.runs import SFT
from xyreward.training_pairs import TrainingPairs

OF_THE_PROCESS = (
    "accelerator_config", "bf16", "deepspeed", "fp16", "fsdp", "fsdp_config", "parallelism_config", "tf32",
)  # fmt: skip
"""Fields that accelerate decides once per process, which makes both trainings."""

SET_BY_SFT: Mapping[str, str] = {
    **SET_BY_RECIPE,
    **dict.fromkeys(OF_THE_PROCESS, "it is that of grpo, which trains in the same process"),
    "assistant_only_loss": "answers alone are learnt in any case",
    "chat_template_path": "use a policy with a chat template, and policy.chat_template_kwargs",
    "completion_only_loss": "answers alone are learnt in any case",
    "dataset_kwargs": "the recipe makes the data set",
    "dataset_text_field": "the recipe makes the data set",
    "eos_token": "it is the policy's",
    "pad_token": "it is the policy's",
    "report_to": "its log is sft/log.jsonl in the run's folder; trackers follow GRPO",
}
"""Fields of TRL's SFTConfig that the recipe sets itself -> where the user sets them."""

SFT_LIMITS: Mapping[str, str] = {**TRAINER_LIMITS, "max_length": "[2, inf)"}

NO_MODEL = "a chosen answer that is not worth imitating"
REPEATED = "the chosen answer of another pair"
OVER_SHARE = "control_share, of answers"
"""Reasons under which pairs are left out."""


def wrong_sft(config: Mapping[str, Any], places: Places) -> list[str]:
    """What is wrong with the sections `sft` and `lora`; see `recipe.wrong_sections`."""
    if config.get("sft") is None:
        return []
    return wrong_sections(config, places, "sft", "SFTConfig", SFT_LIMITS, SET_BY_SFT)


def of_run(config: GRPORecipe) -> SFTRecipe:
    """The configuration of the SFT that a GRPO run begins with."""
    made = SFTRecipe(
        policy=config.policy,
        items=config.items,
        splits_lock=config.splits_lock,
        evaluation=EvaluationConfig(parts=()),
        output_dir=str(Path(config.output_dir) / SFT),
        seed=config.seed,
        pairs=config.pairs or PairsConfig(),
        lora=config.lora,
        sft=config.sft or {},
    )
    return made.billed_to(config.bill)


def chosen_once(pairs: PairSet, control_share: float | None) -> PairSet:
    """The pairs with each chosen answer that is worth imitating once: that is all that is learnt of them.

    Args:
        pairs: any.
        control_share: of the answers, in [0, 1): further controls are left out, as a control may have fewer
            pairs than another item. None: they stay.
    """
    kept = list(one_of_each_model(pairs))
    dropped = Counter(pairs.dropped)
    dropped[NO_MODEL] += sum(not is_model(pair) for pair in pairs.pairs)
    dropped[REPEATED] += sum(map(is_model, pairs.pairs)) - len(kept)
    hidden = sum(pair.item_kind != "control" for pair in kept)
    if control_share is not None and hidden:
        room = round(hidden * control_share / (1 - control_share))
        controls = [pair for pair in kept if pair.item_kind == "control"]
        over = {pair.id for pair in controls[room:]}
        kept = [pair for pair in kept if pair.id not in over]
        dropped[OVER_SHARE] += len(over)
    return replace(pairs, pairs=tuple(kept), dropped={k: n for k, n in dropped.items() if n})


def rows(pairs: PairSet, policy: Policy) -> list[dict[str, Any]]:
    """The chosen answers in TRL's columns, to be rendered as the policy renders them in evaluation."""
    kwargs = dict(policy.chat_template_kwargs)
    extra = {"chat_template_kwargs": kwargs} if kwargs else {}
    return [
        {"prompt": row["prompt"], "completion": row["completion"], **extra}
        for row in formats.rows(pairs, "sft")
    ]


class SFTStart:
    """The SFT that a GRPO run begins with, of which all was checked that shows before a model is loaded.

    Raises:
        ConfigError, MissingDependency: see `recipe.dpo_settings`.
        DataError, LeakError: see `TrainingPairs`.
    """

    def __init__(self, config: GRPORecipe, places: Places, data: Data, grpo: Any) -> None:
        """Check it.

        Args:
            config: of the whole run.
            places: where settings were given.
            data: of the run.
            grpo: TRL's GRPOConfig of the training after it.
        """
        self.config = of_run(config)
        self.data = data
        self.settings, self.lora = trainer_settings(
            self.config,
            places,
            "sft",
            "SFTConfig",
            wrong_sft,
            partial(rehearse, step=sft_step),
            {
                "completion_only_loss": True,
                **{key: value for key, value in config.grpo.items() if key in OF_THE_PROCESS},
                "bf16": grpo.bf16,
                "fp16": grpo.fp16,
            },
        )
        wanted = self.config.pairs
        share = None if wanted.built is not None else wanted.control_share
        self.pairs = chosen_once(TrainingPairs(self.config, data).make(), share)

    def plan(self) -> str:
        """A line on the training."""
        answers = len(self.pairs.pairs)
        return (
            f"before them an SFT on {answers} chosen answers, {self.pairs.control_share:.0%} to controls: "
            f"{planned_steps(self.settings, answers, 'answers')}"
        )

    def take(self, run: Run) -> tuple[Evaluation | None, Policy, dict[str, Any]]:
        """Evaluate the policy as it is named, train it, and load what was saved.

        A run that is resumed goes on where the SFT stopped, or with what it left.

        Args:
            run: of the GRPO recipe.

        Returns:
            The evaluation before, the policy that GRPO goes on with, and facts.

        Raises:
            ConfigError: the trainer cannot be built, or no answer fits into `sft.max_length`.
            RunFolderError: see `RunFolder.open`; also: GRPO has begun on an SFT that is not there any more.
        """
        from datasets import Dataset
        from trl import SFTTrainer

        run.on_main(lambda: _refuse_lost(run))
        own = Run(self.config, run.arguments)
        policy = run.load_policy(trainable=True)
        pairs = fit_to_length(self.pairs, policy, self.settings.max_length, "sft")
        own.record_data(self.data, pairs)
        run.trained_by |= own.trained_by
        with building(own, policy):  # before the evaluation: a mistake shows in seconds
            trainer = SFTTrainer(
                model=policy.model,
                args=self.settings,
                train_dataset=Dataset.from_list(rows(pairs, policy)),
                processing_class=policy.tokenizer,
                peft_config=self.lora,
            )
        with as_loaded(trainer, self.lora):
            before = run.evaluate("before", policy, self.data)
        run.say(f"== SFT on {len(pairs.pairs)} chosen answers")
        folder, facts = fit(own, trainer, policy, pairs, self.data)
        del trainer, policy
        free_memory()
        told = (
            f"{len(pairs.pairs)} chosen answers, {pairs.control_share:.0%} to controls; "
            f"{facts['steps']} steps, mean training loss {facts['mean training loss']}"
        )
        return before, run.load_policy(str(folder), trainable=True), {"SFT before GRPO": told}


def _refuse_lost(run: Run) -> None:
    """Another SFT in place of the one that GRPO's checkpoints were trained on would mix two trainings."""
    begun = ("checkpoint-", "adapter", "model", "training.json")
    above = [name for name in run.folder.kept() if name.startswith(begun)]
    if above and run.folder.read(f"{SFT}/training.json") is None:
        raise RunFolderError(
            f"{run.folder.path}: GRPO has begun here ({', '.join(above)}), and the SFT below it is "
            f"not whole in {SFT}/; expected the folder as that run left it. Restore it, or begin anew in "
            "another folder (--output-dir)"
        )
