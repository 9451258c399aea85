"""Faults that a server must bear, in short; `make soak` has them at length. Each ends with the checker."""

import functools
import os
import signal
import threading
import time

import pytest

from gligabao.records import INTERRUPTED, now, other_clock
from gligabao.research.manager import LOST_START, NO_THREAD
from gligabao.simulator.replies import call, text, tool_calls
from gligabao.store.runs import Runs
from tests.checker import read_rows
from tests.databases import open_database
from tests.faulty import FailAt
from tests.script import Script
from tests.site import Site
from tests.teams import wait_until


@pytest.fixture
def world(database_url, new_world):
    return new_world(database_url, fetch_allow=["127.0.0.1"])


@pytest.fixture
def script(world):
    script = Script(world.simulator, steps=2)
    yield script
    script.close()


def test_deaths_and_stops_in_the_middle_of_a_research(database_url, tmp_path):
    with Site(database_url, tmp_path) as site:
        for point, number in ((2, signal.SIGKILL), (7, signal.SIGTERM), (11, signal.SIGKILL)):
            server = site.serve()
            topic, group = site.script.new_topic(), server.process.pid
            site.script.points.arm(topic, point, functools.partial(os.killpg, group, number))
            site.start(topic=topic)
            assert (server.wait() == 0) == (number == signal.SIGTERM)
        site.serve()
        assert site.stop(signal.SIGTERM)[0] == 0
        assert site.check().ends == {"interrupted": 3}


@pytest.mark.parametrize("lost", [False, True], ids=["before the call", "after the commit"])
def test_calls_of_the_database_fail(world, script, lost):
    refused = 0
    for number in range(1, 50, 4):
        world.db.meddle = FailAt(number, times=2, lost=lost)
        response = world.post(f"u{number}", topic=script.new_topic())
        refused += response.status_code == 503
        if response.status_code == 202:
            world.join(response.json["id"])
        world.db.meddle = lambda call: None
    found = world.close(unanswered=refused)
    assert found.ends["answered"] == 13 - refused


def test_a_start_that_was_stored_but_not_answered_is_ended(world, script):
    lost_start = FailAt(1, lost=True)
    world.db.meddle = lost_start
    assert world.post(topic=script.new_topic()).status_code == 503
    assert lost_start.failed == ["committed"]
    wait_until(lambda: [run["status"] for run in read_rows(world.config.database_url)[0]] == ["failed"])
    (run,) = world.close(unanswered=1).runs
    assert (run["error"], run["stop_reason"]) == (LOST_START, "error")


def test_a_thread_that_wakes_after_the_stop_has_ended_its_run_writes_nothing(world):
    """The agent sits in a write that hangs, and cannot be woken."""
    stuck, release = threading.Event(), threading.Event()

    def hang(call):
        if threading.current_thread().name.startswith("research-") and call == "begin" and world.simulator.received:
            stuck.set()
            assert release.wait(30)

    world.db.meddle = hang
    run_id = world.start(tool_calls(call("fetch_url", url="http://127.0.0.1:1/")), text("Report."))
    assert stuck.wait(30)
    world.services.manager.stop(0.2)
    ended = read_rows(world.config.database_url)
    asked = world.simulator.received
    release.set()
    world.join(run_id)
    assert read_rows(world.config.database_url) == ended
    assert world.simulator.received == asked
    assert world.close(billed=None).ends == {"interrupted": 1}


def test_an_agent_whose_run_was_ended_by_another_stops_within_one_step(world):
    answer = threading.Event()
    more = tool_calls(call("fetch_url", url="http://127.0.0.1:1/"))
    run_id = world.start(more.after(answer), more, text("Report."))
    assert world.simulator.wait_for_requests(1)
    other = open_database(world.config.database_url)
    try:
        assert Runs(other).interrupt_runs(owner=None, error=INTERRUPTED, at=now()) == [run_id]
    finally:
        other.close()
    ended = read_rows(world.config.database_url)
    answer.set()
    world.join(run_id)
    assert read_rows(world.config.database_url) == ended
    assert world.simulator.received == 1
    world.run(text("Another."))
    assert world.close(billed=None).ends == {"answered": 1, "interrupted": 1}


def test_a_start_without_a_thread_is_refused_and_its_run_ended(world, script):
    size = threading.stack_size(1 << 46)  # more memory than there is: the system itself refuses
    try:
        responses = [world.post(topic=script.new_topic()) for _ in range(5)]
    finally:
        threading.stack_size(size)
    assert [response.status_code for response in responses] == [503] * 5
    assert {response.json["error"] for response in responses} == {NO_THREAD}
    assert world.services.manager.working == 0
    world.run(text("The next."))
    found = world.close(unanswered=5)
    assert found.ends == {"answered": 1, "error": 5}


def test_the_clock_is_set_while_agents_work(world, script):
    offset = [0.0]
    jumps = iter([3600, -3600, 0, -7200, 7200, -86400, 0, 5, -5])

    def jump():
        offset[0] = next(jumps)

    with other_clock(lambda: time.time() + offset[0]):
        for point in range(1, 10):
            topic = script.new_topic()
            script.points.arm(topic, point, jump)
            assert world.finish(world.post(topic=topic).json["id"])["status"] == "completed"
        assert world.close(max_working=None).ends == {"answered": 9}
