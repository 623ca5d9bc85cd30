"""Who evaluates and who is evaluated, and what can be wrong with that before anything is asked or loaded.

Not here: settings of a training (`settings.py`).
"""

from __future__ import annotations

from pathlib import Path

from xyreward.answering import FilePolicy, How, RemotePolicy, place_of
from xyreward.config import EvaluateRecipe, Recipe, RewardModelRecipe
from xyreward.embedded import POLICY_NAME
from xyreward.errors import ConfigError, DataError
from xyreward.judges import Judge, billed_to, check_gives_labels, load_judge
from xyreward.judges.panel import refuse_small_budget
from xyreward.locate import check_writes, is_adapter
from xyreward.recipe.data import Data
from xyreward.recipe.processes import check_installed


def check_before_evaluation(config: Recipe) -> None:
    """What can be wrong with an evaluation and shows without loading the policy.

    Raises:
        ConfigError: a policy that does not exist or does not write, a revision of what has none.
        HubUnreachable: a policy that is neither on this machine nor to be had.
        JudgeError, MissingDependency: the judge cannot be loaded, or gives no labels.
    """
    policy = config.policy
    if place_of(policy.model) == "here":
        check_installed("accelerate", "scipy", "torch", "transformers")
        if is_adapter(policy.model, policy.revision):
            check_installed("peft")
        if Path(policy.model).is_dir() and not isinstance(config, RewardModelRecipe):
            check_writes(policy.model, policy.model)
        if policy.revision and (policy.model == POLICY_NAME or Path(policy.model).is_dir()):
            raise ConfigError(
                f"policy.revision: is {policy.revision!r}, but {policy.model!r} is no hub name and has "
                "none; take it out"
            )
    elif isinstance(config, EvaluateRecipe) and place_of(policy.model) == "api":
        remote_policy(config).asker.check_ready()
    if "writing" in config.evaluation.parts:
        judge = evaluation_judge(config)
        check_gives_labels(judge)
        if (check := getattr(judge, "check", None)) is not None:
            check([])  # its key and its store, before a model is loaded


def how_to_answer(config: Recipe) -> How:
    """How answers of the held-out evaluation are written."""
    wanted = config.evaluation
    return How(
        wanted.answers_per_item,
        wanted.temperature,
        wanted.max_new_tokens,
        wanted.batch_size,
        config.seed,
    )


def remote_policy(config: EvaluateRecipe) -> RemotePolicy:
    """The policy behind an API, on the bill of the run.

    Raises:
        ConfigError, JudgeError: see `RemotePolicy.load`.
    """
    options = {"run": config.bill, **config.policy_options}
    return RemotePolicy.load(config.policy.model, config.evaluation.temperature, **options)


def elsewhere(config: EvaluateRecipe, data: Data) -> RemotePolicy | FilePolicy:
    """The policy that does not answer in this process, once it is known that it can be asked all of it.

    Raises:
        ConfigError, DataError, JudgeError, StoreError: see `RemotePolicy`, `FilePolicy`.
    """
    if place_of(config.policy.model) == "api":
        policy = remote_policy(config)
        policy.estimate(data.held_out, how_to_answer(config))  # an item that no API takes
        return policy
    known = {"origin", "columns", "allow_missing"}
    if strange := sorted(config.policy_options.keys() - known):
        raise ConfigError(
            f"policy_options: a file of answers has no {', '.join(strange)}; known are "
            f"{', '.join(sorted(known))}"
        )
    return FilePolicy.load(
        config.policy.model, data.held_out, section="policy_options.", **config.policy_options
    )


def check_evaluation(config: Recipe, data: Data) -> None:
    """What can be wrong with evaluating these items and shows before anything is asked or generated.

    Raises:
        ConfigError, DataError, JudgeError, StoreError: a policy that cannot be asked them, a file without
            answers to some, a judge that cannot judge them, a kind of reference answer that none has.
    """
    wanted = config.evaluation
    if not wanted.parts:
        return
    if isinstance(config, EvaluateRecipe) and place_of(config.policy.model) != "here":
        elsewhere(config, data)
    if "writing" not in wanted.parts:
        return
    judge = evaluation_judge(config)
    if (check := getattr(judge, "check", None)) is not None:
        check(data.held_out)
    for kind in wanted.references:
        if not any(r.kind == kind for item in data.held_out for r in item.references):
            raise DataError(
                [
                    f"evaluation.references: none of the {len(data.held_out)} items has an answer of kind "
                    f"{kind}"
                ]
            )
    refuse_small_budget(judge, data.held_out, [longest_answer(config, 0)] * len(data.held_out))


def evaluation_judge(config: Recipe) -> Judge:
    """The judge of the held-out evaluation, with its options; its bill goes by the run's folder.

    Raises:
        JudgeError, MissingDependency: the judge cannot be loaded.
    """
    wanted = config.evaluation
    # Before and after, and every resumption, are one run: its budget holds for all of them.
    return load_judge(wanted.judge, **billed_to(wanted.judge, wanted.judge_options, config.bill))


def longest_answer(config: Recipe, n: int) -> str:
    """An answer of the longest length allowed, at four characters a token; `n` tells it from others."""
    return f"{n} " + "word " * (config.evaluation.max_new_tokens * 4 // 5)
