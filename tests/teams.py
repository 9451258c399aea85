"""Teams played to scripts: what the tests of teams share."""

import os
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gligabao.cancel import Cancel
from gligabao.research.messenger import Message, QueueMessenger
from gligabao.simulator.prompt import Block, first_user_text
from gligabao.simulator.replies import Reply, call, error, hang, tool_calls
from tests.world import World, shape

WAIT_SECONDS = 30.0
"""How long a test waits for what must come. None is asserted to take any less."""

_MARKER = re.compile(r"\[untrusted [0-9a-f]{16}\]")


def spawn(name: Any, task: Any = None, **more: Any) -> Block:
    """A call that starts a sub-agent; its task is `task of <name>.` unless it is given."""
    given = {"name": name, "reason": f"reason of {name}", "task": task or task_of(name)} | more
    return call("spawn_subagent", **given)


def task_of(name: Any) -> str:
    """The task that `spawn` gives to a sub-agent of that name: what its script is known by."""
    return f"task of {name}."


def announcing(event: threading.Event, reply: Reply) -> Callable[[dict[str, Any]], Reply]:
    """The same reply, with the event set when it is asked for."""

    def announce(body: dict[str, Any]) -> Reply:
        event.set()
        return reply

    return announce


def results_in(body: dict[str, Any]) -> list[Block]:
    """Return the results of all tool calls in a request to the model, in order."""
    turns = [message["content"] for message in body["messages"] if isinstance(message["content"], list)]
    return [block for content in turns for block in content if block["type"] == "tool_result"]


def told(world: World, topic: str) -> list[str]:
    """Return what the tools told the agent of that topic, in order, errors with `! ` in front and markers bare."""
    bodies = [r.body for r in world.simulator.requests if first_user_text(r.body) == topic]
    return [("! " if "is_error" in one else "") + bare(one["content"]) for one in results_in(bodies[-1])]


def bare(text: str) -> str:
    """Return the text with its marker lines as `[untrusted]`."""
    return _MARKER.sub("[untrusted]", text)


def between_markers(text: str) -> str:
    """The text as `told` shows it when it was put between markers."""
    return f"[untrusted]\n{text}\n[untrusted]"


def children(world: World, run_id: int, *, user: str = "u1") -> dict[str, dict[str, Any]]:
    """Return the sub-agents of a run with their states, by name, in the order they were started."""
    listed = world.client.get(f"/v1/gb/research?user_id={user}&parent_id={run_id}").json["runs"]
    return {run["name"]: world.get(run["id"], user=user) for run in reversed(listed)}


def wait_until(condition: Callable[[], Any], what: str = "what was waited for", seconds: float = WAIT_SECONDS) -> Any:
    """Wait until the condition holds and return its value; for what has no event of its own."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come"
        pause.wait(0.005)
    return value


def wait_for_child(world: World, run_id: int, name: str, *, user: str = "u1") -> dict[str, Any]:
    """Wait until the run has a sub-agent of that name and return it."""
    found = wait_until(lambda: children(world, run_id, user=user).get(name), f'the sub-agent "{name}"')
    assert isinstance(found, dict)
    return found


def wait_for_end(world: World, run_id: int, name: str) -> dict[str, Any]:
    """Wait until the sub-agent of that name has started and ended, and return it."""
    child = wait_for_child(world, run_id, name)
    # By its run: in the moment after it was recorded, the manager has no agent for it yet.
    wait_until(lambda: world.get(child["id"])["status"] != "running", f'the end of the sub-agent "{name}"')
    world.join(child["id"])
    return world.get(child["id"])


def end_of(run: dict[str, Any]) -> tuple[str, str, str]:
    """Return how a run ended: its status, stop reason and error."""
    return run["status"], run["stop_reason"], run["error"]


class DatabaseGate:
    """A meddler for the database that holds an agent, known by the name of its run, at a point of its work.

    Takes the place of a database that is slow just then. The points are for the states that an agent is in for a
    moment only. Shared by all agents: a lock guards who is held.
    """

    POINTS = MappingProxyType({"starting": "begin", "spawning": "begin", "messaging": "committed"})
    """Before its first write; before its sub-agent is recorded; after the state was stored."""

    def __init__(self, world: World, *, user: str = "u1") -> None:
        self._world = world
        self._user = user
        self._lock = threading.Lock()
        self._wanted: dict[tuple[str, str], threading.Event] = {}
        self._open = threading.Event()
        world.held.append(self._open)

    def hold(self, name: str, state: str) -> threading.Event:
        """Hold that agent once it is in that state, and return the event that is set when it is held."""
        with self._lock:
            return self._wanted.setdefault((name, state), threading.Event())

    def open(self) -> None:
        """Let all go."""
        self._open.set()

    def __call__(self, made: str) -> None:
        thread = threading.current_thread().name
        if made not in ("begin", "committed") or not thread.startswith("research-") or self._open.is_set():
            return
        run = self._world.services.runs.get_run(int(thread.removeprefix("research-")), user_id=self._user)
        assert run is not None
        with self._lock:
            held = self._wanted.get((run.name, run.state))
        if held and self.POINTS[run.state] == made:
            held.set()
            assert self._open.wait(WAIT_SECONDS)


class StuckMessenger(QueueMessenger):
    """Messages whose reader is stuck, deaf to being told to stop, until it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck, self.freed = threading.Event(), threading.Event()

    def receive(self, run_id: int, *, wait_seconds: float, cancel: Cancel) -> list[Message]:
        """Hold the reader, then give it what there is."""
        self.stuck.set()
        # Longer than any test waits for the end of a research: one that waited for this reader is seen.
        assert self.freed.wait(120)
        return super().receive(run_id, wait_seconds=0, cancel=cancel)


