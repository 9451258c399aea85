"""A server behind a PgBouncer in transaction mode, which has fewer connections than the server opens."""

import itertools
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import requests

from gligabao.simulator.replies import call, text, tool_calls
from tests.pgbouncer import SERVER_CONNECTIONS
from tests.site import Site
from tests.teams import spawn, task_of

STARTS = 60
GETS = 10_000
CLIENTS = 16


def test_a_server_behind_a_pooler_in_transaction_mode(
    pooled_url: str, tmp_path: Path, figures: Callable[[str], None]
) -> None:
    with Site(pooled_url, tmp_path) as site:
        server = site.serve()
        began = time.monotonic()
        for number in range(STARTS):
            site.start(f"u{number}")
        team = _start_team(site)
        statuses, times = _read(server.url, site.started)
        site.wait_until_idle(180)
        seconds = time.monotonic() - began
        root = server.get(f"/v1/gb/research/{team}?user_id=team")
        assert site.stop(signal.SIGTERM)[0] == 0
        found = site.check(max_lost_calls=0, charges=None)
        lines = [line for line in server.log if " 500 " in line or " 503 " in line or "not stored" in line]
    assert root["status"] == "completed"
    assert found.ends == {"answered": STARTS + 10}
    assert statuses == {200: GETS} and lines == []
    figures(
        f"{STARTS} starts, {GETS:,} GETs by {CLIENTS} clients and a team of ten on {SERVER_CONNECTIONS} connections in "
        f"{seconds:.0f} s: all 202 and 200; p50 {statistics.median(times) * 1000:.0f} ms, "
        f"p99 {statistics.quantiles(times, n=100)[98] * 1000:.0f} ms; {found.ends}"
    )


def _start_team(site: Site) -> int:
    """Start a team of ten: a root with five sub-agents, of which four have one of their own."""
    wait = tool_calls(call("wait_subagents"))
    names = ["alpha", "beta", "gamma", "delta", "epsilon"]
    site.simulator.play("the team", tool_calls(*map(spawn, names)), wait, text("The report."))
    for name in names:
        below = f"{name}-2"
        if name == "epsilon":
            site.simulator.play(task_of(name), text("Done."))
            continue
        site.simulator.play(task_of(name), tool_calls(spawn(below)), wait, text("Done."))
        site.simulator.play(task_of(below), text("Done."))
    response = site.post("team", "the team")
    assert response.status_code == 202
    run_id: int = response.json()["id"]
    return run_id


def _read(url: str, run_ids: list[int]) -> tuple[Counter[int], list[float]]:
    """Ask for lists and runs; return how often each status came, and how long each answer took."""
    numbers = itertools.count()
    lock, statuses, times = threading.Lock(), Counter[int](), list[float]()

    def ask() -> None:
        with requests.Session() as session:
            while (number := next(numbers)) < GETS:
                user = number % STARTS
                path = f"/{run_ids[user]}?user_id=u{user}" if number % 2 else f"?user_id=u{user}"
                began = time.monotonic()
                status = session.get(f"{url}/v1/gb/research{path}", timeout=60).status_code
                with lock:
                    statuses[status] += 1
                    times.append(time.monotonic() - began)

    with ThreadPoolExecutor(CLIENTS) as pool:
        for asking in [pool.submit(ask) for _ in range(CLIENTS)]:
            asking.result()
    return statuses, times
