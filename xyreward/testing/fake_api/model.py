"""The fake model: what it says to a request, what that costs, how either API wraps it.

Not here: the words (`replies.py`), when something goes wrong (`faults.py`), HTTP (`server.py`).
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xyreward.testing.fake_api.faults import REPLY_FAULTS, Faults
from xyreward.testing.fake_api.replies import SENTENCE, fill, find_answer, spoil, tokens
from xyreward.testing.fake_api.wire import RequestProblem
from xyreward.verdict import Usage

ReplyFunction = Callable[[dict[str, Any]], Mapping[str, Any] | str | None]
"""Parsed request body -> the reply as a dict (sent as JSON) or text; None: filled from the schema."""

MODELS: Mapping[str, tuple[str, str | None]] = {
    "claude-sonnet-5-5": ("active", None),
    "claude-haiku-5-5": ("active", None),
    "claude-opus-5-5": ("active", None),
    "claude-sonnet-4-5": ("deprecated", "2026-11-30T00:00:00Z"),
}
"""What `/v1/models` lists where no models are given: id to (lifecycle, retires_at)."""

THINKING_TOKENS = 20


@dataclass(frozen=True)
class Settings:
    """What `FakeAPI` was told; its docstring explains each."""

    latency: float | tuple[float, float] = 0.0
    faults: Faults = field(default_factory=Faults)
    reply: ReplyFunction | None = None
    seed: int = 0
    api_key: str | None = None
    models: Sequence[str] | None = None
    schema: Mapping[str, Any] | None = None
    find_answer: Callable[[str], str] = find_answer
    concurrency_limit: int | None = None
    min_cache_tokens: int = 1024
    batch_seconds: float = 0.05
    batch_faults: Faults = field(default_factory=Faults)
    max_batch_rows: int = 100_000
    log_bodies: bool = False

    def __post_init__(self) -> None:
        shortest, longest = self.latency if isinstance(self.latency, tuple) else (self.latency,) * 2
        if not 0 <= shortest <= longest:
            raise ValueError(
                f"latency is {self.latency!r}; expected seconds, or (shortest, longest), not negative"
            )
        self.faults.check_kinds(of_rows=False)
        self.batch_faults.check_kinds(of_rows=True)


@dataclass(frozen=True, slots=True)
class Generated:
    """One reply of the fake model, before it is wrapped for an endpoint."""

    text: str
    usage: Usage
    stop: str
    """end_turn, max_tokens or refusal."""
    thinking: bool = False
    category: str | None = None
    """Of a refusal."""


class Model:
    """Answers requests by the settings; remembers which prefixes are cached."""

    def __init__(self) -> None:
        self._prefixes: set[bytes] = set()

    def reply(
        self,
        body: dict[str, Any],
        digest: bytes,
        settings: Settings,
        fault: str | None,
        category: str | None,
    ) -> Generated:
        """What the model says to a request, and what that costs.

        Args:
            body: the parsed request, valid.
            digest: of the request; with the seed it decides the reply.
            settings: those of the server.
            fault: of `REPLY_FAULTS`; others change nothing here.
            category: of a refusal.

        Raises:
            Exception: whatever the user's reply function raises.
        """
        schema = asked_schema(body) or settings.schema
        value: Any = settings.reply(body) if settings.reply is not None else None
        if value is None:
            if schema is None:
                value = SENTENCE
            else:
                answer = settings.find_answer(last_user_text(body))
                value = fill(schema, draws(settings.seed, digest, "reply"), answer)
        stop = "end_turn"
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        match fault:
            case "empty":
                text = ""
            case "refusal":
                text, stop = "", "refusal"
            case "cut_text":
                text = text[: len(text) // 2]
            case "max_tokens":
                text, stop = text[: len(text) // 2], "max_tokens"
            case str() if fault in REPLY_FAULTS:
                text = SENTENCE if isinstance(value, str) else spoil(fault, value, schema)
        limit = body.get("max_tokens", body.get("max_completion_tokens"))
        if limit is not None and tokens(text) > limit:
            text, stop = text[: limit * 4], "max_tokens"
        thinking = (body.get("thinking") or {}).get("type") in ("enabled", "adaptive")
        output = tokens(text) + (THINKING_TOKENS if thinking else 0)
        usage = self._usage(body, output, settings.min_cache_tokens)
        return Generated(text, usage, stop, thinking, category)

    def _usage(self, body: Mapping[str, Any], output: int, min_cache_tokens: int) -> Usage:
        cached, rest = split_prompt(body)
        prefix = sum(map(tokens, cached))
        fresh = sum(map(tokens, rest))
        if not cached or prefix < min_cache_tokens:
            return Usage(input_tokens=prefix + fresh, output_tokens=output)
        key = hashlib.sha256(json.dumps([body["model"], cached]).encode()).digest()
        if key in self._prefixes:
            return Usage(input_tokens=fresh, output_tokens=output, cache_read_tokens=prefix)
        self._prefixes.add(key)
        return Usage(input_tokens=fresh, output_tokens=output, cache_write_tokens=prefix)


def digest_of(body: Mapping[str, Any]) -> bytes:
    """Of a parsed body, whatever its keys' order: a row of a batch is the same request by itself."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).digest()


