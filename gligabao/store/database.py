"""The database: opened by its URL, and used in the same way on SQLite and Postgres.

    with db.transaction() as tx:      # the way to write
        tx.execute("end_run", id=7, ...)
    db.fetch_all("list_runs", user_id="u1", ...)

Owns the URL. The queries are in `sql/`; the modules named after the tables know what they mean.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from gligabao.errors import ConfigError
from gligabao.store.postgres import PostgresDatabase
from gligabao.store.queries import Dialect
from gligabao.store.sqlite import SqliteDatabase, check_place
from gligabao.store.transaction import Row, Transaction, Value

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")


class Database(Protocol):
    """What both databases offer. Safe to share between threads. Driver errors are raised as `StoreError`."""

    @property
    def dialect(self) -> Dialect:
        """Which of the two databases this is."""

    def transaction(self, *, patient: bool = False) -> AbstractContextManager[Transaction]:
        """Write: what the block does is stored when it ends, and undone when it raises.

        It fails when the server does not answer for ten seconds, unless it is `patient`, as migrations are.
        """

    def execute(self, name: str, /, **params: Value) -> int:
        """Write with one query in its own transaction, and return how many rows it touched."""

    def snapshot(self) -> AbstractContextManager[Transaction]:
        """Read: all queries in the block see the same state of the database."""

    def fetch_one(self, name: str, /, **params: Value) -> Row | None:
        """Return the first row, None when there is none."""

    def fetch_all(self, name: str, /, **params: Value) -> list[Row]:
        """Return all rows."""

    def ping(self) -> None:
        """Raise `StoreError` unless the database answers."""

    def close(self) -> None:
        """Close all connections and end the threads behind them."""


def open_database(url: str, *, pool_size: int = 10) -> Database:
    """Return the database at `sqlite:///file.db`, `sqlite:////folder/file.db` or `postgresql://user@host/name`
    (`postgres://` too).

    `pool_size` limits the connections that read; a few more write. Raises `ConfigError` for a URL or a file that cannot
    be used, `StoreError` when the server does not answer. Neither message shows a password.
    """
    if url.startswith(_POSTGRES):
        return PostgresDatabase(url, pool_size=pool_size)
    return SqliteDatabase(sqlite_path(url), pool_size=pool_size)


def check_database_place(url: str) -> None:
    """Raise `ConfigError` when the file of an SQLite URL cannot be used where it is. Changes nothing there."""
    if is_sqlite(url):
        check_place(sqlite_path(url))


def is_sqlite(url: str) -> bool:
    """Return whether the URL names an SQLite file."""
    return url.startswith(_SQLITE)


def sqlite_path(url: str) -> Path:
    """Return the file that an SQLite URL names, as an absolute path: whatever follows `sqlite:///`, unescaped."""
    if not is_sqlite(url):
        raise ConfigError("database_url must begin with sqlite:/// or postgresql://")
    name = url.removeprefix(_SQLITE)
    if not name or name == ":memory:":
        raise ConfigError("database_url: SQLite needs a file, as in sqlite:///gligabao.db")
    if "?" in name or "\0" in name:
        raise ConfigError("database_url: an SQLite address takes no options: remove the ? and what follows it")
    return Path(name).resolve()
