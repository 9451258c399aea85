"""Teams under load, and their end: many at once, one after another, and stopped while they are at anything."""

import random
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gligabao.records import INTERRUPTED
from gligabao.research.team import PARENT_ENDED, STUCK_SECONDS
from gligabao.simulator.prompt import first_user_text
from gligabao.simulator.replies import MessageReply, call, error, hang, text, tool_calls
from tests.checker import Checked
from tests.faulty import FailAt
from tests.site import STOP_SECONDS, Site
from tests.soak.test_limits import Used
from tests.teams import (
    STALLS_BY_DEPTH,
    DatabaseGate,
    Silence,
    Stalls,
    StuckMessenger,
    end_of,
    results_in,
    spawn,
    start_stalled,
    task_of,
    wait_until,
)
from tests.world import World

TREES = 50
SHORT_TREES = 300
BUSY_TREES = 25
ROUNDS = 5
DATABASE_CALLS = 80
CANCEL_SECONDS = 2.0
WAIT = call("wait_subagents")
FIRST, SECOND = ("a1", "a2", "a3", "a4", "a5"), ("b1", "b2", "b3", "b4")
"""The sub-agents of a root, and those of the first of them."""


class Chatter:
    """Plays trees of 1 + 5 + 4 whose agents each write to all their siblings and read until all have written to them.

    What it answers follows from the request alone. Shared by the simulator's threads: each agent has its own entry.
    """

    def __init__(self, site: Site) -> None:
        self.begin = threading.Event()
        """Until then no root gets its first answer."""
        self.read: dict[str, list[str]] = {}
        """What each agent was told, by its task."""
        site.simulator.play("chatting tree", *[self._reply] * 40)

    @staticmethod
    def topic(tree: int, name: str = "root") -> str:
        """The topic of an agent."""
        return f"chatting tree {tree:03d} {name}."

    def _reply(self, body: dict[str, Any]) -> MessageReply:
        tree, name = re.fullmatch(r"chatting tree (\d+) (\w+)\.", first_user_text(body)).groups()  # type: ignore[union-attr]
        results = [str(result["content"]) for result in results_in(body)]
        below = {"root": FIRST, "a1": SECOND}.get(name, ())
        if below and not results:
            return tool_calls(*[spawn(one, self.topic(int(tree), one)) for one in below]).after(self.begin)
        if name != "root" and (said := self._chat(int(tree), name, results)):
            return said
        if below and not any(result.startswith("## ") for result in results):
            return tool_calls(WAIT)
        return text(f"By {name}.")

    def _chat(self, tree: int, name: str, results: list[str]) -> MessageReply | None:
        topic = self.topic(tree, name)
        others = [one for one in (FIRST if name in FIRST else SECOND) if one != name]
        read = self.read[topic] = re.findall(r"^From (.*)$", "\n".join(results), re.MULTILINE)
        unsent = [one for one in others if f'sent to "{one}"' not in results]
        calls = [call("send_message", to=one, text=f"{topic} to {one}.") for one in unsent]
        if len(read) < len(others):
            calls.append(call("read_messages", wait_seconds=0 if unsent else 30))
        return tool_calls(*calls) if calls else None

    def check(self, found: Checked) -> int:
        """Check that each agent was told what was written to it, once, and nothing else; return how much that was."""
        by_topic = {run["topic"]: run for run in found.runs}
        for topic, read in self.read.items():
            me = by_topic[topic]
            siblings = [run for run in found.runs if run["parent_id"] == me["parent_id"] and run is not me]
            expected = [f"{one['name']} (run {one['id']}): {one['topic']} to {me['name']}." for one in siblings]
            assert sorted(read) == sorted(expected), topic
        return sum(map(len, self.read.values()))


