"""The checker finds what it is there to find: a sound database passes, and each kind of damage does not."""

import itertools
import sqlite3

import pytest

from gligabao.simulator import Totals
from gligabao.simulator.replies import text
from gligabao.store.database import sqlite_path
from tests.checker import check_bill, check_database, dollars
from tests.script import Script
from tests.world import World

CHILD = """
    INSERT INTO gb_agent_research_runs (user_id, parent_id, name, reason, topic, status, state, model, max_steps, steps,
        tool_calls, input_tokens, output_tokens, cost_usd, report, error, stop_reason, owner, created_at, finished_at)
    SELECT user_id, {parent}, 'child' || {number}, reason, topic, status, state, model, max_steps, steps, tool_calls, 0,
        0, 0, report, error, stop_reason, owner, created_at, finished_at FROM gb_agent_research_runs WHERE id = 1;
    INSERT INTO gb_agent_research_states SELECT MAX_ID, seq, step, state, detail, error, started_at, finished_at
    FROM gb_agent_research_states WHERE run_id = 1;
""".replace("MAX_ID", "(SELECT MAX(id) FROM gb_agent_research_runs)")


@pytest.fixture
def ended(sqlite_url, tmp_path):
    """The database of a server that has ended, with two runs; and what the simulator knows of them."""
    world = World(sqlite_url, tmp_path, fetch_allow=["127.0.0.1"])
    script = Script(world.simulator, steps=2)
    for _ in range(2):
        world.finish(world.post(topic=script.new_topic()).json["id"])
    script.close()
    world.close()
    return world, world.simulator.charges(script.topics)


def damage(world, statements):
    connection = sqlite3.connect(sqlite_path(world.config.database_url))
    connection.executescript(statements)
    connection.close()


def test_a_sound_database_passes(ended):
    world, charges = ended
    billed = world.simulator.billed().total
    found = check_database(
        world.config.database_url, billed=billed, charges=charges, started=world.started, max_lost_calls=0
    )
    assert (found.ends, found.lost_calls, len(found.runs)) == ({"answered": 2}, 0, 2)
    damage(world, CHILD.format(parent=1, number=1) + CHILD.format(parent=3, number=2))
    assert len(check_database(world.config.database_url, started=world.started).runs) == 4


RUNS = "UPDATE gb_agent_research_runs SET"
STATES = "UPDATE gb_agent_research_states SET"
LAST = "run_id = 1 AND seq = (SELECT MAX(seq) FROM gb_agent_research_states WHERE run_id = 1)"
DAMAGE = {
    "run 1 is running": f"{RUNS} status = 'running' WHERE id = 1",
    "run 1: seq has a gap": "DELETE FROM gb_agent_research_states WHERE run_id = 1 AND seq = 3",
    "run 1 does not begin with starting": f"{STATES} state = 'thinking' WHERE run_id = 1 AND seq = 1",
    "run 1: last state and status differ": f"{STATES} state = 'failed' WHERE {LAST}",
    "run 1 has more than one end": f"{STATES} state = 'failed' WHERE run_id = 1 AND seq = 2",
    "run 1 has a state that was not ended": f"{STATES} finished_at = NULL WHERE run_id = 1 AND seq = 2",
    "run 1: its times go back": f"{STATES} started_at = '2020-01-01T00:00:00.000Z' WHERE run_id = 1 AND seq = 2",
    "run 1: time is missing": f"{STATES} finished_at = started_at WHERE run_id = 1 AND seq = 1",
    "run 1 was not created with its first state": f"{RUNS} created_at = '2020-01-01T00:00:00.000Z' WHERE id = 1",
    "run 1: it ended at another time": f"{RUNS} finished_at = '2099-01-01T00:00:00.000Z' WHERE id = 1",
    "run 1: status and report do not fit": f"{RUNS} report = ' ' WHERE id = 1",
    "run 1: status and error do not fit": f"{RUNS} error = 'oh' WHERE id = 1",
    "run 1: the last state has another error": f"{STATES} error = 'oh' WHERE {LAST}",
    "run 1 has no stop_reason": f"{RUNS} stop_reason = '' WHERE id = 1",
    "run 1 has 6 children": "".join(CHILD.format(parent=1, number=number) for number in range(6)),
    "run 5 is 3 levels deep": "".join(CHILD.format(parent=parent, number=1) for parent in (1, 3, 4)),
    "the tree of run 1 has 11 sub-agents": "".join(
        CHILD.format(parent=parent, number=number) for parent, number in [*itertools.product((1, 3), range(5)), (4, 1)]
    ),
    "user u1 had 4 researches at work at once": "".join(CHILD.format(parent="NULL", number=n) for n in range(3)),
    "stored, but neither answered": CHILD.format(parent="NULL", number=1),
    "answered with a 202 but not stored": "DELETE FROM gb_agent_research_states WHERE run_id = 2; "
    "DELETE FROM gb_agent_research_runs WHERE id = 2",
    "the rows and the bill differ": f"{RUNS} cost_usd = cost_usd + 0.001 WHERE id = 1",
    "was billed at no time": f"{RUNS} output_tokens = output_tokens + 1 WHERE id = 1",
}


@pytest.mark.parametrize("told", DAMAGE)
def test_damage_is_found(ended, told):
    world, charges = ended
    damage(world, f"PRAGMA ignore_check_constraints = ON; {DAMAGE[told]}")
    given = {"started": world.started, "charges": charges if "at no time" in told else None}
    given["billed"] = world.simulator.billed().total if "bill differ" in told else None
    with pytest.raises(AssertionError, match=told):
        check_database(world.config.database_url, **given)


def test_a_parent_that_ended_before_its_child_is_found(ended):
    world, _ = ended
    later = "'2099-01-01T00:00:00.000Z'"
    last = "run_id = 3 AND seq = (SELECT MAX(seq) FROM gb_agent_research_states WHERE run_id = 3)"
    damage(
        world,
        f"{CHILD.format(parent=1, number=1)} {RUNS} finished_at = {later} WHERE id = 3;"
        f"{STATES} started_at = {later}, finished_at = {later} WHERE {last};"
        f"{STATES} finished_at = {later} WHERE {last} - 1;",
    )
    with pytest.raises(AssertionError, match="run 1 ended before its child 3"):
        check_database(world.config.database_url)


def test_calls_that_are_missing_are_counted_and_bounded(ended):
    world, charges = ended
    topic = next(iter(charges))
    before_last = charges[topic][-2]
    damage(
        world,
        f"{RUNS} input_tokens = {before_last.prompt_tokens}, output_tokens = {before_last.output_tokens}, "
        f"cost_usd = {dollars(before_last)} WHERE id = 1",
    )
    assert check_database(world.config.database_url, charges=charges, max_lost_calls=1).lost_calls == 1
    with pytest.raises(AssertionError, match="run 1 lacks its last 1 calls"):
        check_database(world.config.database_url, charges=charges)


def test_a_run_without_a_price_is_compared_by_its_tokens(sqlite_url, tmp_path):
    world = World(sqlite_url, tmp_path)
    run = world.run(text("Report."), model="simulated-1")
    world.close()
    check_bill([run], world.simulator.billed().total)
    with pytest.raises(AssertionError, match="output_tokens"):
        check_bill([run], Totals())
