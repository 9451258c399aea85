"""The server dies, or is told to stop, at every point of a research; and in the other ways in which servers end."""

import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gligabao.records import INTERRUPTED
from gligabao.simulator import DEMO_TEAM_TOPIC
from gligabao.simulator.replies import hang
from tests.script import POINTS, Gate
from tests.site import STOP_SECONDS, Site

MARK_SECONDS = 1.0
AGENTS = 9
PAUSE_SECONDS = 34


def _points() -> Iterator[list[int]]:
    """Yield all points of the script, a few at a time that lie far from each other."""
    third = -(-POINTS // 3)
    for first in range(1, third + 1):
        yield [point for point in (first, first + third, first + 2 * third) if point <= POINTS]


def _start_and_hold(site: Site, points: list[int]) -> tuple[Gate, list[str]]:
    """Start a research for each of the points, and return when all stand there; and their users."""
    gate = Gate()
    users = []
    for point in points:
        topic = site.script.new_topic()
        site.script.points.arm(topic, point, gate.stand)
        users.append(site.start(topic=topic))
    gate.wait_for(len(points))
    return gate, users


def test_kill_9_at_every_transition(site: Site, figures: Callable[[str], None]) -> None:
    """Half of the kills come while the requests are open, the others some milliseconds after their answers."""
    site.serve()
    slowest = 0.0
    for number, points in enumerate(_points()):
        server = site.server
        gate, users = _start_and_hold(site, points)
        if number % 2:
            gate.open()
            time.sleep((number % 16) / 1000)
        server.signal_group(signal.SIGKILL)
        gate.open()
        server.wait()
        site.serve()
        began = time.monotonic()
        for user in users:
            (run,) = site.runs(user)
            slowest = max(slowest, time.monotonic() - began)
            assert run["status"] == "completed" or run["error"] == INTERRUPTED, run
    assert slowest <= MARK_SECONDS
    assert site.stop(signal.SIGTERM)[0] == 0
    found = site.check()
    assert len(found.runs) == POINTS
    figures(
        f"{POINTS} researches killed at a point each, {found.ends}, 0 left running, {found.states} states, "
        f"{found.lost_calls} calls lost (at most 1 each), marked at most {slowest * 1000:.0f} ms after ready"
    )


def test_sigterm_at_every_transition(site: Site, figures: Callable[[str], None]) -> None:
    slowest = 0.0
    for number, points in enumerate(_points()):
        server = site.serve()
        gate, _ = _start_and_hold(site, points)
        if number % 2:
            gate.open()
        code, seconds = site.stop(signal.SIGTERM)
        gate.open()
        assert code == 0, "".join(server.log)
        slowest = max(slowest, seconds)
        found = site.check()
        assert not any("left running" in line for line in server.log)
    assert len(found.runs) == POINTS and set(found.ends) <= {"interrupted", "answered"}
    assert slowest <= STOP_SECONDS
    figures(
        f"{POINTS} researches stopped at a point each, {found.ends}, 0 left running, exit code 0, "
        f"longest {slowest:.2f} s"
    )


def test_a_team_dies_and_is_stopped(site: Site, figures: Callable[[str], None]) -> None:
    """A team of the simulated researcher, struck at one request after another, in turn with kill -9 and SIGTERM."""
    strikes = itertools.cycle((signal.SIGKILL, signal.SIGTERM))
    requests = _requests_of_a_team(site)
    points = range(1, requests + 1, 2)
    for point, number in zip(points, strikes, strict=False):
        server = site.serve()
        counter = itertools.count(1)
        group = server.process.pid

        def strike(point: int = point, number: int = number, counter: Any = counter, group: int = group) -> None:
            if next(counter) == point:
                os.killpg(group, number)

        site.simulator.on_request = strike
        site.start(topic=DEMO_TEAM_TOPIC)
        assert (server.wait() == 0) == (number == signal.SIGTERM)
        site.simulator.on_request = lambda: None
    site.serve()
    assert site.stop(signal.SIGTERM)[0] == 0
    found = site.check(charges=None)
    teams = Counter(run["parent_id"] is None for run in found.runs)
    assert teams[True] == len(points) + 1 and teams[False] > len(points)
    figures(
        f"{len(points)} teams struck at every second of {requests} requests: {teams[True]} researches, {teams[False]} "
        f"sub-agents, {found.ends}, none ended after its parent, 0 left running"
    )


def _requests_of_a_team(site: Site) -> int:
    """Run a whole team, and return how many requests it makes."""
    site.serve()
    site.start(topic=DEMO_TEAM_TOPIC)
    site.wait_until_idle()
    assert site.stop(signal.SIGTERM)[0] == 0
    return site.simulator.received


STOPS = {
    "TERM TERM": (signal.SIGTERM, signal.SIGTERM),
    "TERM INT": (signal.SIGTERM, signal.SIGINT),
    "INT INT": (signal.SIGINT, signal.SIGINT),
    "group INT INT": (-signal.SIGINT, -signal.SIGINT),
    "QUIT": (signal.SIGQUIT,),
}


def test_stops_that_come_twice(site: Site, figures: Callable[[str], None]) -> None:
    site.simulator.play("hold", hang(), hang(), hang())
    seconds = {}
    for name, signals in STOPS.items():
        site.serve()
        _hold_agents(site, name)
        began = time.monotonic()
        for number in signals:
            site.server.signal_group(-number) if number < 0 else site.server.signal(number)
        assert site.server.wait() == 0, name
        seconds[name] = time.monotonic() - began
        found = site.check(charges=None)
    assert found.ends == {"interrupted": len(STOPS) * AGENTS}
    assert max(seconds.values()) <= STOP_SECONDS
    figures(f"{AGENTS} agents each, 0 left running; " + ", ".join(f"{n} {s:.2f} s" for n, s in seconds.items()))


def _hold_agents(site: Site, name: str) -> None:
    """Have agents at work, each of which waits for an answer of the model."""
    before = site.simulator.received
    for number in range(AGENTS):
        assert site.post(f"{name.replace(' ', '-')}-{number % 3}", f"hold {name} {number}").status_code == 202
    assert site.simulator.wait_for_requests(before + AGENTS)


def test_signals_of_gunicorn_change_nothing(site: Site, figures: Callable[[str], None]) -> None:
    server = site.serve()
    worker = server.worker
    site.simulator.latency_seconds = 0.2
    for number in range(AGENTS):
        site.start(f"u{number % 3}")
    for number in (signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR2):
        server.signal(number)
        assert server.get("/readyz")["status"] == "ready"
    site.wait_until_idle()
    assert server.worker == worker
    assert sum("signal ignored" in line for line in server.log) == 4
    assert site.stop(signal.SIGTERM)[0] == 0
    found = site.check(max_lost_calls=0)
    assert found.ends == {"answered": AGENTS}
    figures(f"HUP, TTIN, TTOU, USR2 with {AGENTS} agents at work: {found.ends}, the same worker")


def test_a_pause_of_the_whole_server(site: Site, figures: Callable[[str], None]) -> None:
    """As a container that is paused, or Ctrl-Z and fg. The master's patience with its worker is 30 s."""
    server = site.serve()
    worker = server.worker
    site.simulator.latency_seconds = 0.2
    for number in range(AGENTS):
        site.start(f"u{number % 3}")
    assert site.simulator.wait_for_requests(2 * AGENTS)
    os.killpg(server.process.pid, signal.SIGSTOP)
    time.sleep(PAUSE_SECONDS)
    os.killpg(server.process.pid, signal.SIGCONT)
    site.wait_until_idle()
    assert server.worker == worker
    assert site.stop(signal.SIGTERM)[0] == 0
    found = site.check(max_lost_calls=0)
    assert found.ends == {"answered": AGENTS}
    figures(f"{PAUSE_SECONDS} s with {AGENTS} agents at work: {found.ends}, the same worker")


def test_the_worker_is_killed_alone(site: Site, figures: Callable[[str], None]) -> None:
    server = site.serve()
    site.simulator.play("hold", hang())
    _hold_agents(site, "worker")
    os.kill(server.worker, signal.SIGKILL)
    began = time.monotonic()
    site.wait_until_idle(15)
    seconds = time.monotonic() - began
    site.start()
    site.wait_until_idle()
    assert site.stop(signal.SIGTERM)[0] == 0
    found = site.check(charges=None)
    assert found.ends == {"answered": 1, "interrupted": AGENTS}
    figures(f"{AGENTS} runs marked by the new worker after {seconds:.1f} s; it takes new ones")


def test_the_master_is_killed_alone(site: Site, figures: Callable[[str], None]) -> None:
    server = site.serve()
    site.simulator.play("hold", hang())
    _hold_agents(site, "master")
    worker = server.worker
    os.kill(server.process.pid, signal.SIGKILL)
    began = time.monotonic()
    while _is_alive(worker):
        assert time.monotonic() - began < 20
        time.sleep(0.02)
    seconds = time.monotonic() - began
    found = site.check(charges=None)
    assert found.ends == {"interrupted": AGENTS}
    site.serve()
    site.start()
    site.wait_until_idle()
    assert site.stop(signal.SIGTERM)[0] == 0
    site.check(charges=None)
    figures(f"the worker ended after {seconds:.2f} s, {AGENTS} runs interrupted, 0 left running; the next start works")


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("agents", [200])
def test_sigterm_with_many_agents(site: Site, figures: Callable[[str], None], agents: int) -> None:
    site.serve()
    site.simulator.play("hold", hang())
    for number in range(agents):
        assert site.post(f"u{number // 3}", f"hold {number}").status_code == 202
    assert site.simulator.wait_for_requests(agents, 60)
    code, seconds = site.stop(signal.SIGTERM)
    assert code == 0
    found = site.check(charges=None)
    assert found.ends == {"interrupted": agents}
    assert seconds <= STOP_SECONDS
    figures(f"{agents} agents in a model call: exit code 0 after {seconds:.2f} s, 0 left running")
