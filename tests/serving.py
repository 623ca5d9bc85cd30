"""A service in a process of its own, and what tests and the benchmark need to speak to it."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

TOKEN = "a-token-that-is-long-enough"


class Served:
    """A running `xyreward serve`."""

    def __init__(self, process: "subprocess.Popen[str]", begun: str, stderr: list[str]) -> None:
        self.process = process
        self.begun = begun
        """The line that it began with."""
        self.stderr = stderr
        found = re.search(r"http://(\S+?):(\d+)", begun)
        assert found is not None, begun
        self.host, self.port = found[1], int(found[2])

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def ask(
        self,
        path: str,
        body: Any = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, body (JSON where it says so), headers in lower case."""
        connection = HTTPConnection(self.host, self.port, timeout=60)
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        try:
            connection.request(method or ("GET" if data is None else "POST"), path, data, sent)
            response = connection.getresponse()
            text = response.read()
            found = {name.lower(): value for name, value in response.getheaders()}
        finally:
            connection.close()
        is_json = found.get("content-type") == "application/json"
        return response.status, json.loads(text) if is_json else text.decode(), found

    def stop(self, sent: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(sent)
        return self.process.wait(60)


@contextmanager
def serve(
    *arguments: str, environment: Mapping[str, str] | None = None, items: str | Path = "mini"
) -> Iterator[Served]:
    """`xyreward serve` on a free port of this machine, until the block ends."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "xyreward",
            "serve",
            "--items",
            str(items),
            "--port",
            "0",
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    assert process.stderr is not None
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line)
            if line.startswith("xyreward serve: http"):
                break
        else:
            raise AssertionError(f"it did not begin: {''.join(said)}")
        # Read on, or a full pipe would stop it.
        reader = threading.Thread(target=lambda: said.extend(process.stderr or ()), daemon=True)
        reader.start()
        served = Served(process, said[-1], said)
        yield served
        served.stop()
        reader.join(10)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)
        assert process.stdout is not None
        process.stdout.close()
        process.stderr.close()


def script(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """A scripted judge's name."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return f"scripted:{path}"


def until(holds: Any, seconds: float = 30.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never held"
        time.sleep(0.02)
