"""Ends a training whose judge fails: all processes in the same step, with a checkpoint.

    guard = JudgeGuard([function], max_failure_rate=0.2)
    trainer = GRPOTrainer(..., reward_funcs=function, callbacks=[guard])
    trainer.train()
    guard.check()       # raises JudgeUnreliable where the judge ended it

Not here: waiting out an outage, counting (`scorer.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback

from xyreward.errors import ConfigError, JudgeUnreliable
from xyreward.scorer import Scorer
from xyreward.trl_rewards import RewardFunction

WINDOW = 10
"""Steps over which the failure rate is taken."""
LEAST_JUDGED = 32
"""Judgements in that window below which a rate says little: 1 of 4 is no sign of a bad night."""


class JudgeGuard(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Looks after every step at what became of the judgements in all processes.

    The step in which the judge failed is in the checkpoint. Its completions had the advantage 0, so that only
    the optimizer's momentum moved the weights.
    """

    def __init__(
        self,
        functions: Sequence[RewardFunction],
        *,
        max_failure_rate: float = 0.2,
        window: int = WINDOW,
    ) -> None:
        """Watch the judge of these functions.

        Args:
            functions: of a trainer; those that share a scorer count once.
            max_failure_rate: in [0, 1]; a higher share of failed judgements ends the run.
            window: steps over which it is taken; more where these have fewer than 32 judgements.
        """
        self.max_failure_rate = max_failure_rate
        self._scorers: list[Scorer] = list({id(f.scorer): f.scorer for f in functions}.values())
        self._steps = window
        self._window: deque[tuple[int, int]] = deque()
        self.stopped: str | None = None
        """Why the run was ended, the same in all processes; None where it was not."""
        for scorer in self._scorers:
            scorer.guarded = True

    def check(self) -> None:
        """Raise JudgeUnreliable in every process where the judge ended the run."""
        if self.stopped is not None:
            raise JudgeUnreliable(self.stopped)

    def on_train_begin(self, args: Any, _state: Any, _control: Any, **_: Any) -> None:
        """See that processes do not give each other up while one waits out an outage.

        Raises:
            ConfigError: `max_outage_s` is not below half of the process group's timeout.
        """
        longest = max(scorer.scoring.max_outage_s for scorer in self._scorers)
        if args.world_size > 1 and longest >= args.ddp_timeout / 2:
            raise ConfigError(
                f"max_outage_s is {longest:g} s, but processes wait {args.ddp_timeout:g} s for each other "
                "(ddp_timeout), and a judgement takes time beside the outage; expected less than half of that"
            )

    def on_step_end(self, args: Any, _state: Any, control: Any, **_: Any) -> None:
        """End the run where the judge cannot go on, or fails too often."""
        counts = [scorer.take_counts() for scorer in self._scorers]
        reasons = [one.stopped for one in counts if one.stopped is not None]
        here = [sum(c.judged for c in counts), sum(c.failed for c in counts), len(reasons)]
        judged, failed, stopped = _summed(here, args.device)
        self._window.append((judged, failed))
        # Steps of two completions would never come to LEAST_JUDGED, and one that never judges not be seen.
        while len(self._window) > self._steps and (
            sum(n for n, _ in self._window) - self._window[0][0] >= LEAST_JUDGED
        ):
            self._window.popleft()
        if stopped:
            self.stopped = reasons[0] if reasons else "the judge stopped in another process"
        else:
            self.stopped = self._too_many()
        if self.stopped is not None:
            control.should_training_stop = control.should_save = True

    def _too_many(self) -> str | None:
        judged = sum(n for n, _ in self._window)
        failed = sum(n for _, n in self._window)
        if judged < LEAST_JUDGED or failed <= self.max_failure_rate * judged:
            return None
        return (
            f"{failed} of {judged} judgements of the last {len(self._window)} steps failed, above "
            f"max_failure_rate={self.max_failure_rate:g}"
        )


def _summed(numbers: Sequence[int], device: Any) -> list[int]:
    """Sums over all processes."""
    import torch
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return list(numbers)
    total = torch.tensor(numbers, dtype=torch.int64, device=device)
    distributed.all_reduce(total)
    return [int(n) for n in total.tolist()]