class Silence:
    """A web server that takes connections and never says a word."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


class Stalls:
    """Plays sub-agents that are each stuck in one state, and never get any further by themselves.

    `stall` returns a function that tells whether the agent has come so far.
    """

    def __init__(self, world: World, silence: Silence, gate: DatabaseGate) -> None:
        self._world = world
        self._simulator = world.simulator
        self._silence = silence
        self._gate = gate

    def stall(self, name: str, state: str) -> Callable[[], bool]:
        """Have the sub-agent of that name stall in that state."""
        script: Callable[[str], Callable[[], bool]] = getattr(self, f"_{state}")
        return script(name)

    def _play(self, name: str, *replies: Any) -> Callable[[], bool]:
        return self._simulator.play(task_of(name), *replies).reached(len(replies)).is_set

    def _thinking(self, name: str) -> Callable[[], bool]:
        return self._play(name, hang())

    def _searching(self, name: str) -> Callable[[], bool]:
        self._play(name, tool_calls(call("web_search", query=f"search of {name}.")))
        return self._simulator.play_search(f"search of {name}.", hang()).reached(1).is_set

    def _reading(self, name: str) -> Callable[[], bool]:
        self._play(name, tool_calls(call("fetch_url", url=self._silence.url)))
        return self._shows(name, f"reading {self._silence.url}")

    def _waiting(self, name: str) -> Callable[[], bool]:
        below = self._play(f"{name}-below", hang())
        self._play(name, tool_calls(spawn(f"{name}-below")), tool_calls(call("wait_subagents")))
        waits = self._shows(name, f"waiting {name}-below")
        return lambda: below() and waits()

    def _listening(self, name: str) -> Callable[[], bool]:
        self._play(name, tool_calls(call("read_messages", wait_seconds=60)))
        return self._shows(name, "waiting a message, up to 60 s")

    def _pausing(self, name: str) -> Callable[[], bool]:
        self._play(name, error(529, headers={"retry-after": "60"}))
        return self._shows(name, "thinking step 1 of 10: overloaded, retry 1 of 6")

    def _starting(self, name: str) -> Callable[[], bool]:
        return self._gate.hold(name, "starting").is_set

    def _spawning(self, name: str) -> Callable[[], bool]:
        self._play(f"{name}-below", hang())
        self._play(name, tool_calls(spawn(f"{name}-below")))
        return self._gate.hold(name, "spawning").is_set

    def _messaging(self, name: str) -> Callable[[], bool]:
        self._play(name, tool_calls(call("list_siblings")))
        return self._gate.hold(name, "messaging").is_set

    def _shows(self, name: str, state: str) -> Callable[[], bool]:
        def shows() -> bool:
            runs = self._world.client.get("/v1/gb/research?user_id=u1&active=true").json["runs"]
            run = next((run for run in runs if run["name"] == name), None)
            return run is not None and shape(self._world.get(run["id"]))[-1].partition(" ")[2] == state

        return shows


STALLS_BY_DEPTH = MappingProxyType(
    {
        1: (
            ("starting", "thinking", "searching"),
            ("reading", "spawning", "waiting"),
            ("listening", "messaging", "pausing"),
        ),
        2: (("starting", "thinking", "searching"), ("reading", "listening"), ("messaging", "pausing")),
    }
)
"""The states that sub-agents are stopped in, a tree for each row. The second generation cannot spawn."""


@dataclass(frozen=True)
class Stalled:
    """Trees whose sub-agents are all stuck, each in another state."""

    roots: list[int]
    sentinels: list[int]
    """In each tree the last sub-agent of the root: when it was told to stop, so were all others."""


def start_stalled(world: World, stalls: Stalls, *, depth: int, last: Any) -> Stalled:
    """Start trees whose agents of that depth are stuck, and return them once they are. Their roots then get `last`.

    Every agent has then asked the model all that it will.
    """
    roots, sentinels, reached = [], [], []
    for number, states in enumerate(STALLS_BY_DEPTH[depth]):
        names = [f"{state}-{depth}" for state in states]
        reached += [stalls.stall(name, state) for name, state in zip(names, states, strict=True)]
        sentinel, middle = f"sentinel-{number}", f"middle-{number}"
        reached.append(stalls.stall(sentinel, "thinking"))
        if depth == 2:
            spawns = tool_calls(*map(spawn, names))
            script = world.simulator.play(task_of(middle), spawns, tool_calls(call("wait_subagents")))
            reached.append(script.reached(2).is_set)
            names = [middle]
        asked = threading.Event()
        reached.append(asked.is_set)
        roots.append(world.start(tool_calls(*map(spawn, [*names, sentinel])), announcing(asked, last)))
        sentinels.append(wait_for_child(world, roots[-1], sentinel)["id"])
        reached.append(_asked_twice(world, world.get(roots[-1])["topic"]))
    wait_until(lambda: all(is_there() for is_there in reached), "the state to stop in")
    return Stalled(roots, sentinels)


def _asked_twice(world: World, topic: str) -> Callable[[], bool]:
    return lambda: sum(request.topic == topic for request in world.simulator.requests) == 2


def open_files() -> int:
    """Return how many file descriptors this process has open. Linux only."""
    return len(os.listdir("/proc/self/fd"))
