"""Runs and states: the limit, the fence, the end that stays, interruption, and what a user can read."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal

import pytest

from gligabao.errors import Conflict, RunLost
from gligabao.records import Ending, NewRun, State, StateName, Status, StopReason, Totals, Usage, other_clock
from gligabao.store.runs import Runs
from tests.faulty import FaultyDatabase

OWNER = "node-1"
T0, T1, T2, T3 = (f"2099-11-01T10:00:0{second}.120Z" for second in range(4))
"""Later than any run made in a test."""

ANSWERED = Ending(status=Status.COMPLETED, stop_reason=StopReason.ANSWERED, report="# Batteries")
BROKEN = Ending(status=Status.FAILED, stop_reason=StopReason.ERROR, error="it broke")


@pytest.fixture
def runs(db):
    return Runs(db)


def new_run(user_id="u1", **values):
    return NewRun(user_id=user_id, topic="batteries", model="m", max_steps=20, priced=True, **values)


def start(runs, user_id="u1", *, owner=OWNER, **values):
    return runs.start_run(new_run(user_id, **values), owner=owner, max_working=1000)


def thinking(seq, started_at, finished_at=None, error=""):
    return State(seq, StateName.THINKING, seq - 1, f"step {seq - 1} of 20", started_at, error, finished_at)


def starting(run, finished_at=None):
    return State(1, StateName.STARTING, 0, "", run.created_at, "", finished_at)


def terminal(seq, at, ending=ANSWERED):
    return State(seq, StateName(ending.status), 0, "", at, ending.error, at)


def save(runs, run, *states, owner=OWNER, totals=None):
    runs.save_progress(run.id, owner=owner, states=states, totals=totals or Totals())


def end(runs, run, *states, owner=OWNER, totals=None, ending=ANSWERED):
    states = states or (starting(run, T1), terminal(2, T1, ending))
    runs.end_run(run.id, owner=owner, states=states, totals=totals or Totals(), ending=ending)


def read(runs, run):
    return runs.get_run_with_states(run.id, user_id=run.user_id)


def listed(runs, user_id="u1", *, status=None, parent_id=None, before=None, limit=50):
    found = runs.list_runs(user_id=user_id, status=status, parent_id=parent_id, before=before, limit=limit)
    return [run.id for run in found]


# The start


def test_a_run_begins_after_the_moment_in_which_those_of_its_user_were_counted(db):
    """Otherwise the times of four runs could overlap although three were allowed and no more were at work."""
    clock = [1_000.0]

    def meddle(made):
        clock[0] += 60 if made == "count_working" else 0

    faulty = FaultyDatabase().over(db)
    faulty.meddle = meddle
    with other_clock(lambda: clock[0]):
        run = start(Runs(faulty))
    assert run.created_at == "1970-01-01T00:17:40.000Z"


def test_a_started_run_is_at_work_and_starting(runs):
    run = start(runs, "u1")
    assert runs.get_run(run.id, user_id="u1") == run
    assert (run.status, run.state, run.stop_reason) == (Status.RUNNING, StateName.STARTING, None)
    assert (run.parent_id, run.name, run.reason, run.topic, run.model, run.max_steps) == (
        *(None, "", "", "batteries", "m"),
        20,
    )
    assert (run.steps, run.tool_calls, run.input_tokens, run.output_tokens, run.cost_usd) == (0, 0, 0, 0, 0.0)
    assert (run.report, run.error, run.finished_at) == ("", "", None)
    assert read(runs, run) == (run, [starting(run)])


def test_a_run_without_a_price_has_no_cost_from_the_start(runs):
    assert runs.start_run(replace(new_run(), priced=False), owner=OWNER, max_working=3).cost_usd is None


def test_a_sub_agent_knows_its_parent_its_name_and_its_reason(runs):
    parent = start(runs)
    child = start(runs, parent_id=parent.id, name="alpha", reason="the costs")
    assert (child.parent_id, child.name, child.reason) == (parent.id, "alpha", "the costs")


def test_a_fourth_research_is_refused_until_one_has_ended(runs):
    three = [runs.start_run(new_run(), owner=OWNER, max_working=3) for _ in range(3)]
    refusal = 'user "u1" already has 3 researches working: wait for one to end'
    with pytest.raises(Conflict) as conflict:
        runs.start_run(new_run(), owner=OWNER, max_working=3)
    assert str(conflict.value) == refusal
    assert runs.start_run(new_run("u2"), owner=OWNER, max_working=3).user_id == "u2"
    end(runs, three[1])
    assert runs.start_run(new_run(), owner=OWNER, max_working=3).user_id == "u1"


def test_sub_agents_neither_count_nor_are_refused(runs):
    root = runs.start_run(new_run(), owner=OWNER, max_working=1)
    for name in ("alpha", "beta"):
        runs.start_run(new_run(parent_id=root.id, name=name), owner=OWNER, max_working=1)
    with pytest.raises(Conflict, match="already has 1 research working"):
        runs.start_run(new_run(), owner=OWNER, max_working=1)
    end(runs, root)
    assert runs.start_run(new_run(), owner=OWNER, max_working=1)


def test_a_name_is_used_once_among_the_sub_agents_of_a_run(runs):
    one, two = start(runs), start(runs)
    start(runs, parent_id=one.id, name="alpha")
    with pytest.raises(Conflict, match='there is a sub-agent "alpha" already'):
        start(runs, parent_id=one.id, name="alpha")
    start(runs, parent_id=two.id, name="alpha")


def start_together(runs, users, *, limit):
    """Start a run for each of the users at once, and return how many of each were let in."""
    together = threading.Barrier(len(users))

    def attempt(user_id):
        together.wait(20)
        try:
            return runs.start_run(new_run(user_id), owner=OWNER, max_working=limit).user_id
        except Conflict:
            return None

    with ThreadPoolExecutor(len(users)) as pool:
        started = list(pool.map(attempt, users))
    return {user_id: started.count(user_id) for user_id in users}


def test_of_many_starts_at_once_exactly_three_are_let_in(runs):
    assert start_together(runs, ["u1"] * 24, limit=3) == {"u1": 3}
    assert len(listed(runs, "u1")) == 3


def test_users_do_not_use_up_the_limit_of_others(runs):
    users = [f"u{number % 5}" for number in range(60)]
    assert start_together(runs, users, limit=3) == dict.fromkeys(users, 3)


def test_ids_are_never_given_again(runs, db):
    last = start(runs)
    table = "gb_agent_research_runs"
    with db.transaction() as tx:
        tx.run_script(f"DELETE FROM {table} WHERE id = {last.id};")
    assert start(runs).id > last.id


# Progress


def test_progress_is_stored(runs):
    run = start(runs)
    totals = Totals(steps=1, tool_calls=2, usage=Usage(1_000, 50, Decimal("0.1234567")))
    save(runs, run, starting(run, T0), thinking(2, T0), totals=totals)
    stored, states = read(runs, run)
    assert (stored.state, stored.status) == (StateName.THINKING, Status.RUNNING)
    assert (stored.steps, stored.tool_calls, stored.input_tokens, stored.output_tokens) == (1, 2, 1_000, 50)
    assert stored.cost_usd == 0.123457
    assert states == [starting(run, T0), thinking(2, T0)]


def test_figures_without_states_leave_the_state_as_it_is(runs):
    run = start(runs)
    save(runs, run, starting(run, T0), thinking(2, T0))
    save(runs, run, totals=Totals(steps=1))
    stored, states = read(runs, run)
    assert (stored.state, stored.steps) == (StateName.THINKING, 1)
    assert states == [starting(run, T0), thinking(2, T0)]


def test_figures_may_be_larger_than_32_bits(runs):
    run = start(runs)
    save(runs, run, totals=Totals(usage=Usage(5_000_000_000, 3_000_000_000, None)))
    stored = runs.get_run(run.id, user_id="u1")
    assert (stored.input_tokens, stored.output_tokens, stored.cost_usd) == (5_000_000_000, 3_000_000_000, None)


def test_states_sent_again_change_nothing(runs):
    run = start(runs)
    states = [starting(run, T0), thinking(2, T0, T1), thinking(3, T1)]
    save(runs, run, *states)
    before = read(runs, run)
    save(runs, run, *states)
    assert read(runs, run) == before


def test_a_state_that_has_ended_is_never_rewritten(runs):
    run = start(runs)
    save(runs, run, starting(run, T0), thinking(2, T0, T1, error="status 404"), thinking(3, T1))
    before = read(runs, run)
    save(runs, run, thinking(2, T0, T2, error="another error"), thinking(2, T0), thinking(3, T1))
    assert read(runs, run) == before


def test_ending_a_state_keeps_how_it_began(runs):
    run = start(runs)
    save(runs, run, starting(run, T0), thinking(2, T0))
    save(runs, run, replace(thinking(2, T0, T1, error="slow"), detail="rewritten", started_at=T3), thinking(3, T1))
    assert read(runs, run)[1][1] == thinking(2, T0, T1, error="slow")


# The fence


def test_only_the_owner_writes(runs):
    run = start(runs)
    before = read(runs, run)
    for write in (save, end):
        with pytest.raises(RunLost, match=f"run {run.id} has ended, or belongs to another node"):
            write(runs, run, starting(run, T0), terminal(2, T0), owner="node-2", totals=Totals(steps=9))
    assert read(runs, run) == before


def test_a_run_that_is_not_there_is_lost(runs):
    with pytest.raises(RunLost):
        runs.save_progress(4711, owner=OWNER, states=[], totals=Totals())


def test_the_end_is_stored_at_once(runs):
    run = start(runs)
    states = (starting(run, T0), thinking(2, T0, T1), terminal(3, T1))
    end(runs, run, *states, totals=Totals(steps=1, usage=Usage(10, 2, Decimal("0.5"))))
    stored, stored_states = read(runs, run)
    assert (stored.status, stored.state, stored.stop_reason) == (
        Status.COMPLETED,
        StateName.COMPLETED,
        StopReason.ANSWERED,
    )
    assert (stored.report, stored.error, stored.finished_at) == ("# Batteries", "", T1)
    assert (stored.steps, stored.cost_usd) == (1, 0.5)
    assert stored_states == list(states)


@pytest.mark.parametrize("ending", [ANSWERED, BROKEN])
def test_nothing_changes_after_the_end(runs, ending):
    run = start(runs)
    end(runs, run, ending=ending)
    before = read(runs, run)
    with pytest.raises(RunLost):
        save(runs, run, thinking(3, T2), totals=Totals(steps=9))
    for again in (ANSWERED, BROKEN):
        with pytest.raises(RunLost):
            end(runs, run, terminal(2, T3, again), ending=again)
    assert runs.interrupt_runs(owner=None, error="interrupted", at=T3) == []
    assert read(runs, run) == before


def test_of_two_that_end_a_run_at_once_one_wins(runs):
    for _ in range(10):
        run = start(runs)
        together = threading.Barrier(2)

        def end_as(ending, run=run, together=together):
            together.wait(20)
            try:
                end(runs, run, ending=ending)
            except RunLost:
                return None
            return ending.status

        with ThreadPoolExecutor(2) as pool:
            winners = [status for status in pool.map(end_as, (ANSWERED, BROKEN)) if status]
        stored, states = read(runs, run)
        assert winners == [stored.status]
        assert [state.state for state in states] == [StateName.STARTING, stored.state]


# Interruption


def test_interrupted_runs_end_with_the_error_in_their_states(runs):
    run = start(runs)
    save(runs, run, starting(run, T0), thinking(2, T0), totals=Totals(steps=1))
    assert runs.interrupt_runs(owner=OWNER, error="interrupted: it stopped", at=T1) == [run.id]
    stored, states = read(runs, run)
    assert (stored.status, stored.state, stored.stop_reason) == (
        Status.FAILED,
        StateName.FAILED,
        StopReason.INTERRUPTED,
    )
    assert (stored.error, stored.report, stored.finished_at, stored.steps) == ("interrupted: it stopped", "", T1, 1)
    assert states == [
        starting(run, T0),
        thinking(2, T0, T1, error="interrupted: it stopped"),
        State(3, StateName.FAILED, 0, "", T1, "interrupted: it stopped", T1),
    ]
    with pytest.raises(RunLost):
        save(runs, run, thinking(4, T2))


def test_runs_of_other_owners_and_ended_ones_are_left_alone(runs):
    mine, other, ended = start(runs), start(runs, owner="node-2"), start(runs)
    end(runs, ended)
    before = read(runs, other), read(runs, ended)
    assert runs.interrupt_runs(owner=OWNER, error="interrupted", at=T1) == [mine.id]
    assert (read(runs, other), read(runs, ended)) == before
    assert runs.interrupt_runs(owner=OWNER, error="interrupted", at=T1) == []
    assert runs.interrupt_runs(owner=None, error="interrupted", at=T1) == [other.id]


def test_a_clock_set_back_makes_no_time_run_backwards(runs):
    one, two = start(runs), start(runs)
    save(runs, one, starting(one, T1), thinking(2, T1, T2), thinking(3, T3))
    save(runs, two, starting(two, T1), thinking(2, T1, T2))
    runs.interrupt_runs(owner=OWNER, error="interrupted", at="2001-01-01T00:00:00.000Z")
    stored, states = read(runs, one)
    assert stored.finished_at == T3
    assert [(state.started_at, state.finished_at) for state in states[1:]] == [(T1, T2), (T3, T3), (T3, T3)]
    stored, states = read(runs, two)
    assert stored.finished_at == states[-1].started_at == T2


def test_no_parent_is_finished_before_its_children(runs):
    root = start(runs)
    ended = start(runs, parent_id=root.id, name="ended")
    end(runs, ended, starting(ended, T2), terminal(2, T2))
    child = start(runs, parent_id=root.id, name="child")
    grandchild = start(runs, parent_id=child.id, name="grandchild")
    save(runs, grandchild, starting(grandchild, T1), thinking(2, T1))
    alone = start(runs)
    at = "2099-01-01T00:00:00.000Z"
    assert runs.interrupt_runs(owner=OWNER, error="interrupted", at=at) == [
        run.id for run in (root, child, grandchild, alone)
    ]
    ends = [runs.get_run(run.id, user_id="u1").finished_at for run in (root, ended, child, grandchild, alone)]
    assert ends == [T2, T2, T2, T2, at]


def test_hundreds_of_runs_are_interrupted_together(runs):
    roots = [start(runs, f"u{number}") for number in range(40)]
    children = [start(runs, root.user_id, parent_id=root.id, name=name) for root in roots for name in "abcde"]
    ids = runs.interrupt_runs(owner=None, error="interrupted", at=T1)
    assert ids == [run.id for run in roots + children]
    assert runs.list_running(owner=OWNER) == []
    assert {read(runs, run)[1][-1].state for run in children} == {StateName.FAILED}


# Reading


def test_a_run_is_read_by_its_user_only(runs):
    run = start(runs, "u1")
    assert runs.get_run(run.id, user_id="u2") is None
    assert runs.get_run_with_states(run.id, user_id="u2") is None
    assert listed(runs, "u2") == []


@pytest.mark.parametrize("run_id", [0, -1, 99, 2**63 - 1, 2**63, 10**30, -(10**30)])
def test_ids_of_no_run_find_nothing(runs, run_id):
    start(runs)
    assert runs.get_run(run_id, user_id="u1") is None
    assert runs.get_run_with_states(run_id, user_id="u1") is None
    assert listed(runs, parent_id=run_id) == []


def test_only_newer_states_are_read_when_asked(runs):
    run = start(runs)
    save(runs, run, starting(run, T0), thinking(2, T0, T1), thinking(3, T1))
    found = {
        after: [state.seq for state in runs.get_run_with_states(run.id, user_id="u1", states_after=after)[1]]
        for after in (-(10**30), 0, 1, 2, 3, 10**30)
    }
    assert list(found.values()) == [[1, 2, 3], [1, 2, 3], [2, 3], [3], [], []]


def test_lists_are_newest_first_and_filtered(runs):
    root, other = start(runs), start(runs)
    children = [start(runs, parent_id=root.id, name=name) for name in "abc"]
    foreign = start(runs, "u2")
    end(runs, other)
    end(runs, children[1], ending=BROKEN)
    a, b, c = (child.id for child in children)
    assert listed(runs) == [c, b, a, other.id, root.id]
    assert listed(runs, status=Status.RUNNING) == [c, a, root.id]
    assert listed(runs, status=Status.COMPLETED) == [other.id]
    assert listed(runs, status=Status.FAILED) == [b]
    assert listed(runs, parent_id=root.id) == [c, b, a]
    assert listed(runs, parent_id=root.id, status=Status.RUNNING) == [c, a]
    assert listed(runs, parent_id=other.id) == []
    assert listed(runs, "u2") == [foreign.id]
    assert listed(runs, "u2", parent_id=root.id) == []
    assert listed(runs, "u2", parent_id=root.id, status=Status.RUNNING) == []


def test_lists_are_read_in_pages(runs):
    ids = [start(runs).id for _ in range(7)][::-1]
    assert listed(runs, limit=3) == ids[:3]
    assert listed(runs, limit=3, before=ids[2]) == ids[3:6]
    assert listed(runs, limit=3, before=ids[5], status=Status.RUNNING) == ids[6:]
    assert listed(runs, before=1) == listed(runs, before=-5) == []
    assert listed(runs, before=10**30) == ids


def test_what_an_owner_has_at_work_can_be_listed(runs):
    mine = [start(runs, f"u{number}") for number in range(3)]
    start(runs, owner="node-2")
    end(runs, mine[1])
    assert runs.list_running(owner=OWNER) == [mine[0], mine[2]]


# Many at once


def test_many_agents_write_while_others_read(runs):
    """12 agents go through 200 states each, and a reader that polls never sees one that does not fit."""
    agents = [start(runs, f"u{number}") for number in range(12)]
    done = threading.Event()

    def work(run):
        for seq in range(2, 201):
            last = starting(run, T0) if seq == 2 else thinking(seq - 1, T0, T0)
            save(runs, run, last, thinking(seq, T0), totals=Totals(steps=seq))
        end(runs, run, thinking(200, T0, T1), terminal(201, T1), totals=Totals(steps=200))

    def poll():
        polls = 0
        while not done.is_set():
            for agent in agents:
                check(*read(runs, agent))
            polls += 1
        return polls

    with ThreadPoolExecutor(14) as pool:
        readers = [pool.submit(poll) for _ in range(2)]
        try:
            list(pool.map(work, agents))
        finally:
            done.set()
        assert all(reader.result(20) for reader in readers)
    for agent in agents:
        stored, states = read(runs, agent)
        check(stored, states)
        assert (stored.status, len(states)) == (Status.COMPLETED, 201)


def check(run, states):
    """The run and its states fit each other: no gap, one open state at most, and the last is the run's."""
    assert [state.seq for state in states] == list(range(1, len(states) + 1))
    assert states[-1].state == run.state
    assert all(state.finished_at for state in states[:-1])
    assert (states[-1].finished_at is None) == (run.status is Status.RUNNING)
    if run.status is Status.RUNNING and len(states) > 1:
        assert run.steps == len(states)
