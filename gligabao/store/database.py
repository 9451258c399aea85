"""The database: opened by its URL, and used in the same way whichever it is.

    with db.transaction() as tx:      # the way to write
        tx.execute("end_run", id=7, ...)
    db.fetch_all("list_runs", user_id="u1", ...)

Owns the URL. The queries are named in `sql/`; what they mean is left to the modules with the tables' names.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from gligabao.errors import ConfigError
from gligabao.store.postgres import PostgresDatabase
from gligabao.store.queries import Dialect
from gligabao.store.sqlite import SqliteDatabase
from gligabao.store.transaction import Row, Transaction, Value

_SQLITE = "sqlite:///"
_POSTGRES = "postgresql://"


class Database(Protocol):
    """What both databases offer. Safe to share between threads; errors of the driver come as `StoreError`."""

    @property
    def dialect(self) -> Dialect:
        """Which of the two it is."""

    def transaction(self, *, patient: bool = False) -> AbstractContextManager[Transaction]:
        """Write: what the block does is stored when it ends, and undone when it raises.

        A server that stops answering fails it after ten seconds, unless it is `patient`, as migrations are.
        """

    def execute(self, name: str, /, **params: Value) -> int:
        """Write with one query, a transaction of its own, and return how many rows it touched."""

    def snapshot(self) -> AbstractContextManager[Transaction]:
        """Read: all queries of the block see the same state of the database."""

    def fetch_one(self, name: str, /, **params: Value) -> Row | None:
        """Return the first row of the query, None when there is none."""

    def fetch_all(self, name: str, /, **params: Value) -> list[Row]:
        """Return all rows of the query."""

    def ping(self) -> None:
        """Raise `StoreError` unless the database answers."""

    def close(self) -> None:
        """Close all connections and end the threads behind them."""


def open_database(url: str, *, pool_size: int = 10) -> Database:
    """Return the database at `sqlite:///file.db`, `sqlite:////folder/file.db` or `postgresql://user@host/name`.

    `pool_size` bounds the connections that read; a few more write. Raises `ConfigError` for a URL or a place that
    cannot be used, `StoreError` when the server does not answer. Neither shows a password.
    """
    if url.startswith(_POSTGRES):
        return PostgresDatabase(url, pool_size=pool_size)
    return SqliteDatabase(sqlite_path(url), pool_size=pool_size)


def is_sqlite(url: str) -> bool:
    """Tell whether the URL means a file."""
    return url.startswith(_SQLITE)


def sqlite_path(url: str) -> Path:
    """Return the file that an SQLite URL names, as an absolute path: what follows `sqlite:///`, as it stands."""
    if not is_sqlite(url):
        raise ConfigError("database_url must begin with sqlite:/// or postgresql://")
    name = url.removeprefix(_SQLITE)
    if not name or name == ":memory:":
        raise ConfigError("database_url: SQLite needs a file, as in sqlite:///gligabao.db")
    if "?" in name or "\0" in name:
        raise ConfigError("database_url: an SQLite address takes no options: leave out what begins with ?")
    return Path(name).resolve()
