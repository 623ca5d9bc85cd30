"""Train, dev and test: stable over time and free of leaks between near-duplicate queries.

Items whose queries nearly repeat each other, or that share a `group`, form one cluster; a cluster
is never divided. `splits.json` records content hash -> side and cluster, so that a later call with
more items keeps every earlier decision.

Not here: paraphrases. Two people who ask the same thing in other words are not near-duplicates by
their words alone; sources that know such pairs say so with `group`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal, get_args

from xyreward.errors import ConfigError, DataError, LeakError, printable
from xyreward.home import expanded
from xyreward.items import XY_KINDS, Item, text_hash, without_invisible
from xyreward.split_names import split_in
from xyreward.strict_json import faults, parse_json
from xyreward.whole_file import write_whole

logger = logging.getLogger(__name__)

Side = Literal["train", "dev", "test"]
SIDES: tuple[Side, ...] = get_args(Side)
_HASH = re.compile("[0-9a-f]{64}")
SHARES: Mapping[Side, float] = {"train": 0.60, "dev": 0.15, "test": 0.25}

NEAR_DUPLICATE = 0.5
"""Jaccard similarity of 3-word shingles at or above which two queries count as one. Measured on
edits: changing one word in twelve leaves about 0.6, and unrelated queries of one domain stay below
0.1."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the items of one query are."""

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
            KeyError: the item was not there when the splits were made; call `assign_splits` with
                it.
        """
        try:
            return self.placements[item.content_hash].side
        except KeyError:
            raise KeyError(
                f"item {item.id!r} is not in these splits; assign_splits(items, lock=...) adds it"
            ) from None

    def select(self, items: Iterable[Item], side: Side) -> list[Item]:
        """The items on one side, in their order.

        Raises:
            DataError: an item of an official test split is on the train side. `assign_splits` puts
                none there, but these splits may be older than what names it.
        """
        chosen = [item for item in items if self.side(item) == side]
        if side == "train":
            _refuse(item for item in chosen if official_side(item) == "test")
        return chosen

    @property
    def hash(self) -> str:
        """sha256 (hex) of the placements: equal hashes mean equal sides."""
        return text_hash(self.to_json())

    def to_json(self) -> str:
        """The text of a `splits.json`: a line per query, sorted, so that a diff is readable."""
        rows = {
            key: [placement.side, placement.cluster]
            for key, placement in sorted(self.placements.items())
        }
        lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items())
        return f'{{"version": 1, "placements": {{\n{lines}\n}}}}\n'

    @classmethod
    def from_json(cls, text: str, name: str = "splits") -> Splits:
        """Read what `to_json` wrote; `name` is for messages.

        Raises:
            DataError: with every problem found.
        """
        remake = "restore it from version control, or delete it to assign all sides anew"
        try:
            data = parse_json(text)
        except ValueError as error:
            raise DataError([f"{name}: not a splits file ({error}); {remake}"]) from None
        if not isinstance(data, dict) or not isinstance(data.get("placements"), dict):
            raise DataError(
                [f"{name}: not a splits file (no object with version and placements); {remake}"]
            )
        if data.get("version") != 1:
            raise DataError(
                [f"{name}: version {data.get('version')!r:.40}, this release of xyreward reads 1"]
            )
        if wrong := list(faults(data)):  # keys given twice: a merge that went wrong
            raise DataError([f"{name}: {place!r} {what}; {remake}" for place, what in wrong])
        problems = []
        placements: dict[str, Placement] = {}
        for key, value in data["placements"].items():
            match value:
                case ["train" | "dev" | "test" | None as side, str(cluster)] if _HASH.fullmatch(
                    key
                ):
                    placements[key] = Placement(side, cluster)
                case _:
                    problems.append(
                        f"{name}: {key!r}: {json.dumps(value):.80}, expected sha256 of a query: "
                        f"[{' | '.join(SIDES)} | null, cluster]; {remake}"
                    )
        if problems:
            raise DataError(problems)
        return cls(placements)


def assign_splits(
    items: Sequence[Item],
    lock: str | os.PathLike[str] | None = None,
    *,
    known: Splits | None = None,
    shares: Mapping[Side, float] = SHARES,
    write: bool = True,
) -> Splits:
    """Put every item on a side: train 60 %, dev 15 %, test 25 %.

    Newcomers are dealt in order of their cluster's content hash to the side that is furthest below
    its share, within strata (kind of item; whether it carries all kinds of reference answer). No
    random number is involved, and the order of `items` does not matter. Items of an official test
    split (`meta["hub_split"]`) are on the test side, an official validation split is dev, and so is
    the rest of their cluster.

    Args:
        items: all items of all sides. A newcomer is only compared with items that are given, not
            with earlier ones of which the lock knows no more than the hash.
        lock: path of a `splits.json`; `~` is expanded. Where the file exists, its hashes keep their
            sides and a new item joins the side of its cluster; one that would join two sides goes to
            neither (`unplaced`). The file is then written anew where that adds anything
            (atomically, old entries kept, and what another process added meanwhile is taken over).
        known: sides that hold from elsewhere, e.g. those of the bundled items; the lock wins.
        shares: side -> share of the items of each stratum; all three sides, sum 1.
        write: False: the lock is read and left as it is, for a look at what would be.

    Raises:
        ConfigError: the lock is no path, a folder, or in a place that cannot be read or written.
        DataError: the lock is malformed, or has an item of an official test split on the train
            side.
    """
    if (
        set(shares) != set(SIDES)
        or min(shares.values()) < 0
        or abs(sum(shares.values()) - 1) > 1e-9
    ):
        raise ValueError(f"shares are {dict(shares)}, expected {', '.join(SIDES)} >= 0 with sum 1")
    elsewhere = dict(known.placements) if known else {}
    if lock is None:
        return _deal(_clusters(items), elsewhere, shares)
    path = _lock_path(lock)
    before = _read_lock(path)
    if not before and not path.exists():
        logger.warning(  # of a mistyped path all sides would be dealt anew, without a word
            "%s is not there: all sides are assigned anew%s",
            printable(str(path)),
            " and kept there" if write else "",
        )
    if before and items and not any(item.content_hash in before for item in items):
        logger.warning(
            "%s has %d queries and none of these %d items; they are added to it. If it is the "
            "lock of another data set, give each its own",
            printable(str(path)),
            len(before),
            len(items),
        )
    clusters = _clusters(items)
    splits = _deal(clusters, {**elsewhere, **before}, shares)
    if not write or splits.placements == before:
        return splits  # and a lock in a read-only place will do
    from filelock import FileLock

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock")):
            now = _read_lock(path)
            if now != before:
                splits = _deal(clusters, {**elsewhere, **now}, shares)
            write_whole(path, splits.to_json())
    except OSError as error:
        raise ConfigError(
            f"splits lock {path}: cannot be written ({error}); choose a path where it can"
        ) from error
    return splits


def _deal(
    clusters: Sequence[Sequence[Item]],
    held: Mapping[str, Placement],
    shares: Mapping[Side, float],
) -> Splits:
    placements = dict(held)
    leaked: list[Item] = []
    unplaced: list[str] = []
    renamed: dict[str, str] = {}
    newcomers: list[tuple[str, Sequence[Item]]] = []
    counts: dict[tuple[str, bool], Counter[Side]] = defaultdict(Counter)

    def place(members: Sequence[Item], side: Side | None, cluster: str) -> None:
        for item in members:
            placed = placements.setdefault(item.content_hash, Placement(side, cluster)).side
            if placed is None:
                unplaced.append(item.id)
            else:
                counts[_stratum(item)][placed] += 1

    def root(cluster: str) -> str:
        while cluster in renamed:
            cluster = renamed[cluster]
        return cluster

    for members in clusters:
        old = {i.content_hash: held[i.content_hash] for i in members if i.content_hash in held}
        official = {own for item in members if (own := official_side(item))}
        for item in members:
            earlier = old.get(item.content_hash)
            if earlier and earlier.side == "train" and official_side(item) == "test":
                leaked.append(item)
        if not old and not official:
            newcomers.append((min(item.content_hash for item in members), members))
            continue
        roots = {root(placement.cluster) for placement in old.values()}
        cluster = min(roots or (item.content_hash for item in members))
        renamed |= dict.fromkeys(roots - {cluster}, cluster)
        sides: set[Side | None] = {p.side for p in old.values()}
        if "train" in sides:
            sides |= official
        elif not old:  # test and validation nearly repeat each other: test is the stricter one
            sides = {"test" if "test" in official else "dev"}
        place(members, sides.pop() if len(sides) == 1 else None, cluster)
    _refuse(leaked)

    for cluster, members in sorted(newcomers, key=lambda pair: pair[0]):
        stratum = max(map(_stratum, members))  # the rarer one, where members differ
        count = counts[stratum]
        total = count.total() + len(members)
        side = max(SIDES, key=lambda s: (shares[s] * total - count[s], shares[s]))
        place(members, side, cluster)

    if renamed:  # a newcomer showed that two clusters are one; their sides stay as they are
        placements = {k: Placement(p.side, root(p.cluster)) for k, p in placements.items()}
    return Splits(placements, tuple(sorted(unplaced)))


def _refuse(leaked: Iterable[Item]) -> None:
    problems = [
        f"item {item.id!r} is of the source's official test split "
        f"({item.meta['hub_split']!r:.40}), and the lock (or known=, splits=) has its query on the "
        "train side; start a new lock with all splits at hand"
        for item in leaked
    ]
    if problems:
        raise DataError(problems)


def _lock_path(lock: str | os.PathLike[str]) -> Path:
    """Where the lock is or will be; a link to a lock stays a link.

    Raises:
        ConfigError: no file can be there.
    """
    name = os.fspath(lock)
    if not name.strip() or "\0" in name:
        raise ConfigError(
            f"splits lock {name!r}: expected the path of a splits.json, or null for none"
        )
    # Of os.path, which never raises: Path's own do, for a name that is too long, say.
    path = Path(os.path.realpath(expanded(name)))
    if os.path.isdir(path):  # noqa: PTH112
        raise ConfigError(
            f"splits lock {path}: is a folder, expected a file, e.g. {path / 'splits.json'}"
        )
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113
        raise ConfigError(f"splits lock {path}: is a device or pipe, expected a file")
    return path


def _read_lock(path: Path) -> Mapping[str, Placement]:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"splits lock {path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError([f"{path}: not a splits file ({error})"]) from None
    return Splits.from_json(text, str(path)).placements


def leave_one_source_out(items: Sequence[Item]) -> Iterator[tuple[str, Splits]]:
    """For each source in turn: all its items are test, the others train (80 %) or dev (20 %).

    An item of another source whose cluster reaches into the held-out source belongs to no side, nor
    does one of an official test split (its official validation split is dev).

    Raises:
        DataError: there are fewer than two sources.
    """
    sources = sorted({item.source for item in items})
    if len(sources) < 2:
        raise DataError(
            [f"leave_one_source_out: found {sources}, expected items of two sources or more"]
        )
    named = sorted(
        ((min(i.content_hash for i in members), members) for members in _clusters(items)),
        key=lambda pair: pair[0],
    )
    for source in sources:
        placements: dict[str, Placement] = {}
        unplaced: list[str] = []
        count: Counter[Side] = Counter()
        for name, members in named:
            official = {official_side(item) for item in members}
            tested = {item.content_hash for item in members if item.source == source}
            side: Side | None = None
            if not tested and "test" not in official:
                dev_is_behind = count["dev"] + len(members) <= 0.2 * (count.total() + len(members))
                side = "dev" if dev_is_behind or "dev" in official else "train"
                count[side] += len(members)
            for item in members:
                here: Side | None = "test" if item.content_hash in tested else side
                placements[item.content_hash] = Placement(here, name)
                if here is None:
                    unplaced.append(item.id)
        yield source, Splits(placements, tuple(sorted(unplaced)), note=f"held out: {source}")


def check_no_overlap(train: Sequence[Item], held_out: Sequence[Item]) -> None:
    """Make sure that nothing held out, nor a near-duplicate of it, is trained on.

    Compares ids, queries, near-duplicate queries and groups. Every recipe calls it before it
    trains.

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
            f"{', ...' if len(offending) > 10 else ''}. Take them out of the training items, or "
            "split all items in one call of assign_splits().",
            sorted(offending),
        )


