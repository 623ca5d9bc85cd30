"""Ctrl-C on the command line: one line and status 130, at whatever time it comes.

A KeyboardInterrupt while a module is imported can come out as an error of that module (pydantic's, where
a class was half made), or not at all. So a handler of ours remembers it until something is sent. From there
on it is asyncio's, which only takes the place of Python's own.

Imports nothing that takes time: it is to be there before what does.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import Any, NoReturn

INTERRUPTED = 130


class Interrupt:
    """Whether Ctrl-C came, and whether that was said."""

    def __init__(self) -> None:
        self.came = False
        self.told = False
        self._before: Any = None

    @property
    def watching(self) -> bool:
        """Whether the handler is ours now."""
        return self._before is not None

    def watch(self) -> None:
        """Take over; nothing where that was done already, and nothing but in the main thread."""
        if not self.watching:
            with contextlib.suppress(ValueError):
                self._before = signal.signal(signal.SIGINT, self._heard)

    def unwatch(self) -> None:
        """Give back to the handler that was there before."""
        if self.watching:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def forget(self) -> None:
        """Begin anew: for a second command in one process."""
        self.came = self.told = False

    def end(self, what: str = "interrupted") -> NoReturn:
        """Say one line and end with the status."""
        if not self.told:
            self.told = True
            with contextlib.suppress(OSError, ValueError):
                print(what, file=sys.stderr)  # noqa: T201
        raise SystemExit(INTERRUPTED) from None

    def _heard(self, *_: object) -> None:
        self.came = True
        raise KeyboardInterrupt


INTERRUPT = Interrupt()
"""Of this process."""
