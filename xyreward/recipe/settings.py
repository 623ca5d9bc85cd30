"""Settings of TRL's trainers and of peft: what can be wrong with them, and what fits this machine.

Not here: the try-out (`rehearsal.py`), what other sections hold (`config.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from xyreward.config import (
    DPORecipe,
    GRPORecipe,
    Others,
    Places,
    RewardModelRecipe,
    SFTRecipe,
    outside_limits,
    wrong_keys,
)
from xyreward.errors import ConfigError, told
from xyreward.locate import is_adapter
from xyreward.policy import bf16_is_fast, default_device
from xyreward.recipe.checks import check_before_evaluation
from xyreward.recipe.processes import PATIENCE_S, check_installed
from xyreward.rehearsal import Attempt, culprits, rehearse
from xyreward.runs import RunFolder
from xyreward.tracking import check_trackers

SET_BY_RECIPE: Mapping[str, str] = {
    "output_dir": "use the top-level output_dir",
    "seed": "use the top-level seed",
    "data_seed": "use the top-level seed",
    "use_cpu": "it follows the machine",
    "resume_from_checkpoint": "use --resume",
    "model_init_kwargs": "use the section policy",
    "eval_strategy": "the evaluation is the recipe's own, before and after training",
    "do_eval": "the evaluation is the recipe's own, before and after training",
    "load_best_model_at_end": "nothing is evaluated during training",
    "hub_token": "it would be written into the run folder; log in with `hf auth login` or set HF_TOKEN",
    "push_to_hub": "push the run's adapter or model folder yourself, once you have read the report",
}
"""Fields of TRL's configurations that a recipe sets itself -> where the user sets them."""


DPO_LOSSES = frozenset(
    {
        "sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot",
        "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm",
    }
)  # fmt: skip
"""What `loss_type` may hold in TRL 1.16, which looks at it in the first step of training only."""

SMOOTHED_LOSSES = frozenset({"robust", "exo_pair", "aot", "aot_unpaired"})
"""Those that read `label_smoothing`. TRL's others ignore it, `sigmoid` too."""

TRAINER_LIMITS: Mapping[str, str] = {
    "adam_beta1": "[0, 1)",
    "adam_beta2": "[0, 1)",
    "adam_epsilon": "(0, inf)",
    "dataloader_num_workers": "[0, inf)",
    "gradient_accumulation_steps": "[1, inf)",
    "learning_rate": "[0, inf)",
    "logging_steps": "(0, inf)",
    "max_grad_norm": "[0, inf]",
    "max_steps": "[-1, inf)",
    "num_train_epochs": "(0, inf)",
    "per_device_train_batch_size": "[1, inf)",
    "save_steps": "(0, inf)",
    "warmup_steps": "[0, inf)",
    "weight_decay": "[0, inf)",
}
DPO_LIMITS: Mapping[str, str] = {
    **TRAINER_LIMITS,
    "beta": "(0, inf)",
    "label_smoothing": "[0, 0.5)",
    "ld_alpha": "[0, 1]",
    "max_length": "[2, inf)",
}
LORA_LIMITS: Mapping[str, str] = {
    "r": "[1, inf)",
    "lora_alpha": "(0, inf)",
    "lora_dropout": "[0, 1)",
}
"""Numbers that TRL, peft or torch take without a word, or refuse in words that name no key."""