def test_fifty_trees_at_once_lose_no_state_and_no_message(site: Site, figures: Callable[[str], None]) -> None:
    chatter = Chatter(site)
    site.serve(max_working="600")
    began = time.monotonic()
    for tree in range(TREES):
        site.start(topic=chatter.topic(tree))
    chatter.begin.set()
    site.wait_until_idle(600)
    seconds = time.monotonic() - began
    assert not any("ERROR" in line or "Traceback" in line for line in site.server.log)
    assert site.stop(signal.SIGTERM)[0] == 0
    found = site.check(charges=None, billed=site.simulator.billed().total)
    assert found.ends == {"answered": 10 * TREES}
    messages = chatter.check(found)
    assert messages == TREES * (5 * 4 + 4 * 3)
    calls = sum(run["tool_calls"] for run in found.runs)
    figures(
        f"{TREES} trees of 1 + 5 + 4, {found.states} states, {calls} tool calls, {messages} messages, "
        f"each read once by whom it was for, {seconds:.0f} s"
    )


def test_short_trees_one_after_another_leave_nothing_behind(site: Site, figures: Callable[[str], None]) -> None:
    server = site.serve(threads="16")
    site.simulator.play("short tree", _spawn_below("alpha", "beta"), tool_calls(WAIT), text("Report."))
    # The latest script that fits is played: that of the root must not be taken for those of its sub-agents.
    for name in ("alpha", "beta"):
        write = call("send_message", to="beta" if name == "alpha" else "alpha", text="A fact.")
        site.simulator.play(f"{name} of short tree", tool_calls(call("list_siblings"), write), text(f"By {name}."))

    def run_trees(number: int) -> Used:
        for _ in range(number):
            user = site.start(topic=f"short tree {len(site.started):03d}.")
            wait_until(lambda user=user: not server.get(f"/v1/gb/research?user_id={user}&active=true")["runs"])
        return Used.by(server.worker)

    # By then all request threads that gunicorn makes one by one are there, and so many agents have come and gone.
    first, last = run_trees(16), run_trees(SHORT_TREES)
    assert site.stop(signal.SIGTERM)[0] == 0
    found = site.check(charges=None, billed=site.simulator.billed().total)
    assert found.ends == {"answered": 3 * (SHORT_TREES + 16)}
    figures(f"{SHORT_TREES} trees of 1 + 2: {first} after the first 16, {last} after all")
    assert last.threads <= first.threads + 16 and last.descriptors <= first.descriptors + 10
    assert last.megabytes <= first.megabytes + 10


# Cancelling


