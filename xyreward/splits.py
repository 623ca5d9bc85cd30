"""Train, dev and test: stable over time and free of leaks between near-duplicate queries.

Items whose queries nearly repeat each other, or that share a `group`, form one cluster; a cluster is
never divided. `splits.json` records content hash -> side and cluster, so that a later call with more
items keeps every earlier decision.

Not here: paraphrases. Two people who ask the same thing in other words are not near-duplicates by
MinHash; sources that know such pairs say so with `group`.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from xyreward.errors import DataError, LeakError
from xyreward.items import XY_KINDS, Item, text_hash

Side = Literal["train", "dev", "test"]
SIDES: tuple[Side, ...] = get_args(Side)
SHARES: Mapping[Side, float] = {"train": 0.60, "dev": 0.15, "test": 0.25}

NEAR_DUPLICATE = 0.5
"""Jaccard similarity of 3-word shingles at or above which two queries count as one. Measured on edits:
changing one word in twelve leaves about 0.6, and unrelated queries of one domain stay below 0.1."""

OFFICIAL_TEST = ("test",)
OFFICIAL_DEV = ("validation", "valid", "dev", "val")


@dataclass(frozen=True, slots=True)
class Placement:
    side: Side | None
    """None: it would have joined two sides, so it belongs to neither and is reported."""
    cluster: str
    """Content hash of the cluster's first member (by hash)."""


