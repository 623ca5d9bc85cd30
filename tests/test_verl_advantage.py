"""GRPO over judged answers, against the real verl; skipped where there is none."""

import math

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed")

import torch
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, get_adv_estimator_fn

from xyreward.verl_advantage import judged_grpo

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
