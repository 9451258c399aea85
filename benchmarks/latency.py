"""How long a GET of a run with its 40 states takes, 25 a second, while agents work in the same process.

A real server, asked from another process over 32 connections that stay open, whichever is free. A request's time runs
from the moment at which it was due, not from when it was sent: a server that stands still is late for every request.
"""

import queue
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.databases import Databases
from benchmarks.fake_model import FakeModel, Play, fake_model
from benchmarks.report import Bar, Cell, Options, Report, Table, percentile
from benchmarks.serving import Client, server, start_agents
from gligabao.records import Ending, NewRun, State, StateName, Status, StopReason, Totals, now
from gligabao.store.database import open_database
from gligabao.store.migrate import migrate
from gligabao.store.runs import Runs

RATE = 25
CONNECTIONS = 32
SECONDS = 25.0
WARM_SECONDS = 3.0
STATES = 40
MAX_P99_MS = 50
MAX_STEPS = 40


@dataclass(frozen=True, slots=True)
class Load:
    """What the server does beside: so many agents, and how long the model takes to answer them."""

    agents: int
    latency_seconds: float = 1.0
    database: str = "sqlite"
    reads_pages: bool = True
    """False: the model calls a tool that there is not, so that a step is a model call and two states."""


LOADS = (
    *(Load(0), Load(200, 5), Load(200, 1), Load(200, 1, reads_pages=False)),
    *(Load(0, database="postgres"), Load(200, 5, "postgres"), Load(200, 1, "postgres")),
    Load(200, 1, "postgres", reads_pages=False),
)
SMALL_LOADS = (Load(0), Load(10))


def store_run(database_url: str) -> dict:
    """Store an ended run with 40 states in a database that no server has open yet; return its id and user."""
    db = open_database(database_url)
    try:
        migrate(db)
        runs = Runs(db)
        new = NewRun(user_id="reader", topic="The topic", model="m", max_steps=20, priced=True)
        run = runs.start_run(new, owner="bench", max_working=3)
        at = now()
        states = [State(1, StateName.STARTING, 0, "", at, finished_at=at)]
        states += [_state(seq, at) for seq in range(2, STATES)]
        states.append(State(STATES, StateName.COMPLETED, 0, "", at, finished_at=at))
        ending = Ending(Status.COMPLETED, StopReason.ANSWERED, report="What the research found. " * 100)
        runs.end_run(run.id, owner="bench", states=states, totals=Totals(19, 19), ending=ending)
    finally:
        db.close()
    return {"id": run.id, "user_id": "reader"}


def _state(seq: int, at: str) -> State:
    name, detail = (StateName.READING, "https://example.com/page") if seq % 2 else (StateName.THINKING, "step 3 of 20")
    return State(seq, name, seq // 2, detail, at, finished_at=at)


def probe(port: int, run: dict, seconds: float) -> list[float]:
    """Ask for the run at the rate, and return how many ms after it was due each answer was there."""
    clients: queue.SimpleQueue[Client] = queue.SimpleQueue()
    for _ in range(CONNECTIONS):
        clients.put(Client(port))
    begin = time.perf_counter()

    def ask(due: float) -> float:
        client = clients.get()
        states = client.get(run)["states"]
        clients.put(client)
        assert len(states) == STATES
        return (time.perf_counter() - due) * 1000

    with ThreadPoolExecutor(CONNECTIONS) as askers:
        answers = []
        for number in range(int(seconds * RATE)):
            due = begin + number / RATE
            time.sleep(max(0.0, due - time.perf_counter()))
            answers.append(askers.submit(ask, due))
        took = [answer.result() for answer in answers]
    while not clients.empty():
        clients.get().close()
    return took


def measure(databases: Databases, loads: tuple[Load, ...], *, seconds: float = SECONDS) -> Report:
    """Return the times under each load."""
    report = Report("latency")
    rows: list[list[Cell]] = []
    for load in loads:
        if load.database in databases.kinds:
            found = _measure(databases, load, seconds)
            idle = next((row[5] for row in rows if row[:2] == [load.database, 0]), found["p50"])
            latency_seconds = load.latency_seconds if load.agents else None
            figures = (found["p50"], found["p99"], found["longest"], found["p50"] / idle)
            pages = ("yes" if load.reads_pages else "no") if load.agents else None
            rows.append([load.database, load.agents, latency_seconds, pages, found["calls"], *figures])
            report.bars += _bars(load, found)
    columns = (
        "database",
        "agents",
        "model s",
        "pages read",
        "model calls/s",
        "p50 ms",
        "p99 ms",
        "longest ms",
        "p50 / idle",
    )
    title = f"GET of a run with {STATES} states, {RATE} a second for {seconds:g} s"
    report.tables.append(Table(title, columns, rows))
    report.notes += databases.notes
    return report


def _measure(databases: Databases, load: Load, seconds: float) -> dict:
    play = Play(MAX_STEPS, load.latency_seconds, "fetch_url" if load.reads_pages else "lookup")
    with databases.new(load.database) as url, fake_model(play) as model:
        run = store_run(url)
        with server(url, model) as process:
            if load.agents:
                start_agents(process.port, load.agents, steps=MAX_STEPS)
            probe(process.port, run, WARM_SECONDS)
            return _probe_and_count(process.port, run, seconds, model)


def _probe_and_count(port: int, run: dict, seconds: float, model: FakeModel) -> dict:
    calls = model.stats()["calls"]
    took = probe(port, run, seconds)
    return {
        "calls": (model.stats()["calls"] - calls) / seconds,
        "p50": percentile(took, 0.5),
        "p99": percentile(took, 0.99),
        "longest": max(took),
    }


def _bars(load: Load, found: dict) -> list[Bar]:
    if load.agents < 200 or load.latency_seconds > 1:
        return []
    pages = "a page" if load.reads_pages else "no page"
    what = f"p99 of GET, {load.agents} agents, {load.latency_seconds:g} s and {pages} a step, {load.database}"
    p99 = found["p99"]
    return [Bar(what, f"within {MAX_P99_MS} ms", f"{p99:.1f} ms", p99 <= MAX_P99_MS)]


def run(options: Options) -> Report:
    """Measure."""
    with Databases() as databases:
        return measure(databases, SMALL_LOADS, seconds=3) if options.quick else measure(databases, LOADS)
