"""What an endpoint is asked before a long job: does it take a schema, does it answer, does it cache.

Not here: the endpoints' own questions (`judges/anthropic.py`, `judges/chat.py`), and whether the
replies are verdicts (`reading.py`).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    stop_before_delay,
    wait_random_exponential,
)

from xyreward.judges.calls import Call, CallError, Endpoint, JudgeStopped, Reply
from xyreward.judges.transport import SchemaMode, SchemaRefused
from xyreward.verdict import Usage


async def settle_schema(
    probe: Callable[[SchemaMode, float], Awaitable[Usage]], *, timeout: float
) -> tuple[SchemaMode, Usage]:
    """Ask for structured output with a tiny request; where that is refused, try without.

    Both must be told by the server itself: a lost connection or an overload says nothing about
    structured output, and is tried again until `timeout` seconds have passed.

    Raises:
        CallError: no answer within the time, or one that has nothing to do with the question.
        JudgeStopped: no call can succeed.
    """
    jitter = wait_random_exponential(multiplier=0.2, max=5.0)

    refusals = 0

    def again(state: RetryCallState) -> bool:
        nonlocal refusals
        error = state.outcome.exception() if state.outcome is not None else None
        if not isinstance(error, CallError):
            return False
        # Even a refusal of this tiny request may be a bad moment of a gateway; a third is not.
        refusals += not error.retry
        return refusals < 3

    def pause(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.retry_after if isinstance(error, CallError) else None
        return max(asked or 0.0, jitter(state))

    retrying = AsyncRetrying(retry=again, wait=pause, stop=stop_before_delay(timeout), reraise=True)
    each = min(timeout, 30.0)
    try:
        return "json_schema", await retrying(probe, "json_schema", each)
    except SchemaRefused:
        return "plain", await retrying(probe, "plain", each)


PROBE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
PROBE = Call(prefix="", text='Reply with {"ok": true}.', schema=PROBE_SCHEMA, max_tokens=16)
"""The smallest request that tells whether structured output is taken."""


@dataclass(frozen=True, slots=True)
class EndpointCheck:
    """What `check()` of an endpoint found before a long job."""

    endpoint: str
    """Name of the judge."""
    base_url: str
    problems: tuple[str, ...] = ()
    """Why judging would fail, one line each, with the next step. Empty: go ahead."""
    transient: bool = False
    """The problems may pass by themselves (overload, lost connection): check again later."""
    warnings: tuple[str, ...] = ()
    """What works, but costs more or ends soon."""
    model: str = ""
    """As the server names it."""
    schema: SchemaMode | None = None
    """How replies are asked for. None where it came not so far."""
    structured: bool | None = None
    """Whether a reply of the schema's form came back. None where no reply came."""
    usage: Usage = field(default_factory=Usage)
    """Tokens that the check itself cost."""
    per_call: Usage = field(default_factory=Usage)
    """Tokens of the second sending: what a call costs once the prefix is cached. All 0 where the server
    does not count (`Reply.usage_reported`)."""
    prefix_tokens: int | None = None
    """Tokens of the shared prefix as the server counts them. None where it cannot count."""
    cache_read_tokens: int | None = None
    """Tokens of the second sending that came from the prompt cache. None where not reported."""
    replies: tuple[Reply, ...] = ()
    """What came back, to be read as verdicts by who knows the rubric."""

    @property
    def ok(self) -> bool:
        """Whether judging can start."""
        return not self.problems


async def check_sending(endpoint: Endpoint, call: Call, *, timeout: float) -> EndpointCheck:
    """Settle the schema mode, then send the call twice: the second shows the prompt cache."""
    check = EndpointCheck(endpoint.name, endpoint.base_url)
    try:
        check = replace(check, usage=await endpoint.settle())
        schema: SchemaMode = endpoint.parameters["schema"]
        check = replace(check, schema=schema)
        for _ in range(2):
            reply = await endpoint.send(call, timeout=timeout)
            check = replace(
                check,
                model=reply.model,
                usage=check.usage + reply.usage,
                per_call=reply.usage,
                replies=(*check.replies, reply),
            )
    except CallError as error:
        hint = "" if error.retry else "; this request is refused, and others of its kind would be"
        return replace(check, problems=(f"{endpoint.name}: {error}{hint}",), transient=error.retry)
    except JudgeStopped as error:
        return replace(check, problems=(str(error),))

    problems, structured = [], all(_has_form(r, call.schema) for r in check.replies)
    last = check.replies[-1]
    if last.stop == "refused":
        problems.append(
            f"{endpoint.name}: the model refuses to judge ({last.detail}); choose another judge, "
            "and read its terms on training use"
        )
    elif last.stop == "truncated":
        problems.append(f"{endpoint.name}: the reply was cut off ({last.detail}); raise max_tokens")
    elif not structured and schema == "json_schema":
        problems.append(
            f"{endpoint.name}: the server takes response schemas, but its replies do not follow "
            "them; use schema='plain' to be sure that the prompt asks for the form"
        )
    return replace(
        check,
        problems=tuple(problems),
        structured=structured,
        cache_read_tokens=last.usage.cache_read_tokens if last.usage_reported else None,
    )


def _has_form(reply: Reply, schema: Mapping[str, Any]) -> bool:
    try:
        value = json.loads(reply.text)
    except ValueError:
        return False
    return isinstance(value, dict) and set(schema.get("required", ())) <= set(value)
