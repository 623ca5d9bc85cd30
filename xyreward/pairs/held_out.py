"""What is held out must not be trained on: not its items, nor its reference answers inside other answers.

    held_out = HeldOut(splits.select(items, "test") + splits.select(items, "dev"), splits)
    held_out.item_objection(item)      # of a training item
    held_out.answer_objection(text)    # of a training answer

Answers come from files and from models that may have read the benchmark, so that the splits of items alone
do not keep a held-out answer out.

Not here: paraphrases, of queries or of answers; assigning sides (`splits.py`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import chain

import numpy as np

from xyreward.items import Item, items_hash
from xyreward.splits import NEAR_DUPLICATE, Splits, shingles, tokens

ITEM_IS_HELD_OUT = "the item is held out"
QUERY_IS_HELD_OUT = "the query is, or nearly repeats, a held-out one"
ANSWER_IS_HELD_OUT = "an answer contains a held-out answer"

SHINGLE = 5
"""Tokens in a shingle of an answer. Five words in a row are rarely shared by two writers."""

CONTAINED = 0.5
"""Share of a held-out answer's shingles, at or above which an answer that has them contains it."""

FEWEST = 8
"""Shingles that must be found, at least; a shorter held-out answer must be there from end to end."""

SHORTEST = 8
"""Tokens below which a held-out answer is looked for nowhere: "use git stash" is anybody's."""

Shingle = tuple[str, ...]


class HeldOut:
    """Held-out items, to be looked for among training items and in training answers.

    Args:
        items: all that is held out: what is evaluated, and dev and test as a whole.
        splits: with them an item of a held-out item's cluster is found, whatever joined the two.
        solutions: look also for the solutions that an item names, where they are long enough.
    """

    def __init__(
        self, items: Sequence[Item], splits: Splits | None = None, *, solutions: bool = True
    ) -> None:
        self.items = tuple(items)
        self.splits = splits
        self._ids = {(item.source, item.id) for item in items}
        self._groups = {(item.source, item.group) for item in items if item.group is not None}
        self._clusters = {c for item in items if (c := self._cluster(item)) is not None}
        self._solutions = solutions
        self._asked: dict[tuple[str, str, str], str | None] = {}
        self._answered: dict[str, str | None] = {}

    @cached_property
    def hash(self) -> str:
        """`items_hash` of the held-out items."""
        return items_hash(self.items)

    def item_objection(self, item: Item) -> str | None:
        """Why an item must not be trained on; None where it may."""
        key = item.source, item.id, item.content_hash  # an item has many pairs
        if key not in self._asked:
            self._asked[key] = self._item_objection(item)
        return self._asked[key]

    def _item_objection(self, item: Item) -> str | None:
        if (item.source, item.id) in self._ids:
            return ITEM_IS_HELD_OUT
        if (
            (item.group is not None and (item.source, item.group) in self._groups)
            or self._cluster(item) in self._clusters
            or self._queries.near(item.query_text)
        ):
            return QUERY_IS_HELD_OUT
        return None

    def query_objection(self, text: str) -> str | None:
        """Why a prompt must not be trained on, of which only its text is known; None where it may."""
        return QUERY_IS_HELD_OUT if self._queries.near(text) else None

    def answer_objection(self, text: str) -> str | None:
        """Why an answer must not be trained on; None where it may.

        It contains a held-out answer where it has at least `CONTAINED` of that answer's shingles, and
        `FEWEST`.
        """
        if text not in self._answered:
            if len(self._answered) >= 1024:  # pairs of one item come together and share answers
                self._answered.clear()
            self._answered[text] = ANSWER_IS_HELD_OUT if self._answers.inside(text) else None
        return self._answered[text]

    def _cluster(self, item: Item) -> str | None:
        placement = self.splits.placements.get(item.content_hash) if self.splits else None
        return placement.cluster if placement else None

    @cached_property
    def _queries(self) -> _Queries:
        return _Queries([item.query_text for item in self.items])

    @cached_property
    def _answers(self) -> _Answers:
        texts = [reference.text for item in self.items for reference in item.references]
        if self._solutions:
            for item in self.items:
                texts += [*item.stated_solutions, *item.intended_solutions]
        return _Answers(texts)


