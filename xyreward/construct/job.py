"""What the jobs of `xyreward build` share: rows on the disk, duplicates, controls, the folder.

Not here: which stages there are, and in what order (`forum_job.py`, `guide_job.py`).
"""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from xyreward.construct.prefilter import draw
from xyreward.construct.stages import Dropped, Kept
from xyreward.errors import ConfigError, told
from xyreward.items import Item
from xyreward.judges.asking import Estimate, ModelAsker
from xyreward.splits import near_duplicates
from xyreward.whole_file import write_whole

T = TypeVar("T")

Begin = Callable[[int], Callable[[], object] | None]
"""Told how many questions of a stage follow, says what to call after each."""

LOT = 1000
"""Rows that are asked about together, and are in memory."""
LOT_BATCHED = 10_000
"""The same for message batches, of which each may take hours."""


def lot_of(asker: ModelAsker) -> int:
    """How many rows this model is asked about together."""
    return LOT_BATCHED if asker.in_batches else LOT


def check_controls(share: float) -> None:
    """Raises ConfigError where `share` is no share of controls among items."""
    if not 0 <= share < 1:
        raise ConfigError(f"controls is {share!r}, expected a share in [0, 1)")


def check_seed(seed: int) -> None:
    """Raises ConfigError where `seed` is none: the intervals of figures are drawn by it, after the calls."""
    if seed < 0:
        raise ConfigError(f"seed is {seed!r}, expected a whole number, 0 or more")


class Spool(Generic[T]):
    """Rows in a temporary file, so that a source of any size takes the memory of a lot."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def put(self, row: T) -> int:
        """Write a row; where it begins. Rows are written before any is read."""
        at = self._file.tell()
        pickle.dump(row, self._file)
        return at

    def lots(self, offsets: Sequence[int], size: int) -> Iterator[list[T]]:
        """The rows that begin at `offsets`, in that order, up to `size` at a time."""
        yield from in_lots(map(self._load, offsets), size)

    def _load(self, at: int) -> T:
        self._file.seek(at)
        row: T = pickle.load(self._file)  # noqa: S301  # written by this process
        return row


def in_lots(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """Rows in their order, up to `size` at a time."""
    them = iter(rows)
    while lot := list(islice(them, size)):
        yield lot


@dataclass(frozen=True, slots=True)
class Bill:
    """What one stage would take."""

    stage: str
    estimate: Estimate
    at_most: str = ""
    """What bounds it, where that hangs on replies that are not there yet."""

    def __str__(self) -> str:
        if not self.at_most:
            return f"{self.stage}: {self.estimate}"
        return f"{self.stage}: at most {self.estimate} ({self.at_most})"


def without_duplicates(
    kept: Sequence[Kept[T]], query: Callable[[T], str]
) -> list[Kept[T] | Dropped]:
    """Of near-duplicate queries the first one, in the order given."""
    like: dict[int, list[int]] = defaultdict(list)
    for later, earlier in near_duplicates([query(one.value) for one in kept]):
        like[later].append(earlier)
    out: set[int] = set()
    for i in range(len(kept)):
        if any(earlier not in out for earlier in like[i]):
            out.add(i)
    return [Dropped("near-duplicate query") if i in out else one for i, one in enumerate(kept)]


def with_controls(
    kept: Sequence[Kept[T]],
    *,
    is_control: Callable[[T], bool],
    name: Callable[[T], str],
    share: float,
    seed: int,
) -> list[Kept[T] | Dropped]:
    """No more controls than their share of the items, drawn by a hash of their names."""
    names = [name(one.value) for one in kept if is_control(one.value)]
    wanted = controls_beside(len(kept) - len(names), share)
    taken = set(sorted(names, key=lambda name: draw(f"control {seed} {name}"))[:wanted])
    return [
        Dropped("controls beyond their share")
        if is_control(one.value) and name(one.value) not in taken
        else one
        for one in kept
    ]


def controls_beside(n_xy: int, share: float) -> int:
    """How many controls have that share beside so many items with a hidden goal, rounded down."""
    return int(n_xy * share / (1 - share) + 1e-9)


# ---------------------------------------------------------------- the folder


def check_source(folder: Path, source: str | list[str], site: str = "") -> None:
    """Make sure that a folder is new, or was built from the same files: its items would be overwritten.

    Other settings may come: replies are in the store, and what is built is told with its settings.

    Args:
        folder: where items are to be.
        source: what `funnel.json` says of the files.
        site: likewise, of a forum: the dumps of all forums have the same file names.

    Raises:
        ConfigError: it holds items of other files, or a `funnel.json` that no build wrote.
    """
    file = folder / "funnel.json"
    if not file.exists():
        return
    try:
        facts = json.loads(file.read_text("utf-8"))
        known, of = facts["source"], facts.get("site", "")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{file}: is not as a build writes it ({told(error)}); take another folder for --out"
        ) from None
    if (known, of) != (source, site):
        there, here = (
            f"{name} of {where}" if where else name for name, where in ((known, of), (source, site))
        )
        raise ConfigError(
            f"{folder} holds items built from {there}, and these are of {here}; take another folder for "
            "--out, or remove that one"
        )


def write_folder(
    folder: Path, items: Sequence[Item], facts: Mapping[str, Any], card: Callable[[list[Item]], str]
) -> None:
    """Write `items.jsonl`, `funnel.json` and `card.md`; each is there as a whole or not at all.

    Args:
        folder: made where it is missing.
        items: written in order of their ids.
        facts: what `funnel.json` says.
        card: given the items in that order, the text of `card.md`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    items = sorted(items, key=lambda item: (len(item.id), item.id))
    write_items(folder / "items.jsonl", items)
    told = json.dumps(facts, indent=1, ensure_ascii=False) + "\n"
    write_whole(folder / "funnel.json", as_bytes(told))
    write_whole(folder / "card.md", as_bytes(card(items)))


def write_items(path: Path, items: Sequence[Item]) -> None:
    """Write items as JSONL; the file is there as a whole or not at all."""
    write_whole(path, as_bytes(items_text(items)))


def items_text(items: Sequence[Item]) -> str:
    """Items as JSONL."""
    lines = [json.dumps(item.model_dump(mode="json"), ensure_ascii=False) for item in items]
    return "".join(f"{line}\n" for line in lines)


def as_bytes(text: str) -> bytes:
    """As files have it: UTF-8, half a surrogate pair as an escape."""
    return text.encode("utf-8", "backslashreplace")
