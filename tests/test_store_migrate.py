"""Migrations: from nothing, from an older version, at the same time, and never backwards."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gligabao.errors import StartError, StoreError
from gligabao.records import NewRun
from gligabao.resources import data_dir
from gligabao.store.migrate import migrate, read_migrations
from gligabao.store.queries import QueryError
from gligabao.store.runs import Runs
from tests.databases import open_database

NEW = NewRun(user_id="u1", topic="batteries", model="m", max_steps=20, priced=True)


@pytest.fixture
def empty(database_url):
    """A database without any table."""
    db = open_database(database_url)
    yield db
    db.close()


@pytest.fixture
def newer(tmp_path):
    """A copy of `sql/` to which migrations may be added."""
    folder = tmp_path / "sql"
    shutil.copytree(Path(str(data_dir("sql"))), folder)
    return folder


def add_migration(folder, script):
    for dialect in ("sqlite", "postgres"):
        migrations = folder / dialect / "migrations"
        number = len(list(migrations.iterdir())) + 1
        (migrations / f"{number:04d}_more.sql").write_text(script)
    return number


def version(db):
    return db.fetch_one("schema_version")["version"]


def has_schema(db):
    return db.fetch_one("find_schema_table") is not None


def test_an_empty_database_gets_the_newest_schema(empty):
    newest = migrate(empty)
    assert newest == len(read_migrations(data_dir("sql"), empty.dialect)) == version(empty)
    assert Runs(empty).start_run(NEW, owner="node-1", max_working=3).id == 1


def test_a_database_that_is_up_to_date_is_only_read(empty):
    newest = migrate(empty)
    with empty.transaction():  # holds the only turn to write on SQLite
        assert migrate(empty) == newest


def test_an_older_database_is_brought_up_and_keeps_its_rows(empty, newer):
    migrate(empty)
    run = Runs(empty).start_run(NEW, owner="node-1", max_working=3)
    number = add_migration(newer, "CREATE TABLE gb_more (id INTEGER);\nINSERT INTO gb_more VALUES (1); -- it's; done")
    assert migrate(empty, folder=newer) == number == version(empty)
    assert Runs(empty).get_run(run.id, user_id="u1") == run


def test_a_migration_that_fails_leaves_everything_as_it_was(empty, newer):
    add_migration(newer, "CREATE TABLE gb_more (id INTEGER);\nCREATE TABLE gb_more (id INTEGER);")
    with pytest.raises(StoreError, match="gb_more"):
        migrate(empty, folder=newer)
    assert not has_schema(empty)
    migrate(empty)
    assert Runs(empty).start_run(NEW, owner="node-1", max_working=3).id == 1


def test_a_newer_database_is_refused(empty, newer):
    number = add_migration(newer, "CREATE TABLE gb_more (id INTEGER);")
    migrate(empty, folder=newer)
    with pytest.raises(StartError, match=rf"has schema version {number}, .* up to {number - 1}: install a newer"):
        migrate(empty)
    assert version(empty) == number


def test_two_that_start_at_once_migrate_once(database_url):
    together = threading.Barrier(4)

    def start(_):
        db = open_database(database_url)
        try:
            together.wait(10)
            return migrate(db)
        finally:
            db.close()

    with ThreadPoolExecutor(4) as pool:
        versions = set(pool.map(start, range(4)))
    assert len(versions) == 1


def test_a_gap_in_the_numbers_is_refused(newer):
    migrations = newer / "sqlite" / "migrations"
    (migrations / "0099_later.sql").write_text("SELECT 1;")
    with pytest.raises(QueryError, match=r"0099_later\.sql: the next migration must be named"):
        read_migrations(newer, "sqlite")


def test_a_trigger_is_one_statement_of_a_script(sqlite_url, newer):
    add_migration(
        newer,
        "CREATE TABLE gb_more (id INTEGER);"
        "CREATE TRIGGER gb_more_insert AFTER INSERT ON gb_more BEGIN DELETE FROM gb_more; SELECT ';'; END;",
    )
    db = open_database(sqlite_url)
    try:
        assert migrate(db, folder=newer) > 0
    finally:
        db.close()