# ---------------------------------------------------------------- clusters


def official_side(item: Item) -> Side | None:
    """The side that the source itself has an item on, by `meta["hub_split"]`.

    None where it leaves us free, which an official train split does.
    """
    match split_in(str(item.meta.get("hub_split", ""))):
        case "test":
            return "test"
        case "validation":
            return "dev"
        case _:
            return None


def _stratum(item: Item) -> tuple[str, bool]:
    kinds = {reference.kind for reference in item.references}
    return item.kind, item.kind == "xy" and kinds >= XY_KINDS


def clusters_of(items: Sequence[Item], splits: Splits | None = None) -> dict[str, str]:
    """Item id -> the name of its cluster: items of one cluster are one witness, and not several.

    Args:
        items: each id once.
        splits: items that have a place in these are in the clusters of that place. Others join those that
            they nearly repeat, or whose `group` they share, or make clusters of their own.
    """
    placed = splits.placements if splits else {}
    if all(item.content_hash in placed for item in items):
        return {item.id: placed[item.content_hash].cluster for item in items}
    named: dict[str, str] = {}
    for members in _clusters(items, placed):
        hashes = {item.content_hash for item in members}
        name = min({placed[h].cluster for h in hashes if h in placed} or hashes)
        named |= {item.id: name for item in members}
    return named