class _Queries:
    """Finds near-duplicates of a query, as `splits.near_duplicates` does for all at once."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._sizes: list[int] = []
        self._having: dict[str, list[int]] = defaultdict(list)
        for i, text in enumerate(texts):
            found = shingles(text)
            self._sizes.append(len(found))
            for shingle in found:
                self._having[shingle].append(i)

    def near(self, text: str) -> bool:
        mine = shingles(text)
        common = Counter(chain.from_iterable(self._having.get(shingle, ()) for shingle in mine))
        return any(
            both >= NEAR_DUPLICATE * (len(mine) + self._sizes[i] - both)
            for i, both in common.items()
        )


class _Answers:
    """Finds texts that stand in another one, by an index of their shingles.

    A text that needs k of its n shingles has one of any n - k + 1 of them, so only these are indexed,
    the rarest. What the index proposes is then counted in full: its 64-bit hashes only propose.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = [text for text in dict.fromkeys(texts) if len(tokens(text)) >= SHORTEST]
        hashed = [np.unique(_hashes(tokens(text))) for text in self._texts]
        every, counts = (
            np.unique(np.concatenate(hashed), return_counts=True)
            if hashed
            else (np.empty(0, np.int64), np.empty(0, np.int64))
        )
        rarest = []
        for own in hashed:
            order = np.argsort(counts[np.searchsorted(every, own)], kind="stable")
            rarest.append(own[order[: len(own) - _needed(len(own)) + 1]])
        self._keys = np.concatenate(rarest) if rarest else every
        self._of = np.repeat(np.arange(len(rarest)), [len(own) for own in rarest])
        order = np.argsort(self._keys, kind="stable")
        self._keys, self._of = self._keys[order], self._of[order]

    def inside(self, text: str) -> bool:
        """Whether one of the texts stands in this one."""
        if len(self._keys) == 0:
            return False
        found = tokens(text)
        hashes = _hashes(found)
        at = np.searchsorted(self._keys, hashes)
        hits = np.flatnonzero(self._keys[np.minimum(at, len(self._keys) - 1)] == hashes)
        proposed: set[int] = set()
        for hit in hits:
            end = np.searchsorted(self._keys, hashes[hit], side="right")
            proposed.update(self._of[at[hit] : end].tolist())
        if not proposed:
            return False
        mine = set(_windows(found))
        return any(self._contains(mine, self._texts[i]) for i in sorted(proposed))

    @staticmethod
    def _contains(mine: set[Shingle], text: str) -> bool:
        theirs = _shingles(text)
        return len(mine & theirs) >= _needed(len(theirs))


def _needed(shingles: int) -> int:
    """How many of a held-out answer's shingles must be found."""
    return shingles if shingles < FEWEST else max(FEWEST, math.ceil(CONTAINED * shingles))


def _shingles(text: str) -> set[Shingle]:
    return set(_windows(tokens(text)))


def _windows(found: Sequence[str]) -> zip[Shingle]:
    return zip(*(found[i:] for i in range(SHINGLE)), strict=False)


_WEIGHTS = np.random.default_rng(0).integers(2**62, size=SHINGLE) * 2 + 1
"""One for each place in a shingle; odd, so that no bit of a token's hash is lost."""


def _hashes(found: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A hash of each shingle of these tokens, in order, made of its tokens' hashes."""
    each = np.fromiter(map(hash, found), np.int64, len(found))
    number = max(len(found) - SHINGLE + 1, 0)
    hashes = np.zeros(number, np.int64)
    for place, weight in enumerate(_WEIGHTS):
        hashes += each[place : place + number] * weight  # wraps around
    return hashes
