"""The database: its URL, transactions and snapshots, values, errors, threads, and an end that leaves nothing."""

import json
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from gligabao.errors import ConfigError, GligabaoError, StoreError, StoreFault
from gligabao.store.database import sqlite_path
from gligabao.store.migrate import migrate
from gligabao.store.transaction import StoreConflict
from tests.databases import open_database

RUN = {
    "user_id": "u1",
    "parent_id": None,
    "name": "",
    "reason": "",
    "topic": "batteries",
    "model": "m",
    "max_steps": 20,
    "cost_usd": 0.0,
    "owner": "node-1",
    "created_at": "2026-11-01T10:00:00.120Z",
}


def insert(db, **values):
    with db.transaction() as tx:
        return tx.fetch_one("insert_run", **{**RUN, **values})


def running(db):
    """How many runs are at work, to a database or a snapshot of one."""
    return len(db.fetch_all("list_running", owner="node-1"))


def all_messages(error):
    """All that a log would show of the error: its own message and those of its causes."""
    shown = []
    while error:
        shown.append(f"{error!r} {error}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(shown)


# Addresses


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("mysql://ann:canary@host/db", "must begin with sqlite:/// or postgresql://"),
        ("gligabao.db", "must begin with sqlite:/// or postgresql://"),
        ("sqlite://gligabao.db", "must begin with sqlite:/// or postgresql://"),
        ("sqlite:///", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite:///x.db?mode=ro", "takes no options"),
        ("sqlite:////no/such/folder/x.db", "there is no folder /no/such/folder"),
        ("postgresql://ann:canary@[host/db", "not a valid postgresql:// address"),
        ("postgresql://ann:canary@host/db?colour=blue", "not a valid postgresql:// address"),
    ],
)
def test_a_bad_address_is_refused_without_its_password(url, fault):
    with pytest.raises(ConfigError) as refusal:
        open_database(url)
    assert fault in str(refusal.value)
    assert "canary" not in all_messages(refusal.value)


def test_the_short_scheme_of_postgres_names_the_same_database(postgres_url):
    db = open_database(postgres_url.replace("postgresql://", "postgres://"))
    try:
        db.ping()
    finally:
        db.close()


def test_a_server_that_does_not_answer_is_told_at_once_without_the_password():
    before = set(threading.enumerate())
    with pytest.raises(StoreError, match=r"cannot be reached: .*refused") as refusal:
        open_database("postgresql://ann:canary@127.0.0.1:1/db")
    assert "canary" not in all_messages(refusal.value)
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("name", ["my data.db", "100%41.db", "größe#1.db", "a:b;'.db"])
def test_the_path_of_an_sqlite_address_is_taken_as_it_stands(tmp_path, name):
    db = open_database(f"sqlite:///{tmp_path}/{name}")
    migrate(db)
    db.close()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_relative_path_is_one_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sqlite_path("sqlite:///gligabao.db") == tmp_path.resolve() / "gligabao.db"


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "x.db").write_text("a letter to my aunt, which is longer than a header " * 20)
    with pytest.raises(ConfigError, match="not a database"):
        open_database(f"sqlite:///{tmp_path}/x.db")


def test_a_database_on_a_network_file_system_is_refused(tmp_path, monkeypatch):
    table = tmp_path / "mountinfo"
    table.write_text(f"21 1 0:31 / {tmp_path.resolve()} rw shared:3 - nfs4 host:/share rw\n")
    monkeypatch.setattr("gligabao.store.mounts.MOUNT_TABLE", table)
    with pytest.raises(ConfigError, match=r"x\.db is on a network file system \(nfs4\): put it on a local disk"):
        open_database(f"sqlite:///{tmp_path}/x.db")
    assert not (tmp_path / "x.db").exists()


# Transactions and snapshots


def test_what_a_transaction_wrote_is_there_after_it(db):
    insert(db)
    assert running(db) == 1


def test_a_transaction_that_raises_leaves_nothing(db):
    with pytest.raises(ZeroDivisionError), db.transaction() as tx:
        tx.fetch_one("insert_run", **RUN)
        raise ZeroDivisionError
    assert running(db) == 0
    insert(db)
    assert running(db) == 1


def test_a_failed_statement_undoes_its_transaction(db):
    with pytest.raises(StoreError), db.transaction() as tx:
        tx.fetch_one("insert_run", **RUN)
        tx.fetch_one("insert_run", **{**RUN, "topic": None})
    assert running(db) == 0
    insert(db)
    assert running(db) == 1


