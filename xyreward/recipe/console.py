"""What a recipe tells at the terminal: that it began, its errors on one line, and how to go on.

Not here: what is said of a run (`run.py`), of an evaluation before it (`plans.py`).
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from xyreward.dispatch import world_size
from xyreward.errors import ConfigError, JudgeUnreliable, XYRewardError, told
from xyreward.markdown import printable
from xyreward.recipe.processes import leave_processes
from xyreward.runs import RunFolder
from xyreward.streams import forgive_at_exit, forgiving_streams


def is_first() -> bool:
    """Whether this is the first of all processes, by the launcher's word: before there is a state to ask."""
    return os.environ.get("RANK", "0") == "0"


def say_hello() -> None:
    """Tell at once that something goes on: importing takes a minute where a machine is busy."""
    if is_first():
        tell("== loading PyTorch and checking the configuration")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Show an error of ours as its message: what was found, what was expected, what to do next.

    A traceback through five libraries helps nobody who mistyped a key. XYREWARD_TRACEBACK=1 shows it.

    Announcements of other libraries to change something one day are no errors of a recipe, also where
    PYTHONWARNINGS or `-W error` makes errors of them: whoever runs a recipe cannot mend those libraries,
    and one of them warns at nearly every start.
    """
    forgive_at_exit()
    with forgiving_streams(), _on_one_line():
        yield


@contextmanager
def _on_one_line() -> Iterator[None]:
    if any(action == "error" for action, *_ in warnings.filters):
        for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
            warnings.filterwarnings("default", category=category)
    # Between transformers and peft or TRL, at every start.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    try:
        _check_place()
        yield
        leave_processes()
    except KeyboardInterrupt:
        if os.environ.get("XYREWARD_TRACEBACK"):
            raise
        # Nothing is left to do, and a second Ctrl-C shall not spoil the line.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _close_bars()
        if is_first():
            with suppress(OSError):
                print(f"\n{printable(how_to_go_on())}", file=sys.stderr, flush=True)  # noqa: T201
        raise SystemExit(INTERRUPTED) from None
    except JudgeUnreliable as error:
        said = f"{type(error).__name__}: {error}\n{how_to_go_on('Stopped')}"
        leave_processes()  # all of them stop together
        _end(said, error, JUDGE_FAILED)
    except (XYRewardError, FileNotFoundError) as error:
        said = f"{type(error).__name__}: {error}"
        _end(said, error)
    except ImportError as error:
        _end(f"MissingDependency: {told(error)}. Try: pip install 'xyreward[train]'", error)
    except Warning as error:
        _end(
            f"{told(error)}. It is a warning that PYTHONWARNINGS or -W made an error; leave that out",
            error,
        )


def _check_place() -> None:
    """Find what other libraries would stumble over, and what would then be told of a key or of nothing."""
    world_size()
    for name in ("RANK", "LOCAL_RANK"):
        if not (text := os.environ.get(name) or "0").removeprefix("-").isdecimal():
            raise ConfigError(f"{name} is {text!r}, expected the number of a process; unset it")
    try:
        Path.cwd()
    except FileNotFoundError:
        raise ConfigError(
            "the folder that this was started in was removed; change to one that is there"
        ) from None


@contextmanager
def on_the_way() -> Iterator[None]:
    """Around what sends and computes, once all was found to be in order: errors there have another status.

    Within `plain_errors`, and as `xyreward eval` has it: 2 is what was wrong from the beginning.
    """
    try:
        yield
    except (XYRewardError, OSError) as error:
        _end(f"{type(error).__name__}: {error}\n{how_to_go_on('Stopped')}", error, STOPPED)


def _close_bars() -> None:
    """Leave progress bars where they stand: at exit each would be drawn once more, below the last word."""
    if (tqdm := getattr(sys.modules.get("tqdm"), "tqdm", None)) is not None:
        for bar in list(getattr(tqdm, "_instances", ())):
            bar.close()


INTERRUPTED = 128 + signal.SIGINT
"""Exit status after Ctrl-C, as shells have it."""

STOPPED = 3
"""Exit status of an evaluation that was stopped on the way: a wrong key, a spent budget, a full disk."""

JUDGE_FAILED = 75
"""Exit status of a training that its judge ended: EX_TEMPFAIL of sysexits.h, try again later."""

_begun: list[RunFolder] = []
"""Folders that this process runs in, the first one first; of several rounds it is that of the whole."""


def begins(folder: RunFolder) -> None:
    """Note that this process runs in a folder, for what is said when it ends early."""
    _begun.append(RunFolder(folder.path))  # without its lock


def how_to_go_on(what: str = "Interrupted") -> str:
    """What a run that was interrupted keeps, and the command that goes on with it, on one line."""
    kept = _begun[0].kept() if _begun else []
    arguments = [a for a in sys.argv[1:] if a != "--resume"] + ["--resume"] * bool(kept)
    python = Path(sys.executable)
    with suppress(ValueError, OSError):  # elsewhere; this folder is gone
        python = python.relative_to(Path.cwd())
    command = shlex.join([str(python), sys.argv[0], *arguments])
    if world_size() > 1:
        command = "the same command" + " with --resume" * bool(kept)
    if not kept:
        return f"{what} before anything was computed. Begin again with: {command}"
    return f"{what}. {_begun[0].path} keeps {', '.join(kept)}. Go on with: {command}"


def _end(said: str, error: Exception, status: int = 2) -> NoReturn:
    if os.environ.get("XYREWARD_TRACEBACK"):
        raise error
    with suppress(OSError):  # nobody listens any more
        print(printable(said), file=sys.stderr)  # noqa: T201  # this is the output
    raise SystemExit(status) from None


def tell(text: str) -> None:
    """Print a line for the user, whatever became of the terminal."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    # A closed pipe, a full disk behind stdout or an ASCII terminal must not end a run of hours.
    text = printable(text)
    with suppress(OSError):
        print(text.encode(encoding, "replace").decode(encoding), flush=True)  # noqa: T201


class Bars:
    """A progress bar per kind of work."""

    def __init__(self) -> None:
        self._bars: dict[str, Any] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """So many more of a kind of work are done, of so many."""
        from tqdm import tqdm

        if what not in self._bars:
            self._bars[what] = tqdm(total=total, desc=what, leave=True)
        bar = self._bars[what]
        bar.update(done)
        if bar.n >= total:
            bar.close()
