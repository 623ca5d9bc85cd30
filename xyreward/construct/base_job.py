"""What the jobs of `xyreward build` are, whatever they read: a source, who is asked, the gates, a limit.

Not here: stages, and in what order (`forum_job.py`, `guide_job.py`); what needs no gates (`job.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from xyreward.construct.gates import Gates, GateSettings
from xyreward.construct.job import Begin, Bill
from xyreward.construct.stages import Funnel
from xyreward.construct.thread_files import Problems
from xyreward.items import Item
from xyreward.judges import Judge
from xyreward.judges.asking import ModelAsker


class JobSettings(Protocol):
    """What the settings of every job have."""

    @property
    def controls(self) -> float:
        """Share of controls among the items, at most, in [0, 1)."""

    @property
    def seed(self) -> int:
        """Of the draws."""

    @property
    def strict(self) -> bool:
        """Stop at the first thing that cannot be used."""

    @property
    def gates(self) -> GateSettings:
        """How strict the gates are."""


class Construction(Protocol):
    """What comes of every job."""

    @property
    def items(self) -> tuple[Item, ...]:
        """Those that passed all stages."""

    @property
    def funnel(self) -> Funnel:
        """All stages."""

    @property
    def problems(self) -> Problems:
        """What of the source could not be used."""


SourceT = TypeVar("SourceT")
SettingsT = TypeVar("SettingsT", bound=JobSettings)
ConstructionT = TypeVar("ConstructionT", bound=Construction)


class BaseJob(ABC, Generic[SourceT, SettingsT, ConstructionT]):
    """Settings that were checked; nothing is read or sent before `run` or `estimate`."""

    def __init__(
        self,
        source: SourceT,
        asker: ModelAsker,
        settings: SettingsT,
        *,
        judge: Judge | None = None,
        second: ModelAsker | None = None,
    ) -> None:
        """Set up.

        Args:
            source: what is read.
            asker: is asked about it.
            settings: what is built.
            judge: see `Gates`, as for `second`.
            second: labels a second time.

        Raises:
            JudgeError: the judge gives no labels.
        """
        self.source = source
        self.asker = asker
        self.settings = settings
        self.gates = Gates(
            settings.gates,
            asker,
            judge=judge,
            second=second,
            controls=settings.controls,
            seed=settings.seed,
        )

    def check(self) -> None:
        """Find what would stop a model that is asked, without a call.

        Raises:
            JudgeError, StoreError: something is missing; says what to do.
        """
        self.asker.check_ready()
        self.gates.check()

    @abstractmethod
    def estimate(self, problems: Problems | None = None) -> tuple[Funnel, list[Bill]]:
        """What models would be asked, and what that would take. Reads the source, sends nothing.

        Args:
            problems: told what of the source cannot be used.

        Raises:
            DataError: `strict`, and something that cannot be used.
            StoreError: the store cannot be used.
        """

    @abstractmethod
    def run(self, begin: Begin = lambda _: None) -> ConstructionT:
        """Read, ask and filter.

        Args:
            begin: called before each stage.

        Raises:
            DataError: `strict`, and something that cannot be used.
            JudgeError: the budget is spent, or no call can succeed. What was paid for is in the store.
            StoreError: the store cannot be used.
        """

    def _within(
        self,
        looked: Sequence[tuple[float, int, str]],
        limit: int | None,
        funnel: Funnel,
        beyond: str,
    ) -> list[int]:
        """Which rows are asked about, by where each begins in the spool, in the source's order.

        Args:
            looked: the draw of each row, where it begins, and how it got here.
            limit: how many rows at most, drawn. None: all.
            funnel: gets a step where there is a limit.
            beyond: why the others are dropped.
        """
        if limit is not None:
            within = sorted(looked)[:limit]
            out = Counter({beyond: len(looked) - len(within)})
            funnel.counted("limit", Counter(how for _, _, how in within), +out)
            looked = within
        return sorted(at for _, at, _ in looked)
