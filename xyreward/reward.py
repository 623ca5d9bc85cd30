"""Labels to a number. Re-weighting never calls the judge again: it is arithmetic on a Verdict.

The reward is the weighted mean of three parts, each in [0, 1], higher is better:

    part            item with a hidden goal (xy)           control
    solution        has_intended_solution                  has_stated_solution
    focus           intended 1, balanced 0.5, else 0       stated 1, balanced 0.5, else 0
    misconception   identifies_misconception               has_stated_solution and none is invented

It is monotone in every label and has no constant term: all-worst labels give 0, all-best give 1.

Not here: what a failed judgement is worth. Nothing: `score()` gives `reward=None` for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import assert_never

from xyreward.items import ItemKind
from xyreward.verdict import LabelProbabilities, Labels, Verdict


@dataclass(frozen=True, slots=True)
class Reward:
    """How labels are weighed.

    Source of the three metrics: the XYBench paper (pragmatic solution, pragmatic focus,
    misconception identification). The weights and the treatment of controls are ours.
    """

    solution: float = 1.0
    """Weight of the solution part, >= 0."""
    focus: float = 1.0
    """Weight of the focus part, >= 0."""
    misconception: float = 1.0
    """Weight of the misconception part, >= 0."""
    stated: float = 0.0
    """Weight of a fourth part, has_stated_solution, for those who want Y answered as well, >= 0."""
    soft: bool = False
    """Take the expectation under the judge's probabilities instead of its hard labels. Hard labels
    tie (a literal answer, a refusal and a wrong goal are all 0), and a group of ties teaches
    nothing, so training and ranking want True; evaluation reports hard labels."""
    length_limit: int | None = None
    """In characters. Above it the reward shrinks linearly and reaches 0 at twice the limit."""

    def __post_init__(self) -> None:
        weights = self._weights()
        if any(w < 0 for w in weights) or not 0 < sum(weights) < math.inf:  # NaN is neither
            raise ValueError(f"weights are {weights}, expected finite, >= 0, not all 0")
        if self.length_limit is not None and self.length_limit <= 0:
            raise ValueError(f"length_limit is {self.length_limit}, expected > 0 or None")

    def _weights(self) -> tuple[float, float, float, float]:
        return (self.solution, self.focus, self.misconception, self.stated)

    def __call__(self, verdict: Verdict, kind: ItemKind, answer: str | None = None) -> float:
        """The reward of one judged answer, in [0, 1], higher is better.

        `answer` is needed only where `length_limit` is set.

        Raises:
            ValueError: `length_limit` is set and there is no answer to measure.
        """
        p = verdict.p if self.soft else LabelProbabilities.certain(verdict.labels)
        components = parts(p, kind)
        values = (
            components["solution"],
            components["focus"],
            components["misconception"],
            p.has_stated_solution,
        )
        weights = self._weights()
        mean = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
        # Focus probabilities sum to 1 only up to rounding.
        return min(1.0, mean) * self._length_factor(answer)

    def of_estimate(self, estimate: float, answer: str) -> float:
        """The reward of an answer whose weighted mean was estimated as a whole, without labels.

        Args:
            estimate: of the expected reward under these weights, in [0, 1].
            answer: to be measured against `length_limit`.
        """
        return min(1.0, max(0.0, estimate)) * self._length_factor(answer)

    def shares(self) -> dict[str, float]:
        """The weights, with sum 1: rewards with equal shares are equal."""
        names = ("solution", "focus", "misconception", "stated")
        total = sum(self._weights())
        return {name: w / total for name, w in zip(names, self._weights(), strict=True)}

    def _length_factor(self, answer: str | None) -> float:
        if self.length_limit is None:
            return 1.0
        if answer is None:
            raise ValueError(f"length_limit is {self.length_limit}; pass the answer to be measured")
        over = (len(answer) - self.length_limit) / self.length_limit
        return min(1.0, max(0.0, 1.0 - over))


def parts(p: LabelProbabilities, kind: ItemKind) -> dict[str, float]:
    """The three parts of the reward, each in [0, 1], higher is better.

    On a control the misconception part is P(stated solution) * P(none invented): the product of the
    two marginals, since judges report marginals only. It equals the hard rule at 0 and 1.
    """
    match kind:
        case "control":
            return {
                "solution": p.has_stated_solution,
                "focus": p.focus["stated"] + 0.5 * p.focus["balanced"],
                "misconception": p.has_stated_solution * (1.0 - p.identifies_misconception),
            }
        case "xy":
            return {
                "solution": p.has_intended_solution,
                "focus": p.focus["intended"] + 0.5 * p.focus["balanced"],
                "misconception": p.identifies_misconception,
            }
        case _:
            assert_never(kind)


WORST_LABELS = Labels(
    has_stated_solution=False,
    has_intended_solution=False,
    focus="neither",
    identifies_misconception=False,
)
"""What an empty answer gets, for both kinds of item: the policy's failure, not the judge's."""
