"""The endpoints: what each request is answered with, what it costs, and what goes wrong with it.

Not here: HTTP (`connection.py`), the words of replies (`replies.py`), batches (`batches.py`),
threads and processes (`api.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xyreward.testing.fake_api.books import Books, Entry
from xyreward.testing.fake_api.checks import chat_problem, message_problem
from xyreward.testing.fake_api.connection import Request, Response, Send
from xyreward.testing.fake_api.faults import REPLY_FAULTS, Faults
from xyreward.testing.fake_api.replies import SENTENCE, fill, find_answer, spoil, tokens
from xyreward.verdict import Usage

ReplyText = Callable[[dict[str, Any]], Mapping[str, Any] | str | None]
"""Parsed request body -> the reply as a dict (sent as JSON) or text; None: filled from the schema."""

MODELS: Mapping[str, tuple[str, str | None]] = {
    "claude-sonnet-5-5": ("active", None),
    "claude-haiku-5-5": ("active", None),
    "claude-opus-5-5": ("active", None),
    "claude-sonnet-4-5": ("deprecated", "2026-11-30T00:00:00Z"),
}
"""What `/v1/models` lists where no models are given: id to (lifecycle, retires_at)."""

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
MESSAGES = {
    400: "messages: this request is not to the server's liking",
    401: "invalid x-api-key",
    403: "this key may not use this resource",
    408: "request timed out",
    409: "the resource is being changed by another request",
    413: "request exceeds the maximum allowed number of bytes",
    429: "this request would exceed the rate limit",
    500: "internal server error",
    529: "overloaded",
}


@dataclass(frozen=True)
class Settings:
    """What `FakeAPI` was told; its docstring explains each."""

    latency: float | tuple[float, float] = 0.0
    faults: Faults = field(default_factory=Faults)
    reply: ReplyText | None = None
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
    log_size: int = 100_000


@dataclass(slots=True)
class Generated:
    """One reply of the fake model, before it is wrapped for an endpoint."""

    text: str
    usage: Usage
    stop: str
    """end_turn, max_tokens or refusal."""
    thinking: bool = False


class Server:
    """State and endpoints of one fake API. Lives in one event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.books = Books(settings.log_size)
        self.base_url = ""
        self.started = time.monotonic()
        self._calls = 0
        self._seen: Counter[bytes] = Counter()
        self._prefixes: set[bytes] = set()

    def now(self) -> float:
        """Seconds since the server started."""
        return time.monotonic() - self.started

    async def serve(self, request: Request, send: Send) -> None:
        """Answer one request, and see to it that the books are closed whatever happens."""
        entry = self.books.open(endpoint_of(request), self.now())
        written = readable = False
        try:
            response = await self._answer(request, entry)
            response.headers["request-id"] = f"req_fake{entry.number:08d}"
            if response.manner != "reset":
                entry.status = response.status
            readable = response.readable
            written = await send(response)
        finally:
            self.books.close(entry, written=written, readable=readable, now=self.now())

    # ------------------------------------------------------------ routes

    async def _answer(self, request: Request, entry: Entry) -> Response:
        if entry.endpoint == "control":
            return json_response(self.books.stats().as_dict())
        chat = entry.endpoint == "chat"
        if problem := self._key_problem(request, optional=chat):
            return error(401, problem, chat=chat)
        try:
            body = json.loads(request.body) if request.body else {}
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return error(400, "the body is not a JSON object", chat=chat)
        digest = hashlib.sha256(request.body).digest()
        entry.body_hash = digest.hex()[:16]
        if self.settings.log_bodies:
            entry.body = body
        entry.fault = self._draw_fault(entry.endpoint, body, digest)
        if (failed := self._failed_at_once(entry.fault, body, chat=chat)) is not None:
            return failed
        match entry.endpoint, request.method:
            case "messages", "POST":
                return await self._message(request, entry, body, digest)
            case "chat", "POST":
                return await self._chat(entry, body, digest)
            case "count_tokens", "POST":
                return self._count_tokens(request, body)
            case "models", "GET":
                return self._models(request.path)
        return error(404, f"{request.method} {request.path} is not an endpoint of this server")

    def _key_problem(self, request: Request, *, optional: bool) -> str | None:
        key = request.headers.get("x-api-key", "")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            key = key or token.strip()
        if self.settings.api_key is not None:
            return None if key == self.settings.api_key else "invalid x-api-key"
        return None if key or optional else "x-api-key header is required"

    def _draw_fault(self, endpoint: str, body: dict[str, Any], digest: bytes) -> str | None:
        faults = self.settings.faults
        if endpoint not in faults.on:
            return None
        seen = self._seen[digest]
        self._seen[digest] += 1
        number = self._calls
        self._calls += 1
        chance = self._random(digest, f"fault {seen}").random() if faults.chances else 0.0
        kind = faults.draw(number, body, seen, chance)
        if kind in REPLY_FAULTS and endpoint not in ("messages", "chat"):
            return None
        return kind

    def _random(self, digest: bytes, purpose: str) -> random.Random:
        """The same numbers for the same seed, body and purpose."""
        salt = f"{self.settings.seed} {purpose}".encode()
        return random.Random(hashlib.sha256(digest + salt).digest())  # noqa: S311

    def _failed_at_once(
        self, kind: str | None, body: Mapping[str, Any], *, chat: bool
    ) -> Response | None:
        """The response of a fault that comes before the model; None where there is no such fault."""
        faults = self.settings.faults
        match kind:
            case "reset_before":
                return Response(status=0, body=b"", manner="reset")
            case "404":
                return error(404, f"model: {body.get('model')}", chat=chat)
            case "429_retry_after":
                return error(429, headers={"retry-after": f"{faults.retry_after:g}"}, chat=chat)
            case "429_spend_limit":
                return error(429, "the spend limit is reached", code=faults.spend_limit, chat=chat)
            case "502_html":
                page = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
                return Response(status=502, body=page, content_type="text/html")
            case "no_schema":
                if wants_schema(body):
                    return error(
                        400, "output_config.format: not supported by this model", chat=chat
                    )
            case str() if kind.isdigit():
                return error(int(kind), chat=chat)
        return None

    # ------------------------------------------------------------ replies

    async def _message(
        self, request: Request, entry: Entry, body: dict[str, Any], digest: bytes
    ) -> Response:
        version = request.headers.get("anthropic-version")
        if version is None:
            return error(400, "anthropic-version: header is required")
        if problem := message_problem(body, version):
            return error(400, problem)
        if not self._knows(body["model"]):
            return error(404, f"model: {body['model']}")
        if self._too_many():
            return error(429)
        try:
            generated = self.generate(body, digest, entry.fault)
        except Exception as problem:  # it came from the user's own reply function
            return error(500, f"the reply function raised {type(problem).__name__}: {problem}")
        self.books.bill(entry, generated.usage)
        payload = self.message(body, generated, f"msg_fake{entry.number:08d}", entry.fault)
        return await self._deliver(payload, entry, digest)

    async def _chat(self, entry: Entry, body: dict[str, Any], digest: bytes) -> Response:
        if problem := chat_problem(body):
            return error(400, problem, chat=True)
        if not self._knows(body["model"]):
            return error(404, f"The model `{body['model']}` does not exist.", chat=True)
        if self._too_many():
            return error(429, chat=True)
        try:
            generated = self.generate(body, digest, entry.fault)
        except Exception as problem:  # it came from the user's own reply function
            text = f"the reply function raised {type(problem).__name__}: {problem}"
            return error(500, text, chat=True)
        self.books.bill(entry, generated.usage)
        usage = generated.usage
        stops = {"end_turn": "stop", "max_tokens": "length", "refusal": "content_filter"}
        message: dict[str, Any] = {"role": "assistant", "content": generated.text or None}
        if generated.stop == "refusal":
            message["refusal"] = "I can't help with that."
        payload = {
            "id": f"chatcmpl-fake{entry.number:08d}",
            "object": "chat.completion",
            "created": 1767225600,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": stops[generated.stop]}],
            "usage": {
                "prompt_tokens": usage.input_tokens,
                "completion_tokens": usage.output_tokens,
                "total_tokens": usage.input_tokens + usage.output_tokens,
            },
        }
        return await self._deliver(payload, entry, digest)

    async def _deliver(self, payload: Mapping[str, Any], entry: Entry, digest: bytes) -> Response:
        if (seconds := self._latency(digest)) > 0:
            await asyncio.sleep(seconds)
        response = json_response(payload)
        match entry.fault:
            case "hang":
                await asyncio.Event().wait()  # until the client leaves
            case "reset_after":
                response.manner = "reset"
            case "truncated_body":
                response.manner = "cut"
            case "broken_json":
                response.body = response.body[: len(response.body) // 2]
                response.readable = False
            case "slow_body":
                response.manner, response.slow_s = "slow", self.settings.faults.slow_s
        return response

    def _latency(self, digest: bytes) -> float:
        latency = self.settings.latency
        if isinstance(latency, tuple):
            return self._random(digest, "latency").uniform(*latency)
        return latency

    def _too_many(self) -> bool:
        limit = self.settings.concurrency_limit
        return limit is not None and self.books.concurrent > limit

    def _knows(self, model: str) -> bool:
        return self.settings.models is None or model in self.settings.models

    def generate(self, body: dict[str, Any], digest: bytes, fault: str | None) -> Generated:
        """What the model says to a request, and what that costs.

        Raises:
            Exception: whatever the user's `reply` raises.
        """
        schema = asked_schema(body) or self.settings.schema
        value: Any = self.settings.reply(body) if self.settings.reply is not None else None
        if value is None:
            if schema is None:
                value = SENTENCE
            else:
                answer = self.settings.find_answer(last_user_text(body))
                value = fill(schema, self._random(digest, "reply"), answer)
        stop = "end_turn"
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        match fault:
            case "empty" | "refusal":
                text = ""
                stop = "refusal" if fault == "refusal" else stop
            case "cut_text" | "max_tokens":
                text = text[: len(text) // 2]
                stop = "max_tokens" if fault == "max_tokens" else stop
            case str() if fault in REPLY_FAULTS:
                text = SENTENCE if isinstance(value, str) else spoil(fault, value, schema)
        limit = body.get("max_tokens", body.get("max_completion_tokens"))
        if limit is not None and tokens(text) > limit:
            text, stop = text[: limit * 4], "max_tokens"
        thinking = (body.get("thinking") or {}).get("type") in ("enabled", "adaptive")
        output = tokens(text) + (20 if thinking else 0)
        return Generated(text, self._usage(body, output), stop, thinking)

    def _usage(self, body: Mapping[str, Any], output: int) -> Usage:
        cached, rest = split_prompt(body)
        prefix = sum(map(tokens, cached))
        fresh = sum(map(tokens, rest))
        if not cached or prefix < self.settings.min_cache_tokens:
            return Usage(input_tokens=prefix + fresh, output_tokens=output)
        key = hashlib.sha256(json.dumps([body.get("model"), cached]).encode()).digest()
        if key in self._prefixes:
            return Usage(input_tokens=fresh, output_tokens=output, cache_read_tokens=prefix)
        self._prefixes.add(key)
        return Usage(input_tokens=fresh, output_tokens=output, cache_write_tokens=prefix)

    def message(
        self, body: Mapping[str, Any], generated: Generated, name: str, fault: str | None
    ) -> dict[str, Any]:
        """A reply as the Messages API wraps it."""
        usage = generated.usage
        content: list[dict[str, Any]] = []
        if generated.thinking:
            content.append({"type": "thinking", "thinking": "", "signature": "ZmFrZQ=="})
        if generated.text:
            content.append({"type": "text", "text": generated.text})
        payload = {
            "id": name,
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [] if fault in ("empty", "refusal") else content,
            "stop_reason": generated.stop,
            "stop_sequence": None,
            "usage": {
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "cache_creation_input_tokens": usage.cache_write_tokens,
                "cache_read_input_tokens": usage.cache_read_tokens,
                "service_tier": "standard",
            },
        }
        if generated.stop == "refusal":
            category = self.settings.faults.refusal_category
            payload["stop_details"] = {
                "type": "refusal",
                "category": category,
                "explanation": f"This request was declined ({category or 'no category'}).",
            }
        return payload

    # ------------------------------------------------------------ the rest

    def _count_tokens(self, request: Request, body: dict[str, Any]) -> Response:
        version = request.headers.get("anthropic-version", "")
        if problem := message_problem(body, version, counting=True):
            return error(400, problem)
        if not self._knows(body["model"]):
            return error(404, f"model: {body['model']}")
        cached, rest = split_prompt(body)
        return json_response({"input_tokens": sum(map(tokens, [*cached, *rest]))})

    def _models(self, path: str) -> Response:
        ids = list(MODELS) if self.settings.models is None else list(self.settings.models)
        name = path.removeprefix("/v1/models").strip("/")
        if name:
            if not self._knows(name):
                return error(404, f"model: {name}")
            return json_response(self._model_info(name))
        data = [self._model_info(model) for model in ids]
        return json_response(
            {
                "object": "list",
                "data": data,
                "has_more": False,
                "first_id": ids[0] if ids else None,
                "last_id": ids[-1] if ids else None,
            }
        )

    def _model_info(self, name: str) -> dict[str, Any]:
        schemas = self.settings.faults.chances.get("no_schema", 0.0) < 1
        return {
            **model_info(name),
            "capabilities": {"structured_outputs": {"supported": schemas}},
        }


def endpoint_of(request: Request) -> str:
    """The name that counts and faults go by."""
    path = request.path.rstrip("/")
    if path in ("/v1/messages", "/v1/messages/count_tokens"):
        return path.rpartition("/")[2]
    if path.startswith("/v1/messages/batches"):
        return "batches"
    if path == "/v1/chat/completions":
        return "chat"
    if path == "/v1/models" or path.startswith("/v1/models/"):
        return "models"
    if path == "/fake/stats":
        return "control"
    return "other"


def model_info(name: str) -> dict[str, Any]:
    """A model as `/v1/models` describes it."""
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
    }


def asked_schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The JSON schema that a request asks its reply to follow, whichever way it says so."""
    if form := (body.get("output_config") or {}).get("format"):
        found = form.get("schema")
    elif form := body.get("response_format"):
        found = (form.get("json_schema") or {}).get("schema")
    else:
        found = (body.get("structured_outputs") or {}).get("json")
    return found if isinstance(found, dict) else None


def wants_schema(body: Mapping[str, Any]) -> bool:
    """The request asks for structured output."""
    return asked_schema(body) is not None or "response_format" in body


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


def json_response(payload: Any, status: int = 200) -> Response:
    """A response with a JSON body."""
    return Response(status=status, body=json.dumps(payload, ensure_ascii=False).encode())


def error(
    status: int,
    message: str | None = None,
    *,
    code: str | None = None,
    headers: dict[str, str] | None = None,
    chat: bool = False,
) -> Response:
    """An error in the form of the Messages API, or in that of chat completions."""
    kind = ERROR_TYPES.get(status, "api_error")
    text = message if message is not None else MESSAGES.get(status, "error")
    if chat:
        payload: dict[str, Any] = {"error": {"message": text, "type": kind, "code": code or status}}
    else:
        inner: dict[str, Any] = {"type": kind, "message": text}
        if code is not None:
            inner["details"] = {"error_code": code}
        payload = {"type": "error", "error": inner}
    response = json_response(payload, status)
    response.headers.update(headers or {})
    return response
