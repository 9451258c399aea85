"""The checker finds what it is there to find: a sound database passes, and each kind of damage does not."""

import itertools
import sqlite3
import threading
from contextlib import closing

import pytest

from gligabao.config import ModelPrice
from gligabao.model.prices import Prices
from gligabao.research.manager import NO_THREAD
from gligabao.simulator import Totals
from gligabao.simulator.replies import call, error, hang, searched, text, tool_calls
from gligabao.store.database import sqlite_path
from tests.checker import check_bill, check_database, dollars
from tests.script import Gate, Script
from tests.teams import WAIT_SECONDS, spawn, task_of
from tests.world import World

SCRIPTED, TEAM, ALPHA, BETA, LAST_STEP, RETRIED, FAILED, UNPRICED, INTERRUPTED_ONE = 1, 3, 4, 5, 6, 7, 8, 9, 10
"""The runs of the sound database, by their ids."""
SOUND_RUNS = 10


class Sound:
    """The database of a server that has ended, with runs of all kinds; and what is known of them."""

    def __init__(self, path, world, script):
        self.path, self.world, self.script = path, world, script
        for _ in range(2):
            self.world.finish(self.world.post(topic=self.script.new_topic()).json["id"])
        self._run_team()
        self.world.run(text("Report."), max_steps=1)
        self._run_with_retries()
        self.world.run(error(400))
        self.world.run(text("Report."), model="simulated-1")
        self._interrupt()
        self.charges = self.world.simulator.charges(self.script.topics)

    def _run_team(self):
        simulator = self.world.simulator
        simulator.play(task_of("alpha"), text("By alpha."))
        beta = simulator.play(task_of("beta"), hang())
        wait = call("wait_subagents", names=["alpha"])
        done = threading.Event()
        run_id = self.world.start(tool_calls(spawn("alpha"), spawn("beta")), tool_calls(wait), text("R.").after(done))
        assert beta.reached(1).wait(WAIT_SECONDS)
        done.set()
        self.world.finish(run_id)
        self.world.join()

    def _run_with_retries(self):
        again = error(529, headers={"retry-after-ms": "1"})
        self.world.simulator.play_search("tides", again, again, searched("Found."))
        calls = (call("web_search", query="tides"), call("list_siblings"))
        self.world.run(again, tool_calls(*calls), text("Report."))

    def _interrupt(self):
        """Have one more at work when the server stops, in the reading of a page: all calls before it are stored."""
        gate, topic = Gate(), self.script.new_topic()
        self.script.points.arm(topic, 7, gate.stand)
        self.world.post("u3", topic=topic)
        gate.wait_for(1)
        self.world.close()
        gate.open()

    @property
    def told(self):
        """What the checker is told of the database."""
        simulator = self.world.simulator
        return {
            "billed": simulator.bills_by_model(),
            "charges": self.charges,
            "reports": simulator.reports,
            "started": self.world.started,
            "answers": self.world.answers,
        }


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    path = folder / "gligabao.db"
    world = World(f"sqlite:///{path}", folder, fetch_allow=["127.0.0.1"])
    try:
        with closing(Script(world.simulator, steps=2)) as script:
            return Sound(path, world, script)
    finally:
        if not world.closed:
            world.stop()


@pytest.fixture
def ended(sound, sqlite_url):
    """The URL of a copy of the sound database."""
    with closing(sqlite3.connect(sound.path)) as source, closing(sqlite3.connect(sqlite_path(sqlite_url))) as copy:
        source.backup(copy)
    return sqlite_url


def damage(url, statements):
    with closing(sqlite3.connect(sqlite_path(url))) as connection:
        connection.executescript(f"PRAGMA ignore_check_constraints = ON; {statements}")


def test_a_sound_database_passes(sound, ended):
    found = check_database(ended, **sound.told)
    ends = {"answered": 6, "cancelled": 1, "error": 1, "interrupted": 1, "max_steps": 1}
    assert (found.ends, found.lost_calls, len(found.runs)) == (ends, 0, SOUND_RUNS)


