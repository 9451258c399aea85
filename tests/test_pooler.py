"""gligabao behind a PgBouncer in transaction mode. tests/soak/test_pooler.py has it at length."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from gligabao.errors import StoreError
from gligabao.records import NewRun, Totals
from gligabao.simulator.replies import call, text, tool_calls
from gligabao.store.migrate import migrate
from gligabao.store.runs import Runs
from tests.databases import open_database
from tests.pgbouncer import SERVER_CONNECTIONS
from tests.teams import spawn, task_of

NEW = NewRun(user_id="u1", topic="t", model="m", max_steps=20, priced=True)


@pytest.fixture
def pooled_db(pooled_url):
    db = open_database(pooled_url)
    migrate(db)
    yield db
    db.close()


def settings(url):
    """The settings that the connections behind the pooler have by now."""
    names = ("lock_timeout", "idle_in_transaction_session_timeout", "datestyle")
    asked = ", ".join(f"current_setting('{name}')" for name in names)
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        return {connection.execute(f"SELECT {asked}").fetchone() for _ in range(2 * SERVER_CONNECTIONS)}


def test_reads_and_writes_by_many_threads_work_behind_a_pooler(pooled_db):
    runs = Runs(pooled_db)

    def work(number):
        user = f"u{number}"
        new = NewRun(user_id=user, topic="t", model="m", max_steps=20, priced=True)
        run = runs.start_run(new, owner="node-1", max_working=3)
        for _ in range(20):
            runs.save_progress(run.id, owner="node-1", states=[], totals=Totals())
            assert runs.get_run(run.id, user_id=user) == run
            assert runs.list_runs(user_id=user, status=None, parent_id=None, before=None, limit=50) == [run]

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(work, range(24)))


def test_nothing_is_left_on_the_connections_behind_a_pooler(pooled_db, pooled_url):
    before = settings(pooled_url)
    run = Runs(pooled_db).start_run(NEW, owner="node-1", max_working=3)
    for _ in range(3 * SERVER_CONNECTIONS):
        assert Runs(pooled_db).get_run_with_states(run.id, user_id="u1")
    assert settings(pooled_url) == before
    with psycopg.connect(pooled_url, autocommit=True, prepare_threshold=None) as connection:
        for _ in range(2 * SERVER_CONNECTIONS):
            assert connection.execute("SELECT name FROM pg_prepared_statements").fetchall() == []


def test_limits_hold_behind_a_pooler(pooled_db, postgres_url):
    runs = Runs(pooled_db)
    run = runs.start_run(NEW, owner="node-1", max_working=3)
    with psycopg.connect(postgres_url) as other:
        other.execute("SELECT FROM gb_agent_research_runs FOR UPDATE")
        with pytest.raises(StoreError, match="due to lock timeout"):
            runs.save_progress(run.id, owner="node-1", states=[], totals=Totals())
    for use in (pooled_db.transaction, pooled_db.snapshot):
        with use() as tx:
            row = tx._connection.execute("SELECT current_setting('lock_timeout') AS wait").fetchone()
            assert row == {"wait": "5s"}


def test_times_do_not_depend_on_the_settings_behind_a_pooler(pooled_url, postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET datestyle = 'SQL, DMY'")
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET timezone = 'Asia/Kathmandu'")
    db = open_database(pooled_url)
    migrate(db)
    runs = Runs(db)
    run = runs.start_run(NEW, owner="node-1", max_working=3)
    assert all(runs.get_run(run.id, user_id="u1") == run for _ in range(2 * SERVER_CONNECTIONS))
    db.close()


def test_a_direct_connection_still_prepares_its_statements(postgres_url):
    db = open_database(postgres_url, pool_size=1)
    try:
        with db._readers.connection() as connection:
            assert connection.prepare_threshold and not connection.local_limits
    finally:
        db.close()


def test_a_team_works_behind_a_pooler(pooled_url, new_world):
    world = new_world(pooled_url)
    for name in ("alpha", "beta"):
        world.simulator.play(task_of(name), text("Done."))
    root = world.run(tool_calls(spawn("alpha"), spawn("beta")), tool_calls(call("wait_subagents")), text("Report."))
    statuses = [world.client.get(f"/v1/gb/research/{root['id']}?user_id=u1").status_code for _ in range(100)]
    assert root["status"] == "completed" and set(statuses) == {200}
    assert world.close().ends == {"answered": 3}


@pytest.mark.parametrize("way", ["postgres_url", "pooled_url"])
def test_a_read_gives_up_a_lock_on_the_server_too(request, way, postgres_url, monkeypatch):
    """One that was only cut would keep its connection on the server until it has the lock."""
    monkeypatch.setattr("gligabao.store.postgres._LIMITS", "SET {scope} lock_timeout = '100ms'")
    db = open_database(request.getfixturevalue(way))
    migrate(db)
    with psycopg.connect(postgres_url) as other:
        other.execute("LOCK TABLE gb_agent_research_runs IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreError, match="due to lock timeout"):
            db.fetch_one("get_run", id=1, user_id="u1")
    db.close()
