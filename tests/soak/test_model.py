"""The model's server fails for a while, and its answers break off."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gligabao.records import INTERRUPTED
from gligabao.simulator.replies import Reply, call, drop, error, malformed, raw, searched, text, tool_calls
from tests.world import World

OVERLOADED_SECONDS = 60
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
