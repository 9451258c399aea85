"""Which errors of the drivers may pass, and which are faults that will be there again."""

import sqlite3
import threading
import traceback
import uuid
from contextlib import closing
from urllib.parse import urlencode

import psycopg
import pytest

from gligabao.errors import StoreError, StoreFault
from gligabao.records import NewRun, Totals
from gligabao.store import postgres, sqlite
from gligabao.store.database import is_sqlite, sqlite_path
from gligabao.store.migrate import migrate
from gligabao.store.runs import Runs
from tests.databases import open_database

ROW = {
    "user_id": "u1",
    "parent_id": None,
    "name": "",
    "reason": "",
    "topic": "a private topic",
    "model": "m",
    "max_steps": 20,
    "cost_usd": 0.0,
    "owner": "node-1",
    "created_at": "2026-11-01T10:00:00.120Z",
}


def insert(db, **values):
    with db.transaction() as tx:
        return tx.fetch_one("insert_run", **{**ROW, **values})


def script(db, statements):
    with db.transaction() as tx:
        tx.run_script(statements)


def meddle(url, statement):
    """Run a statement past gligabao."""
    if is_sqlite(url):
        with closing(sqlite3.connect(sqlite_path(url))) as connection:
            connection.execute(statement)
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement)


def error_of(use, *args, **values):
    """The error that the use raises."""
    with pytest.raises(StoreError) as raised:
        use(*args, **values)
    return raised.value


def assert_passes(error):
    assert type(error) is StoreError
    assert (error.status, error.retry_after_seconds, error.client_text) == (503, 5, "the database failed")


def assert_lasts(error):
    assert isinstance(error, StoreFault)
    assert (error.status, error.retry_after_seconds, error.client_text) == (500, None, "the database failed")


# The tables

PASSING_STATES = [
    *("08000", "08001", "08003", "08006", "08P01", "0A000", "25006", "25P03", "25P04", "26000", "28000", "28P01"),
    *("3D000", "40001", "40003", "40P01", "42P05", "53000", "53100", "53200", "53300", "53400", "55006", "55P03"),
    *("57000", "57014", "57P01", "57P02", "57P03", "57P04", "57P05", "58000", "58030"),
]
LASTING_STATES = [
    *("21000", "22001", "22003", "22P02", "23502", "23503", "23514", "25001", "25P02", "40002", "42501", "42601"),
    *("42703", "42804", "42P01", "54000", "55000", "58P01", "P0001", "XX000", "XX001", "XX002", "ZZ999"),
]


@pytest.mark.parametrize(
    ("state", "passes"),
    [*((state, True) for state in PASSING_STATES), *((state, False) for state in LASTING_STATES)],
)
def test_the_sqlstate_says_whether_an_error_of_postgres_may_pass(postgres_url, state, passes):
    db = open_database(postgres_url)
    try:
        raising = f"DO $$ BEGIN RAISE EXCEPTION 'the words' USING ERRCODE = '{state}'; END $$"
        error = error_of(script, db, raising)
    finally:
        db.close()
    assert str(error) == f"the database failed: the words (SQLSTATE {state})"
    (assert_passes if passes else assert_lasts)(error)


def test_each_row_of_the_table_of_postgres_is_tested():
    assert [row for row in postgres._MAY_PASS if not any(state.startswith(row) for state in PASSING_STATES)] == []


@pytest.mark.parametrize("code", [getattr(sqlite3, name) for name in dir(sqlite3) if name.startswith("SQLITE_IOERR_")])
def test_the_details_of_a_result_code_change_nothing(code):
    assert_passes(error_of(raise_code, code))


PRIMARY_CODES = {
    name: getattr(sqlite3, f"SQLITE_{name}")
    for name in [
        *("ABORT", "AUTH", "BUSY", "CANTOPEN", "CONSTRAINT", "CORRUPT", "EMPTY", "ERROR", "FORMAT", "FULL"),
        *("INTERNAL", "INTERRUPT", "IOERR", "LOCKED", "MISMATCH", "MISUSE", "NOLFS", "NOMEM", "NOTADB", "NOTFOUND"),
        *("PERM", "PROTOCOL", "RANGE", "READONLY", "SCHEMA", "TOOBIG"),
    ]
}
PASSING_CODES = {"BUSY", "READONLY", "IOERR", "FULL", "CANTOPEN", "PROTOCOL"}


