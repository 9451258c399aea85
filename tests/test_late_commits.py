"""A Postgres whose commits take place long after the server has given them up: nothing may stay at work for ever.

As when its synchronous standby is away. A trigger holds the commit of a run of u1 that was just inserted until the test
lets it go on.
"""

import os
import signal
import threading
import time
from contextlib import contextmanager

import psycopg
import pytest

from gligabao.records import NewRun, State, StateName, Totals, Usage, now
from gligabao.research.manager import LOST_START
from gligabao.simulator.replies import call, text, tool_calls
from gligabao.store.migrate import migrate
from gligabao.store.runs import Runs
from tests.checker import read_rows
from tests.databases import open_database
from tests.process import ServerProcess
from tests.teams import wait_until

HOLD = """
    CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.user_id = 'u1' THEN
            PERFORM set_config('lock_timeout', '0', true);
            PERFORM pg_advisory_xact_lock_shared(1, 1);
        END IF;
        RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON gb_agent_research_runs DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION hold();
"""
WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = %s"
COMMITS, STARTS = 1, 724063


class Holder:
    """Holds the commits of u1's starts in a database between `hold` and `let_go`."""

    def __init__(self, url):
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(HOLD)

    def hold(self):
        self._connection.execute("SELECT pg_advisory_lock(1, 1)")

    def let_go(self):
        self._connection.execute("SELECT pg_advisory_unlock(1, 1)")

    def wait_for_waiting(self, kind):
        """Wait until something waits in the database: a commit for us, or whoever awaits the starts."""
        deadline = time.monotonic() + 30
        while self._connection.execute(WAITING, (kind,)).fetchone()[0] == 0:
            assert time.monotonic() < deadline, "nothing waits"
            time.sleep(0.02)

    def close(self):
        self._connection.close()


@pytest.fixture
def url(postgres_url, monkeypatch):
    db = open_database(postgres_url)
    migrate(db)
    db.close()
    monkeypatch.setattr("gligabao.store.postgres.WRITE_SECONDS", 0.5)
    return postgres_url


@pytest.fixture
def holder(url):
    holder = Holder(url)
    yield holder
    holder.close()


@pytest.fixture
def world(url, new_world):
    return new_world(url)


@contextmanager
def thread(target):
    thread = threading.Thread(target=target)
    thread.start()
    yield
    thread.join(30)
    assert not thread.is_alive()


def wait_for_lost_start(url):
    """Wait until the run whose start was lost is stored, and ended."""
    wait_until(lambda: "failed" in {run["status"] for run in read_rows(url)[0]}, "the end of the lost start", 30)


def wait_for_a_look(caplog):
    wait_until(lambda: "the end of lost starts is not stored yet" in caplog.text, "a look for lost starts", 30)


def test_a_start_that_is_stored_after_it_was_refused_is_ended(world, holder, caplog):
    holder.hold()
    assert world.post().status_code == 503
    wait_for_a_look(caplog)
    holder.let_go()
    wait_for_lost_start(world.config.database_url)
    (run,) = world.close(unanswered=1).runs
    assert (run["error"], run["stop_reason"]) == (LOST_START, "error")


def test_a_start_that_may_be_stored_later_holds_up_no_other(world, holder, caplog):
    holder.hold()
    assert world.post().status_code == 503
    wait_for_a_look(caplog)
    for number in range(5):
        world.finish(world.start(text("Report."), user=f"other-{number}"), user=f"other-{number}")
    holder.let_go()
    wait_for_lost_start(world.config.database_url)
    runs = world.close(unanswered=1).runs
    assert sorted(run["status"] for run in runs) == ["completed"] * 5 + ["failed"]


def test_a_sub_agent_that_is_stored_after_it_was_refused_ends_before_its_parent(world, holder):
    def spawn(body):
        holder.hold()
        return tool_calls(call("spawn_subagent", name="alpha", reason="r", task="a task", max_steps=3))

    def answer(body):
        threading.Timer(1, holder.let_go).start()
        return text("Report.")

    run_id = world.start(spawn, answer)
    world.join(run_id)
    child, parent = sorted(world.close().runs, key=lambda run: run["parent_id"] is None)
    assert (child["error"], child["parent_id"]) == (LOST_START, parent["id"])
    assert parent["status"] == "completed"


def test_a_start_of_a_dead_server_that_is_stored_late_is_ended_by_the_next(url, holder, tmp_path, new_world):
    db, next_server = open_database(url), []
    holder.hold()
    (tmp_path / "node.lock").write_text("dead-node\n1\n")
    new = NewRun(user_id="u1", topic="t", model="claude-sonnet-5-5", max_steps=5, priced=True)
    with pytest.raises(Exception, match="database"):
        Runs(db).start_run(new, owner="dead-node", max_working=3)
    with thread(lambda: next_server.append(new_world(url))):
        holder.wait_for_waiting(STARTS)
        holder.let_go()
    (run,) = next_server[0].close(unanswered=1).runs
    assert run["stop_reason"] == "interrupted"
    db.close()


def test_a_worker_that_awaits_late_starts_ends_when_it_is_told_to(url, tmp_path):
    server = ServerProcess(tmp_path, database_url=url).wait_until_ready()
    try:
        node_id = (tmp_path / "node.lock").read_text().split()[0]
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT pg_advisory_lock_shared(%s, hashtext(%s))", (STARTS, node_id))
            os.kill(server.worker, signal.SIGKILL)
            wait_until(lambda: connection.execute(WAITING, (STARTS,)).fetchone()[0], "a new worker that waits", 30)
            waiting = server.worker
            os.kill(waiting, signal.SIGTERM)
            wait_until(lambda: not os.path.exists(f"/proc/{waiting}"), "the end of the worker", 30)
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
    finally:
        server.kill()


def test_an_old_save_that_is_done_after_newer_ones_takes_nothing_back(url):
    db = open_database(url)
    runs = Runs(db)
    new = NewRun(user_id="u1", topic="t", model="claude-sonnet-5-5", max_steps=20, priced=True)
    run = runs.start_run(new, owner="node-1", max_working=3)
    states = [State(seq, StateName.THINKING, seq, "", now()) for seq in (2, 3)]
    older, newer = Totals(1, 1, Usage(10, 5)), Totals(2, 3, Usage(30, 15))
    runs.save_progress(run.id, owner="node-1", states=[states[1]], totals=newer)
    before = runs.get_run(run.id, user_id="u1")
    reading = State(2, StateName.READING, 2, "", states[0].started_at)
    runs.save_progress(run.id, owner="node-1", states=[reading], totals=older)
    assert runs.get_run(run.id, user_id="u1") == before
    assert [row["seq"] for row in read_rows(url)[1]] == [1, 2, 3]
    db.close()
