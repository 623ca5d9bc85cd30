"""What a run has spent and may still spend: a hard cap over all processes that share the store.

Before a call is sent its worst case is reserved; afterwards the reservation is settled at what was
paid, released (surely not billed) or lost (possibly billed: it counts with its worst case). What a
dead process had reserved is lost.

Amounts are whole nanodollars in the file, so that sums are exact: a token of the cheapest model
costs about a hundred.

Not here: prices (`prices.py`), when to reserve (`judges/model.py`).
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xyreward.errors import StoreError
from xyreward.store.database import Database

if TYPE_CHECKING:
    from xyreward.store.owners import Presence  # which buries dead owners with what is here

NANO = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Spent:
    """What one run has spent, in US dollars.

    `settled + possibly + reserved` never exceeds a cap, unless a call cost more than the worst case
    that was reserved for it.
    """

    settled_usd: float = 0.0
    """Of calls whose reply was received."""
    possibly_usd: float = 0.0
    """Upper bound for calls that were sent and whose reply was lost."""
    reserved_usd: float = 0.0
    """Worst case of calls that are on their way."""
    calls: int = 0
    """Settled ones."""
    lost_calls: int = 0
    open_calls: int = 0
    unpriced_calls: int = 0
    """How many of the calls above have an unknown price and are in none of the sums."""


class Ledger:
    """Reservations of one store."""

    def __init__(self, database: Database, presence: Presence) -> None:
        self._database = database
        self._presence = presence

    def reserve(
        self, run: str, usd_worst: float | None, cap_usd: float | None = None
    ) -> str | None:
        """Reserve the worst case of one call before it is sent.

        None where settled, possibly billed and reserved calls of the run leave no room for it below
        the cap; another try can succeed when others have settled below their worst case.

        Raises:
            ValueError: the worst case is unknown and there is a cap, which could not hold then.
        """
        worst = None if usd_worst is None else _nano(usd_worst, "usd_worst", math.ceil)
        cap = None if cap_usd is None else _nano(cap_usd, "cap_usd", math.floor)
        if worst is None and cap is not None:
            raise ValueError(
                f"the price of the call is unknown and cap_usd is {cap_usd}; a cap needs a price for "
                "every call: name one in the price file, or lift the cap"
            )
        if cap is not None and worst is not None:
            # At the cap many wait and try again: those must not take turns to write from those who
            # have replies to settle.
            with self._database.read() as connection:
                if not _has_room(connection, run, worst, cap):
                    return None
        with self._database.write() as connection:
            if cap is not None and worst is not None and not _has_room(connection, run, worst, cap):
                return None
            connection.execute("INSERT OR IGNORE INTO runs (run) VALUES (?)", (run,))
            cursor = connection.execute(
                "INSERT INTO ledger (run, owner, state, worst_nusd) VALUES (?, ?, 'reserved', ?)",
                (run, self._presence.register(connection), worst),
            )
            return str(cursor.lastrowid)

    def settle(self, reservation: str, usd: float | None) -> None:
        """The reply was received and cost `usd`; None where the price is unknown.

        Also of one that counted as lost: its reply came after all. A call that was settled or
        released stays so; doing it again changes nothing.
        """
        self._database.must_write(lambda connection: settle(connection, reservation, usd))

    def release(self, reservation: str) -> None:
        """The call was surely not billed: it was not sent, or the server refused it."""
        self._database.must_write(lambda c: _close(c, reservation, "released", None))

    def lose(self, reservation: str) -> None:
        """The call was sent and its reply was lost: it counts with its worst case."""
        self._database.must_write(lambda c: _close(c, reservation, "lost", None))

    def spent(self, run: str) -> Spent:
        """What the run has spent so far, over all processes and all its resumptions."""
        self._lose_those_of_the_dead(run)
        with self._database.read() as connection:
            # One statement, so that a call that ends meanwhile is not counted twice or missed.
            row = connection.execute(
                "SELECT runs.settled_nusd, lost_nusd, settled_calls, lost_calls, "
                "settled_unpriced + lost_unpriced, TOTAL(worst_nusd), COUNT(id), "
                "COUNT(id) - COUNT(worst_nusd) FROM runs LEFT JOIN ledger "
                "ON ledger.run = runs.run AND state = 'reserved' WHERE runs.run = ? GROUP BY runs.run",
                (run,),
            ).fetchone()
        if row is None:
            return Spent()
        settled, lost, calls, lost_calls, closed_unpriced, reserved, open_calls, open_unpriced = row
        return Spent(
            settled_usd=settled / NANO,
            possibly_usd=lost / NANO,
            reserved_usd=reserved / NANO,
            calls=calls,
            lost_calls=lost_calls,
            open_calls=open_calls,
            unpriced_calls=closed_unpriced + open_unpriced,
        )

    def in_flight(self, run: str) -> bool:
        """Whether a reservation is open that is no row of a batch: those may stay open for a day."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT 1 FROM ledger WHERE run = ? AND state = 'reserved' AND id NOT IN (SELECT "
                "CAST(reservation AS INTEGER) FROM batch_rows WHERE reservation IS NOT NULL) LIMIT 1",
                (run,),
            ).fetchone()
        return row is not None

    def runs(self) -> list[str]:
        """Names of all runs that reserved anything, sorted."""
        with self._database.read() as connection:
            rows = connection.execute("SELECT run FROM runs ORDER BY run").fetchall()
        return [run for (run,) in rows]

    def _lose_those_of_the_dead(self, run: str) -> None:
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT DISTINCT owner FROM ledger WHERE run = ? AND state = 'reserved'", (run,)
            ).fetchall()
            if not self._presence.dead(connection, (owner for (owner,) in rows)):
                return
        with self._database.write() as connection:
            for owner in self._presence.dead(connection, (owner for (owner,) in rows)):
                self._presence.bury(connection, owner)


