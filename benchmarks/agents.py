"""Many agents at once in one process: errors, memory, CPU a step, and whether every state was stored.

The whole path but HTTP in front of it: the real Manager starts a thread for each agent, the agent asks the model
over HTTP, and its `fetch_url` reads a page over HTTP each step and makes text of it. All start together. Pages are
HTML of 20 KB with about 17,500 characters of text, of which the agent gets 15,000; "large" ones have 100 KB of
HTML, as a page of the real web has at the median. In one load the pages come over TLS.

The model gives no first answer before all agents have asked; then they get them spread over the time of one call.
"""

import os
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import mean, median

from benchmarks.child import answer, arguments, run_child
from benchmarks.databases import Databases
from benchmarks.fake_model import Play, allow_many_files, fake_model
from benchmarks.page import trust_test_pages
from benchmarks.report import Bar, Cell, Options, Report, Table, percentile
from gligabao.app import Services, open_services
from gligabao.config import Config
from gligabao.logs import configure_logs
from gligabao.records import Run, State, Status

STEPS = 8
LARGE_PAGE_BYTES = 100_000
MAX_MB = 1500


@dataclass(frozen=True, slots=True)
class Load:
    """So many agents, and how long the model takes to answer them."""

    agents: int
    latency_seconds: float
    database: str = "sqlite"
    page_bytes: int = 20_000
    pages_over: str = "http"
    steps: int = STEPS


LOADS = (
    Load(200, 5),
    Load(200, 1),
    Load(500, 5),
    Load(1000, 5),
    Load(1000, 5, "postgres"),
    Load(200, 5, page_bytes=LARGE_PAGE_BYTES),
    Load(200, 5, pages_over="https"),
)
SMALL_LOADS = (Load(20, 0.2), Load(20, 0.2, "postgres"), Load(20, 0.2, pages_over="https"))


def states_of(steps: int) -> int:
    """Return how many states a run has: starting, a thought and a page each step, the report, the end."""
    return 1 + 2 * (steps - 1) + 1 + 1


def work(database_url: str, model_url: str, agents: int, steps: int) -> dict:
    """Run the agents in this process and return what they cost and what was stored of them."""
    allow_many_files()
    trust_test_pages()
    with tempfile.TemporaryDirectory() as folder:
        services = open_services(
            Config(
                database_url=database_url,
                data_dir=Path(folder),
                anthropic_api_key="k",
                anthropic_base_url=model_url,
                fetch_allow=["127.0.0.1", "::1"],
                max_working=agents,
            )
        )
        try:
            return _work(services, agents, steps)
        finally:
            services.close()


def _work(services: Services, agents: int, steps: int) -> dict:
    base_mb = memory_mb("VmRSS")
    before = os.times()
    started = [
        services.manager.start(
            user_id=f"u{number // 3}", topic=f"Topic {number}", max_steps=steps, model="", dataset="main"
        )
        for number in range(agents)
    ]
    while services.manager.working:
        time.sleep(0.05)
    after = os.times()
    found = {
        "user_seconds": after.user - before.user,
        "system_seconds": after.system - before.system,
        "base_mb": base_mb,
        "peak_mb": memory_mb("VmHWM"),
    }
    ended = [services.runs.get_run_with_states(run.id, user_id=run.user_id) for run in started]
    return found | _check([pair for pair in ended if pair], steps)


def _check(ended: list[tuple[Run, list[State]]], steps: int) -> dict:
    began, finished = [run.created_at for run, _ in ended], [run.finished_at or "" for run, _ in ended]
    return {
        "completed": sum(run.status is Status.COMPLETED and run.steps == steps for run, _ in ended),
        "states": sum(len(states) for _, states in ended),
        "tool_errors": sum(bool(state.error) for _, states in ended for state in states),
        "gaps": sum([state.seq for state in states] != list(range(1, len(states) + 1)) for _, states in ended),
        "at_once": max(began) < min(finished),
        "work_seconds": [_seconds_after_first_answer(states) for _, states in ended],
    }


