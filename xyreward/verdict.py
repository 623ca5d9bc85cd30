"""What a judge says of one answer: a Verdict or a JudgeFailure. Only a Verdict becomes a number.

Not here: how labels become a reward (`reward.py`), how judges reach them (`judges/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, SupportsFloat, get_args

Focus = Literal["stated", "intended", "balanced", "neither"]
FOCUS_VALUES: tuple[Focus, ...] = get_args(Focus)

Serves = Literal["stated", "intended", "both", "neither"]

FailureKind = Literal[
    "transport",
    "rate_limited",
    "timeout",
    "refused",
    "truncated",
    "unparseable",
    "off_menu",
    "inconsistent",
    "over_budget",
]
FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)


@dataclass(frozen=True, slots=True)
class Labels:
    """The four labels of one answer (paper: presence twice, emphasis, identification)."""

    has_stated_solution: bool
    """The answer contains a usable way to do what was literally asked, or says why it cannot be
    done."""
    has_intended_solution: bool
    """The answer contains a usable way to the goal behind the question."""
    focus: Focus
    """What the answer as a whole concentrates on. `neither` is ours; the paper has the other
    three."""
    identifies_misconception: bool
    """It steers to the intended request while discouraging or avoiding the stated approach."""

    def __post_init__(self) -> None:
        for name in ("has_stated_solution", "has_intended_solution", "identifies_misconception"):
            value = getattr(self, name)
            # "no" is true, None is false, and numpy's bool cannot be written as JSON.
            if not isinstance(value, bool):
                raise TypeError(
                    f"{name} is {value!r} ({type(value).__name__}), expected True or False; "
                    "convert what came from elsewhere with bool(...)"
                )
        if self.focus not in FOCUS_VALUES:
            raise ValueError(f"focus is {self.focus!r}, expected one of {', '.join(FOCUS_VALUES)}")


@dataclass(frozen=True, slots=True)
class LabelProbabilities:
    """How sure the judge is: a fitted head's estimate, shares of votes, 0 or 1 for one call."""

    has_stated_solution: float
    """P(yes), in [0, 1]."""
    has_intended_solution: float
    """P(yes), in [0, 1]."""
    focus: Mapping[Focus, float]
    """P of each focus; all four present, sums to 1."""
    identifies_misconception: float
    """P(yes), in [0, 1]."""

    def __post_init__(self) -> None:
        for name in ("has_stated_solution", "has_intended_solution", "identifies_misconception"):
            object.__setattr__(self, name, _probability(name, getattr(self, name)))
        focus = {name: _probability(f"focus[{name!r}]", p) for name, p in self.focus.items()}
        if set(focus) != set(FOCUS_VALUES) or abs(sum(focus.values()) - 1) > 1e-6:
            raise ValueError(
                f"focus probabilities are {focus}, expected all of {', '.join(FOCUS_VALUES)}, "
                "with sum 1"
            )
        object.__setattr__(self, "focus", focus)

    @classmethod
    @lru_cache(
        maxsize=64
    )  # there are 32 combinations, and every answer scored asks for two of them
    def certain(cls, labels: Labels) -> LabelProbabilities:
        """Probabilities 0 and 1 that say just what `labels` say."""
        return cls(
            has_stated_solution=float(labels.has_stated_solution),
            has_intended_solution=float(labels.has_intended_solution),
            focus={name: float(name == labels.focus) for name in FOCUS_VALUES},
            identifies_misconception=float(labels.identifies_misconception),
        )


def _probability(name: str, value: object) -> float:
    if type(value) is float and 0 <= value <= 1:  # the usual case; the protocol below is slow
        return value
    # Also makes a plain float of numpy's, which JSON cannot write. NaN fails the comparison.
    if not isinstance(value, SupportsFloat) or not 0 <= (p := float(value)) <= 1:
        raise ValueError(f"{name} is {value!r}, expected a probability in [0, 1]")
    return p


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One piece of advice found in the answer and the request that it serves."""

    quote: str
    serves: Serves
    reason: str = ""
    """Why, in the judge's words."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a judgement cost. All zero for a judge that runs in this process."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The labels of one answer and where they came from."""

    labels: Labels
    p: LabelProbabilities
    judge: str
    """Name of the judge, as `load_judge` takes it. A number is only comparable within one judge."""
    rubric_version: str
    """Version and hash of the rubric text or of the fitted head. Never pool different ones
    unsaid."""
    suggestions: tuple[Suggestion, ...] = ()
    reason: str = ""
    grounded: bool = True
    """False where the intended request was inferred by a model and did not come with the item."""
    votes: int = 1
    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = 0.0
    """US dollars. None where the price is unknown, which is not the same as free."""
    cached: bool = False
    flags: tuple[str, ...] = ()
    """Odd but possible combinations of labels, kept and named; see `odd_combinations`."""

    @property
    def has_stated_solution(self) -> bool:
        """See `Labels`."""
        return self.labels.has_stated_solution

    @property
    def has_intended_solution(self) -> bool:
        """See `Labels`."""
        return self.labels.has_intended_solution

    @property
    def focus(self) -> Focus:
        """See `Labels`."""
        return self.labels.focus

    @property
    def identifies_misconception(self) -> bool:
        """See `Labels`."""
        return self.labels.identifies_misconception


@dataclass(frozen=True, slots=True)
class JudgeFailure:
    """An answer that was not judged. Never a score: rewards give None, evaluation counts it."""

    kind: FailureKind
    detail: str
    """What was found and what was expected, for a person to read."""
    raw_text: str | None = None
    """The judge's reply as it came, kept because it was paid for and is the only way to find the
    cause."""
    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = 0.0

    def __post_init__(self) -> None:
        if self.kind not in FAILURE_KINDS:
            raise ValueError(f"kind is {self.kind!r}, expected one of {', '.join(FAILURE_KINDS)}")


def odd_combinations(labels: Labels) -> tuple[str, ...]:
    """Name combinations that a reader would stumble over. They are possible, so they are kept.

    An answer can concentrate on diagnosing the goal without a complete solution for it.
    """
    flags = []
    if labels.focus == "intended" and not labels.has_intended_solution:
        flags.append("focus_intended_without_intended_solution")
    if labels.focus == "stated" and not labels.has_stated_solution:
        flags.append("focus_stated_without_stated_solution")
    if labels.focus == "balanced" and not (
        labels.has_stated_solution and labels.has_intended_solution
    ):
        flags.append("focus_balanced_without_both_solutions")
    if labels.identifies_misconception and labels.focus == "stated":
        flags.append("misconception_identified_with_focus_stated")
    return tuple(flags)
