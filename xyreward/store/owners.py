"""Who holds a claim or a reservation, and whether that process still lives.

A process is known by boot id, pid namespace, pid and start time, so that another process with the
same pid is not taken for it. Where that cannot be looked up (another container, a system without
/proc), and for a process that was stopped, a heartbeat decides.

Not here: what is held (`verdicts.py`, `ledger.py`).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import uuid
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from xyreward.errors import StoreError
from xyreward.store import ledger
from xyreward.store.database import Database

BEAT_EVERY_S = 15.0
LEASE_S = 120.0
"""A heartbeat older than this is a dead owner's. Many beats long, because a library that holds the
interpreter for a minute must not cost a claim, which would then be paid twice."""


@dataclass(frozen=True, slots=True)
class Owner:
    """One open store of one process, as other processes can recognise it."""

    boot: str = field(default_factory=lambda: _boot_id())
    namespace: str = field(default_factory=lambda: _namespace())
    pid: int = field(default_factory=os.getpid)
    started: str = field(default_factory=lambda: _started(os.getpid()))
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def sees_alive(self, other: Owner, beat: float, beat_wall: float) -> bool:
        """Whether `other` lives; its heartbeat in seconds of the monotonic and of the wall clock."""
        if other.boot and other.boot == self.boot:
            if other.namespace == self.namespace and other.started:
                found = _started(other.pid)
                if found not in (other.started, "hidden"):
                    return False
            # This clock stands still while the machine sleeps, and nobody sets it.
            return time.monotonic() - beat < LEASE_S
        # Another boot, or a system that does not say. On a disk that virtual machines share, the
        # other may live.
        return abs(time.time() - beat_wall) < LEASE_S


class Presence:
    """This process's own row among the owners of a store, kept fresh from a thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._owner = Owner()
        self._beating: threading.Thread | None = None
        self._stop = threading.Event()

    @property
    def owner(self) -> Owner:
        """Another one after a fork: what the parent holds is not the child's."""
        if self._owner.pid != os.getpid():
            self._owner, self._beating, self._stop = Owner(), None, threading.Event()
        return self._owner

    def register(self, connection: sqlite3.Connection) -> str:
        """The owner's id, after writing in the caller's transaction that it lives."""
        owner = self.owner
        connection.execute(
            "INSERT INTO owners VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (owner) DO UPDATE SET beat = excluded.beat, beat_wall = excluded.beat_wall",
            (
                owner.id,
                owner.boot,
                owner.namespace,
                owner.pid,
                owner.started,
                time.monotonic(),
                time.time(),
            ),
        )
        if self._beating is None or not self._beating.is_alive():
            self._beating = threading.Thread(
                target=_keep_beating,
                args=(weakref.ref(self), self._stop),
                name="xyreward-store-heartbeat",
                daemon=True,
            )
            self._beating.start()
        return owner.id

    def dead(self, connection: sqlite3.Connection, owners: Iterable[str]) -> set[str]:
        """Those of `owners` that cannot answer any more. Never this one."""
        me = self.owner
        dead = set()
        for owner in set(owners) - {me.id}:
            row = connection.execute(
                "SELECT boot, namespace, pid, started, owner, beat, beat_wall FROM owners "
                "WHERE owner = ?",
                (owner,),
            ).fetchone()
            if row is None or not me.sees_alive(Owner(*row[:5]), *row[5:]):
                dead.add(owner)
        return dead

    def beat(self) -> None:
        """Write that this owner lives."""
        with self._database.write() as connection:
            self.register(connection)

    def bury(self, connection: sqlite3.Connection, owner: str) -> None:
        """Take from a dead owner what it held, inside the caller's transaction.

        Its claims are free. Its calls may have been billed.
        """
        connection.execute("DELETE FROM claims WHERE owner = ?", (owner,))
        ledger.lose_all_of(connection, owner)
        connection.execute("DELETE FROM owners WHERE owner = ?", (owner,))

    def leave(self) -> None:
        """Give back what this owner holds, and stop beating."""
        self._stop.set()
        # A child that holds nothing has nothing to give back, and a reader never wrote.
        if self._beating is None or self._owner.pid != os.getpid():
            return
        self._beating = None
        # On a full disk too others find out soon: the process ends, or its heart does not beat.
        with contextlib.suppress(StoreError), self._database.write() as connection:
            self.bury(connection, self._owner.id)


def _keep_beating(reference: weakref.ref[Presence], stop: threading.Event) -> None:
    # Holds no reference while it waits: a store that was forgotten without close() stops beating.
    while not stop.wait(BEAT_EVERY_S):
        presence = reference()
        if presence is None:
            return
        with contextlib.suppress(StoreError):  # a full disk is told by whoever puts a verdict
            presence.beat()
        del presence


def _started(pid: int) -> str:
    """When a process began, in clock ticks since boot.

    Empty where no such process runs (or the system has no /proc), "hidden" where it is another
    user's and /proc does not show those.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return "hidden" if _exists(pid) else ""
    # The second field is the program's name in brackets, which may hold anything.
    fields = stat.rpartition(b")")[2].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):  # dead, and only not waited for yet
        return ""
    return fields[19].decode()


def _exists(pid: int) -> bool:
    if not Path("/proc/self/stat").exists():
        return False  # on Windows os.kill would end it
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115  # it is no path
    except OSError:
        return ""
