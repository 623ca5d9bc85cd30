"""A reward function for verl: `compute_score`, with verl's arguments and its dict of figures.

    reward.custom_reward_function.path=pkg://xyreward.verl_reward
    reward.custom_reward_function.name=compute_score
    +reward.custom_reward_function.reward_kwargs.judge=local

Data in verl's form are made by `xyreward pairs --formats verl`: their `ground_truth` is the item, as JSON.

verl has no word for "not judged". By default an answer without a verdict raises, which ends the training:
where the judge's own retries were of no use, that is the honest end. `on_failure=leave_out` gives NaN
instead, and `xy_judged` 0; then `algorithm.adv_estimator=grpo_judged` (`verl_advantage.py`) is needed, since
every other estimator makes NaN of the whole group. (The word is none that Hydra makes a number of.)

Not here: how answers are judged (`judges/`), what a user reads of an answer (`completions.py`).
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from xyreward.completions import Visible
from xyreward.errors import ConfigError, DataError, JudgeError
from xyreward.items import Item
from xyreward.judges import Judge, check_gives_labels, load_judge, refuse_batches
from xyreward.reward import Reward
from xyreward.scoring import ascore

FIGURES = (
    "solution",
    "focus",
    "misconception",
    "has_stated_solution",
    "has_intended_solution",
    "identifies_misconception",
)
"""Of `Score.metrics`; logged as `xy_<name>`."""

SETTINGS = ("judge", "judge_options", "soft", "on_failure", "thinking")
"""Keyword arguments of `compute_score` that are ours; verl has some of its own."""

_VISIBLE, _WHOLE = Visible(), Visible(thinking=None)


async def compute_score(
    data_source: str,  # noqa: ARG001  # verl's signature
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,  # noqa: ARG001
    *,
    judge: str | Judge = "local",
    judge_options: Mapping[str, Any] | None = None,
    soft: bool = True,
    on_failure: str = "raise",
    thinking: bool = False,
    **others: Any,
) -> dict[str, float]:
    """The reward of one answer, as verl calls for it.

    Args:
        data_source: of the row; not looked at.
        solution_str: the answer, decoded without special tokens.
        ground_truth: the item as JSON, as the column of that name in `xyreward pairs --formats verl`.
        extra_info: of the row; not looked at.
        judge: a judge's name. It is loaded once per process.
        judge_options: of judges that ask a model, e.g. `{budget_usd: 20, run: my-run}`.
        soft: expectation under the judge's probabilities; False: of its labels.
        on_failure: `raise`, or `leave_out` together with `algorithm.adv_estimator=grpo_judged`.
        thinking: judge what the answer has before </think> too.
        others: what else verl hands on; not looked at, but for misspelt names of the settings above.

    Returns:
        `score` in [0, 1], higher is better; `xy_judged` 1.0; parts of the reward and labels as `xy_...`. All
        answers have the same keys, as verl demands. Under `on_failure=leave_out` an answer without a
        verdict has NaN in each, and `xy_judged` 0.0.

    Raises:
        JudgeError: there is no verdict; says why.
        DataError: `ground_truth` is no item.
        ConfigError: `on_failure` is neither; a setting that is nearly one of these; message batches.
    """
    for name in others:
        if meant := difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.75):
            raise ConfigError(f"reward_kwargs.{name}: unknown; did you mean {meant[0]!r}?")
    if on_failure not in ("raise", "leave_out"):
        raise ConfigError(f"on_failure is {on_failure!r}, expected 'raise' or 'leave_out'")
    # As it is written: a mapping has no hash, and cannot be looked up among those read before.
    item = _item(ground_truth if isinstance(ground_truth, str) else repr(ground_truth))
    one = judge if not isinstance(judge, str) else _judge(judge, _plain(judge_options))
    answer = (_WHOLE if thinking else _VISIBLE)(solution_str)
    score = await ascore(item, answer, one, Reward(soft=soft))
    if score.reward is None:
        assert score.failure is not None
        if on_failure == "raise":
            raise JudgeError(
                f"no verdict on an answer to item {item.id!r}: {score.failure.kind}: "
                f"{score.failure.detail[:300]}. A failure is never a score; see that the judge answers, or "
                "leave such answers out with reward_kwargs.on_failure=leave_out and "
                "algorithm.adv_estimator=grpo_judged (docs/other_loops.md)"
            )
        return {
            "score": math.nan,
            "xy_judged": 0.0,
            **{f"xy_{name}": math.nan for name in FIGURES},
        }
    return {
        "score": score.reward,
        "xy_judged": 1.0,
        **{f"xy_{name}": score.metrics[name] for name in FIGURES},
    }


@lru_cache(maxsize=16_384)
def _item(ground_truth: str) -> Item:
    try:
        return Item.model_validate_json(ground_truth)
    except (ValidationError, TypeError) as error:
        raise DataError(
            [
                f"ground_truth is {ground_truth!r:.80}, expected an item as JSON, as `xyreward pairs "
                f"--formats verl` writes it ({type(error).__name__})"
            ]
        ) from None


def _plain(options: Mapping[str, Any] | None) -> str:
    # verl hands on what Hydra made of its configuration, which is a mapping and not hashable.
    return json.dumps(dict(options or {}), sort_keys=True, default=dict)


@lru_cache(maxsize=8)
def _judge(name: str, options: str) -> Judge:
    given = json.loads(options)
    refuse_batches(given)
    judge = load_judge(name, **given)
    check_gives_labels(judge)
    return judge
