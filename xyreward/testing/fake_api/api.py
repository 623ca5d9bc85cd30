"""Running the fake API: in a thread of this process, or as a process of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from xyreward.testing.fake_api.books import Entry, Stats
from xyreward.testing.fake_api.connection import Connection
from xyreward.testing.fake_api.faults import Faults
from xyreward.testing.fake_api.model import ReplyFunction, Settings
from xyreward.testing.fake_api.replies import find_answer
from xyreward.testing.fake_api.server import STATS, Server

T = TypeVar("T")


class FakeAPI:
    """A real HTTP server on 127.0.0.1 that speaks the Messages API and chat completions.

        with FakeAPI(latency=0.1, faults=Faults.mix(0.3)) as api:
            client = AsyncAnthropic(base_url=api.base_url, api_key="any", max_retries=0)
            ...
            assert api.stats.delivered == 100

    It runs in a thread of its own from `start()` (or `with`) to `stop()`. Replies are valid values
    for the JSON schema of the request, the same for the same request and seed; the words of a quote
    come from the answer in the request's last user message.

    Args:
        latency: seconds from a request to its reply, or (shortest, longest). Errors come at once.
        faults: what goes wrong with messages and chat completions.
        reply: decides what the model says, from the parsed request body: a dict (sent as JSON), a
            string, or None to have it filled from the schema. It runs in the server's thread; an
            exception becomes a 500 that names it.
        seed: changes replies, faults by chance, and latencies.
        api_key: the only key that is accepted. None: any key will do, and chat completions need none.
        models: the models that exist; others are a 404. None: every name is a model.
        schema: what replies are filled from where a request brings no schema. None: a sentence.
        find_answer: takes the answer out of the last user message. Default: what is between the last
            pair of fence lines.
        concurrency_limit: calls beyond this many at a time are a 429.
        min_cache_tokens: shortest prefix that `cache_control` caches.
        batch_seconds: seconds until a message batch has ended.
        batch_faults: what goes wrong with rows of batches: `errored`, `expired`, and the faults of
            replies. A script is in order of rows.
        max_batch_rows: more rows are a 413.
        log_bodies: keep parsed request bodies in `log`. They may hold text of users.
        log_size: how many requests `log` keeps, the latest.
        port: 0 takes a free one.

    Tokens are a quarter of the characters. A prefix that ends with `cache_control` is written to the
    cache when it is first seen and read from then on.
    """

    def __init__(
        self,
        *,
        latency: float | tuple[float, float] = 0.0,
        faults: Faults | None = None,
        reply: ReplyFunction | None = None,
        seed: int = 0,
        api_key: str | None = None,
        models: Sequence[str] | None = None,
        schema: Mapping[str, Any] | None = None,
        find_answer: Callable[[str], str] = find_answer,
        concurrency_limit: int | None = None,
        min_cache_tokens: int = 1024,
        batch_seconds: float = 0.05,
        batch_faults: Faults | None = None,
        max_batch_rows: int = 100_000,
        log_bodies: bool = False,
        log_size: int = 100_000,
        port: int = 0,
    ) -> None:
        self._settings = Settings(
            latency=latency,
            faults=faults or Faults(),
            reply=reply,
            seed=seed,
            api_key=api_key,
            models=models,
            schema=schema,
            find_answer=find_answer,
            concurrency_limit=concurrency_limit,
            min_cache_tokens=min_cache_tokens,
            batch_seconds=batch_seconds,
            batch_faults=batch_faults or Faults(),
            max_batch_rows=max_batch_rows,
            log_bodies=log_bodies,
        )
        self._port = port
        self._server = Server(self._settings, log_size)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:<port>`, without a path.

        Raises:
            RuntimeError: the server was not started.
        """
        if not self._server.base_url:
            raise RuntimeError(
                "the fake API is not running; use `with FakeAPI() as api:` or api.start()"
            )
        return self._server.base_url

    @property
    def stats(self) -> Stats:
        """The counts now. A reply that a client has read is counted in them."""
        return self._ask(self._server.books.stats)

    @property
    def log(self) -> list[Entry]:
        """One entry per request in order of arrival, the latest `log_size` of them."""
        return self._ask(lambda: list(self._server.books.log))

    def wait_idle(self, timeout: float = 10.0) -> Stats:
        """Wait until no call is being answered, and return the counts.

        A client that gives a call up may see its end before the server does.

        Raises:
            TimeoutError: calls are still being answered after `timeout` seconds.
        """
        end = time.monotonic() + timeout
        while self._ask(lambda: self._server.books.concurrent):
            if time.monotonic() > end:
                raise TimeoutError(f"the fake API is still answering calls after {timeout:g} s")
            time.sleep(0.005)
        return self.stats

    def change(self, **settings: Any) -> None:
        """Go on with other settings (names as above, but `log_size` and `port`): an API that recovers.

        Counts go on; a script of faults begins anew.
        """
        self._settings = replace(self._settings, **settings)
        self._ask(lambda: self._server.change(self._settings))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Start to serve. Returns when the port is open.

        Raises:
            OSError: the port is taken.
            RuntimeError: it runs already, or ran before: a server is used once.
        """
        if self._thread is not None:
            raise RuntimeError("this fake API was started before; make a new one")
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name="xyreward-fake-api", daemon=True
        )
        self._thread.start()
        ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def stop(self) -> None:
        """Close every connection; replies in flight are lost. `stats` and `log` stay readable."""
        if self._loop is not None and self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _run(self, ready: threading.Event) -> None:
        try:
            # asyncio.run may be another's: Inspect replaces it by one that leaves its loop open.
            with asyncio.Runner() as runner:
                runner.run(self._main(ready))
        except BaseException as problem:
            self._failure = problem
            if ready.is_set():  # nobody waits for it any more
                raise
        finally:
            ready.set()

    async def _main(self, ready: threading.Event) -> None:
        opened: set[Connection] = set()
        books = self._server.books

        def connect() -> Connection:
            books.connections += 1
            return Connection(self._server.serve, opened)

        loop = asyncio.get_running_loop()
        listener = await loop.create_server(connect, "127.0.0.1", self._port, backlog=1024)
        port = listener.sockets[0].getsockname()[1]
        self._server.base_url = f"http://127.0.0.1:{port}"
        self._stop = asyncio.Event()
        self._loop = loop
        ready.set()
        try:
            await self._stop.wait()
        finally:
            listener.close()
            for connection in list(opened):
                connection.reset()
            await asyncio.sleep(0)  # lets connection_lost cancel what was being answered
            tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _ask(self, question: Callable[[], T]) -> T:
        """Run something in the server's thread, after everything that happened there until now."""
        thread, loop = self._thread, self._loop
        if thread is None or loop is None or not thread.is_alive():
            return question()
        if thread is threading.current_thread():
            return question()

        async def asked() -> T:
            return question()

        return asyncio.run_coroutine_threadsafe(asked(), loop).result()


class FakeAPIProcess:
    """The same server as a process of its own, for measurements and for tests that kill processes.

        with FakeAPIProcess("--latency", "0.1", "--faults", "mix:0.3") as api:
            api.base_url, api.stats

    Args:
        arguments: those of `python -m xyreward.testing.fake_api` (see its --help).
    """

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "xyreward.testing.fake_api", *arguments]
        # It ends when its standard input does, so a parent that is killed leaves no server behind.
        self._process = subprocess.Popen(  # noqa: S603
            [*command, "--until-stdin-closes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.base_url = self._process.stdout.readline().strip()
        if not self.base_url:
            self._end()
            raise RuntimeError(
                f"{' '.join(command)} ended with status {self._process.returncode} instead of "
                "printing its URL; what it said is above"
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def stats(self) -> Stats:
        """The counts now."""
        return fetch_stats(self.base_url)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._end()

    def _end(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def fetch_stats(base_url: str) -> Stats:
    """The counts of a fake API in another process: `GET /fake/stats`, which is not counted as a call."""
    # No proxy, whatever the environment says: it is this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{base_url}{STATS}", timeout=30) as response:
        return Stats.from_dict(json.load(response))
