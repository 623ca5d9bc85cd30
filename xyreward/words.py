"""Words that messages of all modules need: singular or plural, near misses, money; what says nothing."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable


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


def dollars(usd: float, unpriced: int, *, of: str = "call") -> str:
    """A sum of which some calls are no part, since nobody knows what they cost. Never 0 for those."""
    more = f"{unpriced:,} {noun(unpriced, of)} of unknown price"
    if unpriced and not usd:
        return f"unknown, for {more}"
    return f"{usd:,.4f}" + (f" and {more}" if unpriced else "")


def whole(text: str) -> str:
    """A text that UTF-8 has: half a surrogate pair, which models and servers leave, becomes a `?`."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def is_empty(answer: str) -> bool:
    """Whether an answer has nothing in it that a reader would see.

    Blanks, line ends, control characters, and what takes no ink: zero-width and other formats, fillers,
    variation selectors. A policy that learned to write those alone has written nothing.
    """
    return all(
        unicodedata.category(c) in _BLANK or c in _NO_INK or 0xE0100 <= ord(c) <= 0xE01EF
        for c in answer
    )


_BLANK = frozenset({"Cc", "Cf", "Zl", "Zp", "Zs"})
_NO_INK = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, range(0xFE00, 0xFE10)))
)
"""Joiners, fillers, an empty Braille pattern, variation selectors: letters, symbols or marks by category."""


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
