"""What is sent to a judge model, what comes back, and how a sending fails.

Everything that judges by asking a model agrees on these few types: the rubric makes a Call, an
Endpoint sends it once, the dispatcher decides how often and when, the store remembers the outcome.

Not here: what the text says (`rubric.py`), how a reply is read (`reading.py`), retries and limits
(`dispatch.py`), the two kinds of endpoint (`judges/anthropic.py`, `judges/chat.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Protocol

from xyreward.errors import JudgeError
from xyreward.verdict import FailureKind, Usage
from xyreward.words import whole

if TYPE_CHECKING:
    from xyreward.judges.preflight import EndpointCheck


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class _Same:
    """A mapping as the key of a cache: this very object, which is never changed."""

    __slots__ = ("it",)

    def __init__(self, it: Mapping[str, Any]) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.it is self.it

    def __hash__(self) -> int:
        return id(self.it)


# Both are the same for thousands of calls, and long.
_hash_of_prefix = lru_cache(maxsize=16)(_hash)


@lru_cache(maxsize=16)
def _hash_of_schema(schema: _Same) -> str:
    return _hash(json.dumps(schema.it, sort_keys=True))


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a judge model, complete, and the same wherever it is sent."""

    prefix: str
    """Instructions and worked examples: the same text for every call of one rubric and kind of item, so
    that prompt caching pays. The cache breakpoint ends it."""
    text: str
    """What differs: the query, the item's grounding and the answer, fenced and neutralised."""
    schema: Mapping[str, Any]
    """JSON schema of the reply. Sent where the endpoint has structured output. Never changed later."""
    max_tokens: int = 4096
    turns: tuple[tuple[Literal["user", "assistant"], str], ...] = ()
    """What was said between `prefix` and `text`: for a policy that is to answer a conversation."""
    seed: int | None = None
    """Of sampling, where an endpoint takes one. None: the server's own."""

    @property
    def hash(self) -> str:
        """sha256 of everything above, as 64 hex digits."""
        schema = _hash_of_schema(_Same(self.schema))
        parts = [_hash_of_prefix(self.prefix), schema, _hash(self.text), str(self.max_tokens)]
        if (
            self.turns or self.seed is not None
        ):  # no judge's call has them, and those keep their hash
            parts.append(_hash(json.dumps([self.turns, self.seed])))
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model said, unread. It was paid for, whatever it says."""

    text: str
    usage: Usage = field(default_factory=Usage)
    usage_reported: bool = True
    """False where the server did not count: the cost is then unknown, and not 0."""
    stop: Literal["end", "truncated", "refused"] = "end"
    detail: str = ""
    """Of a refusal: its category and explanation. Of a truncation: the limit."""
    model: str = ""
    """As the server names it: metadata, not part of any key."""
    request_id: str = ""
    has_text: bool = True
    """False where the server sent something else than text, which is not a model that says nothing."""

    def __post_init__(self) -> None:
        # As the store has it: what is made of a reply must not depend on where it was read from.
        for name in ("text", "detail", "model", "request_id"):
            object.__setattr__(self, name, whole(getattr(self, name)))


class CallError(Exception):
    """One sending that brought no reply. The dispatcher decides whether to send again."""

    def __init__(
        self,
        kind: FailureKind,
        detail: str,
        *,
        retry: bool,
        retry_after: float | None = None,
        overloaded: bool = False,
        possibly_billed: bool = False,
        pause_all: bool = False,
    ) -> None:
        self.kind: FailureKind = kind
        self.detail = detail
        """Status, type and message of the server; no key, no header, no text of ours."""
        self.retry = retry
        self.retry_after = retry_after
        """Seconds that the server asked to wait, uncapped. None where it did not say."""
        self.overloaded = overloaded
        """429 and its like: fewer calls at a time, please."""
        self.pause_all = pause_all
        """529: the service as a whole is overloaded; nobody of us should call for a while."""
        self.possibly_billed = possibly_billed
        """The request was sent and its reply was lost: the server may have charged for it."""
        super().__init__(f"{kind}: {detail}")


class JudgeStopped(JudgeError):  # noqa: N818  # reads as what it is
    """No further call can succeed: wrong key, unknown model, spent limit. Stops the run at once.

    What was judged and paid for until then is in the store.
    """


class Endpoint(Protocol):
    """Where calls are sent. It sends once: no retry, no limit, no cache."""

    @property
    def name(self) -> str:
        """The judge's name, as `load_judge` takes it."""
        ...

    @property
    def model(self) -> str:
        """The model as it is asked for; what the price file is searched for."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """What besides the call decides the reply (effort, thinking, schema mode): part of the key.

        No URL and no key: a changed port must not empty the store.
        """
        ...

    @property
    def settled(self) -> bool:
        """Whether `parameters` can be read; else `settle()` comes first."""
        ...

    @property
    def possible_parameters(self) -> Sequence[Mapping[str, Any]]:
        """`parameters` if settled, else all that `settle` may lead to, likeliest first.

        A store can be searched with these before anything is sent.
        """
        ...

    @property
    def base_url(self) -> str:
        """Metadata of verdicts, without credentials."""
        ...

    def check_key(self) -> None:
        """Make sure that there is a key where one is needed. Sends nothing.

        Raises:
            JudgeStopped: there is none; says where it is looked for.
        """
        ...

    async def settle(self) -> Usage:
        """Find out, once, what the server can do. Returns the tokens that it cost.

        Raises:
            CallError: no answer in time.
            JudgeStopped: no call can succeed.
        """
        ...

    async def send(self, call: Call, *, timeout: float) -> Reply:
        """Send once and wait at most `timeout` seconds.

        Raises:
            CallError: no reply; says whether another try may help.
            JudgeStopped: no further call can succeed.
        """
        ...

    async def check(self, call: Call, *, timeout: float = 60.0) -> EndpointCheck:
        """Send a call twice before a long job and tell what was found. Raises for no failure."""
        ...

    async def aclose(self) -> None:
        """Let go of connections of this event loop."""
        ...
