"""GRPO over judged answers, against the real verl; skipped where there is none."""

import asyncio
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed")

import torch
import verl
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, get_adv_estimator_fn
from verl.trainer.ppo.reward import get_custom_reward_fn

from xyreward.errors import JudgeError
from xyreward.testing import make_item
from xyreward.verl_advantage import judged_grpo

DOCS = Path(__file__).parent.parent / "docs/other_loops.md"

pytestmark = pytest.mark.filterwarnings("default")

MASK = torch.tensor([[1.0, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 1], [1, 1, 1], [1, 1, 0]])
GROUPS = np.array(["a", "a", "a", "b", "b", "b"], dtype=object)


def rewards(*last: float) -> torch.Tensor:
    """Of each answer at its last token, as verl has them."""
    found = torch.zeros(6, 3)
    for row, value in enumerate(last):
        found[row, int(MASK[row].sum()) - 1] = value
    return found


def test_without_failures_it_is_verls_own() -> None:
    given = rewards(0.0, 1.0, 0.5, 0.2, 0.2, 0.8)
    for norm in (True, False):
        ours, _ = judged_grpo(given, MASK, GROUPS, norm_adv_by_std_in_grpo=norm)
        theirs, _ = compute_grpo_outcome_advantage(
            given, MASK, GROUPS, norm_adv_by_std_in_grpo=norm
        )
        assert torch.equal(ours, theirs)


def test_answers_without_a_verdict_push_nowhere_and_move_nobody() -> None:
    ours, returns = judged_grpo(
        rewards(0.0, math.nan, 1.0, 0.3, math.nan, math.nan), MASK, GROUPS,
        norm_adv_by_std_in_grpo=False,
    )  # fmt: skip
    assert torch.equal(ours[0], torch.tensor([-0.5, -0.5, 0.0]))
    assert torch.equal(ours[2], torch.tensor([0.5, 0.0, 0.0]))
    assert torch.equal(ours[1], torch.zeros(3))
    # The only judged one of its group has nothing to be compared with; verl would push it by its reward.
    assert torch.equal(ours[3:], torch.zeros(3, 3))
    assert torch.equal(returns, ours)


def test_where_one_answer_is_sampled_it_is_verls_own() -> None:
    given = rewards(0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    alone = np.arange(6)
    ours, _ = judged_grpo(given, MASK, alone)
    theirs, _ = compute_grpo_outcome_advantage(given, MASK, alone)
    assert torch.equal(ours, theirs)


def test_none_judged() -> None:
    ours, _ = judged_grpo(rewards(*[math.nan] * 6), MASK, GROUPS)
    assert torch.equal(ours, torch.zeros(6, 3))


def test_a_trainer_finds_it_by_name() -> None:
    assert get_adv_estimator_fn("grpo_judged") is judged_grpo


def batch(last: list[float]) -> DataProto:
    return DataProto.from_dict(
        tensors={"token_level_rewards": rewards(*last), "response_mask": MASK},
        non_tensors={"uid": GROUPS},
    )


@pytest.mark.parametrize("norm", [True, False])
def test_the_trainer_tells_it_whether_to_divide_by_the_spread(norm: bool) -> None:
    from verl.trainer.ppo.ray_trainer import compute_advantage  # takes as long as all others

    config = configuration(f"algorithm.norm_adv_by_std_in_grpo={str(norm).lower()}").algorithm
    given = [0.0, 1.0, 0.5, 0.2, 0.2, 0.8]
    ours, theirs = (
        compute_advantage(
            batch(given), adv_estimator=name, norm_adv_by_std_in_grpo=norm, config=config
        ).batch["advantages"]
        for name in ("grpo_judged", "grpo")
    )
    assert torch.equal(ours, theirs)


def configuration(*overrides: str) -> DictConfig:
    """verl's own, as its command line makes it."""
    folder = Path(verl.__file__).parent / "trainer/config"
    with initialize_config_dir(str(folder), version_base=None):
        return compose("ppo_trainer", overrides=list(overrides))


class Tokenizer:
    """Letters."""

    def decode(self, ids: torch.Tensor, **_: Any) -> str:
        return bytes(ids.tolist()).decode()


def answered(text: str) -> DataProto:
    ids = torch.tensor([list(text.encode())])
    columns = {
        "data_source": "xyreward",
        "reward_model": {"ground_truth": make_item().model_dump_json()},
        "extra_info": {},
    }
    return DataProto.from_dict(
        tensors={"responses": ids, "attention_mask": torch.ones_like(ids)},
        non_tensors={name: np.array([value], dtype=object) for name, value in columns.items()},
    )


@pytest.mark.parametrize("manager", ["naive", "dapo", "gdpo"])
def test_verl_calls_the_reward_with_the_settings_that_the_documentation_shows(
    manager: str, tmp_path: Path
) -> None:
    labels = {
        "has_stated_solution": False,
        "has_intended_solution": True,
        "focus": "intended",
        "identifies_misconception": True,
    }
    script = tmp_path / "judge.jsonl"
    lines: list[dict[str, Any]] = [
        {"answer": "good", "labels": labels},
        {"answer": "late", "failure": "timeout", "detail": "x"},
    ]
    script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = re.findall(
        r"^    ('?\+?(?:reward|algorithm)\.\S+=.*)$", DOCS.read_text("utf-8"), re.MULTILINE
    )
    assert len(shown) == 6
    # As a shell hands them on; the documentation's judge needs a key, so another is put in its place.
    given = [line.replace("'", "") for line in shown if "judge" not in line.partition("=")[0]]
    judge = f"+reward.custom_reward_function.reward_kwargs.judge='scripted:{script}'"
    options = next(line.replace("'", "") for line in shown if ".judge_options=" in line)
    config = configuration(*given, judge, options)
    kwargs = config.reward.custom_reward_function.reward_kwargs
    assert dict(kwargs.judge_options) == {"budget_usd": 20, "run": "my-run", "processes": 8}
    assert config.algorithm.adv_estimator == "grpo_judged"
    kwargs.judge_options = {}  # a script takes none

    async def ask(text: str) -> dict[str, Any]:
        made = get_reward_manager_cls(manager)(config, Tokenizer(), get_custom_reward_fn(config))
        found: dict[str, Any] = await made.run_single(answered(text))
        return found

    good, late = asyncio.run(ask("good")), asyncio.run(ask("late"))
    assert good["reward_score"] == 1.0
    assert good["reward_extra_info"]["xy_judged"] == 1.0
    assert math.isnan(late["reward_score"])
    assert late["reward_extra_info"]["xy_judged"] == 0.0
    assert good["reward_extra_info"].keys() == late["reward_extra_info"].keys()
    kwargs.on_failure = "raise"
    with pytest.raises(JudgeError, match="timeout"):
        asyncio.run(ask("late"))
