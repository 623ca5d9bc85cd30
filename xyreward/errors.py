"""Every exception that xyreward raises on purpose, on one page.

    XYRewardError
    ├── DataError          items or answers from outside are malformed; `.problems` lists them all
    ├── LeakError          training data overlaps with held-out data; `.offending` lists the ids
    ├── OtherVersion       a file has fields that this version does not know; read it with its own
    ├── ConfigError        a configuration names an unknown key or an impossible value
    ├── RunFolderError     a run folder would be overwritten, or belongs to another configuration
    ├── MissingDependency  an extra or a model package is not installed; the message says how
    ├── HubUnreachable     a hub could not be reached; the message says how to go on without it
    ├── JudgeError         a judge cannot be built, or cannot judge this kind of item
    │   └── JudgeUnreliable  a judge failed too often, or too long, and ended a training
    └── StoreError         the verdict store cannot be used, or holds something that contradicts

Each is also the built-in exception that a caller would expect (ValueError, ImportError, ...).

Not here: a single answer that could not be judged. That is data, not an exception
(`xyreward.verdict.JudgeFailure`), because one bad judgement must not end a training run.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a disk, or of a user's share of it, that is full."""


def told(error: BaseException) -> str:
    """Another library's error on one line: its class and what it says, at most 300 characters."""
    text = " ".join(str(error).split())
    text = f"{text[:297]}..." if len(text) > 300 else text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class XYRewardError(Exception):
    """Base class: catch this for everything that xyreward raises on purpose."""

    def __str__(self) -> str:
        # Messages quote names of files, columns and items, and are read in terminals.
        return "\n".join(map(printable, super().__str__().split("\n")))


def printable(text: str) -> str:
    """A text with what a terminal obeys or hides (escapes, line ends, bidi marks) as Python's escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class DataError(XYRewardError, ValueError):
    """Items or answers from outside are malformed."""

    def __init__(self, problems: Sequence[str], *, shown: int = 20) -> None:
        self.problems = [printable(problem) for problem in problems]
        """One line per problem: file, row, field, what was found, what was expected."""
        more = len(self.problems) - shown
        tail = f"\n  ... and {more} more" if more > 0 else ""
        noun = "problem" if len(self.problems) == 1 else "problems"
        super().__init__(
            f"{len(self.problems)} {noun} in the data:\n  "
            + "\n  ".join(self.problems[:shown])
            + tail
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception would pickle the message alone, and a worker process would lose the list.
        return type(self), (self.problems,)


class OtherVersion(XYRewardError, ValueError):  # noqa: N818  # reads as what it is
    """A file has what this version of xyreward does not know: another one wrote it."""


class LeakError(XYRewardError, ValueError):
    """Training data overlaps with held-out data."""

    def __init__(self, message: str, offending: Sequence[str] = ()) -> None:
        self.offending = list(offending)
        """Ids of the items that are on both sides."""
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.offending)


class ConfigError(XYRewardError, ValueError):
    """A configuration names an unknown key or an impossible value."""


class RunFolderError(XYRewardError, FileExistsError):
    """A run folder would be overwritten, or belongs to another configuration."""


class MissingDependency(XYRewardError, ImportError):  # noqa: N818  # reads as what it is
    """An extra or a model package is not installed. The message is the command that installs it."""


class HubUnreachable(XYRewardError, ConnectionError):  # noqa: N818  # likewise
    """A hub could not be reached."""


class JudgeError(XYRewardError, RuntimeError):
    """A judge cannot be built, or cannot judge this kind of item."""


class JudgeUnreliable(JudgeError):  # noqa: N818  # reads as what it is
    """A judge failed too often, or too long, and ended a training; its checkpoint is kept."""


class StoreError(XYRewardError, RuntimeError):
    """The verdict store cannot be used, or what it holds contradicts what was asked for."""
