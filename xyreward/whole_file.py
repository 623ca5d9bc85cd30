"""Files that are there whole or not at all: written beside their place, brought to the disk, then renamed.

Where writing is stopped, by a full disk or by Ctrl-C, what was there before is there still, and nothing else.
A process that is killed may leave a file `.<name>.<hex>.partial` behind. A link stays a link, and the file
that it names is replaced; that file's rights stay.

Not here: files that grow row by row and are gone on with (`score_file.py`, `partial.py`).
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """An empty file beside `path`, which takes its place where the block ends without an error.

    Args:
        path: in a folder that is there. Two processes that write it do not disturb each other; the last wins.

    Raises:
        OSError: it cannot be written, or is there and is no regular file; `path` is as it was.
    """
    path = Path(os.path.realpath(path))
    mode = None
    if path.exists():
        if not path.is_file():  # a new name would put a file in the place of a device or a pipe
            raise OSError(errno.EINVAL, "is there and is no regular file", str(path))
        mode = stat.S_IMODE(path.stat().st_mode)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    # Not tempfile, whose files nobody else may read: this one has the rights that the user's others have.
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield partial
        with partial.open("rb+") as stream:
            os.fsync(stream.fileno())  # or a power cut may leave the new name on an empty file
        if mode is not None:
            partial.chmod(mode)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: str | bytes | Iterable[str | bytes]) -> None:
    """Write a file, text as UTF-8 with its line ends as they are.

    Args:
        path: see `whole`.
        content: all of it, or in pieces.

    Raises:
        OSError: it cannot be written; `path` is as it was.
    """
    with whole(path) as partial, partial.open("wb") as stream:
        for piece in [content] if isinstance(content, str | bytes) else content:
            stream.write(piece.encode() if isinstance(piece, str) else piece)