def _clusters(
    items: Sequence[Item], placed: Mapping[str, Placement] | None = None
) -> list[list[Item]]:
    """Connected components under: same query, near-duplicate query, same group, same cluster in `placed`."""
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
        if placed and item.content_hash in placed:
            keys.append(("cluster", placed[item.content_hash].cluster))
        for key in keys:
            parent[find(i)] = find(first.setdefault(key, i))
    for i, j in near_duplicates([item.query_text for item in items], cluster=find):
        parent[find(i)] = find(j)
    clusters: dict[int, list[Item]] = defaultdict(list)
    for i, item in enumerate(items):
        clusters[find(i)].append(item)
    return list(clusters.values())


# A word, or one character in scripts that put no spaces between words (Thai, Lao, Burmese, Khmer,
# Japanese, Chinese, Korean).
_TOKEN = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\U00020000-\U0003ffff]"
    r"|[^\W_]+"
)


# What is not shown either, beside the format characters: joiners, selectors of a glyph's form, fillers.
# (Unicode: Default_Ignorable_Code_Point.) Fillers count as letters, and the others divide words.
_NOT_SHOWN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def tokens(text: str) -> list[str]:
    """Words, or characters where a script puts no spaces between words.

    Case and width do not count, nor does what is not seen: one zero-width space in each word would hide
    a near-duplicate.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _NOT_SHOWN.sub("", without_invisible(text)))
    folded = text.casefold()
    found: list[str] = _TOKEN.findall(folded) or folded.split()
    return found


def shingles(text: str) -> set[str]:
    """3-token shingles. A text of fewer tokens is one shingle, one without any is itself."""
    found = tokens(text)
    if len(found) < 3:
        return {" ".join(found)}
    return {" ".join(found[i : i + 3]) for i in range(len(found) - 2)}


def near_duplicates(
    texts: Sequence[str],
    threshold: float = NEAR_DUPLICATE,
    *,
    cluster: Callable[[int], int] = lambda i: i,
) -> Iterator[tuple[int, int]]:
    """Pairs (i, j), j < i, of texts whose shingles have a Jaccard similarity >= `threshold`.

    All of them and no others: an exact set-similarity join by prefix filtering (Bayardo, Ma and
    Srikant, Scaling Up All Pairs Similarity Search, WWW 2007, section 4). Of two similar texts the
    rarest shingles must overlap, so what thousands of questions of one form have in common ("how do
    I install") brings no candidates, as it would with MinHash.

    Args:
        texts: in any order.
        threshold: in (0, 1].
        cluster: index of a text -> what names its cluster so far. Pairs within one are left out; it
            is asked again after each pair, so a caller that joins clusters as pairs come gets just
            those pairs that it needs.
    """
    numbers: dict[str, int] = {}
    shingled = [
        frozenset(numbers.setdefault(shingle, len(numbers)) for shingle in shingles(text))
        for text in texts
    ]
    del numbers  # the shingles themselves are most of the memory
    frequency = Counter(chain.from_iterable(shingled))
    # Shingle -> texts that have it among their rarest, by the cluster they were in when they came.
    seen: dict[int, dict[int, list[int]]] = defaultdict(dict)
    # From short to long: a text has to be found only by those that are as long as it or longer.
    for i in sorted(range(len(texts)), key=lambda i: len(shingled[i])):
        mine = shingled[i]
        rarest = sorted(mine, key=lambda shingle: (frequency[shingle], shingle))
        # With any similar text it has this share of its shingles in common; with one as long, more.
        probes = rarest[: _prefix(len(mine), threshold)]
        kept = probes[: _prefix(len(mine), 2 * threshold / (1 + threshold))]
        compared = set()
        for shingle in probes:
            if frequency[shingle] == 1:
                continue
            for members in seen[shingle].values():
                for j in members:
                    if cluster(i) == cluster(j):
                        break  # and so are the others, which were in one cluster with j
                    if j in compared:
                        continue
                    compared.add(j)
                    other = shingled[j]
                    common = len(mine & other)
                    if common >= threshold * (len(mine) + len(other) - common):
                        yield max(i, j), min(i, j)
        for shingle in kept:
            if frequency[shingle] > 1:
                seen[shingle].setdefault(cluster(i), []).append(i)


def _prefix(size: int, share: float) -> int:
    """How many of `size` shingles must be looked at to meet one of any `share` of them."""
    return size - math.ceil(share * size - 1e-9) + 1
