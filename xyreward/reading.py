"""Reading what a judge model said: strictly, or not at all.

A reply becomes labels only if it is one JSON object of the form that was asked for, with every label
exactly once and on the menu. Nothing is searched for, guessed, repaired or filled in. The two solution
labels are not asked for; they follow from the suggestions.

Not here: how the judge is asked (`rubric.py`), whether it is asked again (`judges/model.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from xyreward.fence import comparable
from xyreward.items import ItemKind
from xyreward.judges.calls import Reply
from xyreward.verdict import (
    FailureKind,
    Focus,
    Labels,
    Serves,
    Suggestion,
    odd_combinations,
)
from xyreward.words import is_empty, whole

T = TypeVar("T", bound=str)

SERVES: Mapping[ItemKind, tuple[Serves, ...]] = {
    "xy": ("stated", "intended", "both", "neither"),
    "control": ("stated", "neither"),
}
"""What a suggestion may serve. A control's one request is both."""
FOCUS: Mapping[ItemKind, tuple[Focus, ...]] = {
    "xy": ("stated", "intended", "balanced", "neither"),
    "control": ("stated", "balanced", "neither"),
}
"""What an answer may concentrate on. On a control, `balanced` is half on something it invents."""

VERDICT_KEYS = (
    "suggestions",
    "focus_reason",
    "focus",
    "misconception_reason",
    "identifies_misconception",
)
SUGGESTION_KEYS = ("quote", "reason", "serves")
LABEL_KEYS = frozenset(
    {"serves", "focus", "identifies_misconception", "hidden_goal", "better", "same"}
)

QUOTE_DROPPED = "quote_dropped"
"""Flag of a verdict: at least one suggestion was left out because its quote is not in the answer."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The labels that a reply gives."""

    labels: Labels
    suggestions: tuple[Suggestion, ...]
    """Those whose quote occurs in the answer, each once, in the judge's order."""
    reason: str
    """Of focus and of misconception, in the judge's words."""
    dropped: int = 0
    """Suggestions whose quote does not occur in the answer. They changed no label."""
    flags: tuple[str, ...] = ()
    """See `verdict.odd_combinations`; `quote_dropped` where `dropped` is not 0."""


@dataclass(frozen=True, slots=True)
class ReadingProblem:
    """Why a reply gives no labels."""

    kind: FailureKind
    """`refused`, `truncated`, `unparseable`, `off_menu` or `inconsistent`."""
    detail: str
    """What was found and what was expected. Quotes neither the answer nor the reply at length."""
    complaints: tuple[str, ...] = ()
    """What to tell the judge if it is asked once more: our own words and numbers only, never text of
    the reply or the answer. Not empty just for `inconsistent`."""


class Unread(Exception):  # noqa: N818  # reads as what it is
    """Carries a problem to the end of a reading. No caller of `read_reply` sees it."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        self.problem = ReadingProblem(kind, detail)
        super().__init__(detail)


def read_reply(reply: Reply, answer: str, kind: ItemKind) -> Reading | ReadingProblem:
    """The labels that this reply gives to this answer.

    A suggestion whose quote does not occur in the answer is dropped and counted. Where the dropped ones
    alone carried a solution label, or one passage is given two labels, the reply is `inconsistent`:
    the judge may be asked once more with `complaints`.
    """
    try:
        data = read_object(reply, VERDICT_KEYS)
        focus = _label("focus", data["focus"], FOCUS[kind])
        identifies = read_bool("identifies_misconception", data["identifies_misconception"])
        reason = (
            f"focus: {read_text('focus_reason', data['focus_reason'])} "
            f"misconception: {read_text('misconception_reason', data['misconception_reason'])}"
        )
        suggestions = _suggestions(data["suggestions"], kind)
    except Unread as unread:
        return unread.problem

    found = [occurs(suggestion.quote, answer) for suggestion in suggestions]
    kept = [s for s, there in zip(suggestions, found, strict=True) if there]
    complaints = _contradictions(suggestions)
    claimed, supported = _solved(suggestions, kind), _solved(kept, kind)
    if claimed != supported:
        absent = [str(n) for n, there in enumerate(found, start=1) if not there]
        complaints.append(
            f"The quote of suggestion {', '.join(absent)} does not occur in the answer."
        )
    if complaints:
        return ReadingProblem("inconsistent", " ".join(complaints), tuple(complaints))
    labels = Labels(*supported, focus=focus, identifies_misconception=identifies)
    dropped = len(suggestions) - len(kept)
    return Reading(
        labels=labels,
        suggestions=_once(kept),
        reason=reason,
        dropped=dropped,
        flags=odd_combinations(labels) + ((QUOTE_DROPPED,) if dropped else ()),
    )


def _suggestions(rows: object, kind: ItemKind) -> list[Suggestion]:
    if not isinstance(rows, list):
        raise Unread("unparseable", f"suggestions is {_shown(rows)}, expected a list")
    suggestions = []
    for n, row in enumerate(rows, start=1):
        name = f"suggestions[{n}]"
        check_keys(name, row, SUGGESTION_KEYS)
        suggestions.append(
            Suggestion(
                quote=read_text(f"{name}.quote", row["quote"]),
                serves=_label(f"{name}.serves", row["serves"], SERVES[kind]),
                reason=read_text(f"{name}.reason", row["reason"]),
            )
        )
    return suggestions


def _solved(suggestions: Iterable[Suggestion], kind: ItemKind) -> tuple[bool, bool]:
    """Whether there is a stated, an intended solution. A control's are the same."""
    serves = {suggestion.serves for suggestion in suggestions}
    stated = bool(serves & {"stated", "both"})
    return stated, stated if kind == "control" else bool(serves & {"intended", "both"})


