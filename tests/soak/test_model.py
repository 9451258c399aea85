"""The model's server fails for a while, its answers break off, and the way to it swallows connections."""

import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gligabao.records import INTERRUPTED
from gligabao.simulator.replies import Reply, call, drop, error, malformed, raw, searched, text, tool_calls
from tests.checker import read_rows
from tests.script import POINTS_PER_STEP, Gate
from tests.site import Site
from tests.soak.proxy import Proxy
from tests.teams import wait_until
from tests.world import World

OVERLOADED_SECONDS = 60
SILENT_SECONDS = 60
RESEARCHES = 10
STOP_SECONDS = 1.0

BROKEN = {
    "dropped": drop(),
    "cut in the middle": drop(midway=True),
    "half of the JSON": malformed(),
    "no message": raw({"type": "message"}),
    "not an object": raw(["text"]),
    "server error": error(500),
    "rate limited for 2 s": error(429, headers={"retry-after": "2"}),
}


@pytest.fixture
def worlds(sqlite_url: str, postgres_url: str, tmp_path: Path, new_world: Callable[..., World]) -> dict[str, World]:
    """A world on each database: most of these tests is waiting, which both may do at once."""
    worlds = {}
    for name, url in (("sqlite", sqlite_url), ("postgres", postgres_url)):
        (tmp_path / name).mkdir()
        worlds[name] = new_world(url, tmp_path / name)
    return worlds


def _details(world: World, run_id: int, user: str) -> list[str]:
    return [state["detail"] for state in world.get(run_id, user=user)["states"]]


def test_overloaded_for_a_minute(worlds: dict[str, World], figures: Callable[[str], None]) -> None:
    until = time.monotonic() + OVERLOADED_SECONDS

    def overloaded(body: dict[str, Any]) -> Reply:
        return error(529) if time.monotonic() < until else text("Report.")

    began = time.monotonic()
    started = [
        (world, f"u{number}", world.start(*[overloaded] * 10, user=f"u{number}"))
        for world in worlds.values()
        for number in range(20)
    ]
    retries = 0
    for world, user, run_id in started:
        world.join(run_id, seconds=200)
        assert world.get(run_id, user=user)["status"] == "completed"
        shown = [detail for detail in _details(world, run_id, user) if "overloaded, retry" in detail]
        assert len(shown) >= 4
        retries += len(shown)
    seconds = time.monotonic() - began
    ends = {name: world.close().ends for name, world in worlds.items()}
    figures(f"529 for {OVERLOADED_SECONDS} s: {ends} after {seconds:.0f} s, {retries} retries shown, none billed")


def test_answers_that_break_off(worlds: dict[str, World], figures: Callable[[str], None]) -> None:
    """In the loop and inside a search: none is taken for an answer, and each is tried again."""
    started = []
    for world in worlds.values():
        for number, broken in enumerate(BROKEN.values()):
            query = f"query {number} of {id(world)}"
            world.simulator.play_search(query, broken, searched("Found."))
            replies = [broken, tool_calls(call("web_search", query=query)), broken, text("Report.")]
            started.append((world, f"u{number}", world.start(*replies, user=f"u{number}")))
    for world, user, run_id in started:
        world.join(run_id, seconds=200)
        run = world.get(run_id, user=user)
        assert (run["status"], run["report"]) == ("completed", "Report."), run["error"]
        assert sum("retry 1 of 6" in detail for detail in _details(world, run_id, user)) == 3
    ends = {name: world.close().ends for name, world in worlds.items()}
    figures(f"{', '.join(BROKEN)}, each in three places of a run: {ends}, every retry shown, none billed")


def test_a_stop_during_back_off(worlds: dict[str, World], figures: Callable[[str], None]) -> None:
    slowest = 0.0
    for world in worlds.values():
        for number in range(30):
            world.start(*[error(529)] * 10, user=f"u{number}")
        for number, run_id in enumerate(world.started):
            while not any("retry" in detail for detail in _details(world, run_id, f"u{number}")):
                threading.Event().wait(0.02)
        began = time.monotonic()
        world.services.manager.stop(10)
        slowest = max(slowest, time.monotonic() - began)
        found = world.close()
        assert found.ends == {"interrupted": 30}
        assert {run["error"] for run in found.runs} == {INTERRUPTED}
    assert slowest <= STOP_SECONDS
    figures(f"30 agents in a back-off wait: all ended {slowest:.2f} s after the stop")


class Silenced:
    """A server whose way to the model swallows connections in the middle of its researches."""

    def __init__(self, database_url: str, folder: Path, stack: ExitStack) -> None:
        folder.mkdir()
        self.site = stack.enter_context(Site(database_url, folder))
        self.way = Proxy(("127.0.0.1", int(self.site.simulator.address.rpartition(":")[2])))
        stack.callback(self.way.close)
        self.site.serve(anthropic_base_url=f"http://127.0.0.1:{self.way.port}")

    def start_and_silence(self) -> None:
        """Have all researches read a page, when nobody waits for the model; then silence the way to it."""
        gate = Gate()
        for _ in range(RESEARCHES):
            topic = self.site.script.new_topic()
            self.site.script.points.arm(topic, 7 * POINTS_PER_STEP + 3, gate.stand)
            self.site.start(topic=topic)
        gate.wait_for(RESEARCHES)
        self.way.swallow_connections()
        gate.open()

    def retried(self) -> list[int]:
        """Return the run of each state that shows a connection tried again."""
        states = read_rows(self.site.database_url)[1]
        return [state["run_id"] for state in states if "connection failed, retry" in state["detail"]]


def test_connections_swallowed_for_a_minute(
    sqlite_url: str, postgres_url: str, tmp_path: Path, figures: Callable[[str], None]
) -> None:
    with ExitStack() as stack:
        both = [
            Silenced(url, tmp_path / name, stack) for name, url in (("sqlite", sqlite_url), ("postgres", postgres_url))
        ]
        for one in both:
            one.start_and_silence()
        until = time.monotonic() + SILENT_SECONDS
        for one in both:
            wait_until(lambda one=one: len(set(one.retried())) == RESEARCHES)
        threading.Event().wait(until - time.monotonic())
        for one in both:
            one.way.restore()
        began = time.monotonic()
        found = []
        for one in both:
            one.site.wait_until_idle(150)
            assert one.site.stop(signal.SIGTERM)[0] == 0
            found.append(one.site.check(max_lost_calls=0))
        seconds = time.monotonic() - began
    assert [checked.ends for checked in found] == [{"answered": RESEARCHES}] * 2
    retries = sum(len(one.retried()) for one in both)
    figures(
        f"connections swallowed for {SILENT_SECONDS} s: {RESEARCHES} researches on each database completed within "
        f"{seconds:.0f} s after it, {retries} failed connections shown as retries, no call lost"
    )