def _seconds_after_first_answer(states: list[State]) -> float:
    """Return how long a run went on after its first step, which waits until all agents are there."""
    first, last = states[1].finished_at or "", states[-1].started_at
    return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()


def memory_mb(name: str) -> float:
    """Return a figure of this process's memory: `VmRSS` now, `VmHWM` the most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def measure(databases: Databases, loads: tuple[Load, ...]) -> Report:
    """Return what each load cost, each in a process of its own."""
    report = Report("agents")
    rows: list[list[Cell]] = []
    for load in loads:
        if load.database in databases.kinds:
            found = _measure(databases, load)
            rows.append(_row(load, found))
            report.bars += _bars(load, found) if load.page_bytes < LARGE_PAGE_BYTES else []
    columns = ("agents", "model s", "database", "page KB", "pages over", "faults", "model calls", "states stored")
    columns += ("CPU ms/step", "of it system", "steps/s asked", "steps/s", "late ms/step p50", "p99")
    columns += ("base MB", "peak MB", "KB/agent", "model late ms")
    title = f"Agents at once, {STEPS} steps each; late is how much longer a step took than the model's own time"
    report.tables.append(Table(title, columns, rows))
    report.notes += databases.notes
    return report


def _measure(databases: Databases, load: Load) -> dict:
    play = Play(load.steps, load.latency_seconds, "fetch_url", load.page_bytes, load.pages_over, load.agents)
    with databases.new(load.database) as url, fake_model(play) as model:
        found: dict = run_child("agents", url, model.url, load.agents, load.steps)
        return found | {"model": model.stats()}


def _faults(load: Load, found: dict) -> list[str]:
    """Return what is not as it should be."""
    calls = load.agents * load.steps
    wanted = {
        "runs completed": (found["completed"], load.agents),
        "states stored": (found["states"], load.agents * states_of(load.steps)),
        "model calls": (found["model"]["calls"], calls),
        "pages": (found["model"]["pages"], calls - load.agents),
        "tool errors": (found["tool_errors"], 0),
        "runs with a gap": (found["gaps"], 0),
        "all at work at once": (found["at_once"], True),
    }
    return [f"{what} {got:,} instead of {want:,}" for what, (got, want) in wanted.items() if got != want]


def _row(load: Load, found: dict) -> list[Cell]:
    calls = load.agents * load.steps
    late_ms = [(seconds / (load.steps - 1) - load.latency_seconds) * 1000 for seconds in found["work_seconds"]]
    cpu_seconds = found["user_seconds"] + found["system_seconds"]
    return [
        *(load.agents, load.latency_seconds, load.database, load.page_bytes // 1000, load.pages_over),
        "; ".join(_faults(load, found)) or "none",
        *(found["model"]["calls"], found["states"]),
        *(cpu_seconds * 1000 / calls, found["system_seconds"] * 1000 / calls),
        *(load.agents / load.latency_seconds, load.agents * (load.steps - 1) / mean(found["work_seconds"])),
        *(median(late_ms), percentile(late_ms, 0.99), found["base_mb"], found["peak_mb"]),
        *((found["peak_mb"] - found["base_mb"]) * 1024 / load.agents, found["model"]["late_ms"]),
    ]


def _bars(load: Load, found: dict) -> list[Bar]:
    faults = _faults(load, found)
    what = f"{load.agents:,} agents, {load.latency_seconds:g} s a model call, {load.database}"
    what += ", pages over TLS" if load.pages_over == "https" else ""
    bars = [Bar(what, "no error, every state stored", "; ".join(faults) or "yes", not faults)]
    if load.agents >= 1000:
        peak = found["peak_mb"]
        bars.append(Bar(f"memory of the process with {what}", f"under {MAX_MB:,} MB", f"{peak:,.0f} MB", peak < MAX_MB))
    return bars


def run(options: Options) -> Report:
    """Measure."""
    with Databases() as databases:
        return measure(databases, SMALL_LOADS if options.quick else LOADS)


if __name__ == "__main__":
    configure_logs("text")
    answer(work(*arguments()))
