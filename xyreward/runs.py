"""A run folder that explains itself: what was asked, with which versions and data, what came out.

    config.yaml         the resolved configuration; `--config` reads it back
    environment.json    versions, machine, git commit, command; no host, user or folder names. Of the first
                        start; environment-2.json, environment-3.json, ... are of those with --resume
    data.json           hashes of the policy, items, splits and pairs; revisions; counts
    splits.json         content hash -> side, cluster
    pairs.jsonl         the pairs trained on
    prompts.jsonl       the prompts whose answers were rewarded, with what they were judged by
    audit.md            what was measured of them
    samples*.jsonl      answers of the policy that pairs were made of; `.job` says with which settings
    checkpoints/        of the trainer, for --resume
    adapter/ or model/  what was trained
    before.jsonl, after.jsonl    every answer with its verdict, every log-probability; evaluation.jsonl of a
                        policy that is only evaluated
    before.oracle.jsonl, ...     answers to prompts that told the goal
    reference.goal_focused.jsonl, ...    the items' own answers of a kind, judged likewise
    before.unfinished.jsonl, ... batches of an evaluation that is not done, for --resume; one per process
    report.json, report.md, report.html
    distilled.json, distilled.md, distilled.jsonl    a reward model beside its judge; every answer with both
                        rewards
    report_data/        answers that are too many for the page itself
    figures/            of the page, as SVG; with the extra `figures` also as PNG
    tensorboard/        where `dpo.report_to` names it: of the training, and the evaluation's figures
    sft/                of GRPO that began with an SFT: a folder like this one, of that alone
    round-1/, ...       of a run of several rounds: a folder like this one for each, and above them the
                        configuration and a report of the first before against the last after
    .lock               held while a process runs in the folder; it stays, and says nothing by itself

Files appear whole or not at all; a killed process can leave a hidden `.NAME.*.partial` beside them.
A folder that holds anything else is refused unless told to resume, and then only with the same
configuration. Where nothing has been computed yet, any configuration will do, and until training has
begun, other settings of it (sections `pairs`, `prompts`, `reward`, `audit`, `lora`, `sft`, `dpo`, `grpo`);
where only the SFT before GRPO has begun, another `reward`, `audit` and `grpo`. Samples are refused by whoever
reads them where they were made with other settings.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from xyreward.config import dump_yaml, parse_yaml
from xyreward.differing import was_and_is
from xyreward.dispatch import Limits, world_size
from xyreward.embedded import is_whole_safetensors
from xyreward.errors import ConfigError, OtherVersion, RunFolderError, told
from xyreward.home import expanded
from xyreward.judges import OF_BATCHES
from xyreward.prices import without_url
from xyreward.whole_file import write_whole

PACKAGES = (
    "xyreward", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers",
    "numpy",
)  # fmt: skip


PARTIAL = ".*.partial"
"""Files that are being written, or that a killed process left."""
LOCK = ".lock"
PARTIAL_EVALUATION = ".unfinished.jsonl"
"""End of the names of files that keep an unfinished evaluation's batches."""
LOGS = "tensorboard"
"""Folder of a tracker. Nothing in it is gone on with, and nothing is lost with it."""
PREPARED = frozenset(
    {
        "config.yaml",
        "environment.json",
        "data.json",
        "splits.json",
        "pairs.jsonl",
        "audit.md",
        "prompts.jsonl",
    }
)
"""What a run writes before its first work. A folder with no more than this lost nothing to a typo."""
OF_TRAINING = (
    "pairs.",
    "prompts.",
    "reward.",
    "audit",
    "lora",
    "sft",
    "dpo",
    "grpo",
    "reward_model",
)
"""Beginnings of the configuration's keys on which the evaluation before training does not depend."""
AFTER_SFT = ("reward.", "audit", "grpo")
"""Those on which the SFT before GRPO does not depend either."""
BEFORE_TRAINING = (
    r"(before(\.oracle)?|reference\.\w+)\.jsonl|before(\.oracle)?[\w-]*\.unfinished\.jsonl"
    r"|samples[\w-]*\.jsonl(\.\w+)?|reward_audit\.jsonl"
)
"""Files that are there before training has left anything to go on from: its settings may change still.
Looks of GRPO's audit are read again beside a checkpoint only; the first is before the first step."""
OF_THE_BILL = frozenset(
    {"store", "run", "budget_usd", "prices", *OF_BATCHES, *Limits.__dataclass_fields__}
)
"""Options of models that change what a run costs and how long it takes, and not what comes out: a budget that
is spent may be raised, a server that is slow asked for less at a time."""
ROUND = "round-"
"""Beginning of the names of folders of rounds."""
SFT = "sft"
"""Folder of the SFT before GRPO."""


