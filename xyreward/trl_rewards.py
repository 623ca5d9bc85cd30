"""Reward functions for TRL's trainers: GRPO, RLOO, and their asynchronous form.

    from xyreward.trl_rewards import prompt_rows, reward_function

    trainer = GRPOTrainer(
        model=...,
        reward_funcs=reward_function("anthropic:claude-sonnet-5-5", budget_usd=20),
        train_dataset=Dataset.from_list(prompt_rows(items)),
    )

    trl grpo --reward_funcs xyreward.trl_rewards.xy ...     # configured by XYREWARD_JUDGE, XYREWARD_REWARD

A failed judgement is None for the trainer, which leaves the completion out of its group's baseline and gives
it the advantage 0. It is never a number.

Not here: judging a batch (`scorer.py`), ending a run whose judge fails (`judge_guard.py`), docs/grpo.md says
what each trainer does with None.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import math
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Unpack, get_args

import numpy as np

from xyreward.completions import Completion, Visible
from xyreward.config import RewardConfig, load_config
from xyreward.dispatch import world_size
from xyreward.errors import ConfigError, DataError, JudgeError, printable
from xyreward.items import Item
from xyreward.judges import Judge, JudgeOptions, check_gives_labels
from xyreward.pairs.formats import row_of_item
from xyreward.reward import Reward, parts
from xyreward.scorer import Batch, Scorer, Scoring
from xyreward.scoring import EMPTY, Score, check_can_ground, run_sync
from xyreward.verdict import FAILURE_KINDS, FOCUS_VALUES, LabelProbabilities
from xyreward.words import is_empty

OnFailure = Literal["none", "raise", "drop_group"]
"""What a failed judgement is for the trainer.

none: None, for trainers that leave such completions out.
raise: an exception, for trainers that would take None for 0.
drop_group: all completions to the prompt get the mean of those that were scored, so that none of them has an
    advantage; for trainers that take no None but subtract the group's mean. A whole batch without a score is
    an exception.
"""

Rewards = list[float | None]
Metric = Literal["solution", "focus", "misconception"]

COMPONENTS: Mapping[Metric, str] = {
    "solution": "pragmatic_solution",
    "focus": "pragmatic_focus",
    "misconception": "misconception_identification",
}
"""Part of the reward -> name of its reward function, after the benchmark's metrics."""


