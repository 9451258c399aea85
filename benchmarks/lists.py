"""Lists, single runs and counts as the database grows: each read at 1,000, 100,000 and 1,000,000 runs.

Every read answers the same number of rows at every size, through `Runs` and so with the rows made into values. Half
of the runs are one heavy user's; the others are users' with 50 runs each, spread over the whole table.
"""

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psycopg

from benchmarks.databases import Databases
from benchmarks.report import Bar, Cell, Options, Report, Table, percentile
from gligabao.records import Status
from gligabao.store.database import Database, open_database, sqlite_path
from gligabao.store.migrate import migrate
from gligabao.store.runs import Runs

SIZES = (1_000, 100_000, 1_000_000)
TIMES = 300
PAGE = 50
LONG_RUNS = 100
"""How many runs have 40 states; the others have two."""
BARS_MS = {"sqlite": 1.0, "postgres": 2.0}

REPORT = "What the research found, with its sources. " * 12
AT = "2026-11-01T10:00:00.120Z"
RUN_COLUMNS = (
    *("user_id", "parent_id", "name", "reason", "topic", "status", "state", "model", "max_steps", "steps"),
    *("tool_calls", "input_tokens", "output_tokens", "cost_usd", "report", "error", "stop_reason", "owner"),
    *("created_at", "finished_at"),
)
STATE_COLUMNS = ("run_id", "seq", "step", "state", "detail", "error", "started_at", "finished_at")

Read = Callable[[Runs, Database, int], Any]
"""Reads once; the number differs each time."""


def make_runs(size: int) -> Iterator[tuple]:
    """Make the rows of so many runs, in the order of their ids: 1, 2, 3, ..."""
    return (_make_run(number, size) for number in range(1, size + 1))


def _make_run(number: int, size: int) -> tuple:
    heavy = number % 2 == 1
    user = "heavy" if heavy else f"light-{number // 2 % (size // 100)}"
    place = number % 100
    # In each hundred the heavy user's first run has ten sub-agents.
    parent_id = number - place + 1 if heavy and 3 <= place <= 21 else None
    status = "completed"
    if number > size - 6:
        status = "running"
    elif place in (5, 25, 45, 65, 85):
        status = "failed"
    ended = status != "running"
    return (
        *(user, parent_id, f"agent-{number}" if parent_id else "", "", f"Topic {number}", status),
        *(status if ended else "thinking", "claude-sonnet-5-5", 20, 19, 20, 120_000, 9_000, 0.4321),
        *(REPORT if ended else "", "", "answered" if ended else None, "bench", AT, AT if ended else None),
    )


def make_states(size: int) -> Iterator[tuple]:
    """Make the rows of the states of so many runs."""
    for number in range(1, size + 1):
        count = 40 if is_long(number, size) else 2
        for seq in range(1, count + 1):
            yield (number, seq, seq // 2, "thinking", f"step {seq // 2} of 20", "", AT, AT)


def is_long(number: int, size: int) -> bool:
    """Tell whether a run has 40 states."""
    return number % (size // LONG_RUNS) == 1


def fill(url: str, size: int) -> None:
    """Put so many runs into an empty database that has its tables."""
    filler = _fill_postgres if url.startswith("postgresql") else _fill_sqlite
    filler(
        url,
        {
            "gb_agent_research_runs": (RUN_COLUMNS, make_runs(size)),
            "gb_agent_research_states": (STATE_COLUMNS, make_states(size)),
        },
    )


Rows = dict[str, tuple[tuple[str, ...], Iterable[tuple]]]


def _fill_sqlite(url: str, tables: Rows) -> None:
    connection = sqlite3.connect(sqlite_path(url))
    with connection:
        for table, (columns, rows) in tables.items():
            places = ", ".join("?" * len(columns))
            connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})", rows)
    connection.close()


def _fill_postgres(url: str, tables: Rows) -> None:
    with psycopg.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        for table, (columns, rows) in tables.items():
            with cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
        # As a server in use is by its own housekeeping: rows visible to all, statistics up to date.
        cursor.execute("VACUUM ANALYZE")


