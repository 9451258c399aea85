"""gligabao on SQLite: one writer behind a fair lock, and a few readers.

SQLite lets one connection write at a time and makes the others poll, which is unfair and ends in "database is
locked". So all writes of the process queue for one connection; readers have their own and wait for nobody.
"""

import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from gligabao.errors import ConfigError, StoreError, StoreFault
from gligabao.store.fair_lock import CLOSED, FairLock
from gligabao.store.mounts import file_system, is_network
from gligabao.store.queries import load_queries
from gligabao.store.transaction import Row, StoreConflict, Transaction, Value

log = logging.getLogger(__name__)

OLDEST_SQLITE = (3, 35, 0)
"""The first version with RETURNING."""

LOCK_SECONDS = 8
"""How long a write, and all writes queued behind it, wait for another process that writes."""

POLL_SECONDS = 0.25
"""How long the driver waits for another process before we check whether the database was closed meanwhile."""

WRITE_WAIT_SECONDS = 60
"""How long a write waits for earlier writes of this process."""

OPEN_WAIT_SECONDS = 30
READ_WAIT_SECONDS = 5
CLOSE_WAIT_SECONDS = 1

_MAY_PASS = {
    sqlite3.SQLITE_BUSY: "another process has the lock",
    sqlite3.SQLITE_READONLY: "the file, its log or its folder is read-only",
    sqlite3.SQLITE_IOERR: "the disk failed",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_CANTOPEN: "a file cannot be opened",
    sqlite3.SQLITE_PROTOCOL: "the locks of the log cannot be had",
}
"""What may pass, by primary result code. All else is a fault that will be there again: a `StoreFault`."""

_LOCKED = "another process keeps the database locked: try again when it has finished"
_LOST_FILE = (
    "the database file was removed or replaced while the server was running: put it back, or restart the server"
)

# NORMAL: a killed process loses nothing; a power cut may lose the last commits but never corrupts the file.
_EACH = ("synchronous = NORMAL", "foreign_keys = ON", "journal_size_limit = 67108864")

# A process that reads blocks this. We do not wait long for it: the next start empties the log.
_EMPTY_LOG = "wal_checkpoint(TRUNCATE)"


