"""In front of the endpoints: who may ask, and how much is read of what they send.

An ASGI application around another. It reads a body whole before the endpoint sees it, counts every byte
that it holds, and answers itself where a request goes no further.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xyreward.serve.forms import ErrorBody, ErrorResponse, ErrorType
from xyreward.serve.metrics import Metrics
from xyreward.serve.settings import Settings, is_loopback

OPEN = frozenset({"/health", "/ready"})
"""For who looks whether the service is up. They tell nothing of anybody's data."""


NOT_YET = 500
"""The status of a request that nobody answered: what the server then sends."""


def error_response(
    status: int,
    kind: ErrorType,
    message: str,
    *,
    retry_after_s: int | None = None,
    **more: object,
) -> Response:
    """The one form of everything that is not a 200."""
    body = ErrorResponse(
        error=ErrorBody(type=kind, message=message, retry_after_s=retry_after_s, **more)  # type: ignore[arg-type]
    )
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="xyreward", Basic realm="xyreward"'
    return Response(body.model_dump_json(), status, headers, media_type="application/json")


class Guard:
    """The outermost application of the service."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        metrics: Metrics,
        *,
        endpoints: frozenset[str],
        retry_after_s: Callable[[], int],
    ) -> None:
        """Put it around an application.

        Args:
            app: what requests go to in the end.
            settings: limits and token.
            metrics: where requests are counted.
            endpoints: paths that are counted under their names; others together.
            retry_after_s: what a request is told for which there is no room.
        """
        self.app = app
        self.settings = settings
        self.metrics = metrics
        self.endpoints = endpoints
        self.retry_after_s = retry_after_s
        self.draining = False
        """Whether the service ends: what was taken is answered, and nothing else is taken."""
        self._held = 0
        self._token = None if settings.token is None else _digest(settings.token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.monotonic()
        status = NOT_YET

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        held = _Held(self)
        try:
            answer = self._refused(scope) or await self._read(scope, receive, held)
            if answer is not None:
                await answer(scope, receive, counted)
            else:
                await self.app(scope, held.receive(receive), counted)
        except asyncio.CancelledError:
            # The server was told to end at once. This is the last that anybody does.
            if status != NOT_YET:
                raise
            await _ending()(scope, receive, counted)
        finally:
            held.release()
            endpoint = scope["path"] if scope["path"] in self.endpoints else "other"
            self.metrics.requests.labels(endpoint, str(status)).inc()
            self.metrics.request_seconds.labels(endpoint).observe(time.monotonic() - begun)

    # ---------------------------------------------------------------- who may ask

    def _refused(self, scope: Scope) -> Response | None:
        if scope["path"] in OPEN:
            return None
        headers = Headers(scope=scope)
        if self._token is None:
            # A page in a browser of this machine can send requests here, under a name of its own that it
            # lets point to 127.0.0.1. The name gives it away.
            host = headers.get("host", "")
            if not _is_this_machine(host):
                return error_response(
                    403,
                    "wrong_host",
                    f"the request is for host {host[:80]!r}, and without a token this service answers "
                    "only to localhost, 127.0.0.1 and [::1]",
                )
        elif not self._knows_token(headers.get("authorization", "")):
            return error_response(
                401,
                "unauthorized",
                "the token is missing or another one; send the header `Authorization: Bearer <token>`, or "
                "the token as the password of the address (http://xyreward:<token>@host:port/...)",
            )
        return None

    def _knows_token(self, given: str) -> bool:
        scheme, _, rest = given.partition(" ")
        token = b""
        match scheme.lower():
            case "bearer":
                token = rest.strip().encode("latin-1", "replace")
            case "basic":
                # Who can only give an address (OpenRLHF's trainer) can give a password in it.
                try:
                    token = base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
                except (binascii.Error, ValueError):
                    token = b""
        assert self._token is not None
        return hmac.compare_digest(_digest(token), self._token)

    # ---------------------------------------------------------------- how much is read

    async def _read(self, scope: Scope, receive: Receive, held: _Held) -> Response | None:
        """Read the body into `held`; an answer where that was not possible."""
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return None
        if self.draining:
            return _ending()
        limit = self.settings.max_body_bytes
        said = Headers(scope=scope).get("content-length", "")
        if said.isdigit() and int(said) > limit:
            return self._too_large()
        try:
            async with asyncio.timeout(self.settings.read_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        # Nobody is left to read this.
                        return Response(status_code=400)
                    chunk = message.get("body", b"")
                    if held.size + len(chunk) > limit:
                        return self._too_large()
                    if self._held + len(chunk) > self.settings.max_held_bytes:
                        return error_response(
                            429,
                            "queue_full",
                            f"{self._held} bytes of requests are being answered, and no more than "
                            f"{self.settings.max_held_bytes} may",
                            retry_after_s=self.retry_after_s(),
                        )
                    held.take(chunk)
                    if not message.get("more_body", False):
                        return None
        except TimeoutError:
            return error_response(
                408,
                "body_timeout",
                f"the body was not complete within {self.settings.read_s:g} seconds",
            )

    def _too_large(self) -> Response:
        return error_response(
            413,
            "body_too_large",
            f"the body has more than {self.settings.max_body_bytes} bytes; send fewer answers at a time, "
            "or start the service with a larger --max-body-bytes",
        )

    def hold(self, size: int) -> None:
        """Count bytes that are held, or with a minus are not any more."""
        self._held += size
        self.metrics.held.set(self._held)


class _Held:
    """The body of one request, while it is held."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._chunks: list[bytes] = []
        self.size = 0

    def take(self, chunk: bytes) -> None:
        if chunk:
            self._chunks.append(chunk)
            self.size += len(chunk)
            self._guard.hold(len(chunk))

    def release(self) -> None:
        self._guard.hold(-self.size)
        self.size = 0
        self._chunks.clear()

    def receive(self, after: Receive) -> Receive:
        """What the endpoint reads: the body, then what comes after it (that the client left)."""
        told = False

        async def receive() -> Message:
            nonlocal told
            if told:
                return await after()
            told = True
            body = b"".join(self._chunks)
            self._chunks.clear()
            return {"type": "http.request", "body": body, "more_body": False}

        return receive


def _ending() -> Response:
    return error_response(
        503, "draining", "the service is ending; ask again when it is back", retry_after_s=5
    )


def _digest(token: bytes) -> bytes:
    # Of equal length, whatever was sent: a comparison in constant time still tells lengths apart.
    return hashlib.sha256(token).digest()


def _is_this_machine(host: str) -> bool:
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.removeprefix("[").removesuffix("]").lower()
    return name == "localhost" or is_loopback(name)
