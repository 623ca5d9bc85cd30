"""HTTP/1.1 on one TCP connection: h11 for the protocol, asyncio for the socket.

Not here: what a request means (`server.py`).
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import h11

LIMIT = 256 * 2**20
"""Bytes of a request's body: the API's limit of a batch."""


@dataclass(slots=True)
class Request:
    """A request that was received wholly."""

    method: str
    path: str
    """Without the query."""
    query: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


@dataclass(slots=True)
class Response:
    """What goes back, and in what manner."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    manner: Literal["whole", "slow", "cut", "reset"] = "whole"
    readable: bool = True
    """The body is what its content type says."""
    slow_s: float = 0.0


Send = Callable[[Response], Awaitable[bool]]
"""Writes a response; True where every byte went out to a client that was still there."""
Serve = Callable[[Request, Send], Awaitable[None]]


class Connection(asyncio.Protocol):
    """Reads one request after the other, gives each to `serve`, and writes what it sends.

    A client that leaves cancels the task that answers it.
    """

    def __init__(self, serve: Serve, opened: set[Connection]) -> None:
        self._serve = serve
        self._opened = opened
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=64 * 1024)
        self._head: h11.Request | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._task: asyncio.Task[None] | None = None
        self._drained = asyncio.Event()
        self._drained.set()
        self._transport: asyncio.Transport
        self._poll: select.poll | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        assert isinstance(transport, asyncio.Transport)
        # The kernel's buffer is small and ours is empty before "delivered" is said.
        transport.set_write_buffer_limits(high=0)
        self._transport = transport
        if hasattr(select, "POLLRDHUP"):  # Linux
            self._poll = select.poll()
            self._poll.register(transport.get_extra_info("socket"), select.POLLRDHUP)
        self._opened.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio names it
        """The client left, or we closed."""
        self._opened.discard(self)
        self._drained.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """Not everything fits into the kernel's buffer."""
        self._drained.clear()

    def resume_writing(self) -> None:
        """Everything is in the kernel's buffer."""
        self._drained.set()

    def data_received(self, data: bytes) -> None:
        """Bytes came in."""
        try:
            self._h11.receive_data(data)
            self._read()
        except h11.RemoteProtocolError as problem:
            self._refuse(problem.error_status_hint, str(problem))

    def reset(self) -> None:
        """Close at once, so that the client sees "connection reset by peer"."""
        if (sock := self._transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _read(self) -> None:
        while not self._transport.is_closing():
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                if self._h11.they_are_waiting_for_100_continue:
                    go_on = h11.InformationalResponse(status_code=100, headers=[])
                    self._write(self._h11.send(go_on))
                return
            if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return
            if isinstance(event, h11.Request):
                self._head, self._parts, self._size = event, [], 0
            elif isinstance(event, h11.Data):
                self._parts.append(bytes(event.data))
                self._size += len(event.data)
                if self._size > LIMIT:
                    self._refuse(413, f"the body has more than {LIMIT} bytes")
            elif isinstance(event, h11.EndOfMessage) and self._head is not None:
                path, _, query = self._head.target.decode("latin-1").partition("?")
                request = Request(
                    method=self._head.method.decode("latin-1"),
                    path=path,
                    query=query,
                    headers={
                        name.decode("latin-1"): value.decode("latin-1")
                        for name, value in self._head.headers
                    },
                    body=b"".join(self._parts),
                )
                self._head, self._parts = None, []
                self._task = asyncio.create_task(self._answer(request))

    async def _answer(self, request: Request) -> None:
        await self._serve(request, self._send)
        self._task = None
        if self._transport.is_closing():
            return
        if self._h11.our_state is h11.MUST_CLOSE or self._h11.our_state is not h11.DONE:
            self._transport.close()
            return
        self._h11.start_next_cycle()
        try:
            self._read()  # what a client sent ahead
        except h11.RemoteProtocolError as problem:
            self._refuse(problem.error_status_hint, str(problem))

    async def _send(self, response: Response) -> bool:
        if self._client_left():
            return False
        if response.manner == "reset":
            self.reset()
            return False
        headers = [
            ("content-type", response.content_type),
            ("content-length", str(len(response.body))),
            *response.headers.items(),
        ]
        head = self._h11.send(h11.Response(status_code=response.status, headers=headers)) or b""
        body = self._h11.send(h11.Data(data=response.body)) or b""
        if response.manner == "cut":
            self._write(head + body[: len(body) // 2])
            await self._drained.wait()
            self._transport.close()
            return False
        if response.manner == "slow":
            self._write(head)
            step = -(-len(body) // 10) or 1
            for start in range(0, len(body), step):
                await asyncio.sleep(response.slow_s / 10)
                self._write(body[start : start + step])
        else:
            self._write(head + body)
        self._h11.send(h11.EndOfMessage())
        if not self._drained.is_set():
            await self._drained.wait()
        return not self._transport.is_closing()

    def _client_left(self) -> bool:
        """Also where asyncio does not know it yet: a reply to nobody must not count as delivered."""
        if self._transport.is_closing():
            return True
        if self._poll is None:
            return False
        return bool(self._poll.poll(0))

    def _write(self, data: Any) -> None:
        if data:
            self._transport.write(data)

    def _refuse(self, status: int, why: str) -> None:
        """Answer what is no HTTP, or too much of it, and close."""
        if self._task is None and self._h11.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            body = f'{{"type": "error", "error": {{"type": "invalid_request_error", "message": "{why}"}}}}'
            headers = [("content-length", str(len(body))), ("connection", "close")]
            self._write(self._h11.send(h11.Response(status_code=status, headers=headers)))
            self._write(self._h11.send(h11.Data(data=body.encode())))
        self._transport.close()