@dataclass(frozen=True)
class Splits:
    """Content hash of a query -> its side and cluster."""

    placements: Mapping[str, Placement]
    unplaced: tuple[str, ...] = ()
    """Ids of items of this call that belong to no side, because they would join two."""
    note: str = field(default="", compare=False)

    def side(self, item: Item) -> Side | None:
        """The side of an item; None where it belongs to neither side.

        Raises:
            KeyError: the item was not there when the splits were made; call `assign_splits` with it.
        """
        try:
            return self.placements[item.content_hash].side
        except KeyError:
            raise KeyError(
                f"item {item.id!r} is not in these splits; assign_splits(items, lock=...) adds it"
            ) from None

    def select(self, items: Iterable[Item], side: Side) -> list[Item]:
        """The items on one side, in their order."""
        return [item for item in items if self.side(item) == side]

    @property
    def hash(self) -> str:
        """sha256 (hex) of the placements: equal hashes mean equal sides."""
        return text_hash(self.to_json())

    def to_json(self) -> str:
        rows = {
            key: [placement.side, placement.cluster]
            for key, placement in sorted(self.placements.items())
        }
        lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items())
        return f'{{"version": 1, "placements": {{\n{lines}\n}}}}\n'

    @classmethod
    def from_json(cls, text: str) -> Splits:
        try:
            data = json.loads(text)
            if data["version"] != 1:
                raise DataError([f"splits: version {data['version']!r}, this release reads 1"])
            placements = {k: Placement(*v) for k, v in data["placements"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError([f"splits: not a splits file ({error})"]) from None
        wrong = {p.side for p in placements.values()} - {*SIDES, None}
        if wrong:
            raise DataError([f"splits: sides {sorted(map(str, wrong))}, expected {SIDES} or null"])
        return cls(placements)


def assign_splits(
    items: Sequence[Item],
    lock: str | os.PathLike[str] | None = None,
    *,
    known: Splits | None = None,
    shares: Mapping[Side, float] = SHARES,
) -> Splits:
    """Put every item on a side: train 60 %, dev 15 %, test 25 %.

    Newcomers are dealt in order of their cluster's content hash to the side that is furthest below its
    share, within strata (kind of item; whether it carries all kinds of reference answer). No random
    number is involved. Items of an official test split (`meta["hub_split"]`) are on the test side, an
    official validation split is dev, and so is the rest of their cluster.

    Args:
        items: all items of all sides.
        lock: a `splits.json`. Where the file exists, its hashes keep their sides and a new item joins
            the side of its cluster; one that would join two sides goes to neither (`unplaced`). The
            file is then written anew (atomically), old entries kept.
        known: sides that hold from elsewhere, e.g. those of the bundled items; the lock wins.

    Raises:
        DataError: the lock is malformed, or disagrees with an official test split.
    """
    held = dict(known.placements) if known else {}
    if lock is not None and Path(lock).exists():
        held.update(Splits.from_json(Path(lock).read_text("utf-8")).placements)

    clusters = _clusters(items)
    problems: list[str] = []
    dealt: dict[str, Placement] = {}
    unplaced: list[str] = []
    strata: dict[tuple[str, bool], list[tuple[str, list[Item]]]] = defaultdict(list)
    counts: dict[tuple[str, bool], Counter[Side]] = defaultdict(Counter)

    for members in clusters:
        name = min(item.content_hash for item in members)
        officially = {side for item in members if (side := _official_side(item))}
        old = {held[i.content_hash].side for i in members if i.content_hash in held}
        if "train" in old and "test" in officially:
            problems.append(
                f"the lock has {', '.join(sorted(i.id for i in members))} on the train side, but it "
                "is, or nearly repeats, an item of an official test split; use a new lock"
            )
            continue
        sides = (old - {None}) or officially
        if len(sides) > 1 and not old:
            sides = {"test"}  # official test and validation near-duplicates: held out is the safe side
        if len(sides) == 1:
            (side,) = sides
        elif len(sides) > 1 or None in old:
            side = None
        else:
            strata[_stratum(members[0])].append((name, members))
            continue
        for item in members:
            previous = held.get(item.content_hash)
            dealt[item.content_hash] = previous or Placement(side, name)
            placed = dealt[item.content_hash].side
            if placed is None:
                unplaced.append(item.id)
            else:
                counts[_stratum(item)][placed] += 1
    if problems:
        raise DataError(problems)

    for stratum in sorted(strata):
        count = counts[stratum]
        for name, members in sorted(strata[stratum], key=lambda pair: pair[0]):
            total = sum(count.values()) + len(members)
            side = max(SIDES, key=lambda s: (shares[s] * total - count[s], shares[s]))
            count[side] += len(members)
            for item in members:
                dealt[item.content_hash] = Placement(side, name)

    splits = Splits({**held, **dealt}, tuple(sorted(unplaced)))
    if lock is not None:
        _write_atomically(Path(lock), splits.to_json())
    return splits


def leave_one_source_out(items: Sequence[Item]) -> Iterator[tuple[str, Splits]]:
    """For each source in turn: all its items are test, the others train (80 %) or dev (20 %).

    An item of another source whose cluster reaches into the held-out source belongs to no side.
    """
    clusters = _clusters(items)
    for source in sorted({item.source for item in items}):
        placements: dict[str, Placement] = {}
        unplaced: list[str] = []
        count: Counter[Side] = Counter()
        named = sorted((min(i.content_hash for i in c), c) for c in clusters)
        for name, members in named:
            held_out = any(item.source == source for item in members)
            if not held_out:
                dev_is_behind = count["dev"] + len(members) <= 0.2 * (count.total() + len(members))
                side: Side = "dev" if dev_is_behind else "train"
                count[side] += len(members)
                placements.update({item.content_hash: Placement(side, name) for item in members})
                continue
            tested = {item.content_hash for item in members if item.source == source}
            placements.update({key: Placement("test", name) for key in tested})
            for item in members:
                if item.content_hash not in tested:
                    placements[item.content_hash] = Placement(None, name)
                    unplaced.append(item.id)
        yield source, Splits(placements, tuple(sorted(unplaced)), note=f"held out: {source}")


def check_no_overlap(train: Sequence[Item], held_out: Sequence[Item]) -> None:
    """Make sure that nothing held out, nor a near-duplicate of it, is trained on.

    Compares ids, queries, near-duplicate queries and groups. Every recipe calls it before it trains.

    Raises:
        LeakError: with the ids of the offending training items.
    """
    if not train or not held_out:
        return
    held = {id(item) for item in held_out}
    held_ids = {(item.source, item.id) for item in held_out}
    offending: dict[str, str] = {
        item.id: item.id for item in train if (item.source, item.id) in held_ids
    }
    for members in _clusters([*train, *held_out]):
        inside = [item for item in members if id(item) in held]
        outside = [item for item in members if id(item) not in held]
        if inside:
            offending.update({item.id: inside[0].id for item in outside})
    if offending:
        shown = ", ".join(f"{a} (held out: {b})" for a, b in sorted(offending.items())[:10])
        raise LeakError(
            f"{len(offending)} training items are, or nearly repeat, held-out items: {shown}"
            f"{', ...' if len(offending) > 10 else ''}. Take them out of the training items, or split "
            "all items in one call of assign_splits().",
            sorted(offending),
        )


# ---------------------------------------------------------------- clusters


def _official_side(item: Item) -> Side | None:
    name = str(item.meta.get("hub_split", "")).lower()
    if name in OFFICIAL_TEST:
        return "test"
    return "dev" if name in OFFICIAL_DEV else None


def _stratum(item: Item) -> tuple[str, bool]:
    kinds = {reference.kind for reference in item.references}
    return item.kind, item.kind == "xy" and kinds >= XY_KINDS


def _clusters(items: Sequence[Item]) -> list[list[Item]]:
    """Connected components under: same query, near-duplicate query, same group."""
    parent = list(range(len(items)))

    def find(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    first: dict[tuple[str, ...], int] = {}
    for i, item in enumerate(items):
        keys: list[tuple[str, ...]] = [("query", item.content_hash)]
        if item.group is not None:
            keys.append(("group", item.source, item.group))
        for key in keys:
            parent[find(i)] = find(first.setdefault(key, i))
    for i, j in near_duplicates([item.query_text for item in items]):
        parent[find(i)] = find(j)
    clusters: dict[int, list[Item]] = defaultdict(list)
    for i, item in enumerate(items):
        clusters[find(i)].append(item)
    return list(clusters.values())


_TOKEN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+")


def _shingles(text: str) -> set[str]:
    """3-token shingles; a token is a word, or one character in scripts without spaces."""
    tokens = _TOKEN.findall(text.lower())
    if len(tokens) < 3:
        return {" ".join(tokens)}
    return {" ".join(tokens[i : i + 3]) for i in range(len(tokens) - 2)}


def near_duplicates(
    texts: Sequence[str], threshold: float = NEAR_DUPLICATE
) -> Iterator[tuple[int, int]]:
    """Pairs (i, j), j < i, of texts whose shingles have a Jaccard similarity >= `threshold`.

    Candidates come from MinHash-LSH (datasketch), then the exact similarity is computed, so a pair
    that is reported is one; the search misses few (128 permutations).
    """
    from datasketch import MinHash, MinHashLSH

    lsh = MinHashLSH(threshold=threshold, num_perm=128, weights=(0.2, 0.8))
    shingled: list[set[str]] = []
    for i, text in enumerate(texts):
        shingles = _shingles(text)
        shingled.append(shingles)
        sketch = MinHash(num_perm=128, seed=1)
        sketch.update_batch([s.encode("utf-8", "surrogatepass") for s in shingles])
        for j in lsh.query(sketch):
            other = shingled[j]
            if len(shingles & other) >= threshold * len(shingles | other):
                yield i, j
        lsh.insert(i, sketch)


def _write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, "utf-8")
    os.replace(temporary, path)
