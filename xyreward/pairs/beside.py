"""A hidden folder beside one that is to appear whole, and what killed processes left of theirs.

Not here: what is written into it, how it takes its place (`formats.py`).
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def folder_beside(target: Path) -> Iterator[Path]:
    """A new folder `.<name>.<8 hex digits>.partial` beside `target`, removed in the end if it is still there.

    The folder itself is locked (`flock`), which ends with its process however that ends. Those of the same
    target that nobody holds are removed first. Without such locks (Windows, some network disks) they stay.

    Raises:
        OSError: it cannot be made.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in _beside(target, "partial"):
        with _held(left) as mine:
            if mine:
                shutil.rmtree(left, ignore_errors=True)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        while True:
            partial.mkdir(exist_ok=True)
            with _held(partial):
                if not partial.is_dir():
                    continue  # another process took it for one that was left, before it was held
                yield partial
                break
        if target.is_dir():
            # What a set was put aside as, if its process was killed before the new one was in place.
            for old in _beside(target, "old"):
                if not old.with_suffix(".partial").exists():
                    shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _beside(target: Path, ending: str) -> list[Path]:
    name = re.compile(rf"{re.escape(f'.{target.name}.')}[0-9a-f]{{8}}\.{ending}")
    return [path for path in target.parent.iterdir() if name.fullmatch(path.name)]


@contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Hold a folder while in the block; False where another process does, or where that cannot be told."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield False
        return
    try:
        held = False
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        yield held
    finally:
        os.close(handle)
