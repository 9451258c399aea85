"""The queries in `sql/`: each is valid, says what it is for, is used, and finds its rows by an index."""

import ast
import re
import sqlite3
from pathlib import Path

import psycopg
import pytest

import gligabao
from gligabao.resources import data_dir
from gligabao.store.database import sqlite_path
from gligabao.store.queries import load_queries

SAMPLES = {
    **dict.fromkeys(["id", "run_id", "parent_id", "seq", "step", "after", "limit"], 1),
    "before": 2**63 - 1,
    "user_id": "u1",
    "owner": "node-1",
    "status": "completed",
}
"""Values of the parameters by which rows are looked for. Planned with a null, such a query would find nothing."""

RUNS = "gb_agent_research_runs"
STATES = "gb_agent_research_states"
INDEXES = {
    "count_working": f"{RUNS}_(status|running)",
    "get_run": f"({RUNS}_(pkey|user)|INTEGER PRIMARY KEY)",
    "get_run_with_states": f"({STATES}_pkey|PRIMARY KEY)",
    "list_children": f"{RUNS}_(parent|name)",
    "list_children_by_status": f"{RUNS}_(parent|name)",
    "list_running": f"{RUNS}_running",
    "list_runs": f"{RUNS}_user",
    "list_runs_by_status": f"{RUNS}_status",
    "lock_running": f"{RUNS}_running",
}
"""The index by which each query that must stay quick with a million runs finds its rows."""

CALLS = {"execute", "fetch_one", "fetch_all"}
"""The methods of a database and a transaction whose first argument is the name of a query."""

DRIVERS = {"sqlite.py", "postgres.py", "transaction.py"}
"""The modules of `store` that define these methods, and call those of a driver, which take SQL."""

# 20,000 runs of 50 users, 10 of the runs at work; every fourth is a sub-agent. Postgres plans by what is in the tables.
FILL = f"""
    INSERT INTO {RUNS} OVERRIDING SYSTEM VALUE
    SELECT n, 'u' || n % 50, CASE WHEN n % 4 = 0 THEN n - 3 END, 'a' || n, '', 't',
        CASE WHEN n % 2000 = 0 THEN 'running' WHEN n % 10 = 0 THEN 'failed' ELSE 'completed' END,
        'thinking', 'm', 20, 0, 0, 0, 0, 0, repeat('x', 500), '', 'answered', 'node-1', now(), now()
    FROM generate_series(1, 20000) AS n;
    INSERT INTO {STATES}
    SELECT run, seq, 0, 'thinking', '', '', now(), now()
    FROM generate_series(1, 2000) AS run, generate_series(1, 10) AS seq;
    ANALYZE;
    SET enable_bitmapscan = off; -- as good for a few rows, but it sorts them
"""


@pytest.fixture
def connection(db, database_url):
    """A connection of the driver itself to a database with all tables."""
    if db.dialect == "sqlite":
        connection = sqlite3.connect(sqlite_path(database_url))
    else:
        connection = psycopg.connect(database_url, autocommit=True)
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


def test_every_fragment_says_what_it_is_for():
    for file in data_dir("sql").glob("**/*.sql"):
        for heading in re.finditer(r"^-- fragment: (.+)\n(.*)", file.read_text(encoding="utf-8"), re.MULTILINE):
            assert re.match(r"-- [A-Z]", heading[2]), f"{file}: {heading[1]}"


def query_arguments(file):
    """Return the first argument of each call that may name a query."""
    calls = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    return [call.args[0] for call in calls if getattr(call.func, "attr", "") in CALLS and call.args]


def test_every_query_is_used_and_every_name_is_literal():
    store = Path(gligabao.__path__[0]) / "store"
    names = {query.name for dialect in ("sqlite", "postgres") for query in load_queries(dialect)}
    used = set()
    for file in store.parent.rglob("*.py"):
        for argument in query_arguments(file):
            name = argument.value if isinstance(argument, ast.Constant) else None
            if file.parent != store or file.name not in DRIVERS:
                assert name in names, f"{file}:{argument.lineno}: not the name of a query: {ast.unparse(argument)}"
            used.add(name)
    assert names <= used, "these queries are not used"


def test_rows_are_found_by_an_index_and_come_out_of_it_in_order(db, connection):
    if db.dialect == "postgres":
        connection.execute(FILL)
    for name, index in INDEXES.items():
        how = "EXPLAIN QUERY PLAN" if db.dialect == "sqlite" else "EXPLAIN"
        plan = explain(connection, load_queries(db.dialect)[name], how=how)
        assert re.search(rf"\b{index}\b", plan), f"{name}: {plan}"
        # The small index of the runs at work may be read as a whole and sorted; the table may not.
        assert not re.search(r"Seq Scan|SCAN (?!\(subquery|.*USING INDEX \w+_running)", plan), f"{name}: {plan}"
        assert index.endswith("_running") or not re.search("TEMP B-TREE|Sort", plan), f"{name}: {plan}"


def test_both_databases_have_the_same_migrations():
    folders = [data_dir("sql") / dialect / "migrations" for dialect in ("sqlite", "postgres")]
    names = [sorted(entry.name for entry in folder.iterdir()) for folder in folders]
    assert names[0] == names[1]
