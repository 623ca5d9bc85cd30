"""The SQLite file under the verdict store: opening, schema, transactions, what goes wrong with it.

WAL with synchronous=NORMAL: a killed process loses nothing that was committed and leaves nothing
half written; a power cut can lose the last commits, but not damage the file.

Not here: what the tables mean (`verdicts.py`, `owners.py`, `ledger.py`, `batches.py`).
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from xyreward.errors import StoreError

T = TypeVar("T")

BUSY_TIMEOUT_S = 30.0
"""How long a transaction waits for those of other processes. Each of ours takes milliseconds."""

APPLICATION_ID = 0x58595257
"""`XYRW` in the file's header: tells a verdict store from any other SQLite file."""

MIGRATIONS = (
    # 1: verdicts and who is working on which; money.
    """
    CREATE TABLE verdicts (
        key TEXT PRIMARY KEY NOT NULL,
        kind TEXT NOT NULL,
        created TEXT NOT NULL,
        input_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL,
        cache_read_tokens INTEGER NOT NULL,
        cache_write_tokens INTEGER NOT NULL,
        cost_usd REAL,
        served_model TEXT NOT NULL,
        base_url TEXT NOT NULL,
        identity TEXT NOT NULL,
        payload TEXT NOT NULL,
        raw_text TEXT NOT NULL
    );
    CREATE TABLE owners (
        owner TEXT PRIMARY KEY NOT NULL,
        boot TEXT NOT NULL,
        namespace TEXT NOT NULL,
        pid INTEGER NOT NULL,
        started TEXT NOT NULL,
        beat REAL NOT NULL,
        beat_wall REAL NOT NULL
    );
    CREATE TABLE claims (
        key TEXT PRIMARY KEY NOT NULL,
        owner TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX claims_owner ON claims (owner);
    CREATE TABLE ledger (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run TEXT NOT NULL,
        owner TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('reserved', 'settled', 'released', 'lost')),
        worst_nusd INTEGER,
        settled_nusd INTEGER
    );
    CREATE INDEX ledger_open ON ledger (run, owner) WHERE state = 'reserved';
    CREATE TABLE runs (
        run TEXT PRIMARY KEY NOT NULL,
        settled_nusd INTEGER NOT NULL DEFAULT 0,
        settled_calls INTEGER NOT NULL DEFAULT 0,
        settled_unpriced INTEGER NOT NULL DEFAULT 0,
        lost_nusd INTEGER NOT NULL DEFAULT 0,
        lost_calls INTEGER NOT NULL DEFAULT 0,
        lost_unpriced INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID;
    """,
    # 2: message batches, which outlive the process that sent them.
    """
    CREATE TABLE batches (
        batch_id TEXT PRIMARY KEY NOT NULL,
        judge TEXT NOT NULL,
        run TEXT NOT NULL,
        created TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('submitting', 'open', 'closed'))
    );
    CREATE TABLE batch_rows (
        batch_id TEXT NOT NULL,
        custom_id TEXT NOT NULL,
        key TEXT NOT NULL,
        call TEXT NOT NULL,
        reservation TEXT,
        PRIMARY KEY (batch_id, custom_id)
    );
    CREATE INDEX batch_rows_key ON batch_rows (key);
    """,
)
"""Statement lists; number n brings a file from schema n to n + 1. A new file goes through them all,
so that it cannot differ from a migrated one. What was released is never edited, only added to."""

SCHEMA_VERSION = len(MIGRATIONS)

# WAL keeps an index in memory that is shared by all processes: two machines would each have their own
# and overwrite each other's commits. virtiofs and overlay are left out: containers have them as root.
NETWORK_FILE_SYSTEMS = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "davfs2", "drvfs", "fhgfs", "gfs",
    "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs",
    "prl_fs", "pvfs2", "quobyte", "smb2", "smb3", "smbfs", "vboxsf", "vmhgfs", "wekafs",
    "fuse.afp", "fuse.blobfuse", "fuse.blobfuse2", "fuse.ceph", "fuse.ceph-fuse", "fuse.cephfs",
    "fuse.curlftpfs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.juicefs",
    "fuse.mount-s3", "fuse.quobyte", "fuse.rclone", "fuse.s3fs", "fuse.seaweedfs", "fuse.sshfs",
    "fuse.vmhgfs-fuse", "fuse.weed",
})  # fmt: skip