def reads(size: int) -> dict[str, tuple[int, Read]]:
    """Return the reads by their names, each with the number of rows that it must answer."""

    def listing(user: str, **filters: Any) -> Read:
        given = {"status": None, "parent_id": None, "before": None} | filters
        return lambda runs, db, number: runs.list_runs(user_id=user, limit=PAGE, **given)

    def parent(number: int) -> int:
        return 1 + 100 * (number * 7919 % (size // 100))

    def long_run(number: int) -> int:
        return 1 + size // LONG_RUNS * (number * 37 % LONG_RUNS)

    return {
        "newest 50, heavy user": (PAGE, listing("heavy")),
        "50 from the middle on, heavy user": (PAGE, listing("heavy", before=size // 2)),
        "newest 50, light user": (PAGE, listing("light-3")),
        "failed, heavy user": (PAGE, listing("heavy", status=Status.FAILED)),
        "active, heavy user": (3, listing("heavy", status=Status.RUNNING)),
        "sub-agents of a run": (
            10,
            lambda runs, db, number: listing("heavy", parent_id=parent(number))(runs, db, number),
        ),
        "a run with 40 states": (
            40,
            lambda runs, db, number: (runs.get_run_with_states(long_run(number), user_id="heavy") or (None, []))[1],
        ),
        "count of working, for the limit": (1, lambda runs, db, number: db.fetch_all("count_working", user_id="heavy")),
        "all at work on a node": (6, lambda runs, db, number: runs.list_running(owner="bench")),
    }


def time_reads(url: str, size: int, times: int) -> dict[str, tuple[float, float]]:
    """Return p50 and p99 of each read in ms, one after the other on one thread."""
    db = open_database(url)
    try:
        return {name: _time(read, rows, Runs(db), db, times, name) for name, (rows, read) in reads(size).items()}
    finally:
        db.close()


def _time(read: Read, rows: int, runs: Runs, db: Database, times: int, name: str) -> tuple[float, float]:
    took = []
    for number in range(-times // 10, times):  # the first tenth warms the caches
        began = time.perf_counter()
        answer = read(runs, db, number)
        if number >= 0:
            took.append((time.perf_counter() - began) * 1000)
        if len(answer) != rows:
            raise RuntimeError(f"{name}: {len(answer)} rows instead of {rows}")
    return percentile(took, 0.5), percentile(took, 0.99)


def measure(databases: Databases, *, sizes: tuple[int, ...] = SIZES, times: int = TIMES) -> Report:
    """Return the times of all reads at each size, on each database."""
    report = Report("lists")
    for kind in databases.kinds:
        by_size: dict[int, dict[str, tuple[float, float]]] = {}
        fill_seconds = []
        for size in sizes:
            with databases.new(kind) as url:
                began = time.perf_counter()
                _make_tables(url)
                fill(url, size)
                fill_seconds.append(f"{size:,} in {time.perf_counter() - began:.1f} s")
                by_size[size] = time_reads(url, size, times)
        report.tables.append(_table(kind, by_size))
        report.bars += _bars(kind, by_size)
        report.notes.append(f"{kind}, filled with runs: {', '.join(fill_seconds)}.")
    report.notes += databases.notes
    return report


def _make_tables(url: str) -> None:
    db = open_database(url)
    migrate(db)
    db.close()


def _table(kind: str, by_size: dict[int, dict[str, tuple[float, float]]]) -> Table:
    first, last = min(by_size), max(by_size)
    columns = ["read", "rows"]
    columns += [f"{size:,}: {share} ms" for size in by_size for share in ("p50", "p99")]
    rows: list[list[Cell]] = []
    for name, (count, _) in reads(last).items():
        ratio = by_size[last][name][0] / by_size[first][name][0]
        rows.append([name, count, *(figure for size in by_size for figure in by_size[size][name]), ratio])
    return Table(f"{kind}: reads by the number of runs", [*columns, f"p50 {last:,} / {first:,}"], rows)


def _bars(kind: str, by_size: dict[int, dict[str, tuple[float, float]]]) -> list[Bar]:
    first, last = min(by_size), max(by_size)
    p50 = {name: by_size[last][name][0] for name in by_size[last]}
    ratios = {name: p50[name] / by_size[first][name][0] for name in p50}
    over = [name for name in p50 if ratios[name] > 2 and p50[name] > BARS_MS[kind]]
    slowest, steepest = max(p50, key=lambda name: p50[name]), max(ratios, key=lambda name: ratios[name])
    measured = f"slowest p50 {p50[slowest]:.2f} ms ({slowest}), steepest {ratios[steepest]:.1f} times ({steepest})"
    limit = f"at most twice the time at {first:,}, or under {BARS_MS[kind]:g} ms"
    return [Bar(f"reads at {last:,} runs on {kind}", limit, ", ".join([measured, *over]), not over)]


def run(options: Options) -> Report:
    """Measure."""
    sizes, times = ((1_000, 10_000), 50) if options.quick else (SIZES, TIMES)
    with Databases() as databases:
        return measure(databases, sizes=sizes, times=times)