class RunFolder:
    """Open with `RunFolder.open`; write with `write`; read what a stopped run left with `read`."""

    def __init__(self, path: Path) -> None:
        """Name a folder; nothing is read or written.

        Raises:
            RunFolderError: a home folder (`~ada`) that does not exist.
        """
        self.path = expanded(path, RunFolderError)
        self.changed: tuple[str, ...] = ()
        """Settings of the training that differ from those that the folder was opened with before."""
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
        try:
            folder._refuse_others(
                resume=resume
            )  # before a lock file is put into a folder of others
            folder.path.mkdir(parents=True, exist_ok=True)
            folder._take()
            folder._begin(dump_yaml(config), resume=resume)
        except (OSError, ValueError) as error:  # ValueError: a null character in the path
            if isinstance(error, RunFolderError):
                raise
            raise RunFolderError(
                f"{folder.path!s:.200}: cannot be used as the run's folder: {told(error)}"
            ) from error
        return folder

    def _held(self) -> list[str]:
        return sorted(
            p.name for p in self.path.iterdir() if p.name != LOCK and not p.match(PARTIAL)
        )

    def _computed(self) -> list[str]:
        """What is there that took work; in folders of rounds and of an SFT, too."""
        found = []
        for name in self._held():
            if self._is_run(name):
                found += [f"{name}/{inner}" for inner in RunFolder(self.path / name)._computed()]
            elif name == "checkpoints":
                found += [name] * any((self.path / name).glob("checkpoint-*"))
            elif name not in PREPARED | {LOGS} and not _is_environment(name):
                found.append(name)
        return found

    def _is_run(self, name: str) -> bool:
        """Whether it is the folder of a part of this run."""
        return (name == SFT or name.startswith(ROUND)) and (self.path / name).is_dir()

    def _of_training(self) -> list[str]:
        """What is there that depends on settings of the training."""
        return [
            name
            for name in self._computed()
            if not re.fullmatch(BEFORE_TRAINING, name.rpartition("/")[2])
        ]

    def _refuse_others(self, *, resume: bool) -> None:
        """Refuse a folder that is not a run's, or that is and shall not be resumed."""
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderError(f"{self.path}: is a file, expected a folder for the run")
        held = self._held() if self.path.exists() else []
        begun = "environment.json" not in held or bool(self._computed())
        if held and begun and not resume:
            raise RunFolderError(
                f"{self.path}: is not empty ({', '.join(held[:5])}{', ...' if len(held) > 5 else ''}). "
                "Pass --resume to go on with that run, or --output-dir for another folder."
            )
        if held and "config.yaml" not in held:
            raise RunFolderError(
                f"{self.path}: holds no config.yaml, so it is not a run that can go on"
            )

    def _begin(self, resolved: str, *, resume: bool) -> None:
        self._refuse_others(resume=resume)  # again: what was there may have changed before the lock
        held, computed = self._held(), self._computed()
        begun = bool(computed) or "environment.json" not in held
        before = self.read("config.yaml")
        if before is not None and begun:
            differing = _differences(self.path, before, resolved)
            if computed and all(key.startswith(self._may_change()) for key in differing):
                self.changed = tuple(differing.values())
            elif differing:
                raise RunFolderError(
                    f"{self.path}: is a run with another configuration; it differs in "
                    f"{'; '.join(differing.values())}. Go on with --config "
                    f"{self.path / 'config.yaml'}, or name another folder."
                )
        if not begun:
            for name in held:
                # Folders without a checkpoint or a round's work: nothing to lose, nothing to gain.
                if name not in ("checkpoints", LOGS) and not self._is_run(name):
                    (self.path / name).unlink()
        for left_over in self.path.glob(PARTIAL):
            left_over.unlink(missing_ok=True)
        starts = sum(map(_is_environment, self._held()))
        self.write("config.yaml", resolved)
        self.write(
            f"environment-{starts + 1}.json" if starts else "environment.json",
            json.dumps(environment(), indent=2) + "\n",
        )

    def _may_change(self) -> tuple[str, ...]:
        """Beginnings of the configuration's keys on which nothing that is there depends."""
        trained = self._of_training()
        if not trained:
            return OF_TRAINING
        return AFTER_SFT if all(name.startswith(f"{SFT}/") for name in trained) else ()

    def kept(self) -> list[str]:
        """What `--resume` would go on with: names of files and of the newest checkpoint."""
        names = []
        for name in self._computed():
            above, _, own = name.rpartition("/")
            if own == "checkpoints":
                newest, _ = RunFolder(self.path / above).last_checkpoint()
                names += [str(Path(above, Path(newest).name))] if newest else []
            else:
                names.append(name)
        return names

    @property
    def trained(self) -> bool:
        """Whether training has left anything to go on from."""
        return bool(self._of_training())

    def _take(self) -> None:
        """Hold the folder's lock, which the system lets go of when this process dies, however it dies.

        It lies in the folder itself: users and containers share the folder, but no cache. Its file stays
        behind, since a process that removed it could remove the next one's. On a network file system it
        holds between machines where `flock` does (NFS 4, NFS 3 with lockd, SMB); where there is no
        `flock` at all (some Lustre mounts), filelock falls back to a file that exists while it is held,
        which the death of a whole machine leaves behind.
        """
        from filelock import FileLock, Timeout

        lock = FileLock(self.path / LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise RunFolderError(
                f"{self.path}: another process is running in it; wait for it to end, or name another "
                f"folder. (If its machine is gone and this does not change, delete {LOCK} in it.)"
            ) from None
        except NotImplementedError as error:  # filelock before 3.30, without flock
            raise RunFolderError(
                f"{self.path}: is on a file system without locks ({told(error)}); name another "
                "folder"
            ) from error
        self._lock = lock

    def write(self, name: str, content: str | bytes | Iterable[str]) -> Path:
        """Write a file that is there whole or not at all, even after a crash or on a full disk.

        Args:
            name: in the folder, or in a folder within it, which is made.
            content: text, bytes, or a text in pieces.

        Raises:
            RunFolderError: it cannot be written.
        """
        target = self.path / name
        try:
            if target.parent != self.path:
                target.parent.mkdir(exist_ok=True)
            write_whole(target, content)
        except OSError as error:
            raise RunFolderError(
                f"{target}: cannot be written ({error}); make room and run the same again "
                "(a recipe with --resume)"
            ) from error
        return target

    def read(self, name: str) -> str | None:
        """The file's text, or None where a run has not come that far.

        Raises:
            RunFolderError: it is not text, or cannot be read.
        """
        file = self.path / name
        if not file.is_file():
            return None
        try:
            return file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise self.damaged(name, error) from None

    def damaged(self, name: str, error: Exception, *, only_read: bool = False) -> RunFolderError:
        """The error to raise about a file that is not as a run left it.

        Args:
            name: of the file.
            error: what was found.
            only_read: by a command that computes nothing anew.
        """
        if isinstance(error, OtherVersion):
            return RunFolderError(
                f"{self.path / name}: is of another version of xyreward ({told(error)}); read it with that "
                "one. To remove it would lose what it holds"
            )
        if only_read:
            return RunFolderError(
                f"{self.path / name}: is not as a run left it ({told(error)}); restore it"
            )
        advice = "restore it, or name another folder"
        if name == "training.json":
            advice = "remove it, and training goes on from the last checkpoint"
        elif re.fullmatch(r"((before|after|evaluation)(\.oracle)?|reference\.\w+)\.jsonl", name):
            advice = "remove it, and it is computed anew"
        return RunFolderError(
            f"{self.path / name}: is not as a run left it ({told(error)}); {advice}"
        )

    def last_checkpoint(self) -> tuple[str | None, tuple[str, ...]]:
        """The newest whole checkpoint of the trainer to resume from, and the names of newer damaged ones."""
        found = {
            int(p.name.rpartition("-")[2]): p
            for p in (self.path / "checkpoints").glob("checkpoint-*")
            if p.name.rpartition("-")[2].isdecimal()
        }
        damaged: list[str] = []
        for step in sorted(found, reverse=True):
            if _is_whole(found[step]):
                return str(found[step]), tuple(damaged)
            damaged.append(found[step].name)
        return None, tuple(damaged)


def _is_environment(name: str) -> bool:
    return re.fullmatch(r"environment(-\d+)?\.json", name) is not None


def _is_whole(checkpoint: Path) -> bool:
    """Whether all files of a checkpoint have their ends.

    The trainer writes trainer_state.json last, and nothing atomically: without it, or with half of it,
    the save was cut short. A crash of the machine can cut the files before it, too.
    """
    try:
        json.loads((checkpoint / "trainer_state.json").read_bytes())
        for file in checkpoint.iterdir():
            if file.suffix in {".pt", ".pth", ".bin"} and not zipfile.is_zipfile(file):
                return False  # torch saves ZIP archives, whose directory is at the end
            if file.suffix == ".safetensors" and not is_whole_safetensors(file):
                return False
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
        "world_size": world_size(),
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


def _differences(path: Path, before: str, after: str) -> dict[str, str]:
    """Key that differs -> a text with its name, its value before and now."""
    try:
        old = _flat(parse_yaml(before, str(path / "config.yaml")))
    except ConfigError as error:
        raise RunFolderError(
            f"{error}. It is not as a run left it; choose another folder."
        ) from None
    new = _flat(parse_yaml(after, "this configuration"))
    old, new = _deciding(old), _deciding(new)
    return {
        key: f"{key} ({was_and_is(old.get(key), new.get(key))})"
        for key in sorted({*old, *new} - {"output_dir"})
        if old.get(key) != new.get(key)
    }


def name_in_run(policy: str, output_dir: str) -> str:
    """A policy's name; that of one which an earlier round saved by its place in the run, which may be moved.

    Args:
        policy: a folder or another name.
        output_dir: of the run or round whose policy it is.
    """
    folder, path = Path(output_dir), Path(policy)
    saved_by_round = path.parent.name.startswith(ROUND) and path.parent.parent == folder.parent
    return f"{path.parent.name}/{path.name}" if saved_by_round else policy


def _deciding(flat: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the results.

    No options of the bill, no bound of failures that are put up with, and no address of a server, whose port
    may change.
    """
    found = {}
    for key, value in flat.items():
        section, _, option = key.rpartition(".")
        if section.endswith("_options") and option in OF_THE_BILL:
            continue
        if key == "evaluation.max_failure_rate":  # it decides what is made of what came out
            continue
        if key.endswith("_options") and value == {}:  # as if the last of them had been taken out
            continue
        named = (key == "policy.model" or key.endswith(".judge")) and isinstance(value, str)
        # Each member of a panel by itself: what stands after an address is another judge.
        found[key] = ",".join(map(without_url, value.split(","))) if named else value
    policy, folder = found.get("policy.model"), found.get("output_dir")
    if isinstance(policy, str) and isinstance(folder, str):
        found["policy.model"] = name_in_run(policy, folder)
    return found


def _flat(data: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(data, Mapping) and data:
        return {
            k: v for key, value in data.items() for k, v in _flat(value, f"{prefix}{key}.").items()
        }
    return {prefix.rstrip("."): data}
