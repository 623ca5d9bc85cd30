"""Processes with a verdict store open, and the records that they put there.

Not part of a test file, so that a process that is started only to be killed need not import pytest.
"""

import hashlib
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from xyreward.store import StoredVerdict
from xyreward.verdict import Usage


def record(name: str = "a", **changes: Any) -> StoredVerdict:
    """A record whose text follows from its key, so that half of one would show."""
    key = hashlib.sha256(name.encode()).hexdigest()
    fields: dict[str, Any] = {
        "key": key,
        "kind": "verdict",
        "identity": {
            "judge": "anthropic:m",
            "rubric_version": "xy-1",
            "answer_hash": name,
            "vote": "1",
        },
        "payload": json.dumps({"name": name, "text": key * 20}),
        "raw_text": f"{key}é\n" * 10,
        "usage": Usage(1, 2, 3, 4),
        "cost_usd": 0.0078,
        "served_model": "m-2026",
        "base_url": "http://127.0.0.1:1",
        "created": "2026-11-30T12:00:00Z",
    }
    return StoredVerdict(**{**fields, **changes})


PRELUDE = f"""
import asyncio, os, random, resource, signal, sys, threading, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from store_processes import *
from xyreward.errors import StoreError
from xyreward.store import VerdictStore
copies = int(sys.argv.pop(1))
children = []
while len(children) < copies > 1:  # a fork is cheaper than a start
    if (child := os.fork()) == 0:
        break
    children.append(child)
else:
    if copies > 1:
        sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
number = len(children)
store = VerdictStore.open(sys.argv[1])
def told(*words):  # a line in the file, whole, whatever happens to this process afterwards
    os.write(log, (" ".join(map(str, words)) + "\\n").encode())
log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
"""


def start(code: str, store: Path, log: Path, *arguments: object, copies: int = 1) -> Any:
    """A process of its own with `store` open; or one that waits for several such."""
    command = [sys.executable, "-W", "error", "-c", PRELUDE + code, copies, store, log, *arguments]
    return subprocess.Popen([*map(str, command)])


def finish(process: Any, timeout: float = 60) -> None:
    assert process.wait(timeout) == 0


def wait_until(true: Callable[[], bool], timeout: float = 20) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def sound(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        return bool(connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)])
