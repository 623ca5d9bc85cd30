"""Paths as users write them: `~` and `~ada` for home folders, links.

No shell has replaced a `~` in a YAML file, and pathlib's own methods raise what nobody expects of a path
(RuntimeError) where there is no such user, or where links lead in a circle.

Not here: names of models, which may be folders (`locate.py`).
"""

from __future__ import annotations

import os
from pathlib import Path

from xyreward.errors import ConfigError, RunFolderError, StoreError


def expanded(
    path: str | os.PathLike[str],
    error: type[ConfigError | RunFolderError | StoreError] = ConfigError,
) -> Path:
    """The path with its home folder.

    Args:
        path: as the user wrote it.
        error: what to raise.

    Raises:
        ConfigError: there is no home folder of this name, or no path can have a null character.
    """
    if "\0" in os.fspath(path):
        raise error(f"{os.fspath(path)!r:.200}: no path has a null character")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise error(
            f"{path!s:.200}: there is no home folder of {Path(path).parts[0][1:] or 'this user'!r}; give the "
            "whole path, or ./~... for a folder whose name begins so"
        ) from None


def resolved(path: Path) -> Path:
    """The path without links; one that leads in a circle stays, and whoever opens it tells."""
    return Path(os.path.realpath(path))