class RewardFunction:
    """A reward function as TRL's trainers call one: asynchronous, picklable, with a name for their logs.

    In [0, 1], higher is better. Make one with `reward_function` or `component_functions`.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        name: str,
        metric: Metric | None = None,
        on_failure: OnFailure = "none",
        reports: bool = True,
    ) -> None:
        if on_failure not in get_args(OnFailure):
            raise ConfigError(
                f"on_failure is {on_failure!r}, expected one of {', '.join(get_args(OnFailure))}"
            )
        self.__name__ = name  # what TRL logs it under
        self.scorer = scorer
        self.metric = metric
        self.on_failure = on_failure
        self.reports = reports
        """It logs what is known of a batch. Of functions that share a scorer one does."""
        self.more: Mapping[str, float] = {}
        """Further metrics that are logged with every batch: those of the latest audit."""

    async def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Completion],
        log_extra: Callable[[str, list[Any]], object] | None = None,
        log_metric: Callable[[str, float], object] | None = None,
        **columns: Any,
    ) -> Rewards:
        """The rewards of N completions; see TRL's documentation of reward functions.

        Args:
            prompts: N texts or conversations.
            completions: N texts or lists of messages.
            log_extra: of the trainer, where it has it: columns of its table of completions.
            log_metric: of the trainer, where it has it.
            columns: of the data set, each N long, and whatever else the trainer gives.

        Raises:
            DataError: rows that are no items.
            XYRewardError: the judge cannot go on, and no `JudgeGuard` is among the trainer's callbacks;
                or a judgement failed, and `on_failure` says so.
        """
        batch = await self.scored(prompts, completions, columns)
        if self.reports:
            if log_metric is not None:
                found = values_of(batch)
                for name in self.measured:
                    # Alone it can say that nobody knows. Among others it would hide what they know.
                    for value in found[name] or ([math.nan] if world_size() == 1 else []):
                        log_metric(name, value)
                for name, value in self.more.items():  # the same in all processes
                    log_metric(name, value)
            if log_extra is not None:
                for name, values in columns_of(batch).items():
                    log_extra(name, values)
        rewards = [
            self._reward(item, score) for item, score in zip(batch.items, batch.scores, strict=True)
        ]
        return self._settled(rewards, batch)

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of what is logged of every batch: those of `values_of`, as far as its judge can fill them."""
        if self.scorer.gives_labels:
            return NAMES
        return tuple(name for name in NAMES if not name.startswith("labels/"))

    async def scored(
        self, prompts: Sequence[Any], completions: Sequence[Completion], columns: Mapping[str, Any]
    ) -> Batch:
        """The batch with its scores; judged once, however many functions ask."""
        return await self.scorer.score(prompts, completions, columns)

    def check(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Find what is wrong with a data set and the judge before training.

        Args:
            rows: of the data set, with a column `prompt`.

        Raises:
            DataError: rows that are no items.
            JudgeError, StoreError, MissingDependency: the judge cannot be loaded or cannot judge them.
        """
        if self.metric is not None:
            check_gives_labels(self.scorer.judge)
        names = set(rows[0]) if len(rows) else set()
        if names and "prompt" not in names:
            raise DataError(
                [
                    "the data set has no column 'prompt', which trainers answer; it has "
                    f"{', '.join(sorted(names))}. `prompt_rows(items)` makes such rows"
                ]
            )
        columns = {name: [row.get(name) for row in rows] for name in names - {"prompt"}}
        items = self.scorer.items([row["prompt"] for row in rows], columns)
        if any(item.bare for item in items):
            check_can_ground(self.scorer.judge)
        if (check := getattr(self.scorer.judge, "check", None)) is not None:
            check([item for item in items if not item.bare])

    def _reward(self, item: Item, score: Score) -> float | None:
        if self.metric is None or score.failure is not None:
            return score.reward if self.metric is None else None
        if score.verdict is None:
            check_gives_labels(self.scorer.judge)
            return None  # the judge stopped, and the run with it
        p = score.verdict.p
        if not self.scorer.scoring.reward.soft:
            p = LabelProbabilities.certain(score.verdict.labels)
        return min(1.0, parts(p, item.kind)[self.metric])

    def _settled(self, rewards: Rewards, batch: Batch) -> Rewards:
        if self.on_failure == "none" or None not in rewards:
            return rewards
        scored = [reward for reward in rewards if reward is not None]
        if self.on_failure == "raise" or not scored:
            failed = ", ".join(f"{kind} {n}" for kind, n in batch.failures.items())
            raise JudgeError(
                f"{self.__name__}: {len(rewards) - len(scored)} of {len(rewards)} completions could not be "
                f"judged ({failed}), and the trainer takes no missing rewards "
                f"(on_failure={self.on_failure!r})"
            )
        groups: dict[str, list[int]] = defaultdict(list)
        for i, item in enumerate(batch.items):
            groups[item.content_hash].append(i)
        for rows in groups.values():
            of_group = [reward for i in rows if (reward := rewards[i]) is not None]
            if len(of_group) < len(rows):
                mean = sum(of_group or scored) / len(of_group or scored)
                for i in rows:
                    rewards[i] = mean
        return rewards


def reward_function(
    judge: str | Judge = "local",
    *,
    reward: Reward | None = None,
    columns: Mapping[str, str] | None = None,
    visible: Visible | None = None,
    on_failure: OnFailure = "none",
    max_outage_s: float = 600.0,
    name: str = "xyreward",
    **judge_options: Unpack[JudgeOptions],
) -> RewardFunction:
    """One composite reward from one verdict per completion: what to give a trainer as `reward_funcs`.

    The data set has a column `prompt` and those of an item (`prompt_rows`); with none of them the judge
    infers what each prompt is after. Nothing is loaded or opened until the first batch.

    Args:
        judge: a name that `load_judge` knows, or a judge.
        reward: how labels become a number. None: `Reward(soft=True)`, since hard labels tie.
        columns: field of an item -> column of the data set, where their names differ.
        visible: which part of a completion is judged. None: without thinking and calls of tools.
        on_failure: what a failed judgement is for the trainer.
        max_outage_s: how long an outage of the judge is waited out. All processes wait with it, so it must be
            well below the process group's timeout; `JudgeGuard` sees to that.
        name: in the trainer's logs.
        judge_options: see `load_judge`.

    Raises:
        ConfigError: an impossible setting.
    """
    scoring = Scoring(
        judge, dict(judge_options), reward or Reward(soft=True), visible or Visible(), columns or {},
        max_outage_s,
    )  # fmt: skip
    return RewardFunction(Scorer(scoring), name=name, on_failure=on_failure)


def component_functions(
    judge: str | Judge = "local",
    *,
    soft: bool = True,
    columns: Mapping[str, str] | None = None,
    visible: Visible | None = None,
    on_failure: OnFailure = "none",
    max_outage_s: float = 600.0,
    **judge_options: Unpack[JudgeOptions],
) -> list[RewardFunction]:
    """One reward function for each of the three metrics, from the same verdict: one call per completion.

    Use them with `multi_objective_aggregation="normalize_then_sum"`, which weighs metrics of unlike spread
    alike. See `reward_function` for the arguments.

    Args:
        soft: take probabilities and not hard labels.
    """
    scoring = Scoring(
        judge, dict(judge_options), Reward(soft=soft), visible or Visible(), columns or {}, max_outage_s
    )  # fmt: skip
    return functions_of(Scorer(scoring), components=True, on_failure=on_failure)


class OnlyIfJudged:
    """Another reward function whose rewards are None where the judge's are."""

    def __init__(self, other: Callable[..., Any], judged: RewardFunction) -> None:
        self.other = other
        self.judged = judged
        while isinstance(other, functools.partial):
            other = other.func
        self.__name__: str = getattr(other, "__name__", type(other).__name__)

    async def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Completion], **columns: Any
    ) -> Rewards:
        """Rewards as the other function gives them, None where the completion could not be judged.

        Raises:
            ValueError: the other function returned another number of rewards.
        """
        batch, given = await asyncio.gather(
            self.judged.scored(prompts, completions, columns),
            _called(self.other, prompts=prompts, completions=completions, **columns),
        )
        if len(given) != len(completions):
            raise ValueError(
                f"{self.__name__} returned {len(given)} rewards for {len(completions)} completions"
            )
        return [
            None if score.reward is None else reward
            for score, reward in zip(batch.scores, given, strict=True)
        ]


