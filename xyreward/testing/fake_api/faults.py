"""What can go wrong with an API, by name, and when it does.

    Faults({"529": 0.1, "reset_after": 0.05})     by chance, per request
    Faults.mix(0.3)                               30 % of requests, all passing kinds alike
    Faults(script=["429", None, "prose"])         the first three requests, then none
    Faults(choose=lambda body, seen: "500" if seen == 0 else None)   the first try of each request

Not here: how each fault looks on the wire (`server.py`) and in a reply (`replies.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

STATUS_FAULTS: tuple[str, ...] = (
    "400",  # invalid_request_error
    "401",  # authentication_error
    "403",  # permission_error
    "404",  # not_found_error: the model
    "408",  # timeout_error
    "409",  # conflict_error
    "413",  # request_too_large
    "429",  # rate_limit_error without a Retry-After header
    "429_retry_after",  # with one: Faults.retry_after seconds
    "429_spend_limit",  # with error.details.error_code, as a contract's limit has it
    "500",  # api_error
    "502_html",  # a proxy's page instead of the API's JSON
    "529",  # overloaded_error
    "no_schema",  # 400, but only when the request asks for structured output
)
"""The server answers at once and with an error. Nothing is billed."""

CONNECTION_FAULTS: tuple[str, ...] = (
    "reset_before",  # connection reset before the request is taken: not billed
    "reset_after",  # taken, billed, and reset instead of the reply: billed and lost
    "truncated_body",  # half of the HTTP body, then the connection closes: billed and lost
    "broken_json",  # a whole HTTP body that is half a JSON document: billed and lost
    "hang",  # taken, billed, and never answered: billed and lost when the client leaves
    "slow_body",  # the HTTP body in ten pieces over Faults.slow_s seconds: billed, delivered
)
"""The connection misbehaves."""

REPLY_FAULTS: tuple[str, ...] = (
    "prose",  # a sentence where JSON was asked for
    "cut_text",  # half of the JSON text, and stop_reason says that it ended
    "max_tokens",  # half of the JSON text, stop_reason max_tokens
    "refusal",  # stop_reason refusal with Faults.refusal_category, no text
    "empty",  # no content at all
    "wrong_label",  # the last label is off its menu
    "missing_label",  # the last label is not there
    "duplicate_label",  # the last label is there twice, with different values
    "duplicate_key",  # the first key is there twice, with the same value
    "wrong_quote",  # the first quote does not occur in the answer
    "contradiction",  # the first quoted entry is there twice, with different labels
)
"""A reply that is billed and delivered, and not what was asked for. The last five change a JSON
reply with labels (enum or boolean) or quotes; a reply without any becomes prose."""

FAULTS: tuple[str, ...] = STATUS_FAULTS + CONNECTION_FAULTS + REPLY_FAULTS

STOPPING: tuple[str, ...] = ("401", "403", "404", "429_spend_limit", "no_schema")
"""After these no further request of the kind can succeed. A mix leaves them out."""

MIX: tuple[str, ...] = tuple(kind for kind in FAULTS if kind not in (*STOPPING, "hang"))
"""What `Faults.mix` mixes: all but `STOPPING` and `hang`, which costs a client's whole timeout."""

ROW_FAULTS: tuple[str, ...] = ("errored", "expired", *REPLY_FAULTS)
"""What can happen to one row of a message batch (`FakeAPI(batch_faults=...)`)."""

ENDPOINTS: tuple[str, ...] = ("messages", "chat", "count_tokens", "batches", "models")

Choose = Callable[[dict[str, Any], int], str | None]
"""(parsed request body, how often this very body was seen before) -> kind of fault or None."""


