"""gligabao on Postgres: pools of connections that survive a restart of the server.

A pooler in between, such as PgBouncer in transaction mode, may run each transaction on another connection to the
server. So no lock is held by a session, and times are read in the binary format, which no setting changes. Behind a
pooler nothing is prepared either, and each transaction sets its own limits.
"""

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

import psycopg
from psycopg import conninfo
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool, PoolTimeout

from gligabao.cancel import Watchdog
from gligabao.errors import ConfigError, StoreError, StoreFault
from gligabao.records import format_time
from gligabao.store.queries import load_queries
from gligabao.store.transaction import Cursor, Row, Scalar, StoreConflict, Transaction, Value

# At INFO the pool logs every connection that it lends; at WARNING every one that it fails to make, several a second
# while the server is away. Our own errors say that already.
logging.getLogger("psycopg.pool").setLevel(logging.ERROR)

PROGRESS_WRITERS = 2
"""Connections for the progress of agents. More do not store more in a second, but let more agents compete for the
interpreter at once, and a request then waits behind all of them: with 4 instead of 2, the slowest answers beside 200
agents took twice as long; with 20, ten times. Agents get a connection in the order they came."""

WRITERS = 4
"""Connections for starts and ends. These may wait for each other's locks; progress must not wait with them."""

OPEN_SECONDS = 10
CLOSE_SECONDS = 0.2
"""How long a close waits for the threads of the pools: one may be connecting to a server that is away."""
WAIT_SECONDS = 5
"""How long a caller waits for a connection."""

READ_SECONDS = 5.0
WRITE_SECONDS = 10.0
"""A frozen server keeps its connections open and never answers: a use that takes longer than this is cut."""

RECONNECT_SECONDS = 5
"""When the pool gives up connecting. The next caller starts a new attempt: the pool's own become ever rarer."""

# A node that is frozen or cut off must not hold locks for long, because other nodes wait for them.
_LIMITS = """
    SET {scope} lock_timeout = '{lock_wait}';
    SET {scope} idle_in_transaction_session_timeout = '15s';
"""
_LOCK_WAIT = "5s"
_PROGRESS_LOCK_WAIT = "1s"
"""An agent whose row is locked must not keep others waiting: its progress is stored with its next state."""

_MAY_PASS = {
    "08": "the connection failed; a pooler has no connection to the server",
    "0A000": "a table was altered under a prepared statement",
    "25006": "the server takes no writes",
    "25P03": "the transaction was idle for too long",
    "25P04": "the transaction took too long",
    "26000": "a pooler lost a prepared statement",
    "28": "the role may not connect",
    "3D000": "there is no such database",
    "40001": "the transaction met another one",
    "40003": "nobody knows whether the statement was done",
    "40P01": "a deadlock",
    "42P05": "a pooler mixed up prepared statements",
    "53": "out of disk, memory or connections",
    "55006": "the object is in use",
    "55P03": "a lock was not free in time",
    "57": "the statement was cancelled, or the server stops, starts or has crashed",
    "58000": "the system failed",
    "58030": "the disk failed",
}
"""What may pass, by SQLSTATE or its class. All else is a fault that will be there again: a `StoreFault`."""

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
"""Times in the binary format are counted from here, in microseconds."""

_CONNECT = {
    "connect_timeout": "5",
    "tcp_user_timeout": "10000",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "client_encoding": "UTF8",
    "application_name": "gligabao",
}


class PostgresConnection(psycopg.Connection[dict[str, Any]]):
    """A connection of a pool. The pool says only that it has none, so why it could make none is noted."""

    local_limits = ""
    """Behind a pooler: what each transaction sets."""

    @classmethod
    def connect(  # type: ignore[override]
        cls, *args: Any, note_failure: Callable[[psycopg.Error], None], **kwargs: Any
    ) -> "PostgresConnection":
        """Connect, or note why not."""
        try:
            return super().connect(*args, **kwargs)
        except psycopg.Error as error:
            note_failure(error)
            raise

    @contextmanager
    def limited(self, *, alone: bool = False) -> Iterator[None]:
        """Run the block, in a transaction or `alone`, within the limits. Without a pooler, the session has them."""
        if not self.local_limits:
            yield
            return
        with self.transaction() if alone else nullcontext():
            self.execute(self.local_limits)
            yield


