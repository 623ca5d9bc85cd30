"""What differs between two settings in JSON, for messages that refuse to go on with another job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

LONGEST = 120
"""Characters of a value in a message."""


def differences(old: Any, new: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The innermost settings that differ, with both values: of a long nest only that can be read.

    A nest against nothing is each of its settings against None.
    """
    if old is None and isinstance(new, Mapping) and new:
        old = {}
    if new is None and isinstance(old, Mapping) and old:
        new = {}
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            inner = f"{name}.{key}" if name else str(key)
            yield from differences(old.get(key), new.get(key), inner)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, now) in enumerate(zip(old, new, strict=True)):
            inner = name if len(old) == 1 else f"{name}[{number}]"
            yield from differences(before, now, inner)
    elif old != new:
        yield name, old, new


def was_and_is(old: Any, new: Any) -> str:
    """Both values of a setting: `was 448, is None`."""
    return f"was {_shown(old)}, is {_shown(new)}"


def _shown(value: Any) -> str:
    text = repr(value)
    if re.fullmatch("'[0-9a-f]{64}'", text):
        return f"{text[:13]}...'"  # a hash: nobody reads more of it
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