RUNS = "UPDATE gb_agent_research_runs SET"
STATES = "UPDATE gb_agent_research_states SET"
CREATED_OF_TEAM = f"(SELECT created_at FROM gb_agent_research_runs WHERE id = {TEAM})"
THEN, LATER = "'2020-01-01T00:00:00.000Z'", "'2099-01-01T00:00:00.000Z'"


def last_of(run_id, back=0):
    """Where the last state of a run is, or one before it."""
    last = f"(SELECT MAX(seq) FROM gb_agent_research_states WHERE run_id = {run_id})"
    return f"run_id = {run_id} AND seq = {last} - {back}"


def lose(run_id, seq):
    """Lose a state and hide the gap: those after it are numbered anew, the one before it takes its time."""
    of_run = f"FROM gb_agent_research_states WHERE run_id = {run_id} AND seq = {seq}"
    return (
        f"{STATES} finished_at = (SELECT finished_at {of_run}) WHERE run_id = {run_id} AND seq = {seq} - 1;"
        f"DELETE {of_run};"
        f"{STATES} seq = -seq WHERE run_id = {run_id} AND seq > {seq};"
        f"{STATES} seq = -seq - 1 WHERE run_id = {run_id} AND seq < 0;"
    )


def end_at(run_id, time):
    """Move the end of a run."""
    return (
        f"{RUNS} finished_at = {time} WHERE id = {run_id};"
        f"{STATES} started_at = {time}, finished_at = {time} WHERE {last_of(run_id)};"
        f"{STATES} finished_at = {time} WHERE {last_of(run_id, 1)};"
    )


def begin_at(run_id, time):
    """Move the begin of a run."""
    return (
        f"{RUNS} created_at = {time} WHERE id = {run_id};"
        f"{STATES} started_at = {time} WHERE run_id = {run_id} AND seq = 1;"
    )


def forget(run_id):
    """Lose a run."""
    return (
        f"DELETE FROM gb_agent_research_states WHERE run_id = {run_id};"
        f"DELETE FROM gb_agent_research_runs WHERE id = {run_id};"
    )


def invent(parent, number, *, stop_reason="error", message=NO_THREAD):
    """Add a run that was not begun, at the time of the first."""
    name = "''" if parent == "NULL" else f"'child{number}'"
    states = ", ".join(
        f"((SELECT MAX(id) FROM gb_agent_research_runs), {seq}, 0, '{state}', '', '{message}', "
        f"(SELECT {begin} FROM gb_agent_research_runs WHERE id = 1), "
        "(SELECT finished_at FROM gb_agent_research_runs WHERE id = 1))"
        for seq, state, begin in ((1, "starting", "created_at"), (2, "failed", "finished_at"))
    )
    return f"""
        INSERT INTO gb_agent_research_runs (user_id, parent_id, name, reason, topic, status, state, model, max_steps,
            steps, tool_calls, input_tokens, output_tokens, cost_usd, report, error, stop_reason, owner, created_at,
            finished_at)
        SELECT user_id, {parent}, {name}, {name}, 'x', 'failed', 'failed', model, max_steps, 0, 0, 0, 0, 0, '',
            '{message}', '{stop_reason}', owner, created_at, finished_at FROM gb_agent_research_runs WHERE id = 1;
        INSERT INTO gb_agent_research_states (run_id, seq, step, state, detail, error, started_at, finished_at)
        VALUES {states};
    """