class Database:
    """One SQLite file, used by any number of threads and event loops of one process at a time.

    One connection behind a lock: transactions are short, and a connection per thread would be left
    open by every thread that ends. After a fork both sides open a connection of their own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._pid = os.getpid()
        self._file: tuple[int, int] | None = None
        self._closed = False
        self._owed: list[Callable[[sqlite3.Connection], object]] = []
        _OPEN.add(self)

    # ---------------------------------------------------------------- opening

    @classmethod
    def open(cls, path: Path, *, create: bool = True) -> Database:
        """Open the file, make it where `create` says so, bring it to today's schema.

        Raises:
            StoreError: it lies on a network file system, is no verdict store, is damaged, was
                written by a newer release, or cannot be written.
        """
        path = _place(path)
        if not path.exists():
            if not create:
                raise StoreError(f"{path}: no verdict store is there; check the path")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreError(
                    f"{path}: its folder cannot be made: {error}. {ELSEWHERE}"
                ) from error
        database = cls(path)
        try:
            with translated(path):
                database._migrate()
        except BaseException:
            database.close()
            raise
        return database

    @staticmethod
    def check(path: Path) -> None:
        """Find what would keep `open` from working, without making a file.

        Raises:
            StoreError: see `open`.
        """
        path = _place(path)
        if path.exists():
            Database.open(path, create=False).close()
            return
        above = next(folder for folder in path.parents if folder.exists())
        if not above.is_dir():
            raise StoreError(f"{path}: its folder cannot be made: {above} is a file. {ELSEWHERE}")
        if not os.access(above, os.W_OK | os.X_OK):
            raise StoreError(f"{path}: cannot be made: {above} is not writable. {ELSEWHERE}")

    def _connect(self) -> sqlite3.Connection:
        """The connection of this process; the lock is held."""
        if self._closed:
            raise StoreError(f"{self.path}: this store was closed; open it again")
        if self._pid != os.getpid():
            if self._connection is not None:
                # Forked behind Python's back, so `_before_fork` was not called. SQLite forbids to use
                # this connection here, and to close it.
                _INHERITED.append(self._connection)
                self._connection = None
            self._pid = os.getpid()
            self._owed.clear()  # the parent writes it
        if self._connection is None:
            self._connection = connect(self.path)
            self._file = self._file or _file_id(self.path)
        if self._file != _file_id(self.path):
            # What is written now would be in no file that anybody can open, or would damage the new
            # one, whose write-ahead log has the same name.
            raise StoreError(
                f"{self.path}: was removed or replaced while it was in use; start again, and end every "
                "process that has it open before you move a store"
            )
        return self._connection

    def _migrate(self) -> None:
        with self._lock:
            connection = self._connect()
            version = checked_version(connection, self.path)
            _switch_to_wal(connection, self.path)
            if version == SCHEMA_VERSION:
                return
            try:
                connection.execute("BEGIN IMMEDIATE")
                # Another process may have done it while this one waited.
                version = checked_version(connection, self.path)
                for statements in MIGRATIONS[version:]:
                    for statement in statements.split(";"):
                        connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                connection.execute("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise

    # ---------------------------------------------------------------- transactions

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """One statement that reads. Several may see commits in between."""
        with translated(self.path), self._lock:
            yield self._connect()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it or nothing. No other process writes meanwhile, so keep it short."""
        with translated(self.path), self._lock:
            connection = self._connect()
            try:  # before BEGIN: Ctrl-C may come right after it
                connection.execute("BEGIN IMMEDIATE")
                for work in self._owed:
                    with contextlib.suppress(StoreError):  # said when it was asked for
                        work(connection)
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise
            self._owed.clear()

    def must_write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` in a transaction, and where there is no room for it now, at the head of the next one.

        For what ends a call that was paid for: a process that lives on, as a service does, would else take
        itself for who is still asking, and wait for itself.

        Args:
            work: of which doing it again changes nothing.

        Raises:
            StoreError: it was not written yet, or (as `work` says) cannot be.
        """
        with self._lock:
            try:
                with self.write() as connection:
                    return work(connection)
            except StoreError as error:
                if isinstance(error.__cause__, sqlite3.OperationalError):
                    self._owed.append(work)
                raise

    def close(self) -> None:
        """Let go of the file. Other processes, and other stores of this one, keep theirs."""
        with self._lock:
            self._closed = True
            self._release()
        _OPEN.discard(self)

    def __del__(self) -> None:
        # Python warns of a connection that nobody closed; a judge is rarely closed.
        with contextlib.suppress(Exception):  # whatever is left of the interpreter by then
            self._release()

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._pid != os.getpid():
            _INHERITED.append(connection)
        else:
            connection.close()


# SQLite forbids to carry a connection over a fork: the child would share its locks and its memory
# without knowing. So the parent puts its connections down first; both sides open anew when needed.
_OPEN: weakref.WeakSet[Database] = weakref.WeakSet()
_INHERITED: list[sqlite3.Connection] = []
_held: list[Database] = []


def _before_fork() -> None:
    for database in list(_OPEN):
        database._lock.acquire()  # no other thread is in the middle of a transaction
        _held.append(database)
        database._release()


def _after_fork() -> None:
    while _held:
        _held.pop()._lock.release()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )


def connect(path: Path, mode: Literal["rwc", "ro", "immutable"] = "rwc") -> sqlite3.Connection:
    """A connection with our settings: explicit transactions, any thread (one at a time)."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={'ro&immutable=1' if mode == 'immutable' else mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    if mode == "rwc":
        try:
            connection.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            connection.close()
            raise
    return connection


def _place(path: Path) -> Path:
    """Where a store lies, or will.

    Raises:
        StoreError: none can.
    """
    path = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100  # resolve() follows links
    if path.is_dir():
        raise StoreError(f"{path}: is a folder, expected a file such as {path / 'verdicts.sqlite'}")
    refuse_network(path)
    return path


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def checked_version(connection: sqlite3.Connection, path: Path) -> int:
    """Schema of a verdict store, 0 of an empty file; a StoreError for any other file."""
    # In one transaction: another process that makes the file at this moment commits all three at once,
    # and two of them from before and one from after would be another program's file.
    own = not connection.in_transaction
    if own:
        connection.execute("BEGIN")
    try:
        version, application, tables = (
            int(connection.execute(statement).fetchone()[0])
            for statement in (
                "PRAGMA user_version",
                "PRAGMA application_id",
                "SELECT COUNT(*) FROM sqlite_master",
            )
        )
    finally:
        if own:
            _roll_back(connection)
    if application != APPLICATION_ID and (application or version or tables):
        raise StoreError(
            f"{path}: is an SQLite file of another program, expected a verdict store; choose "
            "another path"
        )
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path}: has schema {version}, this release reads up to {SCHEMA_VERSION}. A newer "
            "xyreward wrote it: upgrade this one, or have the newer one `xyreward store export` it "
            "and import that into a new store."
        )
    return version


def _switch_to_wal(connection: sqlite3.Connection, path: Path) -> None:
    # SQLite does not wait here while another process switches the same new file.
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise StoreError(
            f"{path}: SQLite's WAL mode is not possible on this file system. {ELSEWHERE}"
        )


@contextmanager
def open_to_read(path: Path) -> Iterator[sqlite3.Connection]:
    """Another store, only to be read: also on read-only and network file systems, if it is at rest.

    Raises:
        StoreError: see `Database.open`.
    """
    if not path.is_file():
        raise StoreError(f"{path}: no verdict store is there; check the path")
    log = path.with_name(f"{path.name}-wal")
    at_rest = not log.exists() or log.stat().st_size == 0
    remote = file_system(path) in NETWORK_FILE_SYSTEMS
    if remote and not at_rest:
        raise StoreError(
            f"{path}: is in use, or was left by a killed process: its last commits are in {log.name}, "
            "which cannot be read on a network file system. Copy both to a local disk and merge from "
            "there."
        )
    connection = connect(path, "immutable" if remote else "ro")
    try:
        try:
            connection.execute("SELECT COUNT(*) FROM sqlite_master")
        except sqlite3.OperationalError:
            # Nothing beside the file can be written, not even the index of an empty log.
            if remote or not at_rest:
                raise
            connection.close()
            connection = connect(path, "immutable")
        if checked_version(connection, path) == 0:
            raise StoreError(f"{path}: is empty, expected a verdict store")
        yield connection
    finally:
        connection.close()


def _roll_back(connection: sqlite3.Connection) -> None:
    # SQLite itself rolls back on a full disk and its like; then there is nothing to roll back.
    if connection.in_transaction:
        connection.execute("ROLLBACK")


# ---------------------------------------------------------------- what goes wrong


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise what SQLite raises about the file at `path` as a StoreError."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {_explained(error)}") from error


ELSEWHERE = "Name another path in the call, the configuration or XYREWARD_STORE."


def _explained(error: sqlite3.Error) -> str:
    """What SQLite found, and what to do about it."""
    code = getattr(error, "sqlite_errorcode", None)
    match code & 0xFF if code is not None else None:
        case sqlite3.SQLITE_NOTADB:
            return "is not an SQLite file, expected a verdict store; choose another path"
        case sqlite3.SQLITE_CORRUPT:
            return (
                f"is damaged ({error}). Move it away with its -wal and -shm and go on with a new one; "
                "`sqlite3 FILE .recover` saves what can be read."
            )
        case sqlite3.SQLITE_FULL:
            return "the disk is full; nothing was half written. Make room and run again."
        case sqlite3.SQLITE_IOERR:
            return (
                f"{error} ({error.sqlite_errorname}): the disk is full, a quota or a size limit was "
                "reached, or the disk is failing; nothing was half written. Make room, or move the store."
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return f"cannot be written ({error}): the file and its folder must be. {ELSEWHERE}"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return (
                f"another process has kept it busy for {BUSY_TIMEOUT_S:.0f} s; see which one has it open "
                "(`fuser FILE`) and end it if it hangs"
            )
    return str(error)


def refuse_network(path: Path, mounts: str | None = None) -> None:
    """Raise a StoreError where `path` lies on a network file system.

    `mounts` is the text of /proc/mounts. Where the system has none (macOS, Windows) nothing is known
    and nothing refused.
    """
    kind = file_system(path, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{path}: lies on a network file system ({kind}), where SQLite loses commits of several "
            "machines. Give each machine a store on a disk of its own (XYREWARD_STORE, for instance "
            "below /var/tmp) and bring them together afterwards: `xyreward store merge`."
        )


def file_system(path: Path, mounts: str | None = None) -> str | None:
    """Type of the file system that `path` lies on or would lie on, as /proc/mounts names it."""
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text(errors="surrogateescape")
        except OSError:
            return None
    target = path.resolve()
    best, kind = -1, None
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[1]))
        # Of several mounts on one point the last one is seen.
        if target.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[2]
    return kind
