"""The server as a process: load, its end by signals, its death, and what the next one makes of it."""

import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import pytest
import requests

from gligabao.records import INTERRUPTED
from gligabao.simulator import replies
from tests.checker import check_bill, check_run
from tests.process import ServerProcess


@pytest.fixture
def serve(tmp_path, database_url, simulator):
    """Start servers on one database, one after the other."""
    servers = []

    def serve(**settings):
        settings = {
            "database_url": database_url,
            "data_dir": str(tmp_path),
            "anthropic_api_key": "sk-ant-canary-key",
            "anthropic_base_url": simulator.url,
            "fetch_allow": f'["{simulator.address}"]',
        } | settings
        servers.append(ServerProcess(tmp_path, **settings))
        return servers[-1].wait_until_ready()

    yield serve
    for server in servers:
        server.kill()
        assert "sk-ant-canary-key" not in "".join(server.log)


def runs_of(server, user):
    listed = server.get(f"/v1/gb/research?user_id={user}&limit=500")["runs"]
    return [server.get(f"/v1/gb/research/{run['id']}?user_id={user}") for run in listed]


def wait_until_idle(server, users):
    """Wait until none of the users has a research at work. Bounded by the time limit of the test's requests."""
    waiting = threading.Event()
    deadline = time.monotonic() + 120
    while any(server.get(f"/v1/gb/research?user_id={user}&active=true")["runs"] for user in users):
        assert time.monotonic() < deadline
        waiting.wait(0.05)


def test_twenty_agents_at_once_lose_nothing_and_cost_what_was_billed(serve, simulator):
    server = serve()
    users = [f"u{number}" for number in range(20)]
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda user: server.post(user, f"The tides of {user}.", max_steps=12), users))
    assert [answer.status_code for answer in answers] == [202] * 20
    wait_until_idle(server, users)
    runs = [run for user in users for run in runs_of(server, user)]
    for run in runs:
        check_run(run)
        assert run["status"] == "completed", run["error"]
    check_bill(runs, simulator.billed().total)


def test_sixty_starts_at_once_of_five_users_give_three_each(serve, simulator):
    server = serve()
    simulator.play("hold", *[replies.hang()] * 60)
    users = [f"u{number % 5}" for number in range(60)]
    with ThreadPoolExecutor(60) as pool:
        codes = list(pool.map(lambda user: (user, server.post(user, "hold").status_code), users))
    assert Counter(codes) == {(f"u{n}", code): 3 if code == 202 else 9 for n in range(5) for code in (202, 409)}
    for user in set(users):
        assert len(server.get(f"/v1/gb/research?user_id={user}")["runs"]) == 3


def test_after_kill_9_nothing_is_left_running(serve, simulator):
    server = serve()
    simulator.play("hold", *[replies.hang()] * 9)
    for _ in range(3):
        assert server.post("u1", "hold").status_code == 202
    assert simulator.wait_for_requests(3)
    assert server.post("u1", "hold").status_code == 409
    server.kill()
    server = serve()
    runs = runs_of(server, "u1")
    assert len(runs) == 3
    for run in runs:
        check_run(run)
        assert (run["status"], run["stop_reason"], run["error"]) == ("failed", "interrupted", INTERRUPTED)
    assert server.post("u1", "hold").status_code == 202


STOPS = {
    "SIGTERM": [signal.SIGTERM],
    "SIGTERM twice": [signal.SIGTERM, signal.SIGTERM],
    "SIGTERM, then SIGINT": [signal.SIGTERM, signal.SIGINT],
    "SIGINT": [signal.SIGINT],
}


@pytest.mark.parametrize("signals", STOPS.values(), ids=STOPS)
def test_a_stop_ends_agents_that_wait_for_the_model(serve, simulator, signals):
    server = serve()
    simulator.play("hold", *[replies.hang()] * 10)
    users = [f"u{number}" for number in range(10)]
    for user in users:
        assert server.post(user, "hold").status_code == 202
    assert simulator.wait_for_requests(10)
    server.signal(*signals)
    assert server.wait(15) == 0
    server = serve()
    assert not any("left running" in line for line in server.log)
    for user in users:
        (run,) = runs_of(server, user)
        check_run(run)
        assert (run["stop_reason"], run["error"]) == ("interrupted", INTERRUPTED)


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_in_a_terminal_ends_agents_in_order(serve, simulator, times):
    server = serve()
    simulator.play("hold", *[replies.hang()] * 3)
    for _ in range(3):
        server.post("u1", "hold")
    assert simulator.wait_for_requests(3)
    for _ in range(times):
        server.signal_group(signal.SIGINT)
    assert server.wait(15) == 0
    for run in runs_of(serve(), "u1"):
        check_run(run)
        assert run["error"] == INTERRUPTED


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR2])
def test_signals_that_would_start_a_second_worker_do_nothing(serve, simulator, number):
    server = serve()
    release = threading.Event()
    simulator.play("hold", replies.text("Report.").after(release))
    run_id = server.post("u1", "hold").json()["id"]
    assert simulator.wait_for_requests(1)
    server.signal(number)
    assert server.get("/readyz")["status"] == "ready"
    release.set()
    wait_until_idle(server, ["u1"])
    assert server.get(f"/v1/gb/research/{run_id}?user_id=u1")["status"] == "completed"