ENDS = {
    "run 1 is running": f"{RUNS} status = 'running' WHERE id = 1",
    "run 1: seq has a gap": "DELETE FROM gb_agent_research_states WHERE run_id = 1 AND seq = 3",
    "run 1 does not begin with starting": f"{STATES} state = 'thinking' WHERE run_id = 1 AND seq = 1",
    "run 1: last state and status differ": f"{STATES} state = 'failed' WHERE {last_of(1)}",
    "run 1 has more than one end": f"{STATES} state = 'failed' WHERE run_id = 1 AND seq = 2",
    "run 1 has a state that was not ended": f"{STATES} finished_at = NULL WHERE run_id = 1 AND seq = 2",
    "run 1: its times go back": f"{STATES} started_at = {THEN} WHERE run_id = 1 AND seq = 2",
    "run 1: time is missing": f"{STATES} finished_at = started_at WHERE run_id = 1 AND seq = 1",
    "run 1 was not created with its first state": f"{RUNS} created_at = {THEN} WHERE id = 1",
    "run 1: it ended at another time": f"{RUNS} finished_at = {LATER} WHERE id = 1",
    "run 1: status and report do not fit": f"{RUNS} report = ' ' WHERE id = 1",
    "run 1: status and error do not fit": f"{RUNS} error = 'oh' WHERE id = 1",
    "run 1: the last state has another error": f"{STATES} error = 'oh' WHERE {last_of(1)}",
    "run 1: the last state has a step or a detail": f"{STATES} step = 3 WHERE {last_of(1)}",
    "run 1 has no stop_reason": f"{RUNS} stop_reason = '' WHERE id = 1",
    "run 1 is completed by interrupted": f"{RUNS} stop_reason = 'interrupted' WHERE id = 1",
    "run 5 is failed by answered": f"{RUNS} stop_reason = 'answered' WHERE id = {BETA}",
    "run 5: stop_reason and error do not fit": f"{RUNS} stop_reason = 'interrupted' WHERE id = {BETA}",
    "run 10: stop_reason and error do not fit": f"{RUNS} stop_reason = 'error' WHERE id = {INTERRUPTED_ONE}",
    "run 10: the state that failed carries no error": f"{STATES} error = '' WHERE {last_of(INTERRUPTED_ONE, 1)}",
    "run 1: max_steps after thinking": f"{RUNS} stop_reason = 'max_steps' WHERE id = 1",
    "run 6: answered after writing_report": f"{RUNS} stop_reason = 'answered' WHERE id = {LAST_STEP}",
    "run 8 was not begun, and worked": f"{RUNS} error = '{NO_THREAD}' WHERE id = {FAILED};"
    f"{STATES} error = '{NO_THREAD}' WHERE {last_of(FAILED)}",
    "run 1 ended in the future": end_at(1, LATER),
}
SEARCH, PAGE = f"run_id = {RETRIED} AND seq = 5", "run_id = 1 AND seq = 4"
WAYS = {
    "run 1: there is no state dreaming": f"{STATES} state = 'dreaming' WHERE run_id = 1 AND seq = 3",
    "run 1: starting came after starting": f"{STATES} state = 'starting' WHERE state NOT IN ('completed', 'failed')",
    "run 1 started at a step": f"{STATES} step = 1 WHERE run_id = 1 AND seq = 1",
    "run 1: searching came after starting": lose(1, 2),
    "run 1 says 6 tool calls, its states 5": lose(1, 3),
    "run 1: a state has the step 1, not 2": f"{STATES} step = 3 - step WHERE run_id = 1 AND step IN (1, 2) AND seq > 5",
    "run 1: a state has the step 2, not 1": f"{STATES} step = 3 - step WHERE run_id = 1 AND step IN (1, 2)",
    "run 1: thinking came after thinking": lose(1, 3) + lose(1, 3) + lose(1, 3),
    "run 7: retry 2 comes after 0": lose(RETRIED, 5),
    "run 7: retry 3 comes after 1": f"{STATES} detail = replace(detail, 'retry 2', 'retry 3') WHERE run_id = {RETRIED}",
    "run 1: thinking says '', not 'step 1 of 20'": f"{STATES} detail = ''",
    "run 1: starting says 'x', not ''": f"{STATES} detail = 'x' WHERE run_id = 1 AND seq = 1",
    "run 6: writing_report says": f"{STATES} detail = '' WHERE run_id = {LAST_STEP} AND seq = 2",
    "run 1: reading does not say what": f"{STATES} detail = '' WHERE {PAGE}",
    "run 7: a call of no tool did not fail": f"{STATES} error = '' WHERE run_id = {RETRIED}",
    "run 1: thinking failed and the run went on": f"{STATES} error = 'oh' WHERE run_id = 1 AND seq = 2",
    "run 1 was still thinking in its last step": f"{RUNS} max_steps = 3 WHERE id = 1;"
    f"{STATES} detail = replace(detail, 'of 20', 'of 3') WHERE run_id = 1",
    "run 6 wrote its report before its last step": f"{RUNS} max_steps = 2 WHERE id = {LAST_STEP};"
    f"{STATES} detail = replace(detail, 'of 1', 'of 2') WHERE run_id = {LAST_STEP}",
}
FIGURES = {
    "run 1 took 0 steps, by its states 3": f"{RUNS} steps = 0, tool_calls = 0",
    "run 1 took 99 steps of 20": f"{RUNS} steps = 99 WHERE id = 1",
    "run 1 took 2 steps, by its states 3": f"{RUNS} steps = 2 WHERE id = 1",
    "run 10 took 1 steps, by its states 2": f"{RUNS} steps = 1 WHERE id = {INTERRUPTED_ONE}",
    "run 5 took 2 steps, by its states 0 or 1": f"{RUNS} steps = 2 WHERE id = {BETA}",
    "run 8 took 2 steps, by its states 0 or 1": f"{RUNS} steps = 2, input_tokens = 1 WHERE id = {FAILED}",
    "run 1 says 0 tool calls, its states 6": f"{RUNS} tool_calls = 0 WHERE id = 1",
    "run 10 says 6 tool calls, its states 5": f"{RUNS} tool_calls = 6 WHERE id = {INTERRUPTED_ONE}",
    "run 1 took steps and used no tokens": f"{RUNS} input_tokens = 0, output_tokens = 0, cost_usd = 0 WHERE id = 1",
    "run 11 did nothing and used tokens": f"{invent(TEAM, 1)} {RUNS} input_tokens = 1 WHERE id = 11",
    "run 1: cost None on claude-sonnet-5-5": f"{RUNS} cost_usd = NULL WHERE id = 1",
    "run 9: cost 0.0 on simulated-1": f"{RUNS} cost_usd = 0.0 WHERE id = {UNPRICED}",
    "the rows and the bill differ": f"{RUNS} cost_usd = cost_usd + 0.001 WHERE id = {ALPHA}",
    "the rows and the bill differ: .'input_tokens": f"{RUNS} input_tokens = 7 WHERE id = {UNPRICED}",
    "was billed at no time": f"{RUNS} output_tokens = output_tokens + 1 WHERE id = 1;"
    f"{RUNS} output_tokens = output_tokens - 1 WHERE id = 2",
    "run 1 has another report: 'x'": f"{RUNS} report = 'x' WHERE id = 1",
}
IDENTITY = {
    "run 1 has no owner": f"{RUNS} owner = ''",
    "run 1: only a sub-agent has a name and a reason": f"{RUNS} name = 'alpha' WHERE id = 1",
    "run 4: only a sub-agent has a name and a reason": f"{RUNS} reason = '' WHERE id = {ALPHA}",
    "run 1: its user_id was answered as 'u1'": f"{RUNS} user_id = 'someone-else'",
    "run 1: its model was answered as 'claude-sonnet-5-5'": f"{RUNS} model = 'claude-opus-5' WHERE id = 1",
    "run 1: cost 0.0": f"{RUNS} model = 'gpt' WHERE id = 1",
    "run 1: its created_at was answered as": begin_at(1, THEN),
    "run 1: its topic was answered as": f"{RUNS} topic = 'x' WHERE id = 1",
    "stored, but neither answered": invent("NULL", 1),
    "answered with a 202 but not stored": forget(1),
}
TREES = {
    "run 3 has 6 children": "".join(invent(TEAM, number) for number in range(4)),
    "run 12 is 3 levels deep": invent(ALPHA, 1) + invent(11, 1),
    "the tree of run 3 has 11 sub-agents": "".join(
        invent(parent, number) for parent, number in [*itertools.product((ALPHA, BETA), range(4)), (TEAM, 1)]
    ),
    "user u1 had 4 researches at work at once": "".join(invent("NULL", n) for n in range(3)),
    "run 3 ended before its child 4": end_at(ALPHA, LATER),
    "run 4: its parent has another user_id": f"{RUNS} user_id = 'u2' WHERE id = {ALPHA}",
    "run 4: its parent has another model": f"{RUNS} model = 'claude-opus-5' WHERE id = {ALPHA}",
    "run 4: its parent has another owner": f"{RUNS} owner = 'x' WHERE id = {ALPHA}",
    "run 4 began before its parent": begin_at(ALPHA, THEN),
    "run 4 began while its parent did not start it": begin_at(ALPHA, CREATED_OF_TEAM),
    "run 3 has sub-agents that it did not start: .'child1'": invent(TEAM, 1),
    "run 3 started sub-agents that are not stored: .'alpha'": forget(ALPHA),
}
DAMAGE = ENDS | WAYS | FIGURES | IDENTITY | TREES


