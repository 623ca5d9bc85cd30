"""What `recipes/grpo.py` is made of: settings, prompts, reward functions, the bill, the curve of the reward.

Not here: what all recipes share (`recipe/`), how a completion is scored (`scorer.py`).
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import fsum
from pathlib import Path
from typing import Any

from xyreward.completions import Visible
from xyreward.config import GRPORecipe, Places
from xyreward.dispatch import world_size
from xyreward.errors import ConfigError, DataError, MissingDependency
from xyreward.judges import (
    OF_BATCHES,
    Judge,
    RewardJudge,
    billed_to,
    check_gives_labels,
    described,
    load_judge,
)
from xyreward.judges.panel import model_judges
from xyreward.judges.reward_model import RewardModelJudge
from xyreward.locate import trained_on
from xyreward.policy import THINK, Policy
from xyreward.recipe import (
    SET_BY_RECIPE,
    TRAINER_LIMITS,
    Data,
    Run,
    check_not_seen,
    check_not_trained_on,
    trainer_settings,
    wrong_sections,
)
from xyreward.rehearsal import grpo_step, rehearse
from xyreward.scorer import Scorer
from xyreward.sft_start import wrong_sft
from xyreward.sides import limited
from xyreward.stats import Estimate, mean
from xyreward.training_prompts import Prompts, choose_prompts
from xyreward.trl_rewards import RewardFunction, functions_of, prompt_rows, scoring_of

SET_BY_GRPO: Mapping[str, str] = {
    **SET_BY_RECIPE,
    "chat_template_kwargs": "use policy.chat_template_kwargs",
    "reward_weights": "use the weights of the section reward",
}
"""Fields of GRPOConfig that the recipe sets itself -> where the user sets them."""

LOOKS = "reward_audit.jsonl"
"""Looks of the audit, a line each."""

GRPO_LIMITS: Mapping[str, str] = {
    **TRAINER_LIMITS,
    "beta": "[0, inf)",
    "epsilon": "(0, inf)",
    "epsilon_high": "(0, inf)",
    "max_completion_length": "[1, inf)",
    "num_generations": "[2, inf)",
    "num_iterations": "[1, inf)",
    "repetition_penalty": "(0, inf)",
    "temperature": "(0, inf)",
    "top_p": "(0, 1]",
}


def wrong_training(config: Mapping[str, Any], places: Places) -> list[str]:
    """What is wrong with the sections `grpo`, `sft` and `lora`; see `recipe.wrong_sections`."""
    found = wrong_sections(config, places, "grpo", "GRPOConfig", GRPO_LIMITS, SET_BY_GRPO)
    return list(dict.fromkeys([*found, *wrong_sft(config, places)]))


def grpo_settings(config: GRPORecipe, path: Path | Places) -> tuple[Any, Any]:
    """TRL's GRPOConfig and peft's LoraConfig (or None) of a configuration, fitted to the machine.

    Raises:
        ConfigError, JudgeError, MissingDependency: see `recipe.dpo_settings`.
    """
    wanted = config.reward
    weights = [wanted.solution, wanted.focus, wanted.misconception] if wanted.components else None
    return trainer_settings(
        config,
        path,
        "grpo",
        "GRPOConfig",
        wrong_training,
        partial(rehearse, step=grpo_step),
        {"reward_weights": weights},
    )


def check_vllm(config: GRPORecipe, places: Places) -> None:
    """Make sure that vLLM is there if it is to write the answers: TRL looks once the policy is loaded.

    Raises:
        MissingDependency: it is not installed.
    """
    if config.grpo.get("use_vllm") and importlib.util.find_spec("vllm") is None:
        raise MissingDependency(
            f"{places.of('grpo.use_vllm')}: grpo.use_vllm: vLLM is not installed here, where TRL needs it "
            "for a server of its own, too: pip install 'trl[vllm]'"
        )


def load_prompts(config: GRPORecipe, data: Data) -> Prompts:
    """The prompts that are trained on, which the judges were shown, and what lies behind their reward.

    Raises:
        ConfigError: an impossible setting of the reward.
        DataError: there is none.
        JudgeError, StoreError, MissingDependency: a judge cannot be loaded, or cannot judge these items.
        LeakError: the reward model was trained on items that this run holds out or evaluates on, or
            calibrated on items that it evaluates on.
    """
    prompts = choose_prompts(config.prompts, data.train, config.reward.judge)
    reward = scoring_of(config.reward).reward
    for name, judge in judges_of_training(config).items():
        if name != "judge of rewards" or config.reward.components:
            check_gives_labels(judge)
        elif isinstance(judge, RewardJudge):
            judge.check_reward(reward)
        if (check := getattr(judge, "check", None)) is not None:
            check(list(prompts.items))
        if isinstance(judge, RewardModelJudge):
            sides = [*data.sides.select("dev"), *data.sides.select("test"), *data.held_out]
            what = f"judge {judge.name!r}"
            advice = (
                "Train it with the sides of this run (items, splits_lock and evaluation as here)"
            )
            unique = list({item.id: item for item in sides}.values())
            check_not_trained_on(what, str(judge.folder), None, unique, advice)
            calibrated_on = judge.distilled.calibrated_on
            check_not_seen(f"{what} was calibrated on", calibrated_on, data.held_out, advice)
            behind = trained_on(str(judge.folder)).union(calibrated_on)
            prompts = replace(prompts, behind_reward=behind)
    return prompts


def room_warnings(config: GRPORecipe, prompts: Prompts, settings: Any) -> list[str]:
    """What a reward model cannot read of the answers to come, in sentences; of another judge nothing.

    Raises:
        ConfigError: it could read no answer to any prompt.
        HubUnreachable, MissingDependency: its tokenizer cannot be loaded.
    """
    judge = judges_of_training(config)["judge of rewards"]
    if not isinstance(judge, RewardModelJudge):
        return []
    room, longest = judge.room(prompts.items), settings.max_completion_length
    reads = f"the {judge.distilled.max_length} tokens that {judge.name} reads"
    full = sum(tokens < 1 for tokens in room)
    tight = sum(1 <= tokens < longest for tokens in room)
    if full == len(room):
        raise ConfigError(
            f"each of the {full} prompts alone fills {reads}, so that every answer would be a failure; train "
            "one with a larger reward_model.max_length, or take shorter prompts"
        )
    warned = []
    if full:
        warned.append(
            f"{full} of {len(room)} prompts alone fill {reads}: every answer to them will be a failure; "
            "take them out, or train one with a larger reward_model.max_length"
        )
    if tight:
        least = min(tokens for tokens in room if tokens >= 1)
        warned.append(
            f"{tight} of {len(room)} prompts leave less of {reads} than "
            f"grpo.max_completion_length={longest}, the longest of them {least}: longer answers will be "
            "failures"
        )
    return warned


def judges_of_training(config: GRPORecipe) -> dict[str, Judge]:
    """Name in the report -> judge, of those that training asks. Their bills go by the run's folder."""
    judges = {
        "judge of rewards": load_judge(config.reward.judge, **_billed(config, "reward")),
    }
    if config.audit is not None:
        judges["judge of the audit"] = load_judge(audit_judge(config), **_billed(config, "audit"))
    return judges


