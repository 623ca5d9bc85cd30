"""stdout and stderr that nobody reads any more, or whose disk is full, do not decide a status.

Python keeps what could not be written and tries once more at exit, which then ends with status 120 whatever
the process had to say. With PYTHONUNBUFFERED it keeps nothing, so a test shows that only without.

Imports nothing that takes time.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@cache
def forgive_at_exit() -> None:
    """From now on what cannot be written is dropped when the process ends. Once is enough."""
    atexit.register(_drop_unwritten)


def _drop_unwritten() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except ValueError:  # closed: Python does not try again
            pass
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


class _Forgiving(io.FileIO):
    """A file that drops what cannot be written."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


@contextmanager
def forgiving_streams() -> Iterator[None]:
    """Within, no write to stdout or stderr fails, whoever makes it, and each line goes out at once.

    Trainers and bars print, too, and would end a run of hours when `head` has what it wants.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_forgiving, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _forgiving(stream: Any) -> Any:
    try:
        stream.flush()
        raw = _Forgiving(stream.fileno(), "w", closefd=False)
    except (AttributeError, OSError, ValueError):  # none, closed, or no file
        return stream
    if os.name == "nt" and raw.isatty():  # a console, to which Python does not write bytes
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=stream.encoding, errors=stream.errors, line_buffering=True
    )
