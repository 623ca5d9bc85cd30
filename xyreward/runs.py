"""A run folder that explains itself: what was asked, with which versions and data, what came out.

    config.yaml         the resolved configuration; `--config` reads it back
    environment.json    versions, machine, git commit, command; no host, user or folder names
    data.json           hashes of items, splits and pairs; revisions; counts
    splits.json         content hash -> side, cluster
    pairs.jsonl         the pairs trained on
    checkpoints/        of the trainer, for --resume
    adapter/ or model/  what was trained
    before.jsonl, after.jsonl    every answer with its verdict, every log-probability
    report.json, report.md

Files appear whole or not at all; a killed process can leave a hidden `.NAME.*.partial` beside them.
A folder that holds anything else is refused unless told to resume, and then only with the same
configuration.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from xyreward.config import dump_yaml, parse_yaml
from xyreward.embedded import cache_dir
from xyreward.errors import ConfigError, RunFolderError
from xyreward.items import text_hash

PACKAGES = (
    "xyreward", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers",
    "numpy",
)  # fmt: skip


PARTIAL = ".*.partial"
"""Files that are being written, or that a killed process left."""
PREPARED = frozenset({"config.yaml", "environment.json", "data.json", "splits.json", "pairs.jsonl"})
"""What a run writes before its first work. A folder with no more than this lost nothing to a typo."""


class RunFolder:
    """Open with `RunFolder.open`; write with `write`; read what a stopped run left with `read`."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser()  # no shell has done it for a path in a YAML file
        self._lock: Any = None

    @classmethod
    def open(cls, config: BaseModel, output_dir: str, *, resume: bool) -> RunFolder:
        """Start or resume a run.

        Raises:
            RunFolderError: the folder holds something and `resume` is False; or it is of a run with
                another configuration (the differing keys are named). `output_dir` itself may
                differ: a folder can be moved, or named in another way. Or another process is
                running in it, or it cannot be written.

        A run that stopped before its first work (a typo found late) left nothing worth keeping: its
        folder is taken as it were empty.
        """
        folder = cls(Path(output_dir))
        path = folder.path
        resolved = dump_yaml(config)
        if path.exists() and not path.is_dir():
            raise RunFolderError(f"{path}: is a file, expected a folder for the run")
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder._take()
            present = sorted(path.iterdir())
        except OSError as error:
            if isinstance(error, RunFolderError):
                raise
            raise RunFolderError(f"{path}: cannot be used as the run's folder: {error}") from error
        held = [p.name for p in present if not p.match(PARTIAL)]
        begun = not ("environment.json" in held and PREPARED.issuperset(held))
        if held and begun and not resume:
            raise RunFolderError(
                f"{path}: is not empty ({', '.join(held[:5])}{', ...' if len(held) > 5 else ''}). "
                "Pass --resume to go on with that run, or --output-dir for another folder."
            )
        before = folder.read("config.yaml")
        if held and before is None:
            raise RunFolderError(f"{path}: holds no config.yaml, so it is not a run that can go on")
        if before is not None and begun and (differing := _differences(path, before, resolved)):
            raise RunFolderError(
                f"{path}: is a run with another configuration; it differs in "
                f"{'; '.join(differing)}. Resume with --config {path / 'config.yaml'}, or choose "
                "another --output-dir."
            )
        if not begun:
            for name in held:
                (path / name).unlink()
        for left_over in path.glob(PARTIAL):
            left_over.unlink(missing_ok=True)
        folder.write("config.yaml", resolved)
        folder.write("environment.json", json.dumps(environment(), indent=2) + "\n")
        return folder

    def _take(self) -> None:
        """Hold the folder's lock, which the system lets go of when this process dies, however it dies.

        The lock lies in the cache folder, so that a run folder holds nothing but the run.
        """
        from filelock import FileLock, Timeout

        locks = cache_dir() / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        lock = FileLock(locks / f"{text_hash(str(self.path.resolve()))[:32]}.lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise RunFolderError(
                f"{self.path}: another process is running in it; wait for it to end, or choose another "
                "--output-dir"
            ) from None
        self._lock = lock

    def write(self, name: str, text: str) -> Path:
        """Write a file that is there whole or not at all, even after a crash or on a full disk."""
        target = self.path / name
        handle, temporary = tempfile.mkstemp(dir=self.path, prefix=f".{name}.", suffix=".partial")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            Path(temporary).chmod(0o644)  # mkstemp lets nobody else read it
            Path(temporary).replace(target)
        except BaseException as error:
            Path(temporary).unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise RunFolderError(
                    f"{target}: cannot be written ({error}); make room and go on with --resume"
                ) from error
            raise
        return target

    def read(self, name: str) -> str | None:
        """The file's text, or None where a run has not come that far."""
        file = self.path / name
        return file.read_text("utf-8") if file.is_file() else None

    def last_checkpoint(self) -> str | None:
        """The newest complete checkpoint of the trainer, to resume from."""
        found = {
            int(p.name.rpartition("-")[2]): p
            for p in (self.path / "checkpoints").glob("checkpoint-*")
            if p.name.rpartition("-")[2].isdecimal() and _is_complete(p)
        }
        return str(found[max(found)]) if found else None


def _is_complete(checkpoint: Path) -> bool:
    # The trainer writes this file last, and not atomically: without it, or with half of it, the
    # save was cut short.
    try:
        json.loads((checkpoint / "trainer_state.json").read_bytes())
    except (OSError, ValueError):
        return False
    return True


def environment() -> dict[str, Any]:
    """Versions, machine, git commit and command, without host, user or folder names."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "packages": versions,
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
        "cpu": _cpu_model(),
        "git_commit": _git_commit(),
        "command": [Path(sys.argv[0]).name, *map(_without_folders, sys.argv[1:])],
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
    }


def _without_folders(argument: str) -> str:
    """`--config=/home/ada/x.yaml` -> `--config=x.yaml`. Relative paths and URLs stay."""
    return re.sub(
        r"(?<![\w./\\])(?!//)(?:~[^\s/\\]*|[A-Za-z]:)?[/\\](?:[^\s,'\"\[\]{}]*[/\\])?", "", argument
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((ln.partition(":")[2].strip() for ln in lines if ln.startswith("model name")), "")


def _git_commit() -> str | None:
    """Of this package's own repository; None where it lies installed in somebody else's."""
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    return _git("describe", "--always", "--dirty", "--abbrev=40")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603  # fixed arguments, no shell
            ["git", *arguments],  # noqa: S607  # git is where the user's PATH has it
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _differences(path: Path, before: str, after: str) -> list[str]:
    """One text per key that differs: its name, its value before and now."""
    try:
        old = _flat(parse_yaml(before, str(path / "config.yaml")))
    except ConfigError as error:
        raise RunFolderError(
            f"{error}. It is not as a run left it; choose another folder."
        ) from None
    new = _flat(parse_yaml(after, "this configuration"))
    return [
        f"{key} (was {old.get(key)!r:.60}, is {new.get(key)!r:.60})"
        for key in sorted({*old, *new} - {"output_dir"})
        if old.get(key) != new.get(key)
    ]


def _flat(data: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(data, Mapping) and data:
        return {
            k: v for key, value in data.items() for k, v in _flat(value, f"{prefix}{key}.").items()
        }
    return {prefix.rstrip("."): data}
