"""Words that messages of all modules need: singular or plural, near misses, money, bounds, characters."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def noun(n: int, one: str, many: str | None = None) -> str:
    """The word for n things: `one` for exactly one, else `many`, by default `one` with an s. Of verbs too."""
    return one if n == 1 else many or f"{one}s"


def counted(n: int, one: str, many: str | None = None) -> str:
    """How many of what: `1 pair`, `1,200 pairs`."""
    return f"{n:,} {noun(n, one, many)}"


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` where a known name is close to what was given, else nothing."""
    close = difflib.get_close_matches(given, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def with_failures(bounds: Sequence[float] | None, unit: str, *, signed: bool = False) -> str:
    """From where to where a figure may lie for what failed: `with failures: 0 to 11`; nothing without bounds.

    Args:
        bounds: lowest and highest value. Which of them is the good one is the metric's to say.
        unit: of the metric; `%`: bounds are shares, and told in per cent.
        signed: as a change.
    """
    if not bounds:
        return ""
    scale, digits = (100, 0) if unit == "%" else (1, 0 if unit else 2)
    low, high = (f"{end * scale:{'+' if signed else ''}.{digits}f}" for end in bounds)
    return f"with failures: {low} to {high}"


def dollars(usd: float, unpriced: int, *, of: str = "call") -> str:
    """A sum of which some calls are no part, since nobody knows what they cost. Never 0 for those."""
    more = f"{unpriced:,} {noun(unpriced, of)} of unknown price"
    if unpriced and not usd:
        return f"unknown, for {more}"
    return f"{usd:,.4f}" + (f" and {more}" if unpriced else "")


def whole(text: str) -> str:
    """A text that UTF-8 has: half a surrogate pair, which models and servers leave, becomes a `?`."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def of_whom(name: str, *, two: bool) -> str:
    """Whose answers an evaluation is of, in words.

    Args:
        name: of the evaluation in a report: `before`, `after.oracle`, `reference.goal_focused`.
        two: whether there are a policy before and one after. `before` is else the only one.
    """
    first, _, rest = name.partition(".")
    rest = rest.replace("_", " ")
    if first == "reference" and rest:
        return f"reference: {rest}"
    if first == "before" and not two:
        first = "the policy"
    if not rest:
        return first
    return f"{first}, told the goal" if rest == "oracle" else f"{first}, {rest}"