def _has_room(connection: sqlite3.Connection, run: str, worst: int, cap: int) -> bool:
    (used,) = connection.execute(
        "SELECT COALESCE((SELECT settled_nusd + lost_nusd FROM runs WHERE run = ?1), 0) + COALESCE("
        "(SELECT SUM(worst_nusd) FROM ledger WHERE run = ?1 AND state = 'reserved'), 0)",
        (run,),
    ).fetchone()
    return bool(used + worst <= cap)


def settle(connection: sqlite3.Connection, reservation: str, usd: float | None) -> None:
    """As `Ledger.settle`, inside the caller's transaction."""
    paid = None if usd is None else _nano(usd, "usd", round)
    _close(connection, reservation, "settled", paid)


def lose_all_of(connection: sqlite3.Connection, owner: str) -> None:
    """Count what `owner` has reserved as lost, inside the caller's transaction."""
    rows = connection.execute(
        "SELECT id FROM ledger WHERE owner = ? AND state = 'reserved'", (owner,)
    ).fetchall()
    for (reservation,) in rows:
        _close(connection, reservation, "lost", None)


def _close(
    connection: sqlite3.Connection, reservation: str | int, state: str, paid: int | None
) -> None:
    row = connection.execute(
        "SELECT run, state, worst_nusd FROM ledger WHERE id = ?", (reservation,)
    ).fetchone()
    if row is None:
        raise StoreError(
            f"reservation {reservation!r} is not in this store; settle it where it was reserved"
        )
    run, before, worst = row
    if before in ("settled", "released") or before == state:
        return
    if before == "lost":
        _add(connection, run, "lost", worst, -1)
    if state == "settled":
        _add(connection, run, "settled", paid, 1)
    if state == "lost":
        _add(connection, run, "lost", worst, 1)
    connection.execute(
        "UPDATE ledger SET state = ?, settled_nusd = ? WHERE id = ?", (state, paid, reservation)
    )


def _add(
    connection: sqlite3.Connection, run: str, column: str, amount: int | None, sign: int
) -> None:
    # Totals per run, because summing a million rows before every call would not do.
    connection.execute(
        f"UPDATE runs SET {column}_nusd = {column}_nusd + ?, {column}_calls = {column}_calls + ?, "  # noqa: S608
        f"{column}_unpriced = {column}_unpriced + ? WHERE run = ?",  # column is one of two names of ours
        (sign * (amount or 0), sign, sign * (amount is None), run),
    )


def _nano(usd: float, name: str, to_int: Callable[[float], int]) -> int:
    if isinstance(usd, bool) or not isinstance(usd, int | float) or not 0 <= usd < 1e9:
        raise ValueError(f"{name} is {usd!r}, expected US dollars, 0 or more")
    # Twelve digits, so that 0.1 is 100,000,000 and not one nanodollar above it.
    return to_int(round(usd * NANO, 3))