ENDS: Mapping[str, Callable[[threading.Event], Any]] = {
    "report": lambda done: text("Report.").after(done),
    "failure": lambda done: error(400).after(done),
    "stop": lambda done: hang(),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("depth", STALLS_BY_DEPTH)
def test_sub_agents_stop_within_two_seconds_whatever_they_are_at(
    database_url: str,
    tmp_path: Path,
    new_world: Callable[..., World],
    silence: Silence,
    figures: Callable[[str], None],
    depth: int,
    end: str,
) -> None:
    last_call = last_end = 0.0
    for _ in range(ROUNDS):
        tmp_path = tmp_path / "next"
        tmp_path.mkdir()
        world = new_world(_fresh(database_url, tmp_path), tmp_path, fetch_allow=["127.0.0.1"])
        done, gate = threading.Event(), DatabaseGate(world)
        world.db.meddle = gate
        stalled = start_stalled(world, Stalls(world, silence, gate), depth=depth, last=ENDS[end](done))
        began = time.time()
        if end == "stop":
            world.services.manager.begin_stop()
        else:
            done.set()
            world.join(*stalled.sentinels)
        gate.open()
        world.join()
        last_end = max(last_end, time.time() - began)
        last_call = max(last_call, *(request.time - began for request in world.simulator.requests))
        reasons = {run["error"] for run in world.close(billed=None, started=None).runs if run["parent_id"]}
        assert reasons == {INTERRUPTED if end == "stop" else PARENT_ENDED}
    assert last_call <= CANCEL_SECONDS and last_end <= CANCEL_SECONDS
    states = ", ".join(sum(STALLS_BY_DEPTH[depth], ()))
    figures(
        f"sub-agents in {states}: no model call later than {max(0.0, last_call):.2f} s after the end of their parent, "
        f"all threads ended within {last_end:.2f} s (the slowest of {ROUNDS})"
    )


def _fresh(database_url: str, folder: Path) -> str:
    """Return a database for one more server: a new file, or the same Postgres, which keeps what is in it."""
    return f"sqlite:///{folder}/gligabao.db" if database_url.startswith("sqlite") else database_url


class Busy:
    """Plays sub-agents that never end by themselves and do something else at each step."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._number = 0
        world.simulator.play("busy ", *[self._reply] * 40)

    def spawn(self, name: str) -> Any:
        """A call that starts one."""
        with self._lock:
            self._number += 1
            return spawn(name, f"busy {name} {self._number}.", max_steps=40)

    def _reply(self, body: dict[str, Any]) -> MessageReply:
        offered = {tool["name"] for tool in body["tools"]}
        simulator = self._world.simulator
        choices = [
            call("web_search", query="tides at Port Sable"),
            call("fetch_url", url=f"{simulator.url}/pages/coast-visitor-guide.html?{random.random()}"),
            call("list_siblings"),
            call("send_message", to="a1", text="A fact."),
            call("read_messages", wait_seconds=1),
        ]
        if "spawn_subagent" in offered and not any("sub-agent" in str(r["content"]) for r in results_in(body)):
            choices += [self.spawn(name) for name in ("b1", "b2")]
        with self._lock:
            return tool_calls(*self._random.sample(choices, self._random.randint(1, 3)))


@pytest.mark.parametrize("end", ENDS)
def test_busy_teams_stop_within_two_seconds_at_any_moment(
    database_url: str, tmp_path: Path, new_world: Callable[..., World], figures: Callable[[str], None], end: str
) -> None:
    calls: list[float] = []
    ends: list[float] = []
    most = 0
    for number in range(BUSY_TREES):
        folder = tmp_path / str(number)
        folder.mkdir()
        world = new_world(_fresh(database_url, folder), folder)
        busy, done = Busy(world, number), threading.Event()
        run_id = world.start(tool_calls(*map(busy.spawn, FIRST)), ENDS[end](done))
        # At a moment of its own each time.
        assert world.simulator.wait_for_requests(7 + number, 60)
        most = max(most, world.services.manager.working)
        began = time.time()
        world.services.manager.begin_stop() if end == "stop" else done.set()
        world.join()
        ends.append(time.time() - began)
        calls.append(max(request.time - began for request in world.simulator.requests))
        found = world.close(billed=None, started=None)
        for run in found.runs:
            if run["parent_id"]:
                expected = (
                    ("failed", "interrupted", INTERRUPTED) if end == "stop" else ("failed", "cancelled", PARENT_ENDED)
                )
                assert end_of(run) == expected
        assert any(run["id"] == run_id for run in found.runs)
    assert max(calls) <= CANCEL_SECONDS and max(ends) <= CANCEL_SECONDS
    figures(
        f"{BUSY_TREES} trees at work (up to {most} agents), each stopped at another moment: no model call later "
        f"than {max(0.0, *calls):.2f} s after, all threads ended within {max(ends):.2f} s"
    )


def test_a_server_full_of_teams_stops_in_time(site: Site, figures: Callable[[str], None]) -> None:
    _start_held_teams(site)
    asked = site.simulator.received
    code, seconds = site.stop(signal.SIGTERM)
    assert (code, site.simulator.received) == (0, asked)
    found = site.check(charges=None)
    assert found.ends == {"interrupted": 10 * TREES}
    assert {run["error"] for run in found.runs} == {INTERRUPTED}
    assert seconds <= STOP_SECONDS
    figures(f"{TREES} trees of 1 + 5 + 4 at work: exit code 0 after {seconds:.2f} s, {found.ends}, 0 left running")


def test_a_server_full_of_teams_dies(site: Site, figures: Callable[[str], None]) -> None:
    _start_held_teams(site)
    site.server.signal_group(signal.SIGKILL)
    site.server.wait()
    began = time.monotonic()
    site.serve()
    seconds = time.monotonic() - began
    assert site.stop(signal.SIGTERM)[0] == 0
    found = site.check(charges=None)
    assert found.ends == {"interrupted": 10 * TREES}
    figures(f"{TREES} trees of 1 + 5 + 4 at work: all ended {seconds:.2f} s after the next start, {found.ends}")


def _spawn_below(*names: str) -> Callable[[dict[str, Any]], MessageReply]:
    """An answer that starts sub-agents whose tasks tell them from those of other trees."""

    def reply(body: dict[str, Any]) -> MessageReply:
        topic = first_user_text(body)
        return tool_calls(*[spawn(name, f"{name} of {topic}") for name in names])

    return reply


def _start_held_teams(site: Site) -> None:
    """Have trees of 1 + 5 + 4 at work whose agents wait for the model, for each other and for messages."""
    site.simulator.play("held tree", _spawn_below(*FIRST), tool_calls(WAIT))
    site.simulator.play("a1 of held tree", _spawn_below(*SECOND), tool_calls(WAIT))
    for name in (*FIRST[1:], *SECOND[:2]):
        site.simulator.play(f"{name} of ", tool_calls(call("read_messages", wait_seconds=60)), hang())
    for name in SECOND[2:]:
        site.simulator.play(f"{name} of ", hang())
    site.serve(max_working="600")
    before = site.simulator.received
    users = [site.start(topic=f"held tree {number:03d}.") for number in range(TREES)]
    # Roots and first ones ask twice, all others once.
    assert site.simulator.wait_for_requests(before + TREES * (2 + 2 + 8), 120)
    wait_until(lambda: all(len(site.runs(user)) == 10 for user in users), "all agents", 60)


# The database fails


@pytest.mark.parametrize("lost", [False, True], ids=["before the call", "after the commit"])
def test_every_call_of_the_database_fails_once_under_a_team(
    database_url: str, new_world: Callable[..., World], figures: Callable[[str], None], lost: bool
) -> None:
    """`after the commit`: it took place, but its answer was lost on the way."""
    world = new_world(database_url)
    world.simulator.play("wounded tree", _spawn_below("alpha", "beta"), tool_calls(WAIT), text("Report."))
    world.simulator.play("alpha of ", _spawn_below("inner"), tool_calls(WAIT), text("By alpha."))
    for name, to in (("beta", "alpha"), ("inner", "beta")):
        world.simulator.play(
            f"{name} of ", tool_calls(call("send_message", to=to, text="A fact.")), text(f"By {name}.")
        )
    refused = failed = 0
    for number in range(1, DATABASE_CALLS + 1):
        fault = FailAt(number, times=1 + number % 3, lost=lost)
        world.db.meddle = fault
        response = world.post(f"u{number}", topic=f"wounded tree {number:03d}.")
        refused += response.status_code == 503
        if response.status_code == 202:
            assert world.finish(response.json["id"], user=f"u{number}")["status"] == "completed"
        failed += len(fault.failed)
        world.db.meddle = lambda call: None
    found = world.close(unanswered=refused)
    assert found.ends["answered"] >= DATABASE_CALLS - refused
    figures(f"{DATABASE_CALLS} trees of 1 + 2 + 1, {failed} calls failed, {refused} starts refused (503), {found.ends}")


# An agent that cannot be woken


@pytest.mark.parametrize("depth", [1, 2])
def test_an_agent_that_cannot_be_woken_holds_up_its_parent_for_so_long_only(
    database_url: str, new_world: Callable[..., World], figures: Callable[[str], None], depth: int
) -> None:
    messenger, done = StuckMessenger(), threading.Event()
    world = new_world(database_url, messenger=messenger)
    world.held.append(messenger.freed)
    world.simulator.play(task_of("deaf"), tool_calls(call("read_messages")), text("Too late."))
    world.simulator.play(task_of("middle"), tool_calls(spawn("deaf")), tool_calls(WAIT))
    run_id = world.start(tool_calls(spawn("deaf" if depth == 1 else "middle")), text("Report.").after(done))
    assert messenger.stuck.wait(60)
    began = time.monotonic()
    done.set()
    assert world.finish(run_id)["status"] == "completed"
    seconds = time.monotonic() - began
    asked = world.simulator.received
    messenger.freed.set()
    world.join()
    assert world.simulator.received == asked
    found = world.close()
    assert {run["error"] for run in found.runs if run["parent_id"]} == {PARENT_ENDED}
    figures(f"at depth {depth}: the parent ended {seconds:.1f} s later, allowed were {STUCK_SECONDS:.0f} s")
