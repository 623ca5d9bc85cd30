"""stdout and stderr that nobody reads any more, or whose disk is full, do not decide a status.

Python keeps what could not be written and tries once more at exit, which then ends with status 120 whatever
the process had to say. With PYTHONUNBUFFERED it keeps nothing, so a test shows that only without.

Imports nothing that takes time.
"""

from __future__ import annotations

import atexit
import os
import sys
from functools import cache


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
