"""Queries on one connection: what a transaction of either database offers.

Owns how parameters and rows are converted. `sqlite` and `postgres` make the connections, and begin and end
transactions.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gligabao.errors import StoreFault
from gligabao.store.queries import Queries

Scalar = str | int | float | None
Value = Scalar | Sequence[Mapping[str, Scalar]]
"""A parameter of a query: a value, or rows. Rows reach the database as JSON text, which the query unpacks."""
Row = dict[str, Any]


class StoreConflict(StoreFault):
    """A row with the same key already exists."""


class Cursor(Protocol):
    """The part of a driver's cursor that is used here."""

    @property
    def rowcount(self) -> int:
        """How many rows the statement touched."""

    def fetchall(self) -> list[Any]:
        """Return all remaining rows."""


class DriverConnection(Protocol):
    """The part of a driver's connection that is used here."""

    def execute(self, query: str, params: Mapping[str, Scalar] = ..., /) -> Cursor:
        """Run one statement."""


class Transaction:
    """Named queries that see one state of the database and take effect together. For one thread, inside its `with`.

    Text is stored without NUL characters, which Postgres cannot store, and without lone surrogates, which neither
    database can.
    """

    def __init__(self, connection: DriverConnection, queries: Queries) -> None:
        self._connection = connection
        self._queries = queries

    def execute(self, name: str, /, **params: Value) -> int:
        """Run the query and return how many rows it touched."""
        return self._run(name, params).rowcount

    def fetch_one(self, name: str, /, **params: Value) -> Row | None:
        """Return the first row, None when there is none."""
        rows = self.fetch_all(name, **params)
        return rows[0] if rows else None

    def fetch_all(self, name: str, /, **params: Value) -> list[Row]:
        """Return all rows."""
        rows: list[Row] = self._run(name, params).fetchall()
        return rows

    def run_script(self, script: str) -> None:
        """Run a migration: statements without names and parameters."""
        self._connection.execute(script)

    def _run(self, name: str, params: Mapping[str, Value]) -> Cursor:
        query = self._queries[name]
        query.check(params)
        return self._send(query.text, {key: _storable(value) for key, value in params.items()})

    def _send(self, query: str, params: Mapping[str, Scalar]) -> Cursor:
        return self._connection.execute(query, params)


def _storable(value: Value) -> Scalar:
    if value is None or isinstance(value, int | float):
        return value
    if not isinstance(value, str):
        rows = [{key: _storable(cell) for key, cell in row.items()} for row in value]
        return json.dumps(rows, ensure_ascii=False)
    if value.isascii() and "\0" not in value:
        return str(value)  # a plain str: the drivers do not know our enums
    return value.replace("\0", "").encode("utf-8", "ignore").decode("utf-8")