_Pool = ConnectionPool[PostgresConnection]


class PostgresDatabase:
    """A database on a Postgres server. Shared by all threads, which borrow connections from pools.

    Reads, the progress of agents, and all other writes have a pool each. Otherwise hundreds of agents that write would
    keep the rest waiting for seconds.
    """

    dialect: Literal["postgres"] = "postgres"

    def __init__(self, url: str, *, pool_size: int) -> None:
        address = _read_url(url)
        _check_server(address)
        self._queries = load_queries("postgres")
        self._watchdog = Watchdog()
        self._lock = threading.Lock()  # guards the connections in use
        self._in_use: set[PostgresConnection] = set()
        self._failure = ""  # why the last attempt to connect failed
        self._progress = self._make_pool(address, "gligabao-progress", PROGRESS_WRITERS, lock_wait=_PROGRESS_LOCK_WAIT)
        self._writers = self._make_pool(address, "gligabao-writers", WRITERS)
        self._readers = self._make_pool(address, "gligabao-readers", pool_size)
        self._pools = (self._progress, self._writers, self._readers)
        with self._our_errors():
            for pool in self._pools:
                pool.open(wait=True, timeout=OPEN_SECONDS)

    @contextmanager
    def transaction(self, *, patient: bool = False) -> Iterator[Transaction]:
        """Write: what the block does is stored when it ends, and undone when it raises."""
        seconds = None if patient else WRITE_SECONDS
        with self._our_errors(), self._connection(self._writers, seconds) as connection:
            with connection.transaction(), connection.limited():
                yield PostgresTransaction(connection, self._queries)

    def execute(self, name: str, /, **params: Value) -> int:
        """Write with one query in its own transaction, and return how many rows it touched."""
        with self._statement(self._progress, WRITE_SECONDS) as tx:
            return tx.execute(name, **params)

    @contextmanager
    def snapshot(self) -> Iterator[Transaction]:
        """Read: all queries in the block see the same state of the database."""
        with self._our_errors(), self._connection(self._readers, READ_SECONDS) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                with connection.limited():
                    yield PostgresTransaction(connection, self._queries)
            finally:
                if not connection.broken:
                    connection.execute("ROLLBACK")

    def fetch_one(self, name: str, /, **params: Value) -> Row | None:
        """Return the first row, None when there is none."""
        with self._statement(self._readers, READ_SECONDS) as tx:
            return tx.fetch_one(name, **params)

    def fetch_all(self, name: str, /, **params: Value) -> list[Row]:
        """Return all rows."""
        with self._statement(self._readers, READ_SECONDS) as tx:
            return tx.fetch_all(name, **params)

    def ping(self) -> None:
        """Raise `StoreError` unless the database answers."""
        self.fetch_one("ping")

    def close(self) -> None:
        """Close all connections and end the threads behind them.

        Later calls get a `StoreError`. Those that wait for a connection or for an answer get it at once.
        """
        deadline = time.monotonic() + CLOSE_SECONDS
        for pool in self._pools:
            pool.close(max(0.0, deadline - time.monotonic()))
        with self._lock:
            for connection in self._in_use:
                _cut(connection)
        self._watchdog.close()

    @contextmanager
    def _statement(self, pool: _Pool, seconds: float) -> Iterator[Transaction]:
        with self._our_errors(), self._connection(pool, seconds) as connection, connection.limited(alone=True):
            yield PostgresTransaction(connection, self._queries)

    @contextmanager
    def _connection(self, pool: _Pool, seconds: float | None) -> Iterator[PostgresConnection]:
        connection = _take(pool)
        with self._lock:
            self._in_use.add(connection)
        try:
            with self._watchdog.deadline(seconds, partial(_cut, connection)) if seconds else nullcontext():
                yield connection
        except psycopg.errors.FeatureNotSupported:
            # A table was altered under a prepared statement, which the connection would keep until it is closed.
            connection.close()
            raise
        finally:
            with self._lock:
                self._in_use.discard(connection)
            pool.putconn(connection)

    def _make_pool(self, address: str, name: str, size: int, *, lock_wait: str = _LOCK_WAIT) -> _Pool:
        return ConnectionPool(
            address,
            connection_class=PostgresConnection,
            kwargs={"autocommit": True, "row_factory": dict_row, "note_failure": self._note_failure},
            configure=partial(self._configure, lock_wait=lock_wait),
            min_size=1,
            max_size=size,
            timeout=WAIT_SECONDS,
            reconnect_timeout=RECONNECT_SECONDS,
            name=name,
            open=False,
        )

    def _configure(self, connection: PostgresConnection, *, lock_wait: str) -> None:
        self._failure = ""
        connection.adapters.register_loader("timestamptz", TimeText)
        with self._watchdog.deadline(READ_SECONDS, partial(_cut, connection)):
            row = connection.execute("SELECT pg_backend_pid() AS process").fetchone()
            if row and row["process"] == connection.info.backend_pid:
                connection.execute(_LIMITS.format(scope="SESSION", lock_wait=lock_wait))
                return
        # The process that took the connection is not the one that answers: it is a pooler.
        connection.prepare_threshold = None
        connection.local_limits = _LIMITS.format(scope="LOCAL", lock_wait=lock_wait)

    def _note_failure(self, error: psycopg.Error) -> None:
        self._failure = _one_line(error)

    @contextmanager
    def _our_errors(self) -> Iterator[None]:
        """Raise driver errors as ours."""
        try:
            yield
        except PoolTimeout as error:
            reason = f"{error}; the last attempt to connect: {self._failure}" if self._failure else str(error)
            raise StoreError(f"the database cannot be reached: {reason}") from error
        except psycopg.errors.UniqueViolation as error:
            raise StoreConflict(f"the row already exists: {_hide_rows(error)}") from error
        except psycopg.Error as error:
            kind = StoreError if _may_pass(error) else StoreFault
            raise kind(f"the database failed: {_hide_rows(error)}") from error


