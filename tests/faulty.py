"""A real database whose calls fail, hang or lose their answer when a test says so."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gligabao.errors import StoreError
from gligabao.store.database import Database
from gligabao.store.queries import Dialect

Meddle = Callable[[str], None]
"""Is told each call just before it is made: `begin`, the name of a query, `commit`, `read`; and `committed` after."""


class FaultyDatabase:
    """The database behind it, and a meddler that may raise or wait at each call."""

    _db: Database

    def __init__(self) -> None:
        self.meddle: Meddle = _let_pass

    def over(self, db: Database) -> "FaultyDatabase":
        """Stand before this database; return self."""
        self._db = db
        return self

    @property
    def dialect(self) -> Dialect:
        """Which of the two it is."""
        return self._db.dialect

    @contextmanager
    def transaction(self, *, patient: bool = False) -> Iterator[Any]:
        """Write."""
        self.meddle("begin")
        with self._db.transaction(patient=patient) as tx:
            yield _FaultyTransaction(tx, self)
            self.meddle("commit")
        self.meddle("committed")

    def execute(self, name: str, /, **params: Any) -> int:
        """Write with one query."""
        with self.transaction() as tx:
            touched: int = tx.execute(name, **params)
            return touched

    @contextmanager
    def snapshot(self) -> Iterator[Any]:
        """Read."""
        self.meddle("read")
        with self._db.snapshot() as tx:
            yield tx

    def fetch_one(self, name: str, /, **params: Any) -> Any:
        """Read."""
        self.meddle("read")
        return self._db.fetch_one(name, **params)

    def fetch_all(self, name: str, /, **params: Any) -> Any:
        """Read."""
        self.meddle("read")
        return self._db.fetch_all(name, **params)

    def ping(self) -> None:
        """Read."""
        self.meddle("read")
        self._db.ping()

    def close(self) -> None:
        """Close the database behind it."""
        self._db.close()


class _FaultyTransaction:
    def __init__(self, tx: Any, db: FaultyDatabase) -> None:
        self._tx = tx
        self._db = db

    def execute(self, name: str, /, **params: Any) -> Any:
        self._db.meddle(name)
        return self._tx.execute(name, **params)

    def fetch_one(self, name: str, /, **params: Any) -> Any:
        self._db.meddle(name)
        return self._tx.fetch_one(name, **params)

    def fetch_all(self, name: str, /, **params: Any) -> Any:
        self._db.meddle(name)
        return self._tx.fetch_all(name, **params)

    def run_script(self, script: str) -> None:
        self._tx.run_script(script)


class FailAt:
    """A meddler: from the call of that number on, `times` calls fail. Shared by threads: a lock guards its counts.

    `lost`: the first commits from there on take place, but their answers are lost on the way.
    """

    def __init__(self, number: int, *, times: int = 1, lost: bool = False) -> None:
        self._number = number
        self._times = times
        self._lost = lost
        self._lock = threading.Lock()
        self.calls = 0
        self.failed: list[str] = []
        """The calls that failed."""

    def __call__(self, call: str) -> None:
        with self._lock:
            self.calls += 1
            due = self.calls >= self._number and len(self.failed) < self._times
            if not due or (call == "committed") != self._lost:
                return
            self.failed.append(call)
        raise StoreError(f"call {self.calls} ({call}) failed on purpose")


def _let_pass(call: str) -> None:
    pass