@pytest.mark.parametrize("name", PRIMARY_CODES)
def test_the_primary_code_says_whether_an_error_of_sqlite_may_pass(name):
    error = error_of(raise_code, PRIMARY_CODES[name])
    (assert_passes if name in PASSING_CODES else assert_lasts)(error)


def raise_code(code):
    error = sqlite3.OperationalError("the words")
    error.sqlite_errorcode = code
    with sqlite._our_errors():
        raise error


def test_an_error_of_the_driver_itself_has_no_code_and_is_a_fault_on_sqlite():
    with pytest.raises(StoreFault), sqlite._our_errors():
        raise sqlite3.ProgrammingError("Incorrect number of bindings supplied")


# Faults that last, made for real on both


def drop_table(url):
    meddle(url, "ALTER TABLE gb_agent_research_runs RENAME TO gone")


def drop_column(url):
    meddle(url, "ALTER TABLE gb_agent_research_runs RENAME COLUMN topic TO gone")


@pytest.mark.parametrize("damage", [drop_table, drop_column])
def test_a_table_or_a_column_that_is_gone_is_a_fault(db, database_url, damage):
    insert(db)
    damage(database_url)
    for use in (insert, lambda db: db.fetch_one("get_run", id=1, user_id="u1")):
        assert_lasts(error_of(use, db))


@pytest.mark.parametrize(
    "values",
    [{"topic": None}, {"parent_id": 4711}, {"max_steps": 10**30}, {"parent_id": 2**63}],
    ids=["null", "no such parent", "too large a number", "too large an id"],
)
def test_a_value_that_does_not_fit_is_a_fault(db, values):
    assert_lasts(error_of(insert, db, **values))
    insert(db)


def test_no_row_is_quoted_in_a_message_or_a_traceback(db):
    error = error_of(insert, db, model=None)
    assert "a private topic" not in "".join(traceback.format_exception(error))
    assert "model" in str(error)


# SQLite


@pytest.fixture
def sqlite_db(sqlite_url):
    db = open_database(sqlite_url)
    migrate(db)
    yield db
    db.close()


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("PRAGMA max_page_count = 1", "database or disk is full"),
        # As if the disk had become read-only: SQLite checks this in the same place.
        ("PRAGMA query_only = ON", "attempt to write a readonly database"),
    ],
)
def test_a_full_or_read_only_disk_may_pass(sqlite_db, cause, words):
    insert(sqlite_db)
    script(sqlite_db, cause)
    error = error_of(insert, sqlite_db, topic="long " * 10_000)
    assert_passes(error)
    assert str(error) == f"the database failed: {words}"
    assert sqlite_db.fetch_one("get_run", id=1, user_id="u1")
    for undo in ("PRAGMA query_only = OFF", "PRAGMA max_page_count = 1000000"):
        sqlite_db._writer.execute(undo)
    insert(sqlite_db)


def test_a_file_that_cannot_be_opened_may_pass(sqlite_db):
    assert_passes(error_of(script, sqlite_db, "ATTACH '/no/such/folder/x.db' AS other"))


def test_a_damaged_file_is_a_fault(sqlite_url):
    db = open_database(sqlite_url)
    migrate(db)
    for _ in range(50):
        insert(db, topic="long " * 1000)
    db.close()
    path = sqlite_path(sqlite_url)
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    db = open_database(sqlite_url)
    try:
        assert_lasts(error_of(db.fetch_one, "get_run", id=1, user_id="u1"))
    finally:
        db.close()


# Postgres


@pytest.fixture
def role(postgres_server, postgres_url):
    """A role that owns nothing and may do everything in the database, and the URL with which it comes."""
    name = f"role_{uuid.uuid4().hex}"
    statements = [
        f"CREATE ROLE {name} LOGIN PASSWORD 'secret'",
        f"GRANT ALL ON DATABASE {psycopg.conninfo.conninfo_to_dict(postgres_url)['dbname']} TO {name}",
        f"GRANT ALL ON SCHEMA public TO {name}",
    ]
    for statement in statements:
        meddle(postgres_url, statement)
    parts = psycopg.conninfo.conninfo_to_dict(postgres_url)
    database = parts.pop("dbname")
    owner = open_database(postgres_url)
    migrate(owner)
    owner.close()
    for what in ("TABLES", "SEQUENCES"):
        meddle(postgres_url, f"GRANT ALL ON ALL {what} IN SCHEMA public TO {name}")
    yield name, f"postgresql:///{database}?{urlencode({**parts, 'user': name, 'password': 'secret'})}"
    if meddle_database(postgres_server, f"SELECT 1 FROM pg_database WHERE datname = '{database}'"):
        meddle(postgres_url, f"DROP OWNED BY {name}")
    meddle_database(postgres_server, f"DROP ROLE {name}")