@pytest.mark.parametrize("told", DAMAGE)
def test_damage_is_found(sound, ended, told):
    damage(ended, DAMAGE[told])
    with pytest.raises(AssertionError, match=told):
        check_database(ended, **sound.told)


def lose_last_call(sound, run_id, topic):
    before_last = sound.charges[topic][-2]
    return (
        f"{RUNS} input_tokens = {before_last.prompt_tokens}, output_tokens = {before_last.output_tokens}, "
        f"cost_usd = {dollars(before_last)} WHERE id = {run_id}"
    )


def test_calls_that_a_death_cost_are_counted_and_bounded(sound, ended):
    damage(ended, lose_last_call(sound, INTERRUPTED_ONE, sound.script.topics[-1]))
    assert check_database(ended, charges=sound.charges, max_lost_calls=1).lost_calls == 1
    with pytest.raises(AssertionError, match="run 10 lacks its last 1 calls"):
        check_database(ended, charges=sound.charges)


def test_a_run_that_completed_lacks_no_call_whatever_a_death_may_cost(sound, ended):
    damage(ended, lose_last_call(sound, SCRIPTED, sound.script.topics[0]))
    with pytest.raises(AssertionError, match="run 1 lacks its last 1 calls"):
        check_database(ended, charges=sound.charges, max_lost_calls=1)


