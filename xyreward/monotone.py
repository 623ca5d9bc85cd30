"""A rising map of one number to another, fitted to pairs of them: the scale of a reward model to a judge's.

Not here: what is mapped (`judges/reward_model.py`), how far the result is from the judge (`reward_model.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TILT = 0.01
"""Share of a plain S-curve in the map, so that it rises everywhere: isotonic regression alone is made of
steps, and answers that a model tells apart would have one reward, which teaches nothing."""


@dataclass(frozen=True, slots=True)
class MonotoneMap:
    """Strictly rising, from any number into [0, 1]: lines between knots, with a little of an S-curve.

    Raises:
        ValueError: knots that do not rise, or values outside [0, 1].
    """

    knots: tuple[float, ...]
    """Rising; at least one."""
    values: tuple[float, ...]
    """At the knots, in [0, 1], not falling. Beyond the ends they go on flat."""
    centre: float
    """Of the S-curve, in the unit of the knots."""
    width: float
    """Of the S-curve, > 0."""

    def __post_init__(self) -> None:
        numbers = (*self.knots, *self.values, self.centre, self.width)
        if (
            not self.knots
            or len(self.knots) != len(self.values)
            or not all(map(math.isfinite, numbers))
            or any(b <= a for a, b in zip(self.knots, self.knots[1:], strict=False))
            or any(b < a for a, b in zip(self.values, self.values[1:], strict=False))
            or not 0 <= self.values[0] <= self.values[-1] <= 1
            or self.width <= 0
        ):
            raise ValueError(
                "expected rising knots with values in [0, 1] that do not fall, and a width above 0"
            )

    def __call__(self, number: float) -> float:
        """The value there, in [0, 1].

        Raises:
            ValueError: not a finite number.
        """
        if not math.isfinite(number):
            raise ValueError(f"is {number}, expected a finite number")
        lines = float(np.interp(number, self.knots, self.values))
        curve = 0.5 + 0.5 * math.tanh((number - self.centre) / (2 * self.width))
        return (1 - TILT) * lines + TILT * curve

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "knots": list(self.knots),
            "values": list(self.values),
            "centre": self.centre,
            "width": self.width,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MonotoneMap:
        """The inverse of `to_dict`.

        Raises:
            ValueError, TypeError, KeyError: it is no such map.
        """
        return cls(
            tuple(map(float, data["knots"])),
            tuple(map(float, data["values"])),
            float(data["centre"]),
            float(data["width"]),
        )


def fit(numbers: Sequence[float], values: Sequence[float]) -> MonotoneMap:
    """The map by isotonic regression, with lines between the centres of its steps.

    Each step of the regression becomes one knot, at the mean of the numbers that it is made of (Oron and
    Flournoy 2017, doi:10.1080/19466315.2017.1286256), whereby the map is no worse and has no steps.

    Args:
        numbers: length N >= 1, finite.
        values: length N, in [0, 1].

    Raises:
        ValueError: nothing to fit, lengths that differ, or a number that is not finite.
    """
    x, y = np.asarray(numbers, dtype=float), np.asarray(values, dtype=float)
    if len(x) == 0 or len(x) != len(y) or not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError(
            f"{len(x)} numbers and {len(y)} values, expected as many, some, and finite"
        )
    from sklearn.isotonic import IsotonicRegression

    fitted = IsotonicRegression(y_min=0.0, y_max=1.0, increasing=True).fit_transform(x, y)
    # A rounding error apart is one step.
    steps = np.unique(np.round(fitted, 12))
    knots = [float(x[np.round(fitted, 12) == step].mean()) for step in steps]
    spread = float(np.std(x))
    return MonotoneMap(
        tuple(knots), tuple(map(float, steps)), float(np.median(x)), spread if spread > 0 else 1.0
    )
