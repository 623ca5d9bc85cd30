"""The socket, the signals and the end of a service.

SIGTERM and Ctrl-C end it in this order: nothing new is taken; every request that was taken is answered;
work that nobody waits for any more is finished too, since it may be paid for. A second Ctrl-C ends it at
once.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from xyreward.errors import ConfigError
from xyreward.serve.app import Service
from xyreward.serve.settings import Settings

KEEP_ALIVE_S = 75
"""A connection on which nothing comes for so long is closed; above the minute of usual proxies."""
BACKLOG = 2048


def bind(settings: Settings) -> socket.socket:
    """The socket of a service; it does not listen yet, so nobody waits while a judge is loaded.

    Raises:
        ConfigError: the address is taken, or is none of this machine.
    """
    host, port = settings.host, settings.port
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, proto)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise _taken(host, port, error) from None
    return bound


def _taken(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(
        f"{host}:{port} cannot be listened on ({error}); give another --port, or end what is there"
    )


def address_of(bound: socket.socket) -> str:
    """`http://127.0.0.1:8123` of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def run(
    service: Service, bound: socket.socket, on_start: Callable[[], object] = lambda: None
) -> None:
    """Serve until SIGTERM or Ctrl-C, and answer what was taken.

    Raises:
        KeyboardInterrupt: it was Ctrl-C.
        ConfigError: another program has come to listen there since `bind`.
    """
    config = uvicorn.Config(
        service.app,
        # One parser, whose limits (64 kB of headers) are known; the judge takes the time anyway.
        http=type("_Timed", (_Protocol,), {"head_s": service.settings.read_s}),
        ws="none",
        lifespan="off",  # its end is cut short with a traceback; `_Server.shutdown` does the same
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        # Behind a proxy that says who asked, nothing here depends on who asked.
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_level="warning",
    )
    try:
        with _quiet_end():
            _Server(config, service, on_start).run(sockets=[bound])
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise _taken(service.settings.host, service.settings.port, error) from None


class _Protocol(H11Protocol):
    """Closes a connection on which the head of a request does not come.

    uvicorn waits for it for ever, and some hundred such connections, for which no token is needed, would
    keep everybody else out.
    """

    head_s: float
    """Seconds for a head to come."""
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._unwatch()
        elif self._late is None:
            self._late = self.loop.call_later(self.head_s, self.timeout_keep_alive_handler)

    def _unwatch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, service: Service, on_start: Callable[[], object]
    ) -> None:
        super().__init__(config)
        self._service = service
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.app.draining = True
        await super().shutdown(sockets)
        if self.force_exit:
            self._service.unanswered = self._service.line.waiting
        else:
            await self._service.line.finish()


@contextmanager
def _quiet_end() -> Iterator[None]:
    # uvicorn sends itself the signal again once it has ended, which of SIGTERM would kill the process before
    # its bill is told.
    if threading.current_thread() is not threading.main_thread():  # uvicorn takes no signals there
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
