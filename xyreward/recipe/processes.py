"""This process among those of a run: who is first, who waits for whom, cores and memory."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, TypeVar

from xyreward.answering import place_of
from xyreward.config import Recipe
from xyreward.dispatch import world_size
from xyreward.errors import MissingDependency, XYRewardError
from xyreward.policy import default_device

T = TypeVar("T")

PATIENCE_S = 7 * 24 * 3600
"""How long processes wait for each other: while the first one judges, or one has longer answers to
sample. torch's own 10 or 30 minutes would end such a run."""


def use_huge_pages() -> None:
    """Let PyTorch put large CPU tensors on huge pages (Linux; elsewhere nothing reads the variable).

    Call it before the first tensor is made: PyTorch looks once. A DPO step maps and clears gigabytes of
    fresh memory, page by page; on two cores 4 KiB pages cost a quarter of the step (17.4 against 12.9 s).
    Keeping freed memory in glibc's heap was faster still (9.6 s), but the heap grew to 12.5 GiB.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def leave_processes() -> None:
    """Take this process out of the group of a run's processes, once all of them are done.

    One that ends within it may be aborted by gloo's threads, and a run that came to its end looks failed.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def check_installed(*packages: str) -> None:
    """Raise MissingDependency with all packages that are not there, before one is missed late."""
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    if absent:
        raise MissingDependency(f"recipes need {', '.join(absent)}: pip install 'xyreward[train]'")


@dataclass(frozen=True)
class Alone:
    """The one process of a run whose policy answers elsewhere: it needs neither torch nor accelerate."""

    num_processes: int = 1
    process_index: int = 0
    is_main_process: bool = True

    @property
    def device(self) -> Any:
        """As torch names it."""
        return SimpleNamespace(type="cpu")

    def wait_for_everyone(self) -> None:
        """There is nobody else."""


def state_of(config: Recipe) -> Any:
    """This process among those of the run."""
    alone = world_size() == 1
    if alone and place_of(config.policy.model) != "here":
        return Alone()
    from accelerate import PartialState

    return PartialState(cpu=default_device() == "cpu", timeout=timedelta(seconds=PATIENCE_S))


def on_main(state: Any, work: Callable[[], T]) -> T:
    """Let the first process do something and tell the others what came out, errors included."""
    if state.num_processes == 1:
        return work()
    from accelerate.utils import broadcast_object_list

    told: list[Any] = [None, None]
    if state.is_main_process:
        try:
            told = [work(), None]
        except XYRewardError as error:
            told = [None, error]
    broadcast_object_list(told)
    if told[1] is not None:
        raise told[1]
    result: T = told[0]
    return result


def use_all_cores() -> None:
    """Undo `accelerate launch`'s default of one thread per process, which halves the speed on two cores.

    It exports OMP_NUM_THREADS=1 unless the user set something; any other number is left alone.
    """
    import torch

    if os.environ.get("OMP_NUM_THREADS") == "1":
        try:
            cores = len(os.sched_getaffinity(0))
        except AttributeError:  # macOS, Windows
            cores = os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // world_size("LOCAL_WORLD_SIZE")))


def peak_memory_gib() -> float | None:
    """Peak resident memory of this process in GiB; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1024**3 if sys.platform == "darwin" else 1024**2), 2)


def free_memory() -> None:
    """Give back what a trainer held: it is full of cycles, which wait for the collector."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
