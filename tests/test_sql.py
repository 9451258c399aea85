"""The queries in `sql/`: each is understood by its database, says what it is for, and finds its rows by an index."""

import re
import sqlite3

import psycopg
import pytest

from gligabao.resources import data_dir
from gligabao.store.database import sqlite_path
from gligabao.store.queries import load_queries

SAMPLES = {
    **dict.fromkeys(["id", "run_id", "parent_id", "seq", "step", "after", "before", "limit"], 1),
    **dict.fromkeys(["user_id", "owner"], "x"),
    "status": "running",
}
"""Values of the parameters by which rows are looked for. Planned with a null, such a query would find nothing."""

READS = [
    "count_working",
    "count_running",
    "get_run",
    "list_children",
    "list_children_by_status",
    "list_running",
    "list_runs",
    "list_runs_by_status",
    "list_states",
    "lock_running",
]
"""What must stay quick with a million runs."""


@pytest.fixture
def connection(db, database_url):
    """A connection of the driver itself to a database with all tables."""
    if db.dialect == "sqlite":
        connection = sqlite3.connect(sqlite_path(database_url))
    else:
        connection = psycopg.connect(database_url)
    yield connection
    connection.close()


def explain(connection, query, *, how="EXPLAIN"):
    params = {name: SAMPLES.get(name) for name in query.parameters}
    return "\n".join(str(row[-1]) for row in connection.execute(f"{how} {query.text}", params).fetchall())


def test_every_query_is_understood(db, connection):
    for query in load_queries(db.dialect):
        assert explain(connection, query), query.name


def test_every_query_says_what_it_is_for(db):
    for query in load_queries(db.dialect):
        assert re.match(r"-- [A-Z]", query.text), query.name


@pytest.mark.parametrize("name", READS)
def test_rows_are_found_by_an_index(db, connection, name):
    query = load_queries(db.dialect)[name]
    if db.dialect == "sqlite":
        plan = explain(connection, query, how="EXPLAIN QUERY PLAN")
        # The small index of the runs at work may be read as a whole; the table may not.
        assert not re.search(r"SCAN (?!.*USING INDEX gb_agent_research_runs_running)", plan)
    else:
        # Postgres reads an empty table as a whole, unless there is an index and it is told to prefer it.
        connection.execute("SET enable_seqscan = off")
        assert "Seq Scan" not in explain(connection, query)


@pytest.mark.parametrize("name", [name for name in READS if name.startswith("list_") and name != "list_running"])
def test_lists_come_out_of_the_index_in_their_order(db, connection, name):
    query = load_queries(db.dialect)[name]
    if db.dialect == "sqlite":
        assert "TEMP B-TREE" not in explain(connection, query, how="EXPLAIN QUERY PLAN")
    else:
        connection.execute("SET enable_seqscan = off; SET enable_sort = off; SET enable_bitmapscan = off")
        assert "Sort" not in explain(connection, query)


def test_both_databases_have_the_same_migrations():
    folders = [data_dir("sql") / dialect / "migrations" for dialect in ("sqlite", "postgres")]
    names = [sorted(entry.name for entry in folder.iterdir()) for folder in folders]
    assert names[0] == names[1]
