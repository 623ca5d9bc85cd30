"""The held-out evaluation's figures, in the trackers that `report_to` names.

Training logs its losses there by itself (transformers). Logged here, once, at the last step: every figure
before and after training, the paired change, the headline, and how many judgements failed. A figure that
is not there is not logged; it is never a 0.

    held_out/before/intended_solution         in [0, 1], or in the metric's own unit
    held_out/change/intended_solution         mean paired difference; .../low and .../high: its 95 % interval
    held_out/after/headline                   with .../low and .../high
    held_out/after/judge_failure_rate/xy      share of judgements that failed, in [0, 1]

Of an evaluation without a training it is `held_out/intended_solution`, and so on: there is no before.

TensorBoard, Weights & Biases and Trackio are known. None of them is a dependency of xyreward.

Not here: the report, which has all of it with its intervals (`report.py`).
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xyreward.errors import ConfigError, MissingDependency, told
from xyreward.runs import LOGS
from xyreward.words import did_you_mean, noun

TRACKERS: Mapping[str, tuple[str, ...]] = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
}
"""Tracker -> packages of which one must be there."""
TENSORBOARD_FOLDER = "TENSORBOARD_LOGGING_DIR"
"""Environment variable by which transformers is told where to log."""
PROJECT = "huggingface"
"""Transformers' own default, so that the figures join those of the training."""


def trackers(report_to: Any) -> list[str]:
    """The trackers that `report_to` names, ours and others; of `all` those of ours that are installed."""
    if report_to == "all":
        return [name for name in TRACKERS if _installed(name)]
    names = [report_to] if isinstance(report_to, str) else list(report_to or [])
    return [name for name in names if name != "none"]


def _installed(tracker: str) -> bool:
    return any(importlib.util.find_spec(package) is not None for package in TRACKERS[tracker])


def check_trackers(report_to: Any, where: str = "dpo.report_to") -> None:
    """Find what would stop a tracker, before hours of training and not after.

    Args:
        report_to: of the trainer's settings.
        where: it was given, for the message.

    Raises:
        MissingDependency: packages are not installed, all of them at once.
        ConfigError: transformers knows no such tracker, or Weights & Biases would ask for a key.
    """
    named = trackers(report_to)
    if others := [name for name in named if name not in TRACKERS]:
        from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

        for name in others:
            if name not in INTEGRATION_TO_CALLBACK:
                known = sorted({*INTEGRATION_TO_CALLBACK, "all", "none"})
                hint = did_you_mean(name, known)
                raise ConfigError(
                    f"{where}: is {name!r}, expected some of {', '.join(known)}"
                    + (f"; {hint}" if hint else "")
                )
    wanted = [name for name in named if name in TRACKERS]
    if absent := [TRACKERS[name][0] for name in wanted if not _installed(name)]:
        raise MissingDependency(
            f"{where}: {', '.join(absent)} not installed: pip install {' '.join(absent)}, or take "
            f"{noun(len(absent), 'it', 'them')} out"
        )
    if "wandb" in wanted and os.environ.get("WANDB_MODE") not in ("offline", "dryrun", "disabled"):
        import wandb

        if not wandb.login(prompt=False):
            raise ConfigError(
                f"{where}: wandb has no key and would ask for one when training begins; run `wandb login`, "
                "set WANDB_API_KEY, or log into a folder with WANDB_MODE=offline"
            )


@contextmanager
def tensorboard_in(folder: Path) -> Iterator[None]:
    """Within it, a trainer that is built logs into `folder`, unless the user's environment names another.

    Transformers' own default has the name of the machine in it, and is another folder after each start.
    """
    if os.environ.get(TENSORBOARD_FOLDER):
        yield
        return
    os.environ[TENSORBOARD_FOLDER] = str(folder)
    try:
        yield
    finally:
        del os.environ[TENSORBOARD_FOLDER]


def figures(report: Mapping[str, Any]) -> dict[str, float]:
    """What is logged of a report: name -> finite number."""
    found: dict[str, float | None] = {}
    sides = [side for side in ("before", "after", "change") if side in report["headline"]]
    for side in sides:
        place = f"held_out/{side}" if "after" in sides else "held_out"
        for line in report["metrics"]:
            if (estimate := line[side]) is None:
                continue
            found[f"{place}/{line['key']}"] = estimate["value"]
            if side == "change":
                found[f"{place}/{line['key']}/low"] = estimate["low"]
                found[f"{place}/{line['key']}/high"] = estimate["high"]
        headline = report["headline"][side]
        found[f"{place}/headline"] = headline["value"]
        if headline["value"] is not None:
            found[f"{place}/headline/low"] = headline["low"]
            found[f"{place}/headline/high"] = headline["high"]
        for failed in report["failures"].get(side, ()):
            found[f"{place}/judge_failure_rate/{failed['kind']}"] = failed["rate"]
    return {
        name: float(value)
        for name, value in found.items()
        if value is not None and math.isfinite(value)
    }


def log_report(
    report: Mapping[str, Any], settings: Mapping[str, Any], folder: Path, step: int
) -> list[str]:
    """Log the figures of a report to the trackers of `settings`.

    Args:
        report: as `build_report` gives it.
        settings: the recipe's section `dpo`: `report_to`, `run_name`, `project`, `trackio_space_id`.
        folder: the run's.
        step: the last of the training.

    Returns:
        Sentences on what was not logged. A tracker that fails (no network) is no reason to lose a run that is
        done: the report is on the disk.
    """
    values = figures(report)
    named = {"run_name": folder.name, **settings}
    log: Mapping[str, Callable[[], None]] = {
        "tensorboard": lambda: _to_tensorboard(values, folder, step),
        "wandb": lambda: _to_wandb(values, named, step),
        "trackio": lambda: _to_trackio(values, named, step),
    }
    lost = []
    for name in trackers(settings.get("report_to")):
        if name not in log:
            lost.append(f"{name} has the figures of training only; report.json has the evaluation")
            continue
        try:
            log[name]()
        except Exception as error:  # of a library that talks to a server
            lost.append(
                f"{name}: the evaluation was not logged ({told(error)}); it is in report.json"
            )
    return lost


def _to_tensorboard(values: Mapping[str, float], folder: Path, step: int) -> None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:  # torch is there and tensorboard is not: transformers takes this one then
        from tensorboardX import SummaryWriter  # type: ignore[no-redef,unused-ignore]

    with SummaryWriter(os.environ.get(TENSORBOARD_FOLDER) or str(folder / LOGS)) as writer:
        for name, value in values.items():
            writer.add_scalar(name, value, step)


def _to_wandb(values: Mapping[str, float], settings: Mapping[str, Any], step: int) -> None:
    import wandb

    # The trainer's run is still open; where training was done by an earlier start there is none.
    run = wandb.run or wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT), name=settings["run_name"]
    )
    run.log({**values, "train/global_step": step})
    # Or the next round's training would go on in this run.
    run.finish()


def _to_trackio(values: Mapping[str, float], settings: Mapping[str, Any], step: int) -> None:
    import trackio

    # The trainer has ended its run, which the same names go on with.
    trackio.init(
        project=settings.get("project") or PROJECT,
        name=settings["run_name"],
        space_id=settings.get("trackio_space_id"),
        resume="allow",
        embed=False,
    )
    trackio.log({**values, "train/global_step": step})
    trackio.finish()