LORA_STARTS = (True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the policy's own weights alone."""


def wrong_training(config: Mapping[str, Any], places: Places) -> list[str]:
    """What is wrong with the sections `dpo` and `lora`, as far as TRL and peft need no try-out to tell.

    Args:
        config: with these sections, as YAML gives them; other sections may be wrong in any way.
        places: where settings were given.

    Returns:
        Lines of an error message. None where TRL or peft is not installed, which others tell.
    """
    section = config.get("dpo")
    dpo: Mapping[str, Any] = section if isinstance(section, Mapping) else {}
    losses = dpo.get("loss_type", ["sigmoid"])
    found = [losses] if isinstance(losses, str) else losses
    if isinstance(section, Mapping):
        config = {**config, "dpo": {**dpo, "loss_type": found}}
    problems = wrong_sections(config, places, "dpo", "DPOConfig", DPO_LIMITS, SET_BY_RECIPE)
    is_list = isinstance(found, list) and all(isinstance(loss, str) for loss in found)
    if is_list and (not found or not DPO_LOSSES.issuperset(found)):
        problems.append(
            f"{places.of('dpo.loss_type')}: dpo.loss_type: is {losses!r}, expected some of "
            f"{', '.join(sorted(DPO_LOSSES))}"
        )
    if is_list and dpo.get("label_smoothing") and not SMOOTHED_LOSSES.intersection(found):
        problems.append(
            f"{places.of('dpo.label_smoothing')}: dpo.label_smoothing: is {dpo['label_smoothing']!r:.40}, "
            f"which loss_type {', '.join(found)} ignores; expected one of "
            f"{', '.join(sorted(SMOOTHED_LOSSES))} in loss_type ('robust' for labels of a noisy judge), or "
            "no label_smoothing"
        )
    return problems


def wrong_sections(
    config: Mapping[str, Any],
    places: Places,
    section: str,
    target: str,
    limits: Mapping[str, str],
    reserved: Mapping[str, str],
) -> list[str]:
    """What is wrong with a trainer's section and with `lora`, by their keys, types and ranges.

    Args:
        config: with these sections, as YAML gives them.
        places: where settings were given.
        section: the trainer's.
        target: TRL's class of its settings.
        limits: key -> interval, see `check_limits`.
        reserved: key -> where it is set instead.

    Returns:
        Lines of an error message. None where TRL or peft is not installed, which others tell.
    """
    try:
        import trl
        from peft import LoraConfig
    except ImportError:
        return []
    sections = (config.get(section), config.get("lora"))
    given, lora = (dict(one) if isinstance(one, Mapping) else {} for one in sections)
    problems = [
        *wrong_keys(places, section, given, getattr(trl, target), reserved),
        *wrong_keys(places, "lora", lora, LoraConfig, {}),
        *outside_limits(places, section, given, limits),
        *outside_limits(places, "lora", lora, LORA_LIMITS),
    ]
    start = lora.get("init_lora_weights", True)
    if start not in LORA_STARTS:
        problems.append(
            f"{places.of('lora.init_lora_weights')}: lora.init_lora_weights: is {start!r}, expected one of "
            f"{', '.join(map(str, LORA_STARTS))}; it changes the policy's own weights, and then neither "
            "the reference nor the saved adapter belongs to the policy any more"
        )
    return problems


def dpo_settings(config: DPORecipe, path: Path | Places) -> tuple[Any, Any]:
    """TRL's DPOConfig and peft's LoraConfig (or None) of a configuration, fitted to the machine.

    Finds everything about the configuration that can be wrong and shows without loading a model: one
    step is rehearsed on a toy (`rehearsal.py`).

    Raises:
        ConfigError: unknown keys or impossible values of `dpo` or `lora` (all of them at once), a policy
            that does not exist, `lora` for a policy that is an adapter already.
        JudgeError, MissingDependency: the judge cannot be loaded, or what `report_to` names is not installed.
    """
    return trainer_settings(config, path, "dpo", "DPOConfig", wrong_training, rehearse)


def trainer_settings(
    config: DPORecipe | GRPORecipe | RewardModelRecipe | SFTRecipe,
    path: Path | Places,
    section: str,
    target: str,
    wrong: Others,
    rehearsal: Attempt,
    fixed: Mapping[str, Any] | None = None,
    lora_fixed: Mapping[str, Any] | None = None,
) -> tuple[Any, Any]:
    """As `dpo_settings`, for any of TRL's trainers.

    Args:
        config: of the recipe.
        path: where settings were given.
        section: the trainer's section.
        target: TRL's class of its settings.
        wrong: finds what is wrong with the sections without a try-out.
        rehearsal: tries them out.
        fixed: further settings that the recipe decides.
        lora_fixed: likewise of `lora`. None: of a model that writes.

    Raises:
        ConfigError, JudgeError, MissingDependency: see `dpo_settings`.
    """
    check_installed("accelerate", "datasets", "peft", "scipy", "torch", "transformers", "trl")
    import trl
    from peft import LoraConfig

    places = path if isinstance(path, Places) else Places(path)
    if problems := wrong(config.model_dump(include={section, "lora", "sft"}), places):
        raise ConfigError("\n".join(problems))
    given: Mapping[str, Any] = getattr(config, section)
    if config.lora is not None and is_adapter(config.policy.model, config.policy.revision):
        raise ConfigError(
            f"{places.of('lora')}: policy {config.policy.model!r} is an adapter, and training goes on with "
            "it as it is; set lora: null (a new adapter on top of an old one could not be loaded alone)"
        )
    tracked = f"{section}.report_to"
    check_trackers(given.get("report_to"), f"{places.of(tracked)}: {tracked}")
    check_before_evaluation(config)
    device = default_device()
    settings = {
        # Named explicitly because TRL's default for the old name makes transformers warn.
        "activation_checkpointing": False,
        "report_to": "none",
        "run_name": RunFolder(Path(config.output_dir)).path.name,
        "ddp_timeout": PATIENCE_S,
        "logging_nan_inf_filter": False,  # True logs a loss that diverged as the mean of those before
        "bf16": bf16_is_fast(device) and not given.get("fp16", False),
        **given,
        **(fixed or {}),
        "output_dir": str(RunFolder(Path(config.output_dir)).path / "checkpoints"),
        "seed": config.seed,
        "use_cpu": device == "cpu",
    }
    of_task = {"task_type": "CAUSAL_LM"} if lora_fixed is None else lora_fixed
    adapter = None if config.lora is None else {**of_task, **config.lora}
    keys = [f"{section}.{key}" for key in given] + [f"lora.{key}" for key in config.lora or {}]
    make = getattr(trl, target)
    for attempt in (rehearsal, partial(_construct, make)):
        if (error := attempt(settings, adapter)) is not None:
            found = culprits(settings, adapter, keys, attempt) or [section]
            where = places.of(found[0])
            raise ConfigError(f"{where}: {' or '.join(found)}: {told(error)}") from error
    return make(**settings), None if adapter is None else LoraConfig(**adapter)


def _construct(
    make: Callable[..., Any], settings: Mapping[str, Any], lora: Mapping[str, Any] | None
) -> Exception | None:
    from peft import LoraConfig

    try:
        make(**settings)
        LoraConfig(**(lora or {}))
    except Exception as error:  # whatever a library finds wrong with it
        return error
    return None