def only_if_judged(other: Callable[..., Any], judged: RewardFunction) -> OnlyIfJudged:
    """Wrap an additional reward of yours, so that a failed judgement leaves the whole completion out.

    TRL sums the rewards of a completion, and a None among numbers counts as 0: where the judge fails and a
    reward for, say, brevity does not, the completion would be taken for a bad one.

    Args:
        other: a reward function, plain or asynchronous. A plain one runs in a thread.
        judged: the function whose judge decides; it is asked once for both.
    """
    return OnlyIfJudged(other, judged)


class Blocking:
    """A reward function for trainers that cannot await one (online DPO, A*-PO)."""

    def __init__(self, function: RewardFunction) -> None:
        if function.on_failure == "none":
            raise ConfigError(
                f"{function.__name__}: a trainer that cannot await its reward function takes None for 0; "
                "make it with on_failure='raise', or 'drop_group' where the trainer subtracts a group's mean"
            )
        self.function = function
        self.__name__ = function.__name__

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> Rewards:
        """As `RewardFunction`, at once."""
        return run_sync(self.function(prompts, completions, **columns))


def blocking(function: RewardFunction) -> Blocking:
    """The same reward function for a trainer that cannot await one.

    Raises:
        ConfigError: its `on_failure` is "none", which such trainers take for 0.
    """
    return Blocking(function)


