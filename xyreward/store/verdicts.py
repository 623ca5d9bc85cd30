"""Verdicts that were paid for, each once: kept by key, shared by all processes of a machine.

    with VerdictStore.open() as store:
        found = store.get_many(keys)
        mine = store.claim([k for k in keys if k not in found])     # the others are on their way
        ...ask, then for each of mine...
        store.put(record, reservation=reservation)                  # or store.release([key])
        ...and for the others...
        record = await store.wait_for(key)                          # None: claim it yourself

Failures are never stored.

Methods are to be called inside the event loop, and not in a thread: a commit takes less than handing
it to a thread does. With 64 calls of 100 ms at a time a commit each left 96 % of a bare loop's
throughput in the loop and 94 % in a thread (`benchmarks/store_commits.py`).

Not here: the file (`database.py`), money (`ledger.py`), batches (`batches.py`), other formats
(`exchange.py`), what a payload means (`judges/model.py`).
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, get_args

from xyreward.embedded import cache_dir
from xyreward.errors import StoreError
from xyreward.store import ledger as money
from xyreward.store.batches import Batches
from xyreward.store.database import ELSEWHERE, Database
from xyreward.store.ledger import Ledger
from xyreward.store.owners import Presence
from xyreward.verdict import Usage
from xyreward.words import whole

RecordKind = Literal["verdict", "grounding", "completion", "comparison", "reply"]
"""Labels of an answer; what a bare query is after; a text that a model wrote (`pairs/sampling.py`,
`pairs/contrastive.py`); which of two answers a judge prefers (`pairs/order.py`); a reply that came in a
message batch after its process had ended, and is read by who asks the same again."""
RECORD_KINDS: tuple[RecordKind, ...] = get_args(RecordKind)

COLUMNS = (
    "key, kind, created, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd, "
    "served_model, base_url, identity, payload, raw_text"
)
CHUNK = 500
"""Keys or rows per statement or transaction: few round trips, and no lock held for long."""


TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
"""UTC, ISO 8601, whole seconds: sorts as text."""


def now() -> str:
    """Now, as `created` has it."""
    return datetime.now(UTC).strftime(TIME_FORMAT)


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """One reply of a judge model that was read without a problem."""

    key: str
    """Hash of everything that decides the reply."""
    kind: RecordKind
    identity: Mapping[str, str]
    """What the key stands for (judge, model, rubric_version, hashes of query and answer, vote), in
    words, so that a hit can be checked against what was asked."""
    payload: str
    """JSON text that a Verdict or a Grounding is built from."""
    raw_text: str
    """The reply as it came."""
    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = None
    """US dollars, everything that was paid to get it. None where the price is unknown."""
    served_model: str = ""
    """Metadata, as the server names it."""
    base_url: str = ""
    """Metadata, without credentials."""
    created: str = field(default_factory=now)
    """UTC, ISO 8601, whole seconds."""

    def check(self, identity: Mapping[str, str]) -> None:
        """Raise a StoreError where this is not the verdict that `identity` asks for."""
        if self.identity != identity:
            raise StoreError(conflict(self.key, self.identity, identity))


def conflict(
    key: str, found: Mapping[str, str], asked: Mapping[str, str], whose: str = "was asked for"
) -> str:
    """The message for one key that stands for two things: here, and what was `asked`."""
    differences = "; ".join(
        f"{name} is {found.get(name)!r:.120} in the store and {asked.get(name)!r:.120} {whose}"
        for name in sorted({*found, *asked})
        if found.get(name) != asked.get(name)
    )
    return (
        f"key {key:.16}: {differences}. One key cannot stand for both: remove it with `xyreward store "
        "prune`, or use another store, and report how it came about."
    )


def store_path(path: str | os.PathLike[str] | None = None) -> Path:
    """Where a store lies: at `path`, or XYREWARD_STORE where None, else in the user's cache folder.

    Raises:
        StoreError: no file can have this path.
    """
    if path is None:
        path = os.environ.get("XYREWARD_STORE") or cache_dir() / "verdicts.sqlite"
    found = Path(path)
    try:
        found = found.expanduser()
        found.stat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # what these mean is told where the file is opened
    except (OSError, RuntimeError, ValueError) as error:  # too long; no such user; a null character
        raise StoreError(f"{path!s:.200}: no file can lie there ({error}). {ELSEWHERE}") from None
    return found


class VerdictStore:
    """A store of verdicts in one SQLite file. `open` it; `close` it, or use it in a `with`.

    Any thread and any event loop may use it. A forked child may too: it holds no claim of its parent.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        """The file; for the modules beside this one."""
        self.presence = Presence(database)
        """What others see of this process; likewise."""
        self.ledger = Ledger(database, self.presence)
        """What runs have spent."""
        self.batches = Batches(database)
        """Message batches on their way."""
        self._claimed: set[str] = set()

    @classmethod
    def open(
        cls, path: str | os.PathLike[str] | None = None, *, create: bool = True
    ) -> VerdictStore:
        """Open the store at `path`; see `store_path`.

        Raises:
            StoreError: it lies on a network file system, is no verdict store, is damaged, was
                written by a newer release, cannot be written, or is not there and `create` is False.
        """
        return cls(Database.open(store_path(path), create=create))

    @staticmethod
    def check(path: str | os.PathLike[str] | None = None) -> None:
        """Find what would keep `open` from working, without making a file.

        Raises:
            StoreError: see `open`.
        """
        Database.check(store_path(path))

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.database.path

    def close(self) -> None:
        """Let go of claims, count open reservations as possibly billed, close the file."""
        try:
            self.presence.leave()
        finally:
            self.database.close()

    def __enter__(self) -> VerdictStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        # A process that was spawned with it opens the file itself.
        return VerdictStore.open, (str(self.path),)

    # ---------------------------------------------------------------- reading and writing

    def get_many(
        self, keys: Iterable[str], identities: Mapping[str, Mapping[str, str]] | None = None
    ) -> dict[str, StoredVerdict]:
        """Those of `keys` that are there.

        Raises:
            StoreError: one is there with another identity than `identities` has for its key.
        """
        found = {}
        with self.database.read() as connection:
            statement = f"SELECT {COLUMNS} FROM verdicts WHERE key IN"  # noqa: S608  # our columns
            for row in _select(connection, statement, list(dict.fromkeys(keys))):
                found[row[0]] = from_row(row)
        for key, identity in (identities or {}).items():
            if key in found:
                found[key].check(identity)
        return found

    def put(
        self,
        record: StoredVerdict,
        *,
        reservation: str | None = None,
        paid_usd: float | None = None,
    ) -> None:
        """Keep a verdict, settle what its last call had reserved, let go of its claim: in one commit.

        So "paid" and "there" cannot come apart. A key that is there already keeps its first verdict. What
        finds no room is written with whatever this process writes next.

        Args:
            reservation: of the call that brought it.
            paid_usd: what that call cost, where other calls share in `record.cost_usd` (a re-ask).

        Raises:
            StoreError: the key is there with another identity, or the reservation is not in this
                store. What can be kept and settled is, nevertheless: it was paid for.
            TypeError, ValueError: the record has a field of another type or kind.
        """
        row, me = to_row(record), self.presence.owner.id

        def kept(
            connection: sqlite3.Connection,
        ) -> tuple[dict[str, Mapping[str, str]], StoreError | None]:
            there = insert(connection, [row])
            problem = None
            if reservation is not None:
                try:
                    paid = record.cost_usd if paid_usd is None else paid_usd
                    money.settle(connection, reservation, paid)
                except StoreError as error:
                    problem = error
            connection.execute("DELETE FROM claims WHERE key = ? AND owner = ?", (record.key, me))
            return there, problem

        self._claimed.discard(record.key)
        there, problem = self.database.must_write(kept)
        if problem is not None:
            raise problem
        for key, found in there.items():
            if found != record.identity:
                raise StoreError(conflict(key, found, record.identity))

    def add_many(self, records: Sequence[StoredVerdict]) -> int:
        """Keep verdicts from elsewhere, in one commit. How many of them were not there yet."""
        with self.database.write() as connection:
            there = insert(connection, [to_row(record) for record in records])
        return len({record.key for record in records}) - len(there)

    def counts(self) -> dict[str, int]:
        """How many there are of each kind."""
        with self.database.read() as connection:
            rows = connection.execute(
                "SELECT kind, COUNT(*) FROM verdicts GROUP BY kind"
            ).fetchall()
        return {**dict.fromkeys(RECORD_KINDS, 0), **dict(rows)}

    def records(self) -> Iterator[StoredVerdict]:
        """All of them, in the order in which they came, without holding them in memory."""
        for row in self.pages(COLUMNS):
            yield from_row(row)

    def pages(self, columns: str) -> Iterator[tuple[Any, ...]]:
        """Some columns of all of them, in the same order."""
        return pages(self.database.read, columns)

    def identities(self, keys: Iterable[str]) -> dict[str, Mapping[str, str]]:
        """Identities of those of `keys` that are there."""
        with self.database.read() as connection:
            return _identities(connection, list(keys))

    # ---------------------------------------------------------------- single flight

    def claim(self, keys: Iterable[str]) -> set[str]:
        """Those of `keys` that the caller shall ask for now.

        A key is granted once, to the same process too, until `put` or `release`. The others are
        there already or on their way: see `wait_for`. What a dead process had claimed is granted
        at once.
        """
        wanted = list(dict.fromkeys(keys))
        with self.database.write() as connection:
            there = {
                k for (k,) in _select(connection, "SELECT key FROM verdicts WHERE key IN", wanted)
            }
            held = _held(connection, wanted)
            dead = self.presence.dead(connection, held.values())
            for owner in dead:
                self.presence.bury(connection, owner)
            granted = [k for k in wanted if k not in there and (k not in held or held[k] in dead)]
            if granted:
                me = self.presence.register(connection)
                connection.executemany(
                    "INSERT INTO claims VALUES (?, ?)", ((key, me) for key in granted)
                )
                self._claimed.update(granted)
        return set(granted)

    def release(self, keys: Iterable[str]) -> None:
        """Let go of claims without a verdict: the call failed, or was cancelled.

        What `put` has ended already, or another holds, is left alone.
        """
        mine = [key for key in keys if key in self._claimed]
        if not mine:  # as usual, where this is in a `finally`: then it takes no turn from others
            return
        me = self.presence.owner.id
        self._claimed.difference_update(mine)
        self.database.must_write(
            lambda connection: connection.executemany(
                "DELETE FROM claims WHERE key = ? AND owner = ?", [(key, me) for key in mine]
            )
        )

    async def wait_for(
        self,
        key: str,
        identity: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
    ) -> StoredVerdict | None:
        """Wait for a verdict that somebody else has claimed.

        None where the claim is gone without a verdict, or its owner is dead: claim it yourself.

        Args:
            identity: as in `get_many`.
            timeout: in seconds. None: as long as its owner lives.

        Raises:
            TimeoutError: the verdict is still on its way.
            StoreError: see `get_many`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = 0.02
        while True:
            waiting = self._on_its_way(key)
            # Asked after the claim: a verdict appears in the same commit that ends its claim.
            found = self.get_many([key], None if identity is None else {key: identity})
            if key in found:
                return found[key]
            if not waiting:
                return None
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"key {key:.16}: still on its way after {timeout:g} s")
            # Jitter, because eight processes that began to wait together should not ask together.
            step = pause * random.uniform(0.75, 1.0)  # noqa: S311  # not for secrets
            if deadline is not None:
                step = min(step, max(deadline - time.monotonic(), 0.001))
            await asyncio.sleep(step)
            pause = min(pause * 1.5, 0.5)

    def _on_its_way(self, key: str) -> bool:
        with self.database.read() as connection:
            owners = list(_held(connection, [key]).values())
            return bool(owners) and not self.presence.dead(connection, owners)


# ---------------------------------------------------------------- rows


def to_row(record: StoredVerdict) -> tuple[Any, ...]:
    """The record as the table has it. It is checked here, so that no later reader stumbles."""
    if record.kind not in RECORD_KINDS:
        raise ValueError(f"kind is {record.kind!r}, expected one of {', '.join(RECORD_KINDS)}")
    if record.key == "":
        raise ValueError("key is empty, expected a hash")
    usage, cost = record.usage, record.cost_usd
    if cost is not None and not 0 <= cost < math.inf:  # SQLite would make NULL of NaN
        raise ValueError(f"cost_usd is {cost!r}, expected US dollars, 0 or more, or None")
    return (
        _text("key", record.key),
        record.kind,
        _text("created", record.created),
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        cost,
        _text("served_model", record.served_model),
        _text("base_url", record.base_url),
        canonical(record.identity),
        _text("payload", record.payload),
        _text("raw_text", record.raw_text),
    )


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r:.80}, expected a string")
    # A model can write half of a surrogate pair, which UTF-8 does not have. No reason to lose a verdict.
    return whole(value)


def canonical(identity: Mapping[str, str]) -> str:
    """An identity as JSON text, the same text for the same identity."""
    for name, value in identity.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"identity has {name!r}: {value!r:.80}, expected strings")
    return _sorted(dict(identity))


_sorted = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def from_row(row: Sequence[Any]) -> StoredVerdict:
    """What `to_row` made a row of."""
    key, kind, created, tokens_in, out, read, write, cost, model, url, identity, payload, raw = row
    return StoredVerdict(
        key=key,
        kind=kind,
        identity=identity_of(key, identity),
        payload=payload,
        raw_text=raw,
        usage=Usage(tokens_in, out, read, write),
        cost_usd=cost,
        served_model=model,
        base_url=url,
        created=created,
    )


def pages(
    read: Callable[[], AbstractContextManager[sqlite3.Connection]], columns: str
) -> Iterator[tuple[Any, ...]]:
    """Columns of a table of verdicts, row by row in the order in which they came.

    Read by page, because one long read would keep the write-ahead log from being emptied.
    """
    last = 0
    while True:
        with read() as connection:
            rows = connection.execute(
                f"SELECT rowid, {columns} FROM verdicts WHERE rowid > ? ORDER BY rowid LIMIT ?",  # noqa: S608
                (last, CHUNK),
            ).fetchall()
        if not rows:
            return
        yield from (row[1:] for row in rows)
        last = rows[-1][0]


def insert(
    connection: sqlite3.Connection, rows: Iterable[tuple[Any, ...]]
) -> dict[str, Mapping[str, str]]:
    """Insert what is not there. Of what was there already: key -> identity."""
    there = [
        row[0]
        for row in rows
        if not connection.execute(
            f"INSERT OR IGNORE INTO verdicts ({COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",  # noqa: S608
            row,
        ).rowcount
    ]
    return _identities(connection, there)


def _identities(
    connection: sqlite3.Connection, keys: Sequence[str]
) -> dict[str, Mapping[str, str]]:
    rows = _select(connection, "SELECT key, identity FROM verdicts WHERE key IN", keys)
    return {key: identity_of(key, identity) for key, identity in rows}


def identity_of(key: str, text: str) -> Mapping[str, str]:
    """The identity that `canonical` made a text of. Raises StoreError for any other text."""
    try:
        identity = json.loads(text)
    except (ValueError, RecursionError, TypeError):
        identity = None
    if not isinstance(identity, dict):
        raise StoreError(
            f"key {key:.16}: its identity is {text!r:.80}, expected a JSON object; the store was edited or "
            "is damaged. Use another one, or `xyreward store merge` what is sound into a new one."
        )
    return identity


def _held(connection: sqlite3.Connection, keys: Sequence[str]) -> dict[str, str]:
    """Owners of those of `keys` that are claimed."""
    return dict(_select(connection, "SELECT key, owner FROM claims WHERE key IN", keys))


def _select(
    connection: sqlite3.Connection, statement: str, keys: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    for start in range(0, len(keys), CHUNK):
        chunk = keys[start : start + CHUNK]
        yield from connection.execute(f"{statement} ({','.join('?' * len(chunk))})", chunk)