def audit_judge(config: GRPORecipe) -> str:
    """Name of the second judge: the audit's own, or the evaluation's."""
    assert config.audit is not None
    return config.audit.judge or config.evaluation.judge


def _billed(config: GRPORecipe, section: str) -> dict[str, Any]:
    """Options of a judge, with whose bill it is: of the run and its resumptions, in all processes."""
    if section == "reward":
        judge, options = config.reward.judge, config.reward.judge_options
    else:
        assert config.audit is not None
        judge = audit_judge(config)
        options = config.audit.judge_options
        if (
            config.audit.judge is None
        ):  # an evaluation can wait a day for message batches, a step cannot
            of_evaluation = config.evaluation.judge_options.items()
            options = {key: value for key, value in of_evaluation if key not in OF_BATCHES}
    return billed_to(judge, options, f"{config.bill} {section}")


def reward_functions(config: GRPORecipe, policy: Policy, prompts: Prompts) -> list[RewardFunction]:
    """The functions to give to the trainer."""
    ids = policy.prompt_ids(prompts.items[0].messages)
    begun = policy.tokenizer.decode(ids[-8:]).rstrip().endswith(THINK)
    wanted = config.reward.model_copy(update={"judge_options": _billed(config, "reward")})
    scoring = scoring_of(wanted, Visible(begun=begun or wanted.thinking_begun))
    return functions_of(Scorer(scoring), components=wanted.components)