STATE = {
    **{"run_id": 1, "seq": 1, "step": 0, "state": "starting", "detail": "", "error": ""},
    **{"started_at": RUN["created_at"], "finished_at": RUN["created_at"]},
}


def test_a_query_tells_how_many_rows_it_touched(db):
    run = insert(db)
    with db.transaction() as tx:
        assert tx.execute("save_state", **{**STATE, "run_id": run["id"]}) == 1
        assert tx.execute("save_state", **{**STATE, "run_id": run["id"]}) == 0


def test_one_query_alone_is_a_transaction_of_its_own(db):
    run = insert(db)
    assert db.execute("save_state", **{**STATE, "run_id": run["id"]}) == 1
    with pytest.raises(StoreError):
        db.execute("save_state", **{**STATE, "run_id": 4711})
    found = db.fetch_one("get_run_with_states", id=run["id"], user_id="u1", after=0)
    assert [state["seq"] for state in json.loads(found["states"])] == [1]


def test_a_snapshot_sees_one_state_while_others_write(db):
    insert(db)
    with db.snapshot() as read:
        assert running(read) == 1
        insert(db)
        assert running(read) == 1
        assert running(db) == 2


def test_a_snapshot_cannot_write(db):
    with pytest.raises(StoreError), db.snapshot() as read:
        read.fetch_one("insert_run", **RUN)
    assert running(db) == 0


def test_readers_wait_for_no_writer(db):
    insert(db)
    with db.transaction() as tx:
        tx.fetch_one("insert_run", **RUN)
        assert running(db) == 1


def test_a_transaction_inside_a_transaction_is_refused_on_sqlite(sqlite_url):
    db = open_database(sqlite_url)
    try:
        with pytest.raises(RuntimeError, match="has a transaction open already"), db.transaction(), db.transaction():
            pass
        with db.transaction():
            pass
    finally:
        db.close()


# Values


@pytest.mark.parametrize(
    "text",
    [
        "50% of 100%%",
        "%s %(name)s :name",
        'it\'s "quoted" `so`; DROP TABLE x --',
        "Größe 世界 🔋",
        "line\nline\ttab",
        "\\x00",
    ],
)
def test_text_comes_back_as_it_was(db, text):
    assert insert(db, topic=text)["topic"] == text


@pytest.mark.parametrize(
    ("text", "stored"), [("a\0b", "ab"), ("\0", ""), ("a\ud800b", "ab"), ("世\udfff\0界", "世界"), ("\ud83d\udd0b", "")]
)
def test_what_no_database_can_hold_is_left_out(db, text, stored):
    assert insert(db, topic=text)["topic"] == stored


@pytest.mark.parametrize(
    "moment",
    ["2026-11-01T10:00:00.000Z", "2026-11-01T10:00:00.120Z", "1999-12-31T23:59:59.999Z", "2026-03-29T01:30:00.001Z"],
)
def test_times_come_back_as_they_were(db, moment):
    assert insert(db, created_at=moment)["created_at"] == moment


def test_times_do_not_depend_on_the_settings_of_the_server(postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET timezone = 'Asia/Kathmandu'")
        connection.execute(f"ALTER DATABASE {name} SET datestyle = 'SQL, DMY'")
    db = open_database(postgres_url)
    try:
        migrate(db)
        assert insert(db)["created_at"] == "2026-11-01T10:00:00.120Z"
    finally:
        db.close()


# Errors


def test_a_key_that_is_there_already_is_a_conflict(db):
    parent = insert(db)
    insert(db, parent_id=parent["id"], name="alpha")
    with pytest.raises(StoreConflict) as conflict:
        insert(db, parent_id=parent["id"], name="alpha")
    assert isinstance(conflict.value.__cause__, (sqlite3.Error, psycopg.Error))


def test_a_driver_error_comes_as_ours(db):
    with pytest.raises(StoreError) as failure:
        insert(db, parent_id=12345)
    assert not isinstance(failure.value, StoreConflict)
    assert isinstance(failure.value.__cause__, (sqlite3.Error, psycopg.Error))


def test_a_database_without_tables_fails_as_ours(database_url):
    db = open_database(database_url)
    try:
        db.ping()
        with pytest.raises(StoreFault, match="gb_agent_research_runs") as failure:
            running(db)
        assert failure.value.retry_after_seconds is None
    finally:
        db.close()


def test_a_closed_database_fails_as_ours(db):
    db.close()
    for use in (db.ping, db.snapshot().__enter__, db.transaction().__enter__):
        with pytest.raises(StoreError):
            use()
    db.close()


# Threads


def test_closing_leaves_no_thread(database_url):
    before = set(threading.enumerate())
    db = open_database(database_url)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: db.ping(), range(32)))
    db.close()
    assert set(threading.enumerate()) == before