def test_one_server_per_sqlite_database(sqlite_url, tmp_path):
    first = ServerProcess(tmp_path, database_url=sqlite_url).wait_until_ready()
    try:
        second = ServerProcess(tmp_path, database_url=sqlite_url)
        assert second.wait() == 1
        assert len(second.log) == 1 and "is in use by process" in second.log[0]
        assert first.get("/readyz")["status"] == "ready"
    finally:
        first.kill()


def test_a_port_in_use_is_one_line(sqlite_url, tmp_path):
    first = ServerProcess(tmp_path, database_url=sqlite_url).wait_until_ready()
    try:
        second = ServerProcess(
            tmp_path, "--port", str(first.port), database_url=sqlite_url.replace("gligabao", "other")
        )
        assert second.wait() == 1
        assert second.log == [
            f"Error: port {first.port} on 127.0.0.1 is in use: choose another with --port, or stop what listens there\n"
        ]
    finally:
        first.kill()


def test_a_kept_alive_connection_does_not_hold_up_a_stop(serve):
    server = serve()
    with requests.Session() as session:
        assert session.get(f"{server.url}/healthz", timeout=10).status_code == 200
        server.signal(signal.SIGTERM)
        assert server.wait(15) == 0


@contextmanager
def connected(database_url):
    """A connection of the test's own, with each statement a transaction."""
    if database_url.startswith("sqlite"):
        path = database_url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            yield connection
    else:
        with psycopg.connect(database_url, autocommit=True) as connection:
            yield connection


LOCK = {"sqlite": ["BEGIN IMMEDIATE"], "postgresql": ["BEGIN", "LOCK TABLE gb_schema IN ACCESS EXCLUSIVE MODE"]}


def test_a_worker_that_finds_the_database_locked_is_replaced_by_another(serve, database_url):
    server = serve()
    with connected(database_url) as connection:
        for statement in LOCK[database_url.partition(":")[0]]:
            connection.execute(statement)
        os.kill(server.worker, signal.SIGKILL)
        server.wait_for_line("trying again: ")
    server.wait_for_line("is ready on", count=2)
    assert server.get("/readyz")["status"] == "ready"
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


def test_a_worker_that_finds_a_newer_database_ends_the_server(serve, database_url):
    server = serve()
    with connected(database_url) as connection:
        connection.execute(
            "INSERT INTO gb_schema SELECT version + 1, applied_at FROM gb_schema ORDER BY 1 DESC LIMIT 1"
        )
    os.kill(server.worker, signal.SIGKILL)
    assert server.wait() == 1
    assert server.count_lines("install a newer gligabao") == 1


def test_a_worker_that_finds_a_fault_in_the_database_ends_the_server(serve, database_url):
    server = serve()
    with connected(database_url) as connection:
        connection.execute("ALTER TABLE gb_agent_research_runs RENAME TO gone")
    os.kill(server.worker, signal.SIGKILL)
    assert server.wait() == 1
    assert server.count_lines("gb_agent_research_runs") == 1
    with connected(database_url) as connection:
        connection.execute("ALTER TABLE gone RENAME TO gb_agent_research_runs")


def test_a_worker_that_fails_while_it_loads_ends_the_server(sqlite_url, tmp_path):
    program = (
        "import os, sys\nfrom gligabao.config import Config\nfrom gligabao.server import serve\n"
        "config = Config.load(None, environ=os.environ, flags={'port': int(sys.argv[2])})\n"
        "serve(config, make_app=lambda services: 1 / 0)"
    )
    server = ServerProcess(tmp_path, program=["-c", program], database_url=sqlite_url)
    try:
        assert server.wait() == 1
        assert server.count_lines("ZeroDivisionError: ") == 1
    finally:
        server.kill()
