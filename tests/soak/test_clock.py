"""The clock of the machine is set while agents work."""

import random
import threading
import time
from collections.abc import Callable

from gligabao.records import other_clock
from tests.script import Script
from tests.world import World

AGENTS = 20


def test_the_clock_jumps_by_an_hour(
    database_url: str, new_world: Callable[..., World], figures: Callable[[str], None]
) -> None:
    world = new_world(database_url, fetch_allow=["127.0.0.1"])
    script = Script(world.simulator)
    world.simulator.latency_seconds = 0.1
    chance = random.Random(20261130)
    offset, jumps = 0.0, 0
    done = threading.Event()

    def jump() -> None:
        nonlocal offset, jumps
        while not done.wait(0.05):
            offset = chance.choice([-3600, 0, 3600]) + chance.uniform(-1, 1)
            jumps += 1

    jumper = threading.Thread(target=jump)
    with other_clock(lambda: time.time() + offset):
        jumper.start()
        try:
            for number in range(AGENTS):
                assert world.post(f"u{number}", topic=script.new_topic()).status_code == 202
            world.join()
        finally:
            done.set()
            jumper.join()
            script.close()
        found = world.close(max_working=None)
    assert found.ends == {"answered": AGENTS}
    figures(
        f"{jumps} jumps of an hour under {AGENTS} agents: {found.ends}, {found.states} states in order, none marked"
    )
