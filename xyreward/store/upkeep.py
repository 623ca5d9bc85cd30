"""What a store holds, and how to make it smaller.

Not here: reading and writing verdicts (`verdicts.py`), other formats (`exchange.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from xyreward.errors import StoreError
from xyreward.store.database import SCHEMA_VERSION
from xyreward.store.ledger import Spent
from xyreward.store.verdicts import CHUNK, TIME_FORMAT, VerdictStore
from xyreward.words import dollars, noun


@dataclass(frozen=True, slots=True)
class Group:
    """Verdicts of one kind, judge and rubric: numbers within a group can be compared."""

    kind: str
    judge: str
    rubric_version: str
    count: int
    first: str
    last: str
    """`created` of the oldest and the newest; UTC, ISO 8601."""
    cost_usd: float
    """What those with a known price cost together."""
    unpriced: int
    """How many have an unknown price."""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """What `xyreward store info` says. As a string it is for people."""

    path: Path
    schema: int
    size_bytes: int
    """With its write-ahead log."""
    groups: tuple[Group, ...]
    """The largest first."""
    claims: int
    """Keys that somebody is asking for."""
    batches: Mapping[str, int]
    """Message batches by state."""
    runs: Mapping[str, Spent]

    def __str__(self) -> str:
        n = sum(group.count for group in self.groups)
        lines = [
            f"{self.path}: {n:,} {noun(n, 'record')}, {self.size_bytes / 2**20:.1f} MiB, schema {self.schema}"
        ]
        for g in self.groups:
            price = f"US dollars: {dollars(g.cost_usd, g.unpriced, of='record')}"
            lines.append(
                f"  {g.count:>9,} {_plain(g.kind):9}  {_plain(g.judge)}  {_plain(g.rubric_version)}  "
                f"{_plain(g.first[:10])} to {_plain(g.last[:10])}  {price}"
            )
        for run, spent in self.runs.items():
            calls = f"{spent.calls:,} {noun(spent.calls, 'call')}"
            lines.append(f"  run {_plain(run)}: {calls}, US dollars: {bill(spent)}")
        for state, count in self.batches.items():
            lines.append(f"  {count:,} {noun(count, 'batch', 'batches')} {state}")
        if self.claims:
            whose = noun(self.claims, "its", "their")
            lines.append(f"  {self.claims:,} {noun(self.claims, 'verdict')} on {whose} way")
        return "\n".join(lines)


def bill(spent: Spent) -> str:
    """What a run has spent, in US dollars, and what it may have spent besides: never 0 for unknown sums."""
    text = dollars(spent.settled_usd, spent.unpriced_calls)
    if n := spent.lost_calls:
        sum_ = f"{spent.possibly_usd:,.4f}" if spent.possibly_usd else "an unknown sum"
        text += f", and possibly {sum_} for {n:,} {noun(n, 'call')} without a reply"
    if n := spent.open_calls:
        whose = noun(n, "its", "their")
        sum_ = f", at most {spent.reserved_usd:,.4f}" if spent.reserved_usd else ""
        text += f"; {n:,} {noun(n, 'call')} on {whose} way{sum_}"
    return text


def _plain(text: str) -> str:
    # An imported row may hold what moves a terminal's cursor.
    return repr(text)[1:-1] if not text.isprintable() else text


def info(store: VerdictStore) -> StoreInfo:
    """Look through the whole store. A million verdicts take some seconds."""
    with store.database.read() as connection:
        groups = connection.execute(
            "SELECT kind, COALESCE(json_extract(identity, '$.judge'), ''), "
            "COALESCE(json_extract(identity, '$.rubric_version'), ''), COUNT(*), MIN(created), "
            "MAX(created), TOTAL(cost_usd), COUNT(*) - COUNT(cost_usd) "
            "FROM verdicts GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1, 2, 3"
        ).fetchall()
        claims = connection.execute("SELECT owner, COUNT(*) FROM claims GROUP BY owner").fetchall()
        dead = store.presence.dead(connection, (owner for owner, _ in claims))
        batches = connection.execute(
            "SELECT state, COUNT(*) FROM batches GROUP BY state"
        ).fetchall()
    return StoreInfo(
        path=store.path,
        schema=SCHEMA_VERSION,
        size_bytes=_size(store.path),
        groups=tuple(Group(*row) for row in groups),
        claims=sum(n for owner, n in claims if owner not in dead),
        batches=dict(batches),
        runs={run: store.ledger.spent(run) for run in store.ledger.runs()},
    )


def values_of(store: VerdictStore, name: str) -> list[str]:
    """What records have under a name of their identity (`judge`, `rubric_version`), each once, sorted."""
    with store.database.read() as connection:
        rows = connection.execute(
            "SELECT DISTINCT json_extract(identity, ?) FROM verdicts ORDER BY 1", (f"$.{name}",)
        ).fetchall()
    return [value for (value,) in rows if value is not None]


@dataclass(frozen=True, slots=True)
class Pruned:
    """What `prune` did, or would do."""

    removed: int
    """Verdicts."""
    freed_bytes: int
    """By how much the file became smaller; 0 where nothing was removed."""


def prune(
    store: VerdictStore,
    *,
    identity: Mapping[str, str] | None = None,
    before: datetime | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Remove the verdicts that all conditions hold for, and give the room back.

    They were paid for: `export` first what may be wanted again. Without a condition no verdict is
    removed. Runs keep their sums.

    Args:
        identity: for instance `{"judge": "anthropic:claude-sonnet-4-5"}`.
        before: removes what is older; a time without a zone is UTC.
        dry_run: only count.

    Raises:
        StoreError: the store cannot be written.
        ValueError: `identity` has a name that is no identifier.
    """
    conditions, values = _conditions(identity or {}, before)
    if not conditions:
        return Pruned(0, 0)
    where = " AND ".join(conditions)
    with store.database.read() as connection:
        (there, end) = connection.execute(
            f"SELECT COUNT(*), MAX(rowid) FROM verdicts WHERE {where}",  # noqa: S608  # made below
            values,
        ).fetchone()
    if dry_run or not there:
        return Pruned(there, 0)
    size, removed = _size(store.path), 0
    for start in range(0, end, CHUNK):  # others must get their turn to write
        with store.database.write() as connection:
            removed += connection.execute(
                f"DELETE FROM verdicts WHERE rowid > ? AND rowid <= ? AND {where}",  # noqa: S608
                (start, start + CHUNK, *values),
            ).rowcount
    try:
        with store.database.read() as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except StoreError as error:
        raise StoreError(
            f"{removed:,} {noun(removed, 'verdict was', 'verdicts were')} removed, but the file did not "
            f"become smaller: {error}"
        ) from error
    return Pruned(removed, max(size - _size(store.path), 0))


def _conditions(
    identity: Mapping[str, str], before: datetime | None
) -> tuple[list[str], list[str]]:
    conditions, values = [], []
    for name, value in identity.items():
        if not name.isidentifier():
            raise ValueError(f"identity has {name!r}, expected names such as judge, rubric_version")
        conditions.append("json_extract(identity, ?) = ?")
        values += [f"$.{name}", value]
    if before is not None:
        utc = before.astimezone(UTC) if before.tzinfo else before
        conditions.append("created < ?")
        values.append(utc.strftime(TIME_FORMAT))
    return conditions, values


def _size(path: Path) -> int:
    files = (path, path.with_name(f"{path.name}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())