def audit_of(
    run: Run, config: GRPORecipe, policy: Policy, functions: Sequence[RewardFunction], data: Data
) -> list[Any]:
    """The callback that audits the training, in a list; an empty one where it was not asked for.

    Its looks are in `reward_audit.jsonl` of the run's folder, and a run that goes on from a checkpoint
    goes on with them.

    Raises:
        DataError: no item is on the dev side.
        RunFolderError: the looks of the run that is resumed cannot be read.
    """
    if config.audit is None:
        return []
    from xyreward.reward_audit import Look, RewardAudit, read_look

    items = limited(data.sides.select("dev"), config.audit.limit)
    if not items:
        raise DataError(
            ["no item is on the dev side: nothing to audit the reward on (audit: null)"]
        )
    folder = run.folder
    # Without a checkpoint the training begins anew, maybe with another sample or judge.
    kept = run.on_main(lambda: folder.last_checkpoint()[0] and folder.read(LOOKS)) or ""
    try:
        looks = [read_look(line) for line in kept.splitlines()]
    except (TypeError, ValueError) as error:
        raise run.folder.damaged(LOOKS, error) from None

    def keep(look: Look, beyond: Sequence[str]) -> None:
        nonlocal looks
        looks = [one for one in looks if one.step < look.step] + [look]
        run.write(LOOKS, "".join(json.dumps(asdict(one)) + "\n" for one in looks))
        for objection in beyond:
            run.say(f"== warning: step {look.step}: {objection}")

    second = judges_of_training(config)["judge of the audit"]
    return [
        RewardAudit(
            policy,
            items,
            functions[0],
            judge=second,
            settings=config.audit,
            earlier=looks,
            on_look=keep,
        )
    ]


def ended_by(audit: Sequence[Any]) -> dict[str, str]:
    """The fact that the audit ended the training, and why; nothing where it did not.

    Args:
        audit: from `audit_of`.
    """
    reasons = [one.stopped for one in audit if one.stopped is not None]
    return {"training ended by": reasons[0]} if reasons else {}


def dataset(prompts: Prompts) -> Any:
    """The trainer's data set."""
    from datasets import Dataset

    return Dataset.from_list(prompt_rows(prompts.items))


def estimate(config: GRPORecipe, prompts: Prompts, settings: Any) -> str:
    """A line on what judging the completions would cost, each of them at its longest. Sends nothing."""
    judge = judges_of_training(config)["judge of rewards"]
    _, _, count = _steps(settings, len(prompts.items))
    items = [prompts.items[n % len(prompts.items)] for n in range(count)]
    longest = settings.max_completion_length
    told = described(judge, items, [_longest(n, longest) for n in range(count)])
    return f"rewards of {count} completions, judged by {told}"


def estimate_audit(config: GRPORecipe, data: Data, prompts: Prompts, settings: Any) -> list[str]:
    """Lines on what the looks of the audit would cost, for each judge that asks a model. Sends nothing."""
    if (wanted := config.audit) is None:
        return []
    steps, _, _ = _steps(settings, len(prompts.items))
    looks = 1 + math.ceil(steps / wanted.every)
    items = limited(data.sides.select("dev"), wanted.limit) * looks
    answers = [_longest(n, wanted.max_new_tokens) for n in range(len(items))]
    judges = {judge.name: judge for judge in judges_of_training(config).values()}
    return [
        f"{looks} looks of the audit, {len(items)} answers, judged by {described(judge, items, answers)}"
        for judge in judges.values()
        if model_judges(judge)
    ]


def _longest(n: int, tokens: int) -> str:
    """An answer of so many tokens, at four characters each; `n` tells it from others."""
    return f"{n} {'word ' * (tokens * 4 // 5)}"


def plan(settings: Any, prompts: Prompts) -> list[str]:
    """Lines on the training.

    Raises:
        ConfigError: there are fewer prompts than are answered at a time, and TRL would take no step.
    """
    steps, at_once, _ = _steps(settings, len(prompts.items))
    several = settings.num_generations
    return [
        f"{len(prompts.items)} prompts, {prompts.control_share:.0%} of them controls",
        f"{steps} steps of {at_once} completions: {several} each to {at_once / several:g} prompts",
    ]


