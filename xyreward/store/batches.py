"""Message batches on their way: what was sent, so that another process can collect it a day later.

A batch is written down before it is submitted, for a process can die in between: one that stays
`submitting` may be known to the API under an id that nobody here knows.

Not here: submitting, polling and collecting (`judges/batches.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from xyreward.errors import StoreError
from xyreward.store.database import Database

BatchState = Literal["submitting", "open", "closed"]


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch."""

    batch_id: str
    """As the API names it; while it is `submitting`, a name of ours."""
    judge: str
    run: str
    """What its reservations count for."""
    created: str
    """UTC, ISO 8601, whole seconds."""
    state: BatchState
    rows: int


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One request of a batch."""

    custom_id: str
    """Unique within the batch."""
    key: str
    """Where its verdict belongs in the store."""
    call: str
    """JSON text with all that is needed to read the reply, or to send the request again."""
    reservation: str | None = None
    """In the ledger. It counts as lost where its process dies, until the reply is collected."""


class Batches:
    """Batches of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, rows: Iterable[BatchRow], *, judge: str, run: str) -> str:
        """Write a batch down before it is submitted. Returns a name of ours for it.

        Raises:
            ValueError: two rows have one custom_id.
        """
        rows = list(rows)
        if len({row.custom_id for row in rows}) != len(rows):
            raise ValueError("two rows of the batch have the same custom_id, expected one each")
        name = f"unsent-{uuid.uuid4().hex}"
        created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        with self._database.write() as connection:
            connection.execute(
                "INSERT INTO batches VALUES (?, ?, ?, ?, 'submitting')", (name, judge, run, created)
            )
            connection.executemany(
                "INSERT INTO batch_rows VALUES (?, ?, ?, ?, ?)",
                ((name, r.custom_id, r.key, r.call, r.reservation) for r in rows),
            )
        return name

    def submitted(self, name: str, batch_id: str) -> None:
        """The API took the batch that `add` called `name`, under `batch_id`."""
        with self._database.write() as connection:
            changed = connection.execute(
                "UPDATE batches SET batch_id = ?, state = 'open' WHERE batch_id = ? AND state = 'submitting'",
                (batch_id, name),
            ).rowcount
            if changed != 1:
                raise StoreError(f"batch {name!r} is not in this store as one being submitted")
            connection.execute(
                "UPDATE batch_rows SET batch_id = ? WHERE batch_id = ?", (batch_id, name)
            )

    def close(self, batch_id: str) -> None:
        """All rows are collected or given up: forget the rows, remember the batch.

        Also of one that was never submitted.
        """
        with self._database.write() as connection:
            changed = connection.execute(
                "UPDATE batches SET state = 'closed' WHERE batch_id = ?", (batch_id,)
            ).rowcount
            if changed != 1:
                raise StoreError(f"batch {batch_id!r} is not in this store")
            connection.execute("DELETE FROM batch_rows WHERE batch_id = ?", (batch_id,))

    def find(self, *, run: str | None = None, state: BatchState | None = None) -> list[Batch]:
        """Batches, the oldest first."""
        with self._database.read() as connection:
            found = connection.execute(
                "SELECT batch_id, judge, run, created, state, "
                "(SELECT COUNT(*) FROM batch_rows AS r WHERE r.batch_id = b.batch_id) "
                "FROM batches AS b WHERE (?1 IS NULL OR run = ?1) AND (?2 IS NULL OR state = ?2) "
                "ORDER BY created, b.rowid",
                (run, state),
            ).fetchall()
        return [Batch(*row) for row in found]

    def rows(self, batch_id: str) -> list[BatchRow]:
        """The requests of one batch, in the order in which they were added."""
        with self._database.read() as connection:
            found = connection.execute(
                "SELECT custom_id, key, call, reservation FROM batch_rows WHERE batch_id = ? "
                "ORDER BY rowid",
                (batch_id,),
            ).fetchall()
        return [BatchRow(*row) for row in found]

    def on_their_way(self, keys: Iterable[str]) -> dict[str, str]:
        """Those of `keys` that a batch which is not closed has asked for: key -> batch_id."""
        found = {}
        with self._database.read() as connection:
            for key in keys:
                row = connection.execute(
                    "SELECT batch_id FROM batch_rows WHERE key = ? LIMIT 1", (key,)
                ).fetchone()
                if row is not None:
                    found[key] = row[0]
        return found
