"""Announcements of changes: every way of writing a run is announced, once it is stored and only then."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gligabao.errors import Conflict, RunLost, StoreError
from gligabao.records import Ending, NewRun, RunChanged, State, StateName, Status, StopReason, Totals, Usage
from gligabao.store.runs import Runs
from tests.faulty import FaultyDatabase

OWNER = "node-1"
T0, T1 = (f"2099-11-01T10:00:0{second}.120Z" for second in range(2))
ANSWERED = Ending(status=Status.COMPLETED, stop_reason=StopReason.ANSWERED, report="# Batteries")
TOTALS = Totals(steps=1, tool_calls=2, usage=Usage(1000, 50))


@pytest.fixture
def faulty(db):
    """The database, and what makes its calls fail."""
    return FaultyDatabase().over(db)


@pytest.fixture
def runs(faulty):
    return Runs(faulty)


@pytest.fixture
def heard(runs):
    """All that was announced, in order."""
    changes = []
    runs.listen(changes.append)
    return changes


def start(runs, user_id="u1", **values):
    new = NewRun(user_id=user_id, topic="batteries", model="m", max_steps=20, priced=True, **values)
    return runs.start_run(new, owner=OWNER, max_working=1000)


def starting(run, finished_at=None):
    return State(1, StateName.STARTING, 0, "", run.created_at, "", finished_at)


def thinking(seq, finished_at=None):
    return State(seq, StateName.THINKING, 1, f"number {seq}", T0, "", finished_at)


def completed(seq):
    return State(seq, StateName.COMPLETED, 0, "", T1, "", T1)


def save(runs, run, *states, owner=OWNER):
    runs.save_progress(run.id, owner=owner, states=states, totals=TOTALS)


def end(runs, run, *states, owner=OWNER):
    runs.end_run(run.id, owner=owner, states=states or [completed(2)], totals=TOTALS, ending=ANSWERED)


def end_subtree(runs, run, owner=OWNER):
    return runs.end_subtree(run.id, owner=owner, error="cancelled", stop_reason=StopReason.CANCELLED, at=T1)


def interrupt(runs, owner=OWNER):
    return runs.interrupt_runs(owner=owner, error="interrupted", at=T1)


# What is announced


def test_a_start_is_announced(runs, heard):
    root = start(runs)
    child = start(runs, parent_id=root.id, name="alpha")
    assert heard == [
        RunChanged(run.id, Status.RUNNING, "u1", states=(starting(run),), totals=Totals()) for run in (root, child)
    ]
    assert not any(change.has_ended for change in heard)


def test_progress_is_announced_as_it_was_saved(runs, heard):
    run = start(runs)
    save(runs, run, starting(run, T0), thinking(2))
    save(runs, run)
    assert heard[1:] == [
        RunChanged(run.id, Status.RUNNING, states=(starting(run, T0), thinking(2)), totals=TOTALS),
        RunChanged(run.id, Status.RUNNING, totals=TOTALS),
    ]


def test_an_end_is_announced_with_its_reason(runs, heard):
    run = start(runs)
    end(runs, run, starting(run, T1), completed(2))
    states = (starting(run, T1), completed(2))
    assert heard[1:] == [RunChanged(run.id, Status.COMPLETED, "u1", StopReason.ANSWERED, states, TOTALS)]
    assert heard[-1].has_ended


def test_all_ends_of_a_subtree_are_announced_from_the_bottom_up(runs, heard):
    root = start(runs)
    child = start(runs, parent_id=root.id, name="alpha")
    grandchild = start(runs, parent_id=child.id, name="beta")
    ended = start(runs, parent_id=child.id, name="gamma")
    start(runs)
    end(runs, ended)
    del heard[:]
    assert end_subtree(runs, child) == [child.id, grandchild.id]
    assert heard == [RunChanged(run.id, Status.FAILED, "u1", StopReason.CANCELLED) for run in (grandchild, child)]


@pytest.mark.parametrize("owner", [OWNER, None])
def test_all_interrupted_runs_are_announced(runs, heard, owner):
    one, two = start(runs, "u1"), start(runs, "u2")
    del heard[:]
    assert interrupt(runs, owner) == [one.id, two.id]
    assert heard == [
        RunChanged(two.id, Status.FAILED, "u2", StopReason.INTERRUPTED),
        RunChanged(one.id, Status.FAILED, "u1", StopReason.INTERRUPTED),
    ]


# When


def writes(runs):
    """Make a run for each way of writing one, and return the functions that write it."""
    saved, ended, cancelled = start(runs), start(runs), start(runs)
    return {
        "insert_run": lambda: start(runs),
        "save_progress": lambda: save(runs, saved, starting(saved, T0), thinking(2)),
        "end_run": lambda: end(runs, ended, starting(ended, T1), completed(3)),
        "end_subtree": lambda: end_subtree(runs, cancelled),
        "interrupt_runs": lambda: interrupt(runs),
    }


def test_a_listener_finds_what_it_was_told_in_the_database_and_may_write(runs):
    found = []

    def listener(change):
        run, states = runs.get_run_with_states(change.run_id, user_id="u1")
        known = not change.states or change.states[-1] == states[-1]
        found.append((run.status, run.stop_reason, known) == (change.status, change.stop_reason, True))
        if change.user_id and not change.has_ended:
            save(runs, run, starting(run, T0), thinking(2))

    runs.listen(listener)
    for write in writes(runs).values():
        write()
    assert len(found) == 13  # 4 starts, each with progress saved by the listener; 1 progress; 4 ends
    assert all(found)


def test_a_listener_is_called_on_the_thread_that_wrote_before_the_write_returns(runs):
    threads = []
    runs.listen(lambda change: threads.append(threading.current_thread()))
    for write in writes(runs).values():
        before = len(threads)
        write()
        assert len(threads) > before
    assert set(threads) == {threading.current_thread()}


@pytest.mark.parametrize("point", ["begin", "commit", "committed"])
def test_a_write_that_failed_announces_nothing(runs, heard, faulty, point):
    def fail(call):
        if call == point:
            raise StoreError("the cable was pulled")

    attempts = writes(runs)
    del heard[:]
    faulty.meddle = fail
    for name, write in attempts.items():
        with pytest.raises(StoreError, match="the cable was pulled"):
            write()
        assert not heard, name


def test_a_transaction_that_is_rolled_back_announces_nothing(runs, heard):
    run = start(runs)
    before = runs.get_run_with_states(run.id, user_id="u1")
    del heard[:]
    bad = State(2, StateName.THINKING, 1, None, T0)
    for write in (
        lambda: start(runs, "u2", reason=None),
        lambda: save(runs, run, starting(run, T0), bad),
        lambda: end(runs, run, starting(run, T0), bad, completed(3)),
        lambda: runs.end_subtree(run.id, owner=OWNER, error=None, stop_reason=StopReason.ERROR, at=T1),
        lambda: runs.interrupt_runs(owner=OWNER, error=None, at=T1),
    ):
        with pytest.raises(StoreError):
            write()
    assert heard == []
    assert runs.get_run_with_states(run.id, user_id="u1") == before
    save(runs, run)
    assert len(heard) == 1


def test_a_write_that_touched_nothing_announces_nothing(runs, heard):
    run, ended = start(runs), start(runs)
    end(runs, ended)
    del heard[:]
    for lost in (
        lambda: save(runs, run, thinking(2), owner="node-2"),
        lambda: end(runs, run, owner="node-2"),
        lambda: save(runs, ended, thinking(3)),
        lambda: end(runs, ended),
        lambda: start(runs, parent_id=ended.id, name="alpha"),
    ):
        with pytest.raises(RunLost):
            lost()
    with pytest.raises(Conflict):
        runs.start_run(NewRun("u1", "t", "m", 20, priced=True), owner=OWNER, max_working=1)
    assert end_subtree(runs, ended) == end_subtree(runs, run, "node-2") == interrupt(runs, "node-2") == []
    assert heard == []


# Listeners


def test_a_listener_that_raises_is_logged_and_hurts_nobody(runs, caplog):
    first, last = [], []
    runs.listen(first.append)
    runs.listen(lambda change: 1 // 0)
    runs.listen(last.append)
    for write in writes(runs).values():
        write()
    assert first == last
    assert [change.status for change in first].count(Status.RUNNING) == 5
    assert runs.list_running(owner=OWNER) == []
    logged = [record for record in caplog.records if record.exc_info]
    assert len(logged) == len(first)
    assert logged[0].getMessage() == f"a listener to changes of runs failed at run {first[0].run_id}"


def test_a_listener_hears_nothing_before_and_after(runs):
    one, two = [], []
    run = start(runs)
    end_one, end_two, end_again = runs.listen(one.append), runs.listen(two.append), runs.listen(two.append)
    save(runs, run)
    end_one()
    end_one()
    end_again()
    save(runs, run)
    end_two()
    save(runs, run)
    assert (len(one), len(two)) == (1, 3)


def test_a_listener_may_leave_while_it_is_called(runs, heard):
    def leave(change):
        unsubscribe()

    unsubscribe = runs.listen(leave)
    later = []
    runs.listen(later.append)
    run = start(runs)
    save(runs, run)
    assert heard == later
    assert len(heard) == 2


def test_of_many_threads_each_is_announced_whole_and_in_its_order(runs, heard):
    """16 agents write and one thread ends them all in the middle, while listeners come and go."""
    agents = [start(runs, f"u{number}") for number in range(16)]
    halfway = threading.Barrier(len(agents) + 1)
    done = threading.Event()
    saved = {agent.id: [] for agent in agents}

    def work(agent):
        try:
            for seq in range(2, 42):
                if seq == 22:
                    halfway.wait(60)
                save(runs, agent, thinking(seq))
                saved[agent.id].append(seq)
            end(runs, agent, completed(42))
        except RunLost:
            return
        saved[agent.id].append(42)

    def come_and_go():
        while not done.is_set():
            runs.listen(lambda change: None)()

    def end_them():
        halfway.wait(60)
        return interrupt(runs)

    with ThreadPoolExecutor(len(agents) + 2) as pool:
        going = pool.submit(come_and_go)
        try:
            work_done = [pool.submit(work, agent) for agent in agents]
            interrupted = pool.submit(end_them).result(60)
            for one in work_done:
                one.result(60)
        finally:
            done.set()
        going.result(60)
    for agent in agents:
        changes = [change for change in heard if change.run_id == agent.id]
        assert [state.seq for change in changes for state in change.states] == [1, *saved[agent.id]]
        ends = [change for change in changes if change.has_ended]
        assert [change.stop_reason for change in ends] == [
            StopReason.INTERRUPTED if agent.id in interrupted else StopReason.ANSWERED
        ]
