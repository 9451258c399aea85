"""What only a Postgres can do to its clients."""

import uuid

import psycopg
import pytest

from gligabao.errors import ConfigError, StoreError
from gligabao.records import NewRun
from gligabao.store.migrate import migrate
from gligabao.store.runs import Runs
from tests.databases import open_database


@pytest.fixture
def latin_url(postgres_server):
    name = f"latin_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
        yield psycopg.conninfo.conninfo_to_dict(postgres_server), name
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_database_that_cannot_hold_all_texts_is_refused(latin_url):
    parts, name = latin_url
    host = f"host={parts['host']}&port={parts.get('port', '')}&user={parts.get('user', '')}"
    with pytest.raises(ConfigError, match="the database has the encoding LATIN1: create one with ENCODING 'UTF8'"):
        open_database(f"postgresql:///{name}?{host}")


def test_a_table_that_is_altered_costs_a_connection_one_query(postgres_url):
    db = open_database(postgres_url, pool_size=1)
    try:
        migrate(db)
        runs = Runs(db)
        new = NewRun(user_id="u1", topic="t", model="m", max_steps=20, priced=True)
        run = runs.start_run(new, owner="node-1", max_working=3)
        for _ in range(10):  # until the driver has prepared it
            runs.get_run(run.id, user_id="u1")
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("ALTER TABLE gb_agent_research_runs ALTER COLUMN topic TYPE VARCHAR(5000)")
        with pytest.raises(StoreError, match="cached plan must not change result type"):
            runs.get_run(run.id, user_id="u1")
        assert runs.get_run(run.id, user_id="u1") == run
    finally:
        db.close()
