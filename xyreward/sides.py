"""The items of a configuration, on their sides, with nothing held out among those to train on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from xyreward.config import ItemsConfig
from xyreward.errors import DataError
from xyreward.items import Item
from xyreward.loading import bundled_splits, load_items
from xyreward.pairs.held_out import HeldOut
from xyreward.splits import Side, Splits, assign_splits, check_no_overlap, clusters_of


@dataclass(frozen=True)
class Sides:
    """Items and the side of each."""

    items: tuple[Item, ...]
    splits: Splits
    sources: tuple[str, ...]
    """One line per source: what was loaded, at which revision, how many."""

    def select(self, side: Side) -> tuple[Item, ...]:
        """The items on one side, in their order."""
        return tuple(self.splits.select(self.items, side))

    @cached_property
    def held_out(self) -> HeldOut:
        """Dev and test as a whole, also what is not evaluated: nothing of it may be trained on."""
        return HeldOut([*self.select("dev"), *self.select("test")], self.splits)

    def clusters(self, items: Sequence[Item]) -> dict[str, str]:
        """Item id -> cluster."""
        return clusters_of(items, self.splits)

    def of_source(self, source: str) -> tuple[Item, ...]:
        """All items of a source, of whatever side.

        Raises:
            DataError: there is none; the message lists the sources that there are.
        """
        found = tuple(item for item in self.items if item.source == source)
        if not found:
            there = ", ".join(sorted({item.source for item in self.items}))
            raise DataError([f"no item is of source {source!r:.80}; there are {there:.300}"])
        return found

    def train_without(self, held_out: Sequence[Item]) -> tuple[Item, ...]:
        """The train side without these items and whatever nearly repeats one."""
        ids, clusters = {item.id for item in held_out}, set(self.clusters(held_out).values())
        train = self.select("train")
        its = self.clusters(train)
        return tuple(i for i in train if i.id not in ids and its[i.id] not in clusters)


def load_sides(
    sources: Sequence[ItemsConfig], splits_lock: str | None, *, write_lock: bool = True
) -> Sides:
    """Load every source, put every item on a side, and make sure that nothing held out is trained on.

    Args:
        sources: of items.
        splits_lock: see `assign_splits`.
        write_lock: False: what is new in the lock is not written, as in a dry run.

    Raises:
        DataError: see `load_items`; also: ids that occur in two sources.
        LeakError: see `check_no_overlap`.
    """
    items: list[Item] = []
    lines = []
    known: Splits | None = None
    for wanted in sources:
        loaded = load_items(
            wanted.source,
            hub_split=wanted.hub_split,
            revision=wanted.revision,
            columns=wanted.columns,
            kind=wanted.kind,
        )
        kept = [item for item in loaded if item.kind in wanted.kinds]
        lines.append(f"{_source(wanted.source, kept)}: {len(kept)} of {len(loaded)} items")
        items += kept
        if wanted.source == "mini":
            known = bundled_splits()
    twice = sorted(name for name, n in Counter(item.id for item in items).items() if n > 1)
    if twice:
        raise DataError(
            [
                f"id {i!r} occurs in two sources of this recipe; give the items of one of them other ids"
                for i in twice
            ]
        )
    splits = assign_splits(items, splits_lock, known=known, write=write_lock)
    sides = Sides(tuple(items), splits, tuple(lines))
    check_no_overlap(sides.select("train"), [*sides.select("dev"), *sides.select("test")])
    return sides


def limited(items: Sequence[Item], limit: int | None) -> list[Item]:
    """Only so many items of each kind, the first by content hash. None: all, in their order."""
    if limit is None:
        return list(items)
    kept = []
    for kind in ("xy", "control"):
        of_kind = sorted((i for i in items if i.kind == kind), key=lambda i: i.content_hash)
        kept += of_kind[:limit]
    return kept


def _source(name: str, items: Sequence[Item]) -> str:
    """A source with the commit of its hub data set, which the loader put into every item."""
    revision = str(items[0].meta.get("revision", "")) if items else ""
    return f"{name}@{revision}" if re.fullmatch("[0-9a-f]{40}", revision) else name