def prompt_rows(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Rows for a trainer's data set: prompts, and what completions to them are judged by."""
    return [row_of_item(item) for item in items]


# ---------------------------------------------------------------- what is logged

NAMES: tuple[str, ...] = (
    "judge/failure_rate",
    *(f"judge/failed/{kind}" for kind in FAILURE_KINDS),
    "judge/from_store",
    "judge/cost_usd",
    "judge/latency_p50_s",
    "judge/latency_p95_s",
    "judge/waited_s",
    "answers/characters",
    "answers/empty",
    "answers/distinct",
    "groups/equal_rewards",
    "labels/has_stated_solution",
    "labels/has_intended_solution",
    *(f"labels/focus_{focus}" for focus in FOCUS_VALUES),
    "labels/identifies_misconception",
)
"""What `values_of` finds."""


def values_of(batch: Batch) -> dict[str, list[float]]:
    """What is known of a batch, as values whose mean is the figure: one for each completion, judgement, ...

    The trainer takes their mean over all processes, each value counting as much as any other. A list is
    empty where this process knows nothing.

        judge/failure_rate, judge/failed/<kind>  share of completions, in [0, 1]
        judge/from_store                         share of the distinct judgements that were needed which the
                                                 store had, in [0, 1]; none is needed of an empty answer
        judge/cost_usd                           US dollars, of all processes; not a number where
                                                 any is unknown
        judge/latency_p50_s, judge/latency_p95_s seconds from sending to reply, of every reply: each vote has
                                                 one; 0 for one that the store had. Mean over processes. Of a
                                                 judge that counts no replies: until all were judged
        judge/waited_s                           seconds that the trainer waited; mean over processes
        answers/characters                       mean length of what was judged
        answers/empty                            share of completions with nothing to read, in [0, 1]
        answers/distinct                         distinct ones per completion of a process, in (0, 1]
        groups/equal_rewards                     share of prompts whose completions in one process have one
                                                 reward: they teach nothing, in [0, 1]
        labels/<label>                           share of judged completions, in [0, 1]
    """
    n = len(batch.scores)
    judged = [s.verdict for s in batch.scores if s.verdict is not None]
    kinds = [s.failure and s.failure.kind for s in batch.scores]
    groups: dict[str, list[float]] = defaultdict(list)
    for item, score in zip(batch.items, batch.scores, strict=True):
        of_group = groups[item.content_hash]
        if score.reward is not None:
            of_group.append(score.reward)

    def having(label: str, value: object = True) -> list[float]:
        return [float(getattr(v.labels, label) == value) for v in judged]

    return {
        "judge/failure_rate": [float(kind is not None) for kind in kinds],
        **{f"judge/failed/{kind}": [float(one == kind) for one in kinds] for kind in FAILURE_KINDS},
        "judge/from_store": [
            float(s.verdict is not None and s.verdict.cached)
            for s in batch.distinct
            if s.verdict is None or EMPTY not in s.verdict.flags
        ],
        # One value for each process, of whose mean the sum is made.
        "judge/cost_usd": [sum(map(_cost, batch.distinct)) * world_size()],
        "judge/latency_p50_s": _quantile(batch.latencies_s, 0.5),
        "judge/latency_p95_s": _quantile(batch.latencies_s, 0.95),
        "judge/waited_s": [batch.seconds],
        "answers/characters": [float(len(answer)) for answer in batch.answers],
        "answers/empty": [float(is_empty(answer)) for answer in batch.answers],
        "answers/distinct": [len(batch.distinct) / n],
        "groups/equal_rewards": [
            float(max(of, default=0.0) == min(of, default=0.0)) for of in groups.values()
        ],
        "labels/has_stated_solution": having("has_stated_solution"),
        "labels/has_intended_solution": having("has_intended_solution"),
        **{f"labels/focus_{focus}": having("focus", focus) for focus in FOCUS_VALUES},
        "labels/identifies_misconception": having("identifies_misconception"),
    }


def with_all_names(trainer: type[Any]) -> type[Any]:
    """A trainer of TRL that logs the same names in every step: None where no process knows the value.

    Without it a name is missing in such a step where there are several processes, of which none can tell
    that the others know no more than it does.

    Args:
        trainer: `GRPOTrainer`, `RLOOTrainer`, or a class made of one.
    """

    class WithAllNames(trainer):  # type: ignore[misc]
        def log(self, logs: dict[str, Any], *arguments: Any, **more: Any) -> None:
            if "loss" in logs:  # of a step, and not of an evaluation or the end
                names = [
                    name
                    for function in self.reward_funcs
                    if isinstance(function, RewardFunction) and function.reports
                    for name in (*function.measured, *function.more)
                ]
                logs = {**dict.fromkeys(names), **logs}  # TRL puts what it knows over them
            super().log(logs, *arguments, **more)

    WithAllNames.__name__ = trainer.__name__
    WithAllNames.__qualname__ = trainer.__qualname__
    return WithAllNames


def columns_of(batch: Batch) -> dict[str, list[Any]]:
    """Columns for the trainer's table of completions: the verdict, or why there is none."""
    verdicts = [score.verdict for score in batch.scores]
    return {
        **{
            label: [None if v is None else getattr(v.labels, label) for v in verdicts]
            for label in (
                "has_stated_solution",
                "has_intended_solution",
                "focus",
                "identifies_misconception",
            )
        },
        "judge_reason": [None if v is None else printable(v.reason) for v in verdicts],
        "judge_failure": [None if s.failure is None else s.failure.kind for s in batch.scores],
    }


def _cost(score: Score) -> float:
    """US dollars of one judgement; not a number where its price is unknown."""
    of = score.verdict or score.failure
    cost = 0.0 if of is None else of.cost_usd
    return float("nan") if cost is None else cost


def _quantile(values: Sequence[float], q: float) -> list[float]:
    return [float(np.quantile(values, q))] if values else []


async def _called(function: Callable[..., Any], **arguments: Any) -> Sequence[float | None]:
    plain: Any = function
    while isinstance(plain, functools.partial):
        plain = plain.func
    if inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(plain.__call__):
        work: Awaitable[Sequence[float | None]] = function(**arguments)
    else:
        work = asyncio.to_thread(function, **arguments)
    return await work


# ---------------------------------------------------------------- configured from outside


def scoring_of(config: RewardConfig, visible: Visible | None = None) -> Scoring:
    """What a recipe's section `reward` says of scoring.

    Args:
        config: the section.
        visible: None: as the section has it.

    Raises:
        ConfigError: an impossible setting.
    """
    try:
        reward = Reward(
            solution=config.solution,
            focus=config.focus,
            misconception=config.misconception,
            stated=config.stated,
            soft=config.soft,
            length_limit=config.length_limit,
        )
    except ValueError as error:
        raise ConfigError(f"reward: {error}") from None
    return Scoring(
        config.judge,
        config.judge_options,
        reward,
        visible or Visible(begun=config.thinking_begun),
        config.columns,
        config.max_outage_s,
    )


def functions_of(
    scorer: Scorer, *, components: bool, on_failure: OnFailure = "none"
) -> list[RewardFunction]:
    """The reward functions that share a scorer: the composite one, or one for each metric."""
    if not components:
        return [RewardFunction(scorer, name="xyreward", on_failure=on_failure)]
    return [
        RewardFunction(scorer, name=name, metric=metric, on_failure=on_failure, reports=n == 0)
        for n, (metric, name) in enumerate(COMPONENTS.items())
    ]


def scoring_from_environment() -> Scoring:
    """What XYREWARD_REWARD (a YAML file with the keys of a recipe's section `reward`) and XYREWARD_JUDGE say.

    The latter, the name of a judge, goes before the file's.

    Raises:
        ConfigError: see `load_config`.
    """
    path = os.environ.get("XYREWARD_REWARD")
    judge = os.environ.get("XYREWARD_JUDGE")
    overrides = [] if judge is None else [f"judge={json.dumps(judge)}"]
    flags = {"judge": "XYREWARD_JUDGE"} if overrides else {}
    return scoring_of(load_config(RewardConfig, path, overrides, flags))


xy = RewardFunction(Scorer(scoring_from_environment), name="xyreward")
"""For `trl grpo --reward_funcs xyreward.trl_rewards.xy`, which passes no arguments."""
