"""What the XYBench paper published, as bands to stand beside figures; never part of any statistic.

`published.json` holds ranges over models, with source and judge. Figures of single models are not in it:
we do not have them, and a range does not become a row.

When a band stands beside a figure: only where the items are the benchmark's own. Beside figures on other
items it would invite a subtraction that means nothing, so there it is a note below the table. The judge
is named in either case, since a number belongs to its judge.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from xyreward.errors import ConfigError

STACK_OVERFLOW = "Stack Overflow"
ALL_SOURCES = "all sources"

_OF_STACK_OVERFLOW = frozenset({"stackoverflow"})
_OF_XYBENCH = frozenset(
    {"stackoverflow", "stackexchange", "curated", "wikihow", "wikihowgenerated"}
)


@dataclass(frozen=True, slots=True)
class Band:
    """A published range of one metric."""

    metric: str
    """Key of the metric in `metrics.METRICS`."""
    items: str
    """`Stack Overflow` or `all sources`."""
    low: float | None
    """In per cent; None: not known."""
    high: float | None
    over: str
    """What the range runs over: five models, human answers."""

    def __str__(self) -> str:
        if self.low is None:
            return f"at most {self.high:g}"
        if self.high is None:
            return f"at least {self.low:g}"
        return f"{self.low:g}-{self.high:g}"


@dataclass(frozen=True)
class Published:
    """The bands and where they come from."""

    source: str
    judge: str
    models: str
    bands: tuple[Band, ...]

    @classmethod
    def load(cls) -> Published:
        """The packaged file."""
        return _load()

    def beside(self, sources: Iterable[str]) -> tuple[str, dict[str, Band]] | None:
        """The bands over models that may stand beside figures on items of these sources, by metric.

        Returns:
            What items they are of, and the bands; None where an item is not of the benchmark.
        """
        items = items_of(sources)
        return None if items is None else (items, _by_metric(self.bands, items, "models"))

    def to_report(self, sources: Iterable[str]) -> dict[str, Any]:
        """As JSON-ready data: all bands, and which may stand beside figures on these sources."""
        beside = self.beside(sources)
        return {
            "source": self.source,
            "judge": self.judge,
            "models": self.models,
            "bands": [asdict(band) for band in self.bands],
            "beside": beside[0] if beside else None,
        }


def items_of(sources: Iterable[str]) -> str | None:
    """Which of the benchmark's items those of these sources are; None where one is not of the benchmark."""
    names = {_letters(source) for source in sources}
    if not names or not all(n in _OF_XYBENCH or "xybench" in n for n in names):
        return None
    return STACK_OVERFLOW if names <= _OF_STACK_OVERFLOW else ALL_SOURCES


def refuse_benchmarks_name(source: str, how: str) -> None:
    """Items of one's own must not bear the name of a part of the benchmark: `items_of` knows them by it.

    Args:
        source: the name that they would have.
        how: what to do instead, such as `name them with --name`.

    Raises:
        ConfigError: it is one of the benchmark's.
    """
    if items_of([source]) is not None:
        raise ConfigError(
            f"{source!r:.80} is the name of a source of XYBench, and reports put the paper's figures beside "
            f"items of that name; {how}"
        )


def beside_of_report(
    published: Mapping[str, Any] | None, *, items: str | None = None, over: str = "models"
) -> dict[str, Band]:
    """The bands that `to_report` allowed beside figures, by metric; empty where none.

    Args:
        published: as `to_report` gave it; None in reports of early versions.
        items: of the benchmark's items only these, where a table has figures on a part of them.
        over: `models`, or whose answers the range runs over, such as `human`.
    """
    if not published or published["beside"] is None:
        return {}
    bands = [Band(**band) for band in published["bands"]]
    return _by_metric(bands, items or published["beside"], over)


def _by_metric(bands: Iterable[Band], items: str, over: str) -> dict[str, Band]:
    return {b.metric: b for b in bands if b.items == items and over in b.over}


@lru_cache(maxsize=1)
def _load() -> Published:
    text = resources.files("xyreward").joinpath("published.json").read_text("utf-8")
    table = json.loads(text)
    bands = tuple(Band(**band) for band in table["bands"])
    return Published(table["source"], table["judge"], table["models"], bands)


def _letters(source: str) -> str:
    return "".join(c for c in source.lower() if c.isalpha())