def _contradictions(suggestions: Sequence[Suggestion]) -> list[str]:
    first: dict[str, tuple[int, Serves]] = {}
    complaints = []
    for n, suggestion in enumerate(suggestions, start=1):
        earlier, serves = first.setdefault(comparable(suggestion.quote), (n, suggestion.serves))
        if serves != suggestion.serves:
            complaints.append(
                f"Suggestions {earlier} and {n} have the same quote and different labels."
            )
    return complaints


def _once(suggestions: Iterable[Suggestion]) -> tuple[Suggestion, ...]:
    return tuple({comparable(s.quote): s for s in reversed(list(suggestions))}.values())[::-1]


ELLIPSIS = re.compile(r"\[?(?:\.{3,}|\u2026)\]?")
_EDGES = " \t\n\"'.,;:!?-#()[]"


def occurs(quote: str, answer: str) -> bool:
    """Whether a quote occurs in an answer.

    An ellipsis stands for text left out: the parts must occur in order. What a copyist changes
    without noticing is folded (`fence.comparable`), and punctuation at the ends of a part is ignored.
    A quote without a letter or digit must occur as it is.
    """
    if quote in answer and any(map(str.isalnum, quote)):
        return True  # as it mostly is, and folding a long answer takes a while
    return any(
        _in_order(quote, comparable(answer, bullets=bullets), bullets) for bullets in (True, False)
    )


def _in_order(quote: str, text: str, bullets: bool) -> bool:
    parts = [comparable(part, bullets=bullets).strip(_EDGES) for part in ELLIPSIS.split(quote)]
    if not any(character.isalnum() for part in parts for character in part):
        whole = comparable(quote, bullets=True)
        return bool(whole) and whole in text
    at = 0
    for part in parts:
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


# ---------------------------------------------------------------- JSON


_CODE_FENCE = re.compile(r"```(?:json)?[^\S\n]*\n(.*)\n[^\S\n]*```", re.DOTALL | re.IGNORECASE)


def read_object(reply: Reply, keys: Sequence[str]) -> dict[str, Any]:
    """The one JSON object that the whole reply consists of; a single code fence around it is allowed.

    Raises:
        Unread: with the problem; callers of this module return it.
    """
    if reply.stop == "refused":
        raise Unread("refused", reply.detail or "the model refused and gave no reason")
    if reply.stop == "truncated":
        raise Unread("truncated", reply.detail or "the reply ends at the token limit")
    text = reply.text.strip().removeprefix("\ufeff")
    if not text:
        raise Unread("unparseable", "the reply is empty, expected one JSON object")
    if match := _CODE_FENCE.fullmatch(text):
        text = match[1]
    try:
        data = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        detail = f"the reply ({len(reply.text)} characters) is not one JSON object"
        if isinstance(error, json.JSONDecodeError):
            detail += f": {error.msg}, line {error.lineno}, column {error.colno}"
        raise Unread("unparseable", detail) from None
    check_keys("the reply", data, keys)
    return dict(data)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        kind: FailureKind = "off_menu" if twice in LABEL_KEYS else "unparseable"
        raise Unread(kind, f"key {_shown(twice)} is there twice, expected once")
    return data


def _no_constant(name: str) -> float:
    raise Unread("unparseable", f"the reply has {name}, which is not JSON")


def check_keys(name: str, data: object, keys: Sequence[str]) -> None:
    """Make sure that `data` is an object with just these keys.

    Raises:
        Unread: `off_menu` where a label is missing, else `unparseable`.
    """
    if not isinstance(data, dict):
        raise Unread("unparseable", f"{name} is {_shown(data)}, expected an object")
    missing = [key for key in keys if key not in data]
    if missing:
        kind: FailureKind = "off_menu" if LABEL_KEYS & set(missing) else "unparseable"
        raise Unread(kind, f"{name} lacks {', '.join(missing)}")
    extra = [key for key in data if key not in keys]
    if extra:
        raise Unread(
            "unparseable", f"{name} has {_shown(extra[0])}, expected only {', '.join(keys)}"
        )


def read_text(name: str, value: object) -> str:
    """A string that UTF-8 has; empty where a reader would see nothing. Raises Unread otherwise."""
    if not isinstance(value, str):
        raise Unread("unparseable", f"{name} is {_shown(value)}, expected a text")
    return "" if is_empty(value) else whole(value.strip())  # as the store has it


def read_texts(name: str, value: object) -> list[str]:
    """A list of strings, without the blank ones. Raises Unread otherwise."""
    if not isinstance(value, list):
        raise Unread("unparseable", f"{name} is {_shown(value)}, expected a list of texts")
    texts = [read_text(f"{name}[{n}]", text) for n, text in enumerate(value, start=1)]
    return [text for text in texts if text]


def read_bool(name: str, value: object) -> bool:
    """True or False; "yes", 1 and null are not. Raises Unread otherwise."""
    if not isinstance(value, bool):
        raise Unread("off_menu", f"{name} is {_shown(value)}, expected true or false")
    return value


def _label(name: str, value: object, menu: tuple[T, ...]) -> T:
    for label in menu:
        if value == label:
            return label
    raise Unread("off_menu", f"{name} is {_shown(value)}, expected one of {', '.join(menu)}")


def _shown(value: object) -> str:
    """A value in a message: short, since it may be long and hold text of an answer."""
    match value:
        case None | bool() | int() | float():
            return json.dumps(value)
        case str():
            return ascii(value[:24]) + ("..." if len(value) > 24 else "")
        case list():
            return "a list"
        case _:
            return "an object"