def draws(seed: int, digest: bytes, purpose: str) -> random.Random:
    """The same numbers for the same seed, request and purpose."""
    return random.Random(hashlib.sha256(digest + f"{seed} {purpose}".encode()).digest())  # noqa: S311


def check_model(name: str, models: Sequence[str] | None) -> None:
    """Raise RequestProblem (404) for a model that is not there."""
    if models is not None and name not in models:
        raise RequestProblem(404, f"model: {name}")


# ---------------------------------------------------------------- wrapping


def wrap_message(name: str, model: str, reply: Generated, tier: str = "standard") -> dict[str, Any]:
    """A reply as the Messages API has it."""
    content: list[dict[str, Any]] = []
    if reply.thinking and reply.text:
        content.append({"type": "thinking", "thinking": "", "signature": "ZmFrZQ=="})
    if reply.text:
        content.append({"type": "text", "text": reply.text})
    payload: dict[str, Any] = {
        "id": name,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": reply.stop,
        "stop_sequence": None,
        "usage": {
            "input_tokens": reply.usage.input_tokens,
            "output_tokens": reply.usage.output_tokens,
            "cache_creation_input_tokens": reply.usage.cache_write_tokens,
            "cache_read_input_tokens": reply.usage.cache_read_tokens,
            "service_tier": tier,
        },
    }
    if reply.stop == "refusal":
        payload["stop_details"] = {
            "type": "refusal",
            "category": reply.category,
            "explanation": f"This request was declined ({reply.category or 'no category'}).",
        }
    return payload


def wrap_chat(name: str, model: str, reply: Generated) -> dict[str, Any]:
    """A reply as a chat completion."""
    stops = {"end_turn": "stop", "max_tokens": "length", "refusal": "content_filter"}
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.stop == "refusal":
        message["refusal"] = "I can't help with that."
    return {
        "id": name,
        "object": "chat.completion",
        "created": 1767225600,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": stops[reply.stop]}],
        "usage": {
            "prompt_tokens": reply.usage.input_tokens,
            "completion_tokens": reply.usage.output_tokens,
            "total_tokens": reply.usage.input_tokens + reply.usage.output_tokens,
        },
    }


def model_info(name: str, *, schemas: bool = True) -> dict[str, Any]:
    """A model as `/v1/models` describes it; `schemas`: whether it has structured output."""
    lifecycle, retires = MODELS.get(name, ("active", None))
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created_at": "2026-01-01T00:00:00Z",
        "lifecycle": lifecycle,
        "deprecated_at": None if retires is None else "2026-06-01T00:00:00Z",
        "retires_at": retires,
        "max_input_tokens": 200_000,
        "max_tokens": 64_000,
        "capabilities": {"structured_outputs": {"supported": schemas}},
    }


# ---------------------------------------------------------------- reading requests


def asked_schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The JSON schema that a request asks its reply to follow, whichever way it says so."""
    if form := (body.get("output_config") or {}).get("format"):
        found = form.get("schema")
    elif form := body.get("response_format"):
        found = (form.get("json_schema") or {}).get("schema")
    else:
        found = (body.get("structured_outputs") or {}).get("json")
    return found if isinstance(found, dict) else None


def text_of(content: Any) -> str:
    """The text of a message's content, a string or a list of blocks."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(p.get("text", "")) for p in parts if isinstance(p, dict))


def last_user_text(body: Mapping[str, Any]) -> str:
    """The text of the last message of a user."""
    for message in reversed(body["messages"]):
        if message.get("role") == "user":
            return text_of(message.get("content"))
    return ""


def split_prompt(body: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The prompt's texts up to the last cache breakpoint, and those after it.

    The schema counts as text after the breakpoint. Without a breakpoint all is after it.
    """
    blocks: list[Any] = []
    for content in [body.get("system"), *(m.get("content") for m in body["messages"])]:
        blocks += content if isinstance(content, list) else [content or ""]
    texts = [b if isinstance(b, str) else str(b.get("text", "")) for b in blocks]
    marked = [i for i, b in enumerate(blocks) if isinstance(b, dict) and b.get("cache_control")]
    cut = marked[-1] + 1 if marked else 0
    if body.get("cache_control"):
        cut = len(texts)
    schema = asked_schema(body)
    extra = [json.dumps(schema)] if schema is not None else []
    return texts[:cut], [*texts[cut:], *extra]
