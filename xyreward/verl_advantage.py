"""GRPO's advantages for verl, over the answers that were judged.

    export VERL_USE_EXTERNAL_MODULES=xyreward.verl_advantage
    algorithm.adv_estimator=grpo_judged
    +reward.custom_reward_function.reward_kwargs.on_failure=leave_out

`verl_reward.compute_score` gives NaN where there is no verdict. Such answers are left out of their group's
mean and standard deviation, and their own advantage is 0: they push the policy nowhere. So is that of an
answer which is the only one judged of its group, as there is nothing to compare it with. The rest is verl's
own formula. Tokens of such answers still count in means over tokens, and a KL loss still acts on them.

Importing this module registers the estimator, which needs verl.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, register_adv_est


@register_adv_est("grpo_judged")
def judged_grpo(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Any,
    **settings: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, shape (B, T) each; 0 in rows that were not judged, or alone were.

    Args:
        token_level_rewards: shape (B, T); NaN somewhere in a row: it was not judged.
        response_mask: shape (B, T); 1 where a token is the policy's.
        index: length B; which group a row belongs to.
        settings: as verl's GRPO takes them (`norm_adv_by_std_in_grpo`, `config`, ...).
    """
    # verl's trainer tells an estimator that is not its own of this setting only by way of `config`.
    if (config := settings.get("config")) is not None:
        settings.setdefault("norm_adv_by_std_in_grpo", config.get("norm_adv_by_std_in_grpo", True))
    judged = (~torch.isnan(token_level_rewards).any(dim=-1)).cpu().numpy()
    in_group, of_judged = Counter(index), Counter(index[judged])
    # verl takes the only answer of a group for a baseline of 0, which is right where only one was sampled.
    compared = [
        j and (of_judged[g] > 1 or in_group[g] == 1) for j, g in zip(judged, index, strict=True)
    ]
    rows = torch.tensor(compared, device=token_level_rewards.device).nonzero(as_tuple=True)[0]
    advantages = torch.zeros_like(token_level_rewards)
    if len(rows):
        found, _ = compute_grpo_outcome_advantage(
            token_level_rewards[rows], response_mask[rows], index[rows.cpu().numpy()], **settings
        )
        advantages[rows] = found.to(advantages.dtype)
    return advantages, advantages