def meddle_database(server, statement):
    with psycopg.connect(server, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def cut(server, role):
    meddle_database(server, f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = '{role}'")


@pytest.fixture
def role_db(role, monkeypatch):
    """A database opened by the role, which waits for connections for a moment only."""
    monkeypatch.setattr("gligabao.store.postgres.WAIT_SECONDS", 0.5)
    db = open_database(role[1])
    yield db
    db.close()


def test_a_right_that_was_revoked_is_a_fault(role, role_db, postgres_url):
    insert(role_db)
    meddle(postgres_url, f"REVOKE ALL ON gb_agent_research_runs FROM {role[0]}")
    error = error_of(insert, role_db)
    assert_lasts(error)
    assert "permission denied for table gb_agent_research_runs" in str(error)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("ALTER ROLE {role} NOLOGIN", "is not permitted to log in"),
        ("ALTER ROLE {role} CONNECTION LIMIT 0", "too many connections for role"),
        ("DROP DATABASE {database} WITH (FORCE)", "does not exist"),
    ],
)
def test_a_connection_that_is_refused_may_pass_and_the_reason_is_told(role, role_db, postgres_server, statement, words):
    name, url = role
    database = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    insert(role_db)
    meddle_database(postgres_server, statement.format(role=name, database=database))
    cut(postgres_server, name)
    for use in (insert, lambda db: db.ping()):
        error = error_of(use, role_db)
        assert_passes(error)
        assert str(error).startswith("the database cannot be reached: couldn't get a connection after ")
        assert words in str(error)
    if database in statement.format(role=name, database=database):
        meddle_database(postgres_server, f"CREATE DATABASE {database} TEMPLATE template0")
        return
    meddle_database(postgres_server, f"ALTER ROLE {name} LOGIN CONNECTION LIMIT -1")
    insert_in_the_end(role_db)


def insert_in_the_end(db):
    for _ in range(40):  # the pool tries again from time to time
        try:
            return insert(db)
        except StoreError:
            threading.Event().wait(0.25)
    return insert(db)


@pytest.mark.parametrize(
    ("setting", "use", "words"),
    [
        ("default_transaction_read_only = on", insert, "cannot execute INSERT in a read-only transaction"),
        ("statement_timeout = 100", lambda db: script(db, "SELECT pg_sleep(60)"), "due to statement timeout"),
    ],
)
def test_a_server_that_takes_no_writes_or_cancels_a_statement_may_pass(postgres_url, setting, use, words):
    db = open_database(postgres_url)
    migrate(db)
    db.close()
    name = psycopg.conninfo.conninfo_to_dict(postgres_url)["dbname"]
    meddle(postgres_url, f"ALTER DATABASE {name} SET {setting}")
    db = open_database(postgres_url)
    try:
        error = error_of(use, db)
        db.ping()
    finally:
        db.close()
    assert_passes(error)
    assert words in str(error)


def test_progress_waits_a_second_for_a_lock_and_may_be_stored_later(postgres_url):
    db = open_database(postgres_url)
    migrate(db)
    runs = Runs(db)
    new = NewRun(user_id="u1", topic="t", model="m", max_steps=20, priced=True)
    run = runs.start_run(new, owner="node-1", max_working=3)
    with psycopg.connect(postgres_url) as other:
        other.execute("SELECT FROM gb_agent_research_runs FOR UPDATE")
        error = error_of(runs.save_progress, run.id, owner="node-1", states=[], totals=Totals())
        assert_passes(error)
        assert "due to lock timeout" in str(error)
    runs.save_progress(run.id, owner="node-1", states=[], totals=Totals())
    db.close()