class SqliteDatabase:
    """A database in one file. Shared by all threads: `_write_lock` guards the writer, `_readers` has its own lock."""

    dialect: Literal["sqlite"] = "sqlite"

    def __init__(self, path: Path, *, pool_size: int) -> None:
        check_place(path)
        self._path = path
        self._queries = load_queries("sqlite")
        self._write_lock = FairLock()
        self._closed = False
        try:
            # Topics and reports are private. SQLite gives its other files the mode of this one.
            path.touch(mode=0o600)
            self._file = _identify(path)
            pragmas = ("journal_mode = WAL", f"busy_timeout = {POLL_SECONDS * 1000:.0f}", _EMPTY_LOG)
            self._writer = _connect(path, OPEN_WAIT_SECONDS, *pragmas)
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"the database {path} cannot be opened: {error}") from error
        self._readers = _Readers(lambda: _connect(path, READ_WAIT_SECONDS, "query_only = ON"), pool_size)

    @contextmanager
    def transaction(self, *, patient: bool = False) -> Iterator[Transaction]:
        """Write: what the block does is stored when it ends, and undone when it raises."""
        with _our_errors(), self._write_lock.hold(WRITE_WAIT_SECONDS):
            self._check_file()
            self._begin()
            try:
                yield SqliteTransaction(self._writer, self._queries)
                self._writer.execute("COMMIT")
            finally:
                _roll_back(self._writer)

    def execute(self, name: str, /, **params: Value) -> int:
        """Write with one query in its own transaction, and return how many rows it touched."""
        with self.transaction() as tx:
            return tx.execute(name, **params)

    @contextmanager
    def snapshot(self) -> Iterator[Transaction]:
        """Read: all queries in the block see the same state of the database."""
        with self._reader() as reader:
            reader.execute("BEGIN")
            try:
                yield Transaction(reader, self._queries)
            finally:
                _roll_back(reader)

    def fetch_one(self, name: str, /, **params: Value) -> Row | None:
        """Return the first row, None when there is none."""
        with self._reader() as reader:
            return Transaction(reader, self._queries).fetch_one(name, **params)

    def fetch_all(self, name: str, /, **params: Value) -> list[Row]:
        """Return all rows."""
        with self._reader() as reader:
            return Transaction(reader, self._queries).fetch_all(name, **params)

    def ping(self) -> None:
        """Raise `StoreError` unless the database answers."""
        self.fetch_one("ping")

    def close(self) -> None:
        """Close all connections.

        Later calls get a `StoreError`. So do waiting writes: at once if they wait for the lock, within `POLL_SECONDS`
        if they wait for another process. A transaction that has begun may finish.
        """
        self._readers.close()
        try:
            with _our_errors(), self._write_lock.hold_last(CLOSE_WAIT_SECONDS):
                self._close_writer()
        except StoreError as error:
            # A full disk, or a write that hangs. Commits are safe in the log beside the file.
            log.warning("the database was not closed cleanly: %s", error)

    def _close_writer(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                _set(self._writer, _EMPTY_LOG)
            finally:
                self._writer.close()

    def _begin(self) -> None:
        """Take the lock of the database. After that, no statement of the transaction waits for another process."""
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                # Not a plain BEGIN: a transaction that begins as a reader cannot always become a writer.
                self._writer.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not _is_locked(error):
                    raise
                if self._write_lock.is_closing:
                    raise StoreError(CLOSED) from error
                if time.monotonic() > deadline:
                    # The others wait for the same lock, and would each time out in turn.
                    self._write_lock.refuse_waiting(_LOCKED)
                    raise StoreError(_LOCKED) from error

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        self._check_file()
        with _our_errors(), self._readers.reader() as reader:
            yield reader

    def _check_file(self) -> None:
        """Raise `StoreError` when our connections use a file that the next start would not find."""
        try:
            found = _identify(self._path)
        except OSError as error:
            raise StoreError(_LOST_FILE) from error
        if found != self._file:
            raise StoreError(_LOST_FILE)


class SqliteTransaction(Transaction):
    """A transaction that includes its scripts: `executescript` of sqlite3 would commit first."""

    def run_script(self, script: str) -> None:
        """Run a migration: statements without names and parameters."""
        statement = ""
        for piece in re.split(r"(?<=;)", script):
            statement += piece
            if sqlite3.complete_statement(statement):
                self._connection.execute(statement)
                statement = ""
        self._connection.execute(statement)


class _Readers:
    """Connections that read, up to a limit, made when first needed. `_lock` guards the idle ones."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], size: int) -> None:
        self._connect = connect
        self._free = threading.Semaphore(size)
        self._lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection to the block."""
        if not self._free.acquire(timeout=READ_WAIT_SECONDS):
            raise StoreError("the database has too many readers")
        try:
            reader = self._take()
            try:
                yield reader
            finally:
                self._put(reader)
        finally:
            self._free.release()

    def close(self) -> None:
        """Close the idle connections now, and each of the others when it is returned."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            if self._closed:
                raise StoreError(CLOSED)
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _put(self, reader: sqlite3.Connection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(reader)
                return
        reader.close()


def _connect(path: Path, wait_seconds: float, *pragmas: str) -> sqlite3.Connection:
    # Never create a file: if the database was removed, an empty file would pass for it.
    address = f"{path.as_uri()}?mode=rw"
    connection = sqlite3.connect(address, uri=True, timeout=wait_seconds, isolation_level=None, check_same_thread=False)
    try:
        connection.row_factory = _row
        _set(connection, *_EACH, *pragmas)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _identify(path: Path) -> tuple[int, int]:
    """Return what stays the same while the path names the same file."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _is_locked(error: sqlite3.Error) -> bool:
    return _primary_code(error) == sqlite3.SQLITE_BUSY


def _primary_code(error: sqlite3.Error) -> int | None:
    """Return the result code of SQLite, None for an error of the driver itself."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF  # the higher bits hold details


def _row(cursor: sqlite3.Cursor, values: tuple[Value, ...]) -> Row:
    return {column[0]: value for column, value in zip(cursor.description, values, strict=True)}


def _set(connection: sqlite3.Connection, *pragmas: str) -> None:
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _roll_back(connection: sqlite3.Connection) -> None:
    # After a COMMIT or a full disk there is nothing to roll back, and trying would be an error.
    if connection.in_transaction:
        connection.execute("ROLLBACK")


@contextmanager
def _our_errors() -> Iterator[None]:
    """Raise driver errors as ours."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY):
            raise StoreConflict(f"the row already exists: {error}") from error
        raise StoreFault(f"the database refused a value: {error}") from error
    except OverflowError as error:
        raise StoreFault(f"the database refused a value: {error}") from error
    except sqlite3.Error as error:
        kind = StoreError if _primary_code(error) in _MAY_PASS else StoreFault
        raise kind(f"the database failed: {error}") from error


def check_place(path: Path) -> None:
    """Raise `ConfigError` where a database would not work or would not be safe. Changes nothing there."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        wanted = ".".join(map(str, OLDEST_SQLITE))
        raise ConfigError(f"this Python has SQLite {sqlite3.sqlite_version}: {wanted} or newer is needed")
    if not path.parent.is_dir():
        raise ConfigError(f"database_url: there is no folder {path.parent}")
    kind = file_system(path.parent)
    if is_network(kind):
        # The index of the write-ahead log is in shared memory, so all users of the file must be on one machine.
        raise ConfigError(f"database_url: {path} is on a network file system ({kind}): put it on a local disk")
    _check_writable(path)


def _check_writable(path: Path) -> None:
    """Raise `ConfigError` for a read-only file, log or folder.

    SQLite itself opens them, and fails at the first write.
    """
    for needed in (path.parent, path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        if needed.exists() and not os.access(needed, os.W_OK):
            reason = "is read-only, or not writable for this user"
            raise ConfigError(f"database_url: {needed} {reason}: SQLite writes to the file and to its folder")
