"""How long a stop takes while every agent sits in a model call that never answers.

Once inside one process, where the Manager tells its agents to stop and waits for their threads, and once as users
do it: SIGTERM to the server. After it no run may be left at work, and all must say that they were interrupted.
"""

import signal
import tempfile
import time
from pathlib import Path

from benchmarks.child import answer, arguments, run_child
from benchmarks.databases import Databases
from benchmarks.fake_model import NEVER_SECONDS, FakeModel, Play, allow_many_files, fake_model
from benchmarks.report import Bar, Options, Report, Table
from benchmarks.serving import server, start_agents
from gligabao.app import open_services
from gligabao.config import Config
from gligabao.records import StopReason
from tests.checker import read_rows

AGENTS = 200
MAX_THREADS_SECONDS = 2
MAX_EXIT_SECONDS = 4
WAIT_SECONDS = 120


def wait_for_calls(model: FakeModel, count: int) -> None:
    """Return when so many agents wait for the model."""
    deadline = time.monotonic() + WAIT_SECONDS
    while len(model.stats()["arrivals"]) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{count} agents were not at work within {WAIT_SECONDS} s")
        time.sleep(0.05)


def stop_manager(database_url: str, model_url: str, agents: int) -> float:
    """Start the agents in this process and return how many seconds the end of all their threads took."""
    allow_many_files()
    with tempfile.TemporaryDirectory() as folder:
        services = open_services(
            Config(
                database_url=database_url,
                data_dir=Path(folder),
                anthropic_api_key="k",
                anthropic_base_url=model_url,
                max_working=agents,
            )
        )
        try:
            for number in range(agents):
                services.manager.start(
                    user_id=f"u{number // 3}", topic="The topic", max_steps=8, model="", dataset="main"
                )
            wait_for_calls(FakeModel(model_url), agents)
            began = time.monotonic()
            services.manager.begin_stop()
            while services.manager.working:
                time.sleep(0.005)
            return time.monotonic() - began
        finally:
            services.close()


def stop_server(database_url: str, model: FakeModel, agents: int) -> tuple[float, int]:
    """Return how many seconds the exit of a server took after SIGTERM, and its exit code."""
    with server(database_url, model) as process:
        start_agents(process.port, agents, steps=8)
        wait_for_calls(model, agents)
        began = time.monotonic()
        process.signal(signal.SIGTERM)
        code = process.wait(WAIT_SECONDS)
        return time.monotonic() - began, code


def count_ends(database_url: str) -> tuple[int, int]:
    """Return how many runs are marked as interrupted, and how many are left at work."""
    runs, _ = read_rows(database_url)
    ends = [run["stop_reason"] for run in runs]
    return ends.count(StopReason.INTERRUPTED), ends.count(None)


def measure(databases: Databases, *, agents: int = AGENTS) -> Report:
    """Return the times on each database."""
    report = Report("stop")
    rows = []
    for kind in databases.kinds:
        with databases.new(kind) as url, fake_model(Play(8, NEVER_SECONDS)) as model:
            seconds = run_child("stop", url, model.url, agents)
            rows.append([kind, "the Manager, in its process", seconds, None, *count_ends(url)])
        report.bars.append(
            _bar(f"all threads ended, {agents} agents on {kind}", seconds, MAX_THREADS_SECONDS, rows[-1])
        )
        with databases.new(kind) as url, fake_model(Play(8, NEVER_SECONDS)) as model:
            seconds, code = stop_server(url, model, agents)
            rows.append([kind, "SIGTERM to the server", seconds, code, *count_ends(url)])
        report.bars.append(_bar(f"exit after SIGTERM, {agents} agents on {kind}", seconds, MAX_EXIT_SECONDS, rows[-1]))
    columns = ("database", "what is told to stop", "seconds", "exit code", "interrupted", "left running")
    report.tables.append(Table(f"Stop with {agents} agents in model calls that never answer", columns, rows))
    report.notes += databases.notes
    return report


def _bar(what: str, seconds: float, limit: float, row: list) -> Bar:
    left = row[-1]
    met = seconds <= limit and not left and not row[3]
    return Bar(what, f"within {limit} s, none left running", f"{seconds:.2f} s, {left} left", met)


def run(options: Options) -> Report:
    """Measure."""
    with Databases() as databases:
        return measure(databases, agents=20 if options.quick else AGENTS)


if __name__ == "__main__":
    answer(stop_manager(*arguments()))