class PostgresTransaction(Transaction):
    """A transaction, or a statement on its own, whose answers come in the binary format."""

    _connection: PostgresConnection

    def _send(self, query: str, params: Mapping[str, Scalar]) -> Cursor:
        return self._connection.execute(query, params, binary=True)


def _take(pool: _Pool) -> PostgresConnection:
    """Lend a connection that the server has not closed: after its restart, all idle connections are closed."""
    deadline = time.monotonic() + WAIT_SECONDS
    while _hung_up(connection := pool.getconn(max(0.0, deadline - time.monotonic()))):
        connection.close()
        pool.putconn(connection)
    return connection


def _cut(connection: PostgresConnection) -> None:
    """Fail whatever another thread waits for on the connection."""
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as twin:
        twin.shutdown(socket.SHUT_RDWR)


class TimeText(Loader):
    """Reads a time as gligabao writes it: `2026-11-01T10:00:00.120Z`."""

    format = Format.BINARY

    def load(self, data: Buffer) -> str:
        """Return the time as text."""
        return format_time(_EPOCH + timedelta(microseconds=int.from_bytes(data, signed=True)))


def _read_url(url: str) -> str:
    try:
        given = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # The message of the driver may quote the password.
        raise ConfigError("database_url is not a valid postgresql:// address") from None
    return conninfo.make_conninfo("", **{**_CONNECT, **given})


def _check_server(address: str) -> None:
    # The pool would try again and again without saying what is wrong.
    try:
        with psycopg.connect(address, autocommit=True) as connection:
            (encoding,) = connection.execute("SELECT current_setting('server_encoding')").fetchone() or ("unknown",)
    except psycopg.Error as error:
        raise StoreError(f"the database cannot be reached: {_one_line(error)}") from error
    if encoding != "UTF8":
        raise ConfigError(f"database_url: the database has the encoding {encoding}: create one with ENCODING 'UTF8'")


def _hung_up(connection: PostgresConnection) -> bool:
    """Return whether the server closed an idle connection: only then is there something to read on it."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _hide_rows(error: psycopg.Error) -> str:
    """Return what the server says is wrong, and keep the rest, which quotes rows, out of tracebacks too."""
    if error.diag.message_primary:
        error.args = (f"{error.diag.message_primary} (SQLSTATE {error.sqlstate})",)
    return _one_line(error)


def _one_line(error: psycopg.Error) -> str:
    return " ".join(str(error).split())


def _may_pass(error: psycopg.Error) -> bool:
    if error.sqlstate is None:  # from the driver itself: the connection was lost or closed, or the call was wrong
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate.startswith(tuple(_MAY_PASS))
