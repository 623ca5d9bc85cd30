"""Item: one question with a hidden goal (or a control without one), its grounding, and known answers.

Not here: reading items from files or a hub (`loading.py`), which side of a split they are on (`splits.py`).
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from xyreward.verdict import Focus, Labels

ItemKind = Literal["xy", "control"]
"""`xy`: the goal differs from what is asked. `control`: what is asked is what is wanted."""

AnswerKind = Literal[
    "goal_focused",
    "literal",
    "balanced",
    "passing_mention",
    "dump",
    "clarify_only",
    "refusal",
    "wrong_goal",
    "direct",
    "overcorrecting",
]
ANSWER_KINDS: tuple[AnswerKind, ...] = get_args(AnswerKind)

CONTROL_KINDS: frozenset[AnswerKind] = frozenset({"direct", "overcorrecting"})
XY_KINDS: frozenset[AnswerKind] = frozenset(ANSWER_KINDS) - CONTROL_KINDS

DEFAULT_LABELS: Mapping[AnswerKind, Labels] = MappingProxyType(
    {
        #                      stated, intended, focus, misconception
        "goal_focused": Labels(False, True, "intended", True),
        "literal": Labels(True, False, "stated", False),
        "balanced": Labels(True, True, "balanced", True),
        "passing_mention": Labels(True, True, "stated", False),
        "dump": Labels(True, True, "neither", False),
        "clarify_only": Labels(False, False, "neither", False),
        "refusal": Labels(False, False, "neither", False),
        "wrong_goal": Labels(False, False, "neither", False),
        "direct": Labels(True, True, "stated", False),
        "overcorrecting": Labels(False, False, "neither", True),
    }
)
"""The labels that a kind of answer has unless its text departs from them."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Message(_Frozen):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class ReferenceLabels(_Frozen):
    """The four labels of a reference answer, as a person set them. See `verdict.Labels`."""

    has_stated_solution: bool
    has_intended_solution: bool
    focus: Focus
    identifies_misconception: bool

    def as_labels(self) -> Labels:
        return Labels(**self.model_dump())


class Reference(_Frozen):
    """An answer to the item's query whose kind, labels or author are known."""

    text: str = Field(min_length=1)
    kind: AnswerKind | None = None
    labels: ReferenceLabels | None = None
    """None where nobody labelled it. Never inferred from `kind`."""
    origin: str = ""
    """Who or what wrote it: `human`, a model's name, a data set's name."""
    author: str | None = None
    licence: str | None = None
    unsafe: bool = False
    """Following this answer could hurt someone. It may be a rejected answer, never a chosen one."""


class Item(_Frozen):
    """One row of a benchmark. Immutable; equal queries have equal `content_hash`."""

    id: str = Field(min_length=1)
    query: str | tuple[Message, ...]
    """What the user wrote, or a conversation that ends with the user's turn."""
    kind: ItemKind = "xy"
    source: str = ""
    domain: str = ""
    language: str = "en"
    """ISO 639-1."""
    stated_request: str
    """What the user literally asked for (paper: S-request; blog: Y)."""
    intended_request: str
    """The goal that an expert infers (paper: I-request; blog: X). A control's equals `stated_request`."""
    misconception: str = ""
    """Why the stated request will not get the user to the goal. Empty for a control."""
    stated_solutions: tuple[str, ...] = ()
    """Ways to do what was asked, or why it cannot be done. A control's serve as both."""
    intended_solutions: tuple[str, ...] = ()
    """Ways to the goal. Empty for a control."""
    references: tuple[Reference, ...] = ()
    group: str | None = None
    """Items of one group are never put on different sides of a split."""
    meta: Mapping[str, Any] = Field(default_factory=dict)
    """Columns of the source that have no field here, and `hub_split` where it had one."""

    @field_validator("query")
    @classmethod
    def _query_says_something(cls, query: str | tuple[Message, ...]) -> str | tuple[Message, ...]:
        if isinstance(query, str):
            if not query.strip():
                raise ValueError("query is empty, expected what the user wrote")
        elif not query or query[-1].role != "user" or not query[-1].content.strip():
            raise ValueError("query is a conversation whose last turn is not a user's text")
        return query

    @model_validator(mode="after")
    def _kind_fits_fields(self) -> Item:
        if not self.stated_request.strip() or not self.intended_request.strip():
            raise ValueError("stated_request and intended_request must say something")
        if self.kind == "control":
            if self.intended_request != self.stated_request:
                raise ValueError("a control's intended_request must equal its stated_request")
            if self.misconception or self.intended_solutions:
                raise ValueError("a control has no misconception and no intended_solutions")
        allowed = CONTROL_KINDS if self.kind == "control" else XY_KINDS
        for reference in self.references:
            if reference.kind is not None and reference.kind not in allowed:
                raise ValueError(
                    f"a {self.kind} item has a reference of kind {reference.kind!r}, "
                    f"expected one of {', '.join(sorted(allowed))}"
                )
        return self

    @cached_property
    def query_text(self) -> str:
        """The query as one string; turns of a conversation are separated by blank lines."""
        if isinstance(self.query, str):
            return self.query
        return "\n\n".join(message.content for message in self.query)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The query as chat messages, as chat templates take them."""
        if isinstance(self.query, str):
            return [{"role": "user", "content": self.query}]
        return [message.model_dump() for message in self.query]

    @cached_property
    def content_hash(self) -> str:
        """sha256 of the query's text, white space folded. The rubric is left out on purpose: correcting
        a typo in a solution must not move the item to another side of a split."""
        return text_hash(self.query_text)

    def reference(self, kind: AnswerKind) -> Reference | None:
        """The first reference answer of this kind, or None."""
        return next((r for r in self.references if r.kind == kind), None)


def text_hash(text: str) -> str:
    """sha256 (hex) of a text after Unicode NFC and with runs of white space folded to one space."""
    folded = " ".join(unicodedata.normalize("NFC", text).split())
    return hashlib.sha256(folded.encode("utf-8", "surrogatepass")).hexdigest()


def items_hash(items: tuple[Item, ...] | list[Item]) -> str:
    """sha256 (hex) over everything in the items, order ignored: names a data set in reports."""
    lines = sorted(item.model_dump_json() for item in items)
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()