@dataclass(frozen=True)
class Faults:
    """Which requests go wrong and how. Without arguments: none.

    A script comes first, request by request as they arrive; then `choose`; then chance. Chance is
    drawn from the seed, the request's body and how often that body was seen, so a run with the same
    requests meets the same faults in whatever order they arrive, and a retry has a fate of its own.

    Raises:
        ValueError: an unknown kind, a chance outside [0, 1], chances that sum to more than 1.
    """

    chances: Mapping[str, float] = field(default_factory=dict)
    """Kind to probability, in [0, 1]; their sum is the share of requests with a fault."""
    script: Sequence[str | None] = ()
    """Kinds for the first requests in order of arrival; None is a request without a fault."""
    choose: Choose | None = None
    """Decides per request. It runs in the server's thread, one call at a time."""
    on: Sequence[str] = ("messages", "chat")
    """Endpoints that have faults, of `ENDPOINTS`. Faults of a reply happen to messages and chat only."""
    retry_after: float = 1.0
    """Seconds that `429_retry_after` asks for."""
    slow_s: float = 1.0
    """Seconds that `slow_body` takes."""
    refusal_category: str | None = "frontier_llm"
    """stop_details.category of `refusal`."""
    spend_limit: str = "contract_spend_limit_reached"
    """error_code of `429_spend_limit`."""

    def __post_init__(self) -> None:
        self._check(set(FAULTS) | set(ROW_FAULTS), (*FAULTS, *ROW_FAULTS[:2]))
        wrong = {kind: p for kind, p in self.chances.items() if not 0 <= p <= 1}
        total = sum(self.chances.values())
        if wrong or total > 1 + 1e-9:
            raise ValueError(
                f"chances of faults are {dict(self.chances)} (sum {total:g}); expected numbers in "
                "[0, 1] with a sum of at most 1"
            )
        if not_there := [name for name in self.on if name not in ENDPOINTS]:
            raise ValueError(f"on={not_there}: expected endpoints of {', '.join(ENDPOINTS)}")

    def check_kinds(self, *, of_rows: bool) -> None:
        """Raise ValueError for kinds that rows of a batch, or requests, cannot have."""
        known = ROW_FAULTS if of_rows else FAULTS
        self._check(set(known), known)

    def _check(self, known: set[str], named: Sequence[str]) -> None:
        unknown = [k for k in (*self.chances, *self.script) if k is not None and k not in known]
        if unknown:
            raise ValueError(
                f"faults {', '.join(map(repr, unknown))} are not known here; expected "
                f"{', '.join(named)}"
            )

    @classmethod
    def mix(cls, share: float, kinds: Sequence[str] = MIX, **fields: Any) -> Faults:
        """A share of all requests, in [0, 1], fails in one of `kinds`, each as likely as the others."""
        return cls({kind: share / len(kinds) for kind in kinds}, **fields)

    @classmethod
    def parse(cls, text: str) -> Faults:
        """Faults from a command line: `mix:0.3`, `529:0.1,prose:0.05`, `script:529,ok,prose`, ``.

        Raises:
            ValueError: the text is none of these.
        """
        if not text.strip():
            return cls()
        head, _, rest = text.partition(":")
        try:
            if head == "mix":
                return cls.mix(float(rest))
            if head == "script":
                return cls(
                    script=[None if k.strip() == "ok" else k.strip() for k in rest.split(",")]
                )
            parts = [part.strip().rpartition(":") for part in text.split(",")]
            return cls({kind: float(chance) for kind, _, chance in parts})
        except ValueError as problem:
            raise ValueError(
                f"faults {text!r}: {problem}; expected mix:0.3, or kind:chance,kind:chance, or "
                "script:kind,ok,kind"
            ) from None

    def draw(self, number: int, body: dict[str, Any], seen: int, chance: float) -> str | None:
        """The fault of one request, or None.

        Args:
            number: which request it is, in order of arrival, from 0.
            body: its parsed body.
            seen: how often this body arrived before.
            chance: a uniform number in [0, 1).
        """
        if number < len(self.script):
            return self.script[number]
        if self.choose is not None and (kind := self.choose(body, seen)) is not None:
            if kind not in FAULTS and kind not in ROW_FAULTS:
                raise ValueError(f"choose returned {kind!r}; expected None or {', '.join(FAULTS)}")
            return kind
        for kind, p in self.chances.items():
            if chance < p:
                return kind
            chance -= p
        return None
