"""The endpoints: which request is answered by what, and what goes wrong on the way.

Not here: HTTP (`connection.py`), the model (`model.py`), batches (`batches.py`), threads and
processes (`api.py`).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from xyreward.testing.fake_api.batches import PATH as BATCHES
from xyreward.testing.fake_api.batches import Batches
from xyreward.testing.fake_api.books import Books, Entry
from xyreward.testing.fake_api.checks import chat_problem, message_problem
from xyreward.testing.fake_api.connection import Request, Response, Send
from xyreward.testing.fake_api.faults import REPLY_FAULTS
from xyreward.testing.fake_api.model import (
    MODELS,
    Model,
    Settings,
    asked_schema,
    check_model,
    digest_of,
    draws,
    model_info,
    split_prompt,
    wrap_chat,
    wrap_message,
)
from xyreward.testing.fake_api.replies import tokens
from xyreward.testing.fake_api.wire import RequestProblem, json_response

STATS = "/fake/stats"
MAX_BODY = 32 * 2**20
"""Bytes of a request that is no batch."""


class Server:
    """State and endpoints of one fake API. Lives in one event loop."""

    def __init__(self, settings: Settings, log_size: int) -> None:
        self.settings = settings
        self.books = Books(log_size)
        self.base_url = ""
        """Known when the port is open."""
        self._model = Model()
        self._batches = Batches(self._model, self.books)
        self._started = time.monotonic()
        self._drawn = 0
        self._seen: Counter[bytes] = Counter()

    def change(self, settings: Settings) -> None:
        """Go on with other settings; a script of faults begins anew."""
        self.settings = settings
        self._drawn = 0

    async def serve(self, request: Request, send: Send) -> None:
        """Answer one request, and close its entry in the books whatever happens."""
        endpoint = endpoint_of(request)
        if endpoint == "control":
            await send(json_response(self.books.stats().as_dict()))
            return
        entry = self.books.open(endpoint, self._now())
        written = readable = False
        try:
            response = await self._answer(request, entry)
            response.headers["request-id"] = f"req_fake{entry.number:08d}"
            if response.manner != "reset":
                entry.status = response.status
            readable = response.readable
            written = await send(response)
        finally:
            self.books.close(entry, written=written, readable=readable, now=self._now())

    def _now(self) -> float:
        return time.monotonic() - self._started

    async def _answer(self, request: Request, entry: Entry) -> Response:
        try:
            response = await self._route(request, entry)
        except RequestProblem as problem:
            return problem.response(chat=entry.endpoint == "chat")
        except Exception as problem:
            # The user's own function; a test has to see what it raised.
            text = f"reply or choose raised {type(problem).__name__}: {problem}"
            return RequestProblem(500, text).response(chat=entry.endpoint == "chat")
        match entry.fault:
            case "hang":
                await asyncio.Event().wait()  # until the client leaves
            case "reset_before" | "reset_after":
                response.manner = "reset"
            case "truncated_body":
                response.manner = "cut"
            case "broken_json":
                response.body = response.body[: len(response.body) // 2]
                response.readable = False
            case "slow_body":
                response.manner, response.slow_s = "slow", self.settings.faults.slow_s
        return response

    async def _route(self, request: Request, entry: Entry) -> Response:
        """The response of a healthy connection.

        Raises:
            RequestProblem: it is answered with an error.
            Exception: whatever a function of the user's raises.
        """
        self._check_key(request, optional=entry.endpoint == "chat")
        if len(request.body) > MAX_BODY and entry.endpoint != "batches":
            raise RequestProblem(413)
        try:
            body = json.loads(request.body) if request.body else {}
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise RequestProblem(400, "the body is not a JSON object")
        digest = digest_of(body)
        entry.body_hash = digest.hex()[:16]
        if self.settings.log_bodies:
            entry.body = body
        entry.fault = self._draw_fault(entry.endpoint, body, digest)
        if entry.fault == "reset_before":
            return Response(status=0, body=b"")
        if entry.fault == "502_html":
            page = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
            return Response(status=502, body=page, content_type="text/html")
        self._fail_at_once(entry.fault, body)
        match entry.endpoint, request.method:
            case "messages" | "chat", "POST":
                return await self._call(request, entry, body, digest)
            case "batches", _:
                return self._batches.answer(request, body, self.settings, self.base_url)
            case "count_tokens", "POST":
                return self._count_tokens(request, body)
            case "models", "GET":
                return self._models(request.path)
        raise RequestProblem(404, f"{request.method} {request.path} is no endpoint of this server")

    def _check_key(self, request: Request, *, optional: bool) -> None:
        key = request.headers.get("x-api-key", "")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            key = key or token.strip()
        if self.settings.api_key is not None and key != self.settings.api_key:
            raise RequestProblem(401)
        if not key and self.settings.api_key is None and not optional:
            raise RequestProblem(401, "x-api-key header is required")

    def _draw_fault(self, endpoint: str, body: dict[str, Any], digest: bytes) -> str | None:
        faults = self.settings.faults
        if endpoint not in faults.on:
            return None
        seen = self._seen[digest]
        self._seen[digest] += 1
        number = self._drawn
        self._drawn += 1
        chance = 1.0
        if faults.chances:
            chance = draws(self.settings.seed, digest, f"fault {seen}").random()
        kind = faults.draw(number, body, seen, chance)
        if kind in REPLY_FAULTS and endpoint not in ("messages", "chat"):
            return None
        if kind == "no_schema" and asked_schema(body) is None and "response_format" not in body:
            return None
        return kind

    def _fail_at_once(self, kind: str | None, body: Mapping[str, Any]) -> None:
        """Raise the RequestProblem of a fault that comes before the model."""
        faults = self.settings.faults
        match kind:
            case "404":
                raise RequestProblem(404, f"model: {body.get('model')}")
            case "429_retry_after":
                raise RequestProblem(429, headers={"retry-after": f"{faults.retry_after:g}"})
            case "429_spend_limit":
                raise RequestProblem(429, "the spend limit is reached", code=faults.spend_limit)
            case "no_schema":
                raise RequestProblem(400, "output_config.format: not supported by this model")
            case str() if kind.isdigit():
                raise RequestProblem(int(kind))

    async def _call(
        self, request: Request, entry: Entry, body: dict[str, Any], digest: bytes
    ) -> Response:
        """A message or a chat completion."""
        chat = entry.endpoint == "chat"
        self._check_body(request, body, chat=chat)
        limit = self.settings.concurrency_limit
        if limit is not None and self.books.concurrent > limit:
            raise RequestProblem(429)
        category = self.settings.faults.refusal_category
        reply = self._model.reply(body, digest, self.settings, entry.fault, category)
        self.books.bill(entry, reply.usage)
        if (seconds := self._latency(digest)) > 0:
            await asyncio.sleep(seconds)
        if chat:
            name = f"chatcmpl-fake{entry.number:08d}"
            return json_response(wrap_chat(name, body["model"], reply))
        return json_response(wrap_message(f"msg_fake{entry.number:08d}", body["model"], reply))

    def _check_body(
        self, request: Request, body: dict[str, Any], *, chat: bool = False, counting: bool = False
    ) -> None:
        if chat:
            problem = chat_problem(body)
        elif (version := request.headers.get("anthropic-version")) is None:
            problem = "anthropic-version: header is required"
        else:
            problem = message_problem(body, version, counting=counting)
        if problem is not None:
            raise RequestProblem(400, problem)
        check_model(body["model"], self.settings.models)

    def _latency(self, digest: bytes) -> float:
        latency = self.settings.latency
        if isinstance(latency, tuple):
            return draws(self.settings.seed, digest, "latency").uniform(*latency)
        return latency

    def _count_tokens(self, request: Request, body: dict[str, Any]) -> Response:
        self._check_body(request, body, counting=True)
        cached, rest = split_prompt(body)
        return json_response({"input_tokens": sum(map(tokens, [*cached, *rest]))})

    def _models(self, path: str) -> Response:
        known = self.settings.models
        schemas = self.settings.faults.chances.get("no_schema", 0.0) < 1
        if name := path.removeprefix("/v1/models").strip("/"):
            check_model(name, known)
            return json_response(model_info(name, schemas=schemas))
        names = list(MODELS if known is None else known)
        return json_response(
            {
                "object": "list",
                "data": [model_info(model, schemas=schemas) for model in names],
                "has_more": False,
                "first_id": names[0] if names else None,
                "last_id": names[-1] if names else None,
            }
        )


def endpoint_of(request: Request) -> str:
    """The name that counts and faults go by."""
    path = request.path.rstrip("/")
    if path in ("/v1/messages", "/v1/messages/count_tokens"):
        return path.rpartition("/")[2]
    if path == BATCHES or path.startswith(f"{BATCHES}/"):
        return "batches"
    if path == "/v1/chat/completions":
        return "chat"
    if path == "/v1/models" or path.startswith("/v1/models/"):
        return "models"
    return "control" if path == STATS else "other"