def test_a_research_that_was_billed_and_is_not_stored_is_found_by_its_topic(sound, ended):
    damage(ended, forget(1))
    with pytest.raises(AssertionError, match=f"billed, but not stored: .'{sound.script.topics[0]}'"):
        check_database(ended, charges=sound.charges)


def test_when_the_clock_was_set_times_are_not_compared_with_others(sound, ended):
    damage(ended, end_at(1, LATER) + begin_at(ALPHA, THEN))
    assert len(check_database(ended, max_working=None).runs) == SOUND_RUNS


def test_a_run_without_a_price_leaves_the_cost_of_the_others_checked(sound, ended):
    total = sound.world.simulator.billed().total
    assert len(check_database(ended, billed=total).runs) == SOUND_RUNS
    damage(ended, f"{RUNS} cost_usd = cost_usd + 1 WHERE id = 1")
    with pytest.raises(AssertionError, match="cost_usd"):
        check_database(ended, billed=total)


def test_a_model_has_a_price_when_the_caller_says_so(ended):
    price = ModelPrice(input=1, output=1, cache_read=1, cache_write=1)
    with pytest.raises(AssertionError, match="run 9: cost None on simulated-1"):
        check_database(ended, prices=Prices({"simulated-1": price}))


def test_a_bill_is_compared_by_tokens_where_there_is_no_price(sqlite_url, new_world):
    world = new_world(sqlite_url)
    run = world.run(text("Report."), model="simulated-1")
    world.close()
    check_bill([run], world.simulator.billed().total)
    with pytest.raises(AssertionError, match="output_tokens"):
        check_bill([run], Totals())
