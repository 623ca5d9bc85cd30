"""JSON as the standard has it, from files that others wrote.

Python's parser takes NaN, turns 1e999 into infinity, and of a key that is given twice keeps the last
without a word. Here the first two are errors, and `Twice` keeps note of the third, so that a reader
can say in which row it is.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

MAX_DEPTH = 64
"""Objects and lists inside each other. Data has less than ten; Python itself gives up at some hundred."""


class TooDeepError(ValueError):
    """Nested more than `MAX_DEPTH` deep."""


class Twice(dict[str, Any]):
    """An object of which some keys were given more than once."""

    keys_given_twice: tuple[str, ...] = ()


def parse_json(text: str) -> Any:
    """Read JSON.

    Raises:
        ValueError: with what is wrong. `TooDeepError` is one.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refused,
            parse_float=_float,
            parse_int=_int,
        )
    except RecursionError:
        raise TooDeepError(_TOO_DEEP) from None


def faults(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What reading left wrong in a row: its place (`references.0.text`), and what it is.

    A row without faults is safe to walk recursively.
    """
    if isinstance(row, Twice):
        yield from ((key, _TWICE) for key in row.keys_given_twice)
    for column, value in row.items():
        left: list[tuple[Any, str, int]] = [(value, column, 1)]
        while left:
            here, place, depth = left.pop()
            if depth > MAX_DEPTH:
                yield column, _TOO_DEEP
                break
            if isinstance(here, Twice):
                yield from ((f"{place}.{key}", _TWICE) for key in here.keys_given_twice)
            if isinstance(here, Mapping):
                left += ((below, f"{place}.{key}", depth + 1) for key, below in here.items())
            elif isinstance(here, (list, tuple)):
                left += ((below, f"{place}.{n}", depth + 1) for n, below in enumerate(here))


_TWICE = "is there twice, expected once"
_TOO_DEEP = f"is nested more than {MAX_DEPTH} deep"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    twice = Twice(found)
    twice.keys_given_twice = tuple(k for k, n in Counter(k for k, _ in pairs).items() if n > 1)
    return twice


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number in JSON, expected null")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text:.20} is too large a number")
    return value


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # Python's limit, whose message would advise to lift it
        raise ValueError(f"{text:.20}... is a number of {len(text)} digits") from None