def test_more_threads_than_connections_are_all_served(database_url):
    db = open_database(database_url, pool_size=2)
    try:
        migrate(db)
        with ThreadPoolExecutor(24) as pool:
            list(pool.map(lambda number: (insert(db), running(db)), range(96)))
        assert running(db) == 96
    finally:
        db.close()


def test_a_reader_that_is_out_when_the_database_closes_is_closed_after(sqlite_url):
    db = open_database(sqlite_url)
    migrate(db)
    with db.snapshot() as read:
        db.close()
        assert read.fetch_one("ping") == {"answer": 1}
    with pytest.raises(StoreError):
        db.ping()


def test_the_write_ahead_log_is_put_away_when_the_database_closes(sqlite_url):
    db = open_database(sqlite_url)
    migrate(db)
    insert(db)
    db.close()
    folder = sqlite_path(sqlite_url).parent
    assert [path.name for path in folder.iterdir()] == ["gligabao.db"]


def test_another_process_that_writes_is_waited_for(sqlite_url):
    db = open_database(sqlite_url)
    migrate(db)
    with ThreadPoolExecutor(1) as pool, another_writer(sqlite_url) as end:
        written = pool.submit(insert, db)
        end()
        assert written.result(20)["id"] == 1
    db.close()


WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("writing", flush=True)
sys.stdin.read()
connection.execute("COMMIT")
"""


@contextmanager
def another_writer(url):
    """Have another process write to the database until the block ends, or calls what it is given."""
    command = [sys.executable, "-c", WRITER, str(sqlite_path(url))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def end():
            process.stdin.close()
            process.wait(20)

        assert process.stdout.readline() == "writing\n"
        try:
            yield end
        finally:
            end()


def wait_for_writers(db, count):
    """Wait until so many threads are queued up to write."""
    deadline = time.monotonic() + 20
    while len(db._write_lock) < count:
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def test_a_close_wakes_whoever_waits_for_another_process_that_writes(sqlite_url):
    db = open_database(sqlite_url)
    migrate(db)
    with ThreadPoolExecutor(8) as pool, another_writer(sqlite_url):
        waiting = [pool.submit(insert, db, user_id=f"u{number}") for number in range(8)]
        wait_for_writers(db, 7)
        db.close()
        for use in waiting:
            with pytest.raises(StoreError, match="the database is closed"):
                use.result(20)
    db.close()
    again = open_database(sqlite_url)
    assert running(again) == 0
    again.close()
    assert [path.name for path in sqlite_path(sqlite_url).parent.iterdir()] == ["gligabao.db"]


def test_a_close_lets_a_transaction_end_and_nobody_after_it_begin(sqlite_url, monkeypatch):
    monkeypatch.setattr("gligabao.store.sqlite.CLOSE_WAIT_SECONDS", 0.01)
    db = open_database(sqlite_url)
    migrate(db)
    with ThreadPoolExecutor(2) as pool:
        with db.transaction() as tx:
            waiting = pool.submit(insert, db)
            wait_for_writers(db, 1)
            pool.submit(db.close).result(20)
            with pytest.raises(StoreError, match="closed"):
                waiting.result(20)
            tx.fetch_one("insert_run", **RUN)
    db.close()
    again = open_database(sqlite_url)
    assert running(again) == 1
    again.close()


def test_writes_that_wait_for_the_same_process_fail_together(sqlite_url, monkeypatch):
    monkeypatch.setattr("gligabao.store.sqlite.LOCK_SECONDS", 1)
    db = open_database(sqlite_url)
    migrate(db)
    with ThreadPoolExecutor(60) as pool:
        with another_writer(sqlite_url):
            waiting = [pool.submit(insert, db, user_id=f"u{number}") for number in range(60)]
            for use in waiting:  # one after the other they would wait for a minute
                with pytest.raises(StoreError, match="another process keeps the database locked") as failure:
                    use.result(20)
                assert failure.value.retry_after_seconds
            assert running(db) == 0
        assert insert(db)["id"] == 1
    db.close()


def remove_file(folder):
    for path in folder.iterdir():
        path.unlink()


def replace_file(folder):
    folder.rename(folder.with_name("old"))
    folder.mkdir()
    open_database(f"sqlite:///{folder}/gligabao.db").close()


@pytest.mark.parametrize("lose", [remove_file, shutil.rmtree, replace_file])
def test_a_file_that_was_removed_or_replaced_is_used_no_more(tmp_path, lose):
    folder = tmp_path / "data"
    folder.mkdir()
    db = open_database(f"sqlite:///{folder}/gligabao.db", pool_size=2)
    migrate(db)
    insert(db)
    lose(folder)
    left = sorted(tmp_path.rglob("*"))
    for use in (db.ping, lambda: insert(db), lambda: running(db), db.snapshot().__enter__):
        with pytest.raises(StoreError, match=r"was removed or replaced .* restart the server"):
            use()
    db.close()
    assert sorted(tmp_path.rglob("*")) == left


def test_a_file_that_was_put_back_is_used_again(sqlite_url):
    db = open_database(sqlite_url)
    migrate(db)
    path = sqlite_path(sqlite_url)
    path.rename(path.with_name("elsewhere.db"))
    with pytest.raises(StoreError):
        insert(db)
    path.with_name("elsewhere.db").rename(path)
    db.ping()
    insert(db)
    assert running(db) == 1
    db.close()


# A Postgres that goes away


@pytest.fixture
def postgres_db(postgres_url):
    db = open_database(postgres_url, pool_size=4)
    migrate(db)
    yield db
    db.close()


def cut_connections(url):
    """End every other connection to the database, as a restart of the server does."""
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchall()


def test_idle_connections_that_were_cut_are_noticed_by_nobody(postgres_db, postgres_url):
    with postgres_db.snapshot(), postgres_db.snapshot(), postgres_db.snapshot():
        pass  # makes the pool grow
    assert len(cut_connections(postgres_url)) >= 3
    for _ in range(6):
        insert(postgres_db)
        assert running(postgres_db) > 0


def test_a_transaction_whose_connection_is_cut_fails_and_the_next_one_works(postgres_db, postgres_url):
    with pytest.raises(StoreError), postgres_db.transaction() as tx:
        tx.fetch_one("insert_run", **RUN)
        cut_connections(postgres_url)
        tx.fetch_one("ping")
    with pytest.raises(StoreError), postgres_db.snapshot() as read:
        cut_connections(postgres_url)
        read.fetch_one("ping")
    assert running(postgres_db) == 0
    insert(postgres_db)


def test_waiting_for_a_connection_has_an_end(postgres_url, monkeypatch):
    monkeypatch.setattr("gligabao.store.postgres.WAIT_SECONDS", 0.1)
    db = open_database(postgres_url, pool_size=1)
    try:
        with db.snapshot(), pytest.raises(StoreError) as failure:
            db.ping()
        assert isinstance(failure.value, GligabaoError) and failure.value.retry_after_seconds
        db.ping()
    finally:
        db.close()


def test_a_close_wakes_whoever_waits_for_a_connection_or_for_an_answer(postgres_url, monkeypatch):
    monkeypatch.setattr("gligabao.store.postgres.WRITERS", 1)
    db = open_database(postgres_url)
    migrate(db)
    began = threading.Event()

    def sleep():
        with db.transaction() as tx:
            began.set()
            tx.run_script("SELECT pg_sleep(60)")

    with ThreadPoolExecutor(2) as pool:
        asleep = pool.submit(sleep)
        assert began.wait(20)
        waiting = pool.submit(insert, db)
        db.close()
        for use in (asleep, waiting):
            with pytest.raises(StoreError):
                use.result(20)
    db.close()


def test_an_sqlite_file_is_readable_by_its_owner_only(sqlite_url):
    database = open_database(sqlite_url)
    try:
        migrate(database)
        folder = sqlite_path(sqlite_url).parent
        assert {path.stat().st_mode & 0o077 for path in folder.glob("gligabao.db*")} == {0}
    finally:
        database.close()
