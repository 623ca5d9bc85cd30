"""A judge for Prime Intellect's `verifiers` (v1): this package's reward as a plugged judge.

Write a module of your environment that exports it, and plug that by its name:

    # xy_judge.py
    from xyreward.verifiers_judge import XYJudge

    __all__ = ["XYJudge"]

    [[taskset.task.judges]]
    id = "xy-judge"
    judge = "anthropic"
    judge_options = { budget_usd = 20 }

Or call it in a `@vf.reward` of a task: `await XYJudge(config).score(self.data, trace)`.

A task carries its item in a field `item` (a dict, or JSON), which `TaskData` subclasses declare. A judgement
that failed raises, so that verifiers errs the rollout and scores nothing; an empty reply is worth 0.

Needs `verifiers` (`xyreward[verifiers]`), whose `openai` is another than Inspect's: keep them apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import verifiers.v1 as vf
from pydantic import Field, ValidationError
from verifiers.v1.types import Usage

from xyreward.completions import Visible
from xyreward.errors import DataError, JudgeError
from xyreward.items import Item
from xyreward.judges import Judge, check_gives_labels, load_judge, refuse_batches
from xyreward.reward import Reward
from xyreward.scoring import Score, ascore

__all__ = ["XYJudge"]


class XYJudgeConfig(vf.JudgeConfig):
    """What a plugged judge is told. Of its base class only `id`, `name` and `weight` are used."""

    name: str = "xy"
    """Key of the reward in a trace."""
    model: str = ""
    """Not used: `judge` names who judges."""
    judge: str = "local"
    """A judge's name, as `xyreward.load_judge` takes it."""
    judge_options: dict[str, Any] = Field(default_factory=dict)
    """Of judges that ask a model."""
    soft: bool = True
    """Expectation under the judge's probabilities; False: of its labels."""
    item_field: str = "item"
    """The task's field with the item."""
    keep_thinking: bool = False
    """Judge what a reply has before </think> too."""


class XYJudge(vf.Judge[float, XYJudgeConfig]):
    """The reward of a rollout's last reply, in [0, 1], higher is better."""

    async def score(self, task: vf.TaskData, trace: vf.Trace) -> float:
        """Judge the last reply; parts of the reward and labels become metrics of the trace.

        Raises:
            JudgeError: there is no verdict, or the judge cannot be loaded.
            ConfigError: message batches are asked for, which take up to a day.
            DataError: the task has no item.
        """
        config = self.config
        item = item_of(task, config.item_field)
        judge = _judge(config.judge, json.dumps(config.judge_options, sort_keys=True))
        visible = Visible(thinking=None) if config.keep_thinking else Visible()
        reply = visible(trace.last_reply)
        score = await ascore(item, reply, judge, Reward(soft=config.soft))
        _record(trace, config.name, score)
        if score.reward is None:
            assert score.failure is not None
            raise JudgeError(
                f"no verdict on a reply to item {item.id!r}: {score.failure.kind}: "
                f"{score.failure.detail[:300]}"
            )
        trace.record_metrics({f"{config.name}_{name}": v for name, v in score.metrics.items()})
        return score.reward


def item_of(task: vf.TaskData, field: str) -> Item:
    """The item that a task carries.

    Raises:
        DataError: it carries none.
    """
    found = getattr(task, field, None)
    if isinstance(found, Item):
        return found
    try:
        if isinstance(found, str):
            return Item.model_validate_json(found)
        if isinstance(found, Mapping):
            return Item.model_validate(dict(found))
    except ValidationError as error:
        raise DataError([f"the task's field {field!r} is no item: {error}"]) from None
    raise DataError(
        [
            f"the task's field {field!r} is {type(found).__name__}, expected an item as a dict or as JSON; "
            "give it with item.model_dump(mode='json'), or set item_field"
        ]
    )


def _record(trace: vf.Trace, name: str, score: Score) -> None:
    """Keep verdict or failure, and what it cost, also of a judgement that failed: it was billed."""
    outcome = score.verdict or score.failure
    assert outcome is not None
    record: dict[str, Any] = {"name": name, "judge": score.source}
    if score.verdict is not None:
        record |= {
            "rubric_version": score.verdict.rubric_version,
            "focus": score.verdict.focus,
            "reason": score.verdict.reason,
            "cached": score.verdict.cached,
        }
    else:
        assert score.failure is not None
        record |= {"failure": score.failure.kind, "detail": score.failure.detail}
    trace.info.setdefault("xyreward", []).append(record)
    used = outcome.usage
    if used.input_tokens or used.output_tokens:
        trace.extra_usage.append(
            Usage(
                prompt_tokens=used.input_tokens + used.cache_write_tokens,
                completion_tokens=used.output_tokens,
                cached_input_tokens=used.cache_read_tokens,
                cost=outcome.cost_usd,
            )
        )


@lru_cache(maxsize=8)
def _judge(name: str, options: str) -> Judge:
    # verifiers makes a judge per rollout; a local one takes seconds to load.
    given = json.loads(options)
    refuse_batches(given)
    judge = load_judge(name, **given)
    check_gives_labels(judge)
    return judge
