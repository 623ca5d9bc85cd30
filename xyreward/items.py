"""Item: one question with a hidden goal, or a control without one, its grounding, known answers.

Not here: reading items from files or a hub (`loading.py`), which side of a split they are on
(`splits.py`).
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
)

from xyreward.verdict import Focus, Labels

ItemKind = Literal["xy", "control"]
"""`xy`: the goal differs from what is asked. `control`: what is asked is what is wanted."""
ITEM_KINDS: tuple[ItemKind, ...] = get_args(ItemKind)

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
    "attempt",
]
ANSWER_KINDS: tuple[AnswerKind, ...] = get_args(AnswerKind)

CONTROL_KINDS: frozenset[AnswerKind] = frozenset({"direct", "overcorrecting"})
BOTH_KINDS: frozenset[AnswerKind] = frozenset({"attempt"})
"""Of either kind of item: an answer without a usable solution, whether it tries or wanders."""
XY_KINDS: frozenset[AnswerKind] = frozenset(ANSWER_KINDS) - CONTROL_KINDS - BOTH_KINDS

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
        "attempt": Labels(False, False, "stated", False),
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
        """The same four labels as a judge's verdict has them."""
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

    @field_validator("text")
    @classmethod
    def _text_says_something(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("is blank, expected the answer's text")
        return text


def _query_form(query: object) -> str:
    return "messages" if isinstance(query, (list, tuple)) else "text"


# Tagged, so that a bad query is reported once, for the form it has, and not once for either form.
Query = Annotated[
    Annotated[str, Tag("text")] | Annotated[tuple[Message, ...], Tag("messages")],
    Discriminator(_query_form),
]


class Item(_Frozen):
    """One row of a benchmark. Immutable (`meta`: by convention). Equal queries hash equally."""

    id: str = Field(min_length=1)
    query: Query
    """What the user wrote, or a conversation that ends with the user's turn."""
    kind: ItemKind = "xy"
    source: str = ""
    domain: str = ""
    language: str = "en"
    """ISO 639-1."""
    stated_request: str
    """What the user literally asked for (paper: S-request; blog: Y)."""
    intended_request: str
    """The goal that an expert infers (paper: I-request; blog: X). A control's equals
    `stated_request`."""
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

    # Every check belongs to one field, so that pydantic goes on after the first and a bad row is
    # told all that is wrong with it. Fields are checked in the order above; one that failed is not
    # in `data`.

    @field_validator("query")
    @classmethod
    def _query_says_something(cls, query: str | tuple[Message, ...]) -> str | tuple[Message, ...]:
        if isinstance(query, str):
            if not query.strip():
                raise ValueError("is empty, expected what the user wrote")
        elif not query or query[-1].role != "user" or not query[-1].content.strip():
            raise ValueError("is a conversation whose last turn is not a user's text")
        return query

    @field_validator("stated_request", "intended_request")
    @classmethod
    def _requests_say_something(cls, request: str, info: ValidationInfo) -> str:
        if not request.strip():
            raise ValueError("is empty, expected a sentence that says what is wanted")
        stated = info.data.get("stated_request", request)
        if (
            info.field_name == "intended_request"
            and info.data.get("kind") == "control"
            and request != stated
        ):
            raise ValueError(
                f"differs from stated_request ({stated!r:.60}); a control's are equal, "
                "since what is asked is what is wanted"
            )
        return request

    @field_validator("misconception", "intended_solutions")
    @classmethod
    def _control_has_no_hidden_goal(cls, value: Any, info: ValidationInfo) -> Any:
        if value and info.data.get("kind") == "control":
            raise ValueError("is given, but a control has none; expected it empty, or kind 'xy'")
        return value

    @field_validator("stated_solutions", "intended_solutions")
    @classmethod
    def _solutions_say_something(cls, solutions: tuple[str, ...]) -> tuple[str, ...]:
        blank = [str(n) for n, text in enumerate(solutions, start=1) if not text.strip()]
        if blank:
            raise ValueError(f"has blank texts (number {', '.join(blank)}); leave them out")
        return solutions

    @field_validator("references")
    @classmethod
    def _references_fit_kind(
        cls, references: tuple[Reference, ...], info: ValidationInfo
    ) -> tuple[Reference, ...]:
        if "kind" not in info.data:
            return references
        allowed = (CONTROL_KINDS if info.data["kind"] == "control" else XY_KINDS) | BOTH_KINDS
        wrong = {r.kind for r in references if r.kind is not None} - allowed
        if wrong:
            raise ValueError(
                f"has {' and '.join(sorted(wrong))}, but those of {info.data['kind']} items are "
                f"{', '.join(sorted(allowed))}"
            )
        return references

    def __hash__(self) -> int:
        # pydantic's own would hash `meta`, which is a dict. Equal items have equal source and id.
        return hash((self.source, self.id))

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
        """sha256 of the query's text, white space folded.

        The rubric is left out on purpose: correcting a typo in a solution must not move the item to
        another side of a split.
        """
        return text_hash(self.query_text)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As pydantic's; a copy with another query does not keep what was worked out from this one."""
        copied = super().model_copy(update=update, deep=deep)
        if update and "query" in update:
            for name in ("query_text", "content_hash"):
                copied.__dict__.pop(name, None)
        return copied

    @property
    def bare(self) -> bool:
        """Whether only the query is known: a model has to infer what it is after (`Item.of_query`)."""
        return self.kind == "xy" and self.stated_request.strip() == self.intended_request.strip()

    @property
    def inferred(self) -> bool:
        """Whether a model inferred the requests and solutions from the query."""
        return (
            self.meta.get("inferred") is True
        )  # a source's column of this name says something else

    @property
    def is_grounded(self) -> bool:
        """Whether the item itself says what is wanted. Verdicts on others are never averaged with its own."""
        return not (self.bare or self.inferred)

    @classmethod
    def of_query(cls, query: str | Sequence[Mapping[str, str]]) -> Item:
        """An item of which only the query is known: what the user wrote, or chat messages.

        Raises:
            pydantic.ValidationError: it is empty, or does not end with a user's turn.
        """
        item = cls.model_validate(
            {"id": "query", "query": query, "stated_request": "?", "intended_request": "?"}
        )
        return item.model_copy(update={"id": f"query-{item.content_hash[:12]}"})

    def reference(self, kind: AnswerKind) -> Reference | None:
        """The first reference answer of this kind, or None."""
        return next((r for r in self.references if r.kind == kind), None)


def folded(text: str) -> str:
    """A text in Unicode NFC, runs of white space one space: texts that are equal then read the same."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def without_invisible(text: str) -> str:
    """A text without format characters: zero-width spaces, soft hyphens, marks of direction (category Cf).

    A reader does not see them, and they must not tell two texts apart.
    """
    if text.isascii():
        return text
    return "".join(c for c in text if c.isascii() or unicodedata.category(c) != "Cf")


def same_words(one: str, other: str) -> bool:
    """Whether two texts read the same but for case, white space and what is not seen."""
    return folded(without_invisible(one)).casefold() == folded(without_invisible(other)).casefold()


def text_hash(text: str) -> str:
    """sha256 (hex) of the `folded` text."""
    return hashlib.sha256(folded(text).encode("utf-8", "surrogatepass")).hexdigest()


def items_hash(items: Sequence[Item]) -> str:
    """sha256 (hex) over everything in the items, order ignored: names a data set in reports."""
    # Plain json and not pydantic's: keys of `meta` in any order are the same data, and `meta` may
    # hold what a Parquet file holds (dates, images).
    lines = sorted(json.dumps(item.model_dump(), sort_keys=True, default=repr) for item in items)
    return hashlib.sha256("\n".join(lines).encode("ascii")).hexdigest()
