"""State changes a second: a state ended, the next one begun and the run's figures written, in one transaction.

A closed loop: every thread owns a run and stores one change after the other, as fast as it can. Agents do about two
a step. Beside SQLite stands a floor: the same three statements through the bare driver, one connection and a plain
lock, without fence, names, checks or turns.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.databases import Databases
from benchmarks.report import Bar, Cell, Options, Report, Table, percentile
from gligabao.records import NewRun, State, StateName, Totals, Usage, now
from gligabao.store.database import open_database, sqlite_path
from gligabao.store.migrate import migrate
from gligabao.store.runs import Runs

THREADS = (1, 16, 200)
SECONDS = 5.0

Change = Callable[[int], None]
"""Stores the change number so-and-so of one run."""


class Loop:
    """Threads that store changes for a while. What each has done is its own list until all have ended."""

    def __init__(self, make_change: Callable[[int], Change], threads: int) -> None:
        self._stop = threading.Event()
        self._ready = threading.Barrier(threads + 1)
        self.times: list[list[float]] = [[] for _ in range(threads)]
        self.cpu_ms = 0.0
        self.seconds = 0.0
        changes = [make_change(number) for number in range(threads)]
        self._threads = [
            threading.Thread(target=self._work, args=pair) for pair in zip(changes, self.times, strict=True)
        ]

    def run(self, seconds: float) -> None:
        """Let the threads work for that long."""
        for thread in self._threads:
            thread.start()
        self._ready.wait()
        began, cpu = time.perf_counter(), time.process_time()
        time.sleep(seconds)
        self._stop.set()
        self.seconds = time.perf_counter() - began
        done = sum(map(len, self.times))
        self.cpu_ms = (time.process_time() - cpu) * 1000 / max(1, done)
        for thread in self._threads:
            thread.join()

    def row(self) -> list[float]:
        """Return changes a second, p50, p99 and the longest in ms, the least-served thread against the mean, CPU."""
        all_times = [one * 1000 for times in self.times for one in times]
        counts = [len(times) for times in self.times]
        return [
            len(all_times) / self.seconds,
            percentile(all_times, 0.5),
            percentile(all_times, 0.99),
            max(all_times),
            min(counts) * len(counts) / sum(counts),
            self.cpu_ms,
        ]

    def _work(self, change: Change, times: list[float]) -> None:
        self._ready.wait()
        number = 1
        while not self._stop.is_set():
            began = time.perf_counter()
            change(number)
            times.append(time.perf_counter() - began)
            number += 1


@contextmanager
def our_changes(url: str) -> Iterator[Callable[[int], Change]]:
    """Give what makes a run and returns the function that stores its changes through `Runs`."""
    db = open_database(url)
    migrate(db)
    runs = Runs(db)

    def make(number: int) -> Change:
        new = NewRun(user_id=f"u{number}", topic="The topic", model="m", max_steps=20, priced=True)
        run = runs.start_run(new, owner="bench", max_working=3)

        def change(seq: int) -> None:
            at = now()
            ended = State(seq, StateName.THINKING, 3, "step 3 of 20", at, finished_at=at)
            entered = State(seq + 1, StateName.READING, 3, "https://example.com/a/page", at)
            totals = Totals(3, seq, Usage(1000 * seq, 100 * seq))
            runs.save_progress(run.id, owner="bench", states=[ended, entered], totals=totals)

        return change

    try:
        yield make
    finally:
        db.close()


@contextmanager
def bare_changes(url: str) -> Iterator[Callable[[int], Change]]:
    """Give the same without our code: one connection of the driver and a lock around it."""
    with our_changes(url) as make_ours:
        make_ours(-1)  # makes the tables
    lock = threading.Lock()
    connection = sqlite3.connect(sqlite_path(url), isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = NORMAL")

    def make(number: int) -> Change:
        insert = (
            "INSERT INTO gb_agent_research_runs (user_id, name, reason, topic, status, state, model, max_steps, steps,"
            " tool_calls, input_tokens, output_tokens, report, error, owner, created_at)"
            " VALUES (?, '', '', 'The topic', 'running', 'starting', 'm', 20, 0, 0, 0, 0, '', '', 'bench', ?)"
        )
        run_id = connection.execute(insert, (f"u{number}", now())).lastrowid

        def change(seq: int) -> None:
            at = now()
            with lock:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(_BARE_RUN, ("reading", 3, seq, 1000 * seq, 100 * seq, run_id))
                connection.execute(_BARE_END, (at, run_id, seq))
                connection.execute(_BARE_STATE, (run_id, seq + 1, 3, "reading", "https://example.com/a/page", at))
                connection.execute("COMMIT")

        return change

    try:
        yield make
    finally:
        connection.close()


_BARE_RUN = (
    "UPDATE gb_agent_research_runs SET state = ?, steps = ?, tool_calls = ?, input_tokens = ?, output_tokens = ?"
    " WHERE id = ?"
)
_BARE_END = "UPDATE gb_agent_research_states SET finished_at = ? WHERE run_id = ? AND seq = ?"
_BARE_STATE = (
    "INSERT INTO gb_agent_research_states (run_id, seq, step, state, detail, error, started_at)"
    " VALUES (?, ?, ?, ?, ?, '', ?)"
)


def measure(databases: Databases, *, threads: tuple[int, ...] = THREADS, seconds: float = SECONDS) -> Report:
    """Return the rates on each database from so many threads."""
    report = Report("store")
    kinds = [(kind, our_changes) for kind in databases.kinds]
    kinds.insert(1, ("sqlite, bare driver", bare_changes))
    rows: list[list[Cell]] = []
    for count in threads:
        for kind, changes in kinds:
            with databases.new(kind.partition(",")[0]) as url, changes(url) as make:
                loop = Loop(make, count)
                loop.run(seconds)
            rows.append([kind, count, *loop.row()])
    columns = ("database", "threads", "changes/s", "p50 ms", "p99 ms", "longest ms", "least/mean", "CPU ms")
    report.tables.append(
        Table(f"State changes, {seconds:g} s each; CPU is this process's, for one change", columns, rows)
    )
    report.bars += _bars(next(row for row in rows if row[:2] == ["sqlite", threads[-1]]))
    report.notes += databases.notes
    return report


def _bars(row: list) -> list[Bar]:
    _, threads, rate, _, _, _, least, _ = row
    return [
        Bar(f"changes a second from {threads} threads on SQLite", "at least 2,000", f"{rate:,.0f}", rate >= 2000),
        Bar("its least-served thread against the mean", "at least 1/3", f"{least:.2f}", least >= 1 / 3),
    ]


def run(options: Options) -> Report:
    """Measure."""
    with Databases() as databases:
        return measure(databases, seconds=0.5 if options.quick else SECONDS)
