"""What a run would do and what judging would cost, in lines of `--dry-run`. Sends nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xyreward.answering import Evaluated, FilePolicy, RemotePolicy, place_of, write
from xyreward.config import EvaluateRecipe, EvaluationConfig, GRPORecipe, PairsRecipe, Recipe
from xyreward.dispatch import world_size
from xyreward.evaluation import Condition, letter_questions, told_the_goal
from xyreward.items import Item
from xyreward.judges import described
from xyreward.pairs import PairSet
from xyreward.recipe.checks import elsewhere, evaluation_judge, how_to_answer, longest_answer
from xyreward.recipe.console import is_first, tell
from xyreward.recipe.data import Data
from xyreward.runs import RunFolder
from xyreward.which_items import is_whole_side, which_items
from xyreward.words import counted


def print_estimate(
    config: Recipe, data: Data, times: int, pairs: str | None = None, plan: Sequence[str] = ()
) -> None:
    """Print what a run would do, what judging would cost and how long it would take. Sends nothing.

    Of several processes the first prints it.

    Args:
        config: of the recipe.
        data: whose held-out items will be answered.
        times: how many policies are evaluated (2: before and after).
        pairs: a line on what the pairs would take.
        plan: further lines, of the training.
    """
    if not is_first():
        return
    wanted = config.evaluation
    dev = data.sides.select("dev")
    others = [
        f"{len(data.train)} train items: {_kinds(data.train)}",
        f"{len(dev)} dev items: {_kinds(dev)}",
    ]
    lines = [
        *([] if isinstance(config, EvaluateRecipe) else others),
        f"{len(data.held_out)} held-out items ({_named(wanted)}): {_kinds(data.held_out)}",
        *([pairs] if pairs else []),
        *plan,
        f"run folder: {RunFolder(Path(config.output_dir)).path}",
        *(f"warning: {warning}" for warning in control_warnings(config, data)),
    ]
    lines += estimates(config, data, times)
    for line in lines:
        tell(line)


def _named(wanted: EvaluationConfig) -> str:
    return wanted.split if is_whole_side(wanted) else which_items(wanted)


def estimates(config: Recipe, data: Data, times: int = 1) -> list[str]:
    """What answering and judging would take now, a line for each part. Sends nothing.

    Answers that are not written yet are taken at their longest; the judge's part is exact where all are
    there.
    """
    wanted, how, items = config.evaluation, how_to_answer(config), data.held_out
    if not wanted.parts:
        return ["nothing is evaluated"]
    policy: Evaluated | None = None
    if isinstance(config, EvaluateRecipe) and place_of(config.policy.model) != "here":
        policy = elsewhere(config, data)
    lines: list[str] = []
    judged: list[tuple[Item, str]] = []
    conditions: list[Condition] = ["writing", "oracle"] if wanted.oracle else ["writing"]
    for number, condition in enumerate(conditions if "writing" in wanted.parts else []):
        asked = items if condition == "writing" else [told_the_goal(item) for item in items]
        there = False
        if isinstance(policy, RemotePolicy):
            bill = policy.estimate(asked, how)
            there = not bill.calls
            lines.append(
                f"{condition}: {len(items) * how.answers_per_item} answers of {policy.name}: {bill}"
            )
        if there or isinstance(policy, FilePolicy):
            assert policy is not None
            answers = [
                (item, one.text)
                for item, several in zip(items, write(policy, asked, how), strict=True)
                for one in several
                if one.text is not None
            ]
            judged += answers
        else:
            judged += [
                (item, longest_answer(config, n))
                for item in items
                for n in range(number * 1000, number * 1000 + times * how.answers_per_item)
            ]
    if "picking" in wanted.parts and isinstance(policy, RemotePolicy):
        questions = letter_questions(items)
        lines.append(
            f"picking: {len(questions)} questions to {policy.name}: "
            f"{policy.estimate_letters(questions, how)}"
        )
    if "writing" not in wanted.parts:
        return [*lines, "no answer is judged"]
    for kind in wanted.references:
        judged += [(i, r.text) for i in items for r in i.references if r.kind == kind]
    judge = evaluation_judge(config)
    return [*lines, described(judge, [item for item, _ in judged], [text for _, text in judged])]


def _kinds(items: Sequence[Item]) -> str:
    controls = sum(item.kind == "control" for item in items)
    return f"{len(items) - controls} with a hidden goal, {counted(controls, 'control')}"


def planned_steps(settings: Any, pairs: int, what: str = "pairs") -> str:
    """A line on the steps of training on so many pairs (or of what they are), as the trainer counts them."""
    processes = world_size()
    at_once = (
        settings.per_device_train_batch_size * processes * settings.gradient_accumulation_steps
    )
    steps = settings.max_steps
    if steps <= 0:
        batches = math.ceil(pairs / (settings.per_device_train_batch_size * processes))
        of_epoch = max(1, math.ceil(batches / settings.gradient_accumulation_steps))
        steps = math.ceil(settings.num_train_epochs * of_epoch)
    return f"{steps} steps of {at_once} {what}, if all fit into max_length"


def control_warnings(config: Recipe, data: Data, pairs: PairSet | None = None) -> list[str]:
    """What a run without controls, or with too few, will lack, in sentences.

    Args:
        config: of the recipe.
        data: of the recipe.
        pairs: the pairs trained on, where they are known.
    """
    advice = "add {source: mini, kinds: [control]} to items"
    warned = []
    if isinstance(config, GRPORecipe) and config.prompts.control_share:
        controls = sum(item.kind == "control" for item in data.train)
        if controls < len(data.train) * config.prompts.control_share / 2:
            warned.append(
                f"prompts.control_share {config.prompts.control_share} asked, {controls} of the "
                f"{len(data.train)} train items are controls: it will learn to see a hidden goal in every "
                f"question; {advice}, or set prompts.control_share to 0"
            )
    if isinstance(config, PairsRecipe) and config.pairs.built is None:
        asked = config.pairs.control_share
        there = sum(item.kind == "control" for item in data.train)
        if asked and not there:
            warned.append(
                f"control_share {asked} asked, 0 controls there: it will learn to see a hidden goal in every "
                f"question; {advice}, or set pairs.control_share to 0"
            )
        elif asked and pairs is not None and pairs.control_share < asked / 2:
            warned.append(
                f"control_share {asked} asked, {pairs.control_share:.2f} of the pairs are of controls: too "
                f"few of the {there} controls have a direct and an overcorrecting answer; {advice}"
            )
    if "writing" in config.evaluation.parts and not any(i.kind == "control" for i in data.held_out):
        warned.append(
            f"no controls among the held-out items, so there will be no headline; {advice}"
        )
    return warned
