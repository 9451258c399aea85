"""The recorder: a run that goes on, and writes that must not be lost, on both databases."""

import threading
from decimal import Decimal

import pytest

from gligabao.cancel import Cancel
from gligabao.errors import RunLost, StoreError, StoreFault
from gligabao.records import Ending, NewRun, RunWithStates, StateName, Status, StopReason, Totals, Usage
from gligabao.research.recorder import Recorder, store_in_the_end
from gligabao.store.runs import Runs
from tests.checker import check_run

NEW = NewRun(user_id="u1", topic="t", model="claude-sonnet-5-5", max_steps=5, priced=True)
DONE = Ending(Status.COMPLETED, StopReason.ANSWERED, report="Report.")


@pytest.fixture
def runs(db):
    return Runs(db)


def recorder_of(runs, run, **more):
    return Recorder(runs=runs, run=run, owner="node", cancel=Cancel(), closing=threading.Event(), **more)


def test_a_recorder_goes_on_from_the_state_and_the_totals_of_a_run(runs):
    run = runs.start_run(NEW, owner="node", max_working=3)
    first = recorder_of(runs, run)
    first.entered(StateName.THINKING, step=1, detail="step 1 of 5")
    first.spent(Usage(100, 10, Decimal("0.25")))
    first.answered()
    first.entered(StateName.READING, step=1, detail="http://a/")
    first.ran_tool("")
    first.entered(StateName.THINKING, step=2, detail="step 2 of 5")

    stored, states = runs.get_run_with_states(run.id, user_id="u1")
    usage = Usage(stored.input_tokens, stored.output_tokens, Decimal(str(stored.cost_usd)))
    totals = Totals(stored.steps, stored.tool_calls, usage)
    again = recorder_of(runs, stored, state=states[-1], totals=totals)
    again.spent(Usage(200, 20, Decimal("0.5")))
    again.answered()
    again.entered(StateName.SEARCHING, step=2, detail="tides")
    again.ran_tool("")
    again.entered(StateName.THINKING, step=3, detail="step 3 of 5")
    again.answered()
    again.end(DONE)

    ended, states = runs.get_run_with_states(run.id, user_id="u1")
    assert [(state.seq, state.state) for state in states] == [
        (1, StateName.STARTING),
        (2, StateName.THINKING),
        (3, StateName.READING),
        (4, StateName.THINKING),
        (5, StateName.SEARCHING),
        (6, StateName.THINKING),
        (7, StateName.COMPLETED),
    ]
    figures = (ended.steps, ended.tool_calls, ended.input_tokens, ended.output_tokens, ended.cost_usd)
    assert figures == (3, 2, 300, 30, 0.75)
    check_run(RunWithStates(ended, states).as_json())


# --- faults that pass, and those that do not

LASTING = {
    "a missing table": "INSERT INTO gb_nothing VALUES (1)",
    "a missing column": "UPDATE gb_agent_research_runs SET nothing = 1",
    "no SQL": "UPDATE gb_agent_research_runs SETT state = 1",
    "a key that is there": "INSERT INTO gb_schema SELECT * FROM gb_schema",
    "a value that must be there": "UPDATE gb_agent_research_runs SET topic = NULL",
    "a parent that is not there": "UPDATE gb_agent_research_runs SET parent_id = 999",
}


@pytest.mark.parametrize("statement", LASTING.values(), ids=LASTING)
def test_a_write_that_can_never_be_done_is_a_fault(db, runs, statement):
    runs.start_run(NEW, owner="node", max_working=3)
    with pytest.raises(StoreFault), db.transaction() as tx:
        tx.run_script(statement)


def test_a_database_that_is_away_is_no_fault(db):
    db.close()
    with pytest.raises(StoreError) as raised, db.transaction() as tx:
        tx.run_script("DELETE FROM gb_agent_research_runs")
    assert not isinstance(raised.value, StoreFault)


class Writes:
    """Raises these in turn, and then writes."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.tried = 0

    def __call__(self):
        self.tried += 1
        if self.errors:
            raise self.errors.pop(0)


def test_what_passes_is_tried_again_until_it_is_stored():
    write = Writes(StoreError("away"), StoreError("still away"))
    store_in_the_end(write, closing=threading.Event(), what="the end")
    assert write.tried == 3


@pytest.mark.parametrize("error", [StoreFault("a constraint"), RunLost("ended"), ZeroDivisionError()])
def test_what_cannot_pass_is_tried_once(error):
    write = Writes(StoreError("away"), error)
    with pytest.raises(type(error)):
        store_in_the_end(write, closing=threading.Event(), what="the end")
    assert write.tried == 2
