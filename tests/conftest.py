"""What all tests may use: a database of their own, of both kinds; a whole server; a simulated model and the SDK."""

import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anthropic
import pytest

from gligabao.cancel import Watchdog
from gligabao.simulator import Simulator
from gligabao.store.database import Database, open_database
from gligabao.store.migrate import migrate
from tests import databases, pgbouncer, postgres
from tests.teams import Silence
from tests.world import World

FOR_TESTS = ("GLIGABAO_TEST_", "GLIGABAO_BENCH_DATA")
"""How the variables begin that are for the tests and no settings."""

_session = pytest.StashKey[postgres.Session]()
_has_failed = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin the session of the test Postgres, once: a worker of pytest-xdist has its session elsewhere."""
    # A shell starts what shall run in the background deaf to Ctrl-C, and so would be the processes of the tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        config.stash[_session] = postgres.Session()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the test Postgres."""
    if session := config.stash.get(_session, None):
        session.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note on each test that has failed that it did, for its fixtures."""
    report = yield
    if report.failed:
        item.stash[_has_failed] = True
    return report


def _failed(request: pytest.FixtureRequest) -> bool:
    return request.node.stash.get(_has_failed, False)


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


@pytest.fixture
def pooled_url(postgres_url: str) -> Iterator[str]:
    """The URL of an empty Postgres database behind a PgBouncer. The test is skipped where that is not installed."""
    if not pgbouncer.PROGRAM:
        pytest.skip("pgbouncer is not installed")
    with pgbouncer.pooled(postgres_url) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database, once of each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(autouse=True)
def close_databases(request: pytest.FixtureRequest) -> Iterator[None]:
    """Close the databases that a failed test has left open: found later, they would fail another test."""
    yield
    databases.forget(close=_failed(request))


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    """A database with all tables and no rows, once of each kind."""
    database = open_database(database_url)
    try:
        migrate(database)
        yield database
    finally:
        database.close()


@pytest.fixture
def new_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Makes worlds: `new_world(database_url, **settings)`. The test may close them, else they are closed after it.

    When the test has failed, the checker is left out: what it finds then would only hide the cause.
    """

    def finish(world: World) -> None:
        if _failed(request):
            world.abandon()
        elif not world.closed:
            world.close()

    with ExitStack() as worlds:

        def make(database_url: str, folder: Path = tmp_path, **settings: Any) -> World:
            world = World(database_url, folder, **settings)
            worlds.callback(finish, world)
            return world

        yield make


@pytest.fixture
def silence() -> Iterator[Silence]:
    """A web server that takes connections and never says a word."""
    silence = Silence()
    yield silence
    silence.close()


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    """A simulated model, scripted by nobody yet."""
    with Simulator() as simulator:
        yield simulator


@pytest.fixture(scope="module")
def http() -> Iterator[anthropic.DefaultHttpxClient]:
    """One HTTP client for all tests of a module: each has an SSL context, which takes its time."""
    with anthropic.DefaultHttpxClient(timeout=30) as http_client:
        yield http_client


@pytest.fixture
def client(simulator: Simulator, http: anthropic.DefaultHttpxClient) -> anthropic.Anthropic:
    """The SDK talking to `simulator`, as strict about answers as it can be."""
    return anthropic.Anthropic(
        api_key="x", base_url=simulator.url, http_client=http, max_retries=0, _strict_response_validation=True
    )


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    """A watchdog with a thread of its own."""
    watchdog = Watchdog()
    yield watchdog
    watchdog.close()


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting comes from the environment that the tests were started in; what is said to the tests stays."""
    for name in list(os.environ):
        if name.startswith(("GLIGABAO_", "ANTHROPIC_")) and not name.startswith(FOR_TESTS):
            monkeypatch.delenv(name)
