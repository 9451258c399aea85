"""What all tests may use: a database of their own, of both kinds."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gligabao.store.database import Database, open_database
from gligabao.store.migrate import migrate
from tests import postgres

_session = pytest.StashKey[postgres.Session]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin the session of the test Postgres, once: a worker of pytest-xdist has its session elsewhere."""
    if not hasattr(config, "workerinput"):
        config.stash[_session] = postgres.Session()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the test Postgres."""
    if session := config.stash.get(_session, None):
        session.end()


@pytest.fixture(scope="session")
def postgres_server() -> str:
    """The address of a Postgres server. The test is skipped where there is none, unless one is required."""
    try:
        return postgres.server_url()
    except postgres.NoPostgres as missing:
        if os.environ.get("GLIGABAO_TEST_REQUIRE_POSTGRES") == "1":
            pytest.fail(f"Postgres is required: {missing}")
        pytest.skip(str(missing))


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of an SQLite file that is not there yet."""
    return f"sqlite:///{tmp_path / 'gligabao.db'}"


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of an empty Postgres database."""
    with postgres.new_database(postgres_server) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database, once of each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    """A database with all tables and no rows, once of each kind."""
    database = open_database(database_url)
    try:
        migrate(database)
        yield database
    finally:
        database.close()