def _steps(settings: Any, prompts: int) -> tuple[int, int, int]:
    """Steps, completions in each, and how many are sampled in all, as the trainer counts them.

    It samples for `steps_per_generation` batches at a time and trains on them `num_iterations` times; prompts
    that do not fill such a lot are left out of an epoch.
    """
    processes = world_size()
    batch = settings.per_device_train_batch_size * processes
    per_step, per_lot = settings.gradient_accumulation_steps, settings.steps_per_generation
    prompts_of_lot = batch * per_lot // settings.num_generations
    if prompts < prompts_of_lot:
        raise ConfigError(
            f"grpo: {prompts} prompts are there, and {prompts_of_lot} are answered at a time ({batch} "
            f"completions in a batch, {per_lot} batches, {settings.num_generations} completions to each "
            "prompt), so that no step would be taken; expected as many at least: smaller batches or "
            "generation_batch_size, or more items"
        )
    batches_of_lot = per_lot * settings.num_iterations
    if settings.max_steps > 0:
        steps = settings.max_steps
        lots = math.ceil(steps * per_step / batches_of_lot)
    else:
        of_epoch = prompts // prompts_of_lot
        steps = math.ceil(
            settings.num_train_epochs * math.ceil(of_epoch * batches_of_lot / per_step)
        )
        lots = math.ceil(settings.num_train_epochs * of_epoch)
    return steps, batch * per_step, lots * batch * per_lot


def reward_curve(
    log: Sequence[Mapping[str, Any]],
    completions: Path,
    functions: Sequence[str],
    weights: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Facts on how the training reward went: its mean over the first and the last third of the steps.

    Steps follow each other and have prompts of their own, so that they are no independent sample. Prompts
    are: intervals are over them, of the trainer's tables of completions, and the change is that of the
    prompts that both thirds have. Without tables there is no interval, and it says so.

    Args:
        log: the trainer's `state.log_history`.
        completions: folder of the tables that TRL writes with `log_completions`.
        functions: names of the reward functions, columns of the tables.
        weights: of the functions; None: 1 each.
    """
    steps = [entry for entry in log if entry.get("reward") is not None]
    third = len(steps) // 3
    if third == 0:
        return {}
    facts: dict[str, Any] = {}
    thirds = {"first": steps[:third], "last": steps[-third:]}
    rows = _rewarded(completions, functions, weights or [1.0] * len(functions))
    by_prompt: dict[str, dict[str, list[float]]] = {}
    for name, part in thirds.items():
        numbers = {entry.get("step") for entry in part}
        mine = [(prompt, reward) for step, prompt, reward in rows if step in numbers]
        grouped: dict[str, list[float]] = defaultdict(list)
        by_prompt[name] = grouped
        for prompt, reward in mine:
            grouped[prompt].append(reward)
        found = mean([reward for _, reward in mine], [prompt for prompt, _ in mine])
        title = f"training reward, {name} third of the steps"
        if found is None:
            logged = fsum(float(entry["reward"]) for entry in part) / third
            facts[title] = f"{logged:.3f} (no interval without grpo.log_completions)"
        else:
            facts[title] = f"{found.value:.3f}{_interval(found)}"
    both = by_prompt["first"].keys() & by_prompt["last"].keys()
    first, last = ({p: fsum(v) / len(v) for p, v in by_prompt[n].items()} for n in thirds)
    if (change := mean([last[prompt] - first[prompt] for prompt in sorted(both)])) is not None:
        told = (
            f"{change.value:+.3f}{_interval(change, '+')} over {len(both)} prompts that both have"
        )
        facts["training reward, change from the first third to the last"] = told
    return facts


def _interval(found: Estimate, sign: str = "") -> str:
    return "" if found.low is None else f" [{found.low:{sign}.3f}, {found.high:{sign}.3f}]"


def _rewarded(
    folder: Path, functions: Sequence[str], weights: Sequence[float]
) -> list[tuple[int, str, float]]:
    """Step, prompt and reward of each completion that has one, as the trainer's tables have them."""
    from pyarrow import parquet

    found = []
    for file in sorted(folder.glob("completions_*.parquet")):
        for row in parquet.read_table(file).to_pylist():
            parts = [row.get(name) for name in functions]
            if all(part is not None and math.isfinite(part) for part in parts):
                reward = fsum(w * part for w, part in zip(weights, parts, strict=True))
                found.append((row["step"], str(row["prompt"]), reward))
    return found
