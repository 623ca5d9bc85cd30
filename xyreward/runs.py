"""A run folder that explains itself: what was asked, with which versions, on which data, what came out.

    config.yaml         the resolved configuration; `--config` reads it back
    environment.json    versions, machine, device, git commit
    data.json           hashes of items, splits and pairs; revisions; counts
    splits.json         content hash -> side, cluster
    pairs.jsonl         the pairs trained on
    checkpoints/        of the trainer, for --resume
    adapter/ or model/  what was trained
    before.jsonl, after.jsonl    every answer with its verdict, every log-probability
    report.json, report.md

Files appear whole or not at all. A folder that holds anything is refused unless told to resume, and then
only with the same configuration.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from xyreward.config import dump_yaml
from xyreward.errors import RunFolderError

PACKAGES = (
    "xyreward", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers", "numpy",
)  # fmt: skip


class RunFolder:
    """Open with `RunFolder.open`; write with `write`; read what a stopped run left with `read`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, config: BaseModel, output_dir: str, *, resume: bool) -> RunFolder:
        """Start or resume a run.

        Raises:
            RunFolderError: the folder holds something and `resume` is False; or it is of a run with
                another configuration (the differing keys are named).
        """
        path = Path(output_dir)
        folder = cls(path)
        resolved = dump_yaml(config)
        if path.exists() and not path.is_dir():
            raise RunFolderError(f"{path}: is a file, expected a folder for the run")
        held = sorted(p.name for p in path.iterdir()) if path.is_dir() else []
        if held and not resume:
            raise RunFolderError(
                f"{path}: is not empty ({', '.join(held[:5])}{', ...' if len(held) > 5 else ''}). "
                "Pass --resume to go on with that run, or --output-dir for another folder."
            )
        before = folder.read("config.yaml")
        if held and before is None:
            raise RunFolderError(f"{path}: holds no config.yaml, so it is not a run that can go on")
        if before is not None and before != resolved:
            raise RunFolderError(
                f"{path}: is a run with another configuration; it differs in "
                f"{', '.join(_differences(before, resolved))}. Resume with the configuration in "
                f"{path / 'config.yaml'}, or choose another --output-dir."
            )
        path.mkdir(parents=True, exist_ok=True)
        folder.write("config.yaml", resolved)
        folder.write("environment.json", json.dumps(environment(), indent=2) + "\n")
        return folder

    def write(self, name: str, text: str) -> Path:
        """Write a file so that it is there whole or not at all, even after a crash or a full disk."""
        target = self.path / name
        handle, temporary = tempfile.mkstemp(dir=self.path, prefix=f".{name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        return target

    def read(self, name: str) -> str | None:
        """The file's text, or None where a run has not come that far."""
        file = self.path / name
        return file.read_text("utf-8") if file.is_file() else None

    def last_checkpoint(self) -> str | None:
        """The newest complete checkpoint of the trainer, to resume from."""
        found = [
            p
            for p in (self.path / "checkpoints").glob("checkpoint-*")
            if (p / "trainer_state.json").is_file()  # written last: without it the save was cut short
        ]
        newest = max(found, key=lambda p: int(p.name.rpartition("-")[2]), default=None)
        return str(newest) if newest else None


def environment() -> dict[str, Any]:
    """Versions, machine and git commit, without host or user names."""
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
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((ln.partition(":")[2].strip() for ln in lines if ln.startswith("model name")), "")


def _git_commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _differences(before: str, after: str) -> list[str]:
    from xyreward.config import parse_yaml

    old, new = _flat(parse_yaml(before)), _flat(parse_yaml(after))
    return sorted(key for key in {*old, *new} if old.get(key) != new.get(key))


def _flat(data: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(data, Mapping) and data:
        return {
            k: v for key, value in data.items() for k, v in _flat(value, f"{prefix}{key}.").items()
        }
    return {prefix.rstrip("."): data}
