"""The checker: what must hold of a database whose server has ended, whatever happened to the server.

Every test of a fault ends with it. It reads the rows with the plain drivers, so that a fault of the store cannot hide
itself, and rebuilds from them what cannot be seen at once: how many worked at the same time, who was whose child, and
whether the figures are those that the simulated model billed.
"""

import itertools
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from gligabao.records import format_time
from gligabao.simulator import Totals
from gligabao.store.database import is_sqlite, sqlite_path

Row = dict[str, Any]

TERMINAL = ("completed", "failed")
MAX_CHILDREN = 5
MAX_IN_TREE = 10
MAX_DEPTH = 2


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found, for the figures of a test."""

    runs: list[Row]
    states: int
    lost_calls: int
    """Calls that were billed and are missing in the rows."""

    @property
    def ends(self) -> dict[str, int]:
        """How many runs ended for which reason."""
        return dict(sorted(Counter(run["stop_reason"] for run in self.runs).items()))


def check_database(
    database_url: str,
    *,
    billed: Totals | None = None,
    charges: Mapping[str, Sequence[Totals]] | None = None,
    max_lost_calls: int = 0,
    started: Collection[int] | None = None,
    unanswered: int = 0,
    max_working: int | None = 3,
) -> Checked:
    """Check all runs of the database and return what was found.

    `billed` is the bill of all of them together, to be met exactly. `charges` are the bills by topic after each call
    in order (`BilledSimulator.charges`): a run may lack the last `max_lost_calls` of them. `started` are the ids that
    were answered with a 202; as many as `unanswered` roots may have had none. `max_working` None: the clock was set
    while the server ran, so that the times tell nothing about what was at the same time.
    """
    runs, states = read_rows(database_url)
    by_run: dict[int, list[Row]] = {run["id"]: [] for run in runs}
    for state in states:
        by_run[state["run_id"]].append(state)
    for run in runs:
        check_run(run, by_run[run["id"]])
    _check_trees(runs)
    if max_working is not None:
        _check_working(runs, max_working)
    if started is not None:
        _check_started(runs, started, unanswered)
    if billed is not None:
        check_bill(runs, billed)
    lost = [_lost_calls(run, charges.get(run["topic"], ()), max_lost_calls) for run in runs] if charges else []
    return Checked(runs, len(states), sum(lost))


def read_rows(database_url: str) -> tuple[list[Row], list[Row]]:
    """Return the runs and the states of a database, with times as REST gives them."""
    queries = (
        "SELECT * FROM gb_agent_research_runs ORDER BY id",
        "SELECT * FROM gb_agent_research_states ORDER BY run_id, seq",
    )
    if is_sqlite(database_url):
        return _read_sqlite(database_url, *queries)
    with psycopg.connect(database_url, row_factory=dict_row) as connection:
        runs, states = ([_with_times(row) for row in connection.execute(query)] for query in queries)
    return runs, states


def check_run(run: Mapping[str, Any], states: Sequence[Mapping[str, Any]] | None = None) -> None:
    """Check what holds for every run that has ended: its states, their order and times, its end.

    Takes a run with its states as REST answers it, or a row and the rows of its states.
    """
    states = run["states"] if states is None else states
    name = f"run {run['id']}"
    assert run["status"] in TERMINAL, f"{name} is {run['status']}"
    assert [state["seq"] for state in states] == list(range(1, len(states) + 1)), f"{name}: seq has a gap"
    assert len(states) >= 2 and states[0]["state"] == "starting", f"{name} does not begin with starting"
    assert states[-1]["state"] == run["state"] == run["status"], f"{name}: last state and status differ"
    ends = [state["state"] for state in states if state["state"] in TERMINAL]
    assert len(ends) == 1, f"{name} has more than one end: {ends}"
    _check_times(name, run, states)
    assert bool(run["report"].strip()) == (run["status"] == "completed"), f"{name}: status and report do not fit"
    assert bool(run["error"].strip()) == (run["status"] == "failed"), f"{name}: status and error do not fit"
    assert run["stop_reason"], f"{name} has no stop_reason"
    assert states[-1]["error"] == run["error"], f"{name}: the last state has another error"
    assert not run["error"] or states[-2]["error"], f"{name}: the state that failed carries no error"


def check_bill(runs: Iterable[Mapping[str, Any]], billed: Totals) -> None:
    """Check that the runs together say what was billed."""
    assert _differences(list(runs), billed) == [], f"the rows and the bill differ: {_differences(list(runs), billed)}"


def dollars(billed: Totals) -> float:
    """Return what these calls cost on Sonnet 5.5, by its list price for a million tokens; a search is a cent."""
    tokens = 2 * billed.input_tokens + 2.5 * billed.cache_creation + 0.1 * billed.cache_read + 10 * billed.output_tokens
    return tokens / 1e6 + 0.01 * billed.web_search_requests


def _read_sqlite(database_url: str, *queries: str) -> tuple[list[Row], list[Row]]:
    connection = sqlite3.connect(sqlite_path(database_url))
    try:
        connection.row_factory = sqlite3.Row
        runs, states = ([dict(row) for row in connection.execute(query)] for query in queries)
        return runs, states
    finally:
        connection.close()


def _with_times(row: Row) -> Row:
    return {key: format_time(value) if isinstance(value, datetime) else value for key, value in row.items()}


def _check_times(name: str, run: Mapping[str, Any], states: Sequence[Mapping[str, Any]]) -> None:
    times = [time for state in states for time in (state["started_at"], state["finished_at"])]
    assert None not in times, f"{name} has a state that was not ended"
    assert times == sorted(times), f"{name}: its times go back"
    pairs = itertools.pairwise(states)
    assert all(one["finished_at"] == next_one["started_at"] for one, next_one in pairs), f"{name}: time is missing"
    assert run["created_at"] == states[0]["started_at"], f"{name} was not created with its first state"
    last = states[-1]
    assert last["started_at"] == last["finished_at"] == run["finished_at"], f"{name}: it ended at another time"


def _check_trees(runs: Sequence[Row]) -> None:
    """Check the children: how many, how deep, and that none outlives its parent."""
    by_id = {run["id"]: run for run in runs}
    children = Counter(run["parent_id"] for run in runs if run["parent_id"] is not None)
    for parent_id, count in children.items():
        assert count <= MAX_CHILDREN, f"run {parent_id} has {count} children"
    in_tree: Counter[int] = Counter()
    for run in runs:
        ancestors = _ancestors(run, by_id)
        assert len(ancestors) <= MAX_DEPTH, f"run {run['id']} is {len(ancestors)} levels deep"
        if ancestors:
            parent = ancestors[0]
            assert parent["finished_at"] >= run["finished_at"], f"run {parent['id']} ended before its child {run['id']}"
            assert parent["user_id"] == run["user_id"], f"run {run['id']} is not its parent's user's"
            in_tree[ancestors[-1]["id"]] += 1
    for root_id, count in in_tree.items():
        assert count <= MAX_IN_TREE, f"the tree of run {root_id} has {count} sub-agents"


def _ancestors(run: Row, by_id: Mapping[int, Row]) -> list[Row]:
    found = []
    while run["parent_id"] is not None:
        run = by_id[run["parent_id"]]
        found.append(run)
    return found


def _check_working(runs: Sequence[Row], max_working: int) -> None:
    """Check that no user had more roots at work than allowed, at any moment."""
    moments: dict[str, list[tuple[str, int, int]]] = {}
    for run in runs:
        if run["parent_id"] is None:
            begin, end = run["created_at"], run["finished_at"]
            # In one millisecond those that end come before those that begin, and one that did both ends last.
            of_user = moments.setdefault(run["user_id"], [])
            of_user += [(begin, 1, +1), (end, 2 if begin == end else 0, -1)]
    for user, changes in moments.items():
        most = max(itertools.accumulate(change for _, _, change in sorted(changes)))
        assert most <= max_working, f"user {user} had {most} researches at work at once"


def _check_started(runs: Sequence[Row], started: Collection[int], unanswered: int) -> None:
    ids = {run["id"] for run in runs}
    assert not set(started) - ids, f"answered with a 202 but not stored: {sorted(set(started) - ids)}"
    roots = {run["id"] for run in runs if run["parent_id"] is None}
    strange = sorted(roots - set(started))
    assert len(strange) <= unanswered, f"stored, but neither answered with a 202 nor spawned: {strange}"


def _lost_calls(run: Row, bills: Sequence[Totals], max_lost_calls: int) -> int:
    """Return how many of the last calls are missing in the run."""
    for lost, bill in enumerate(reversed([Totals(), *bills])):
        if not _differences([run], bill):
            assert lost <= max_lost_calls, f"run {run['id']} lacks its last {lost} calls"
            return lost
    shown = (run["input_tokens"], run["output_tokens"], run["cost_usd"])
    raise AssertionError(f"run {run['id']} says {shown}, which was billed at no time: {bills[-3:]}")


def _differences(runs: Sequence[Mapping[str, Any]], billed: Totals) -> list[str]:
    pairs = {
        "input_tokens": (sum(run["input_tokens"] for run in runs), billed.prompt_tokens),
        "output_tokens": (sum(run["output_tokens"] for run in runs), billed.output_tokens),
    }
    if all(run["cost_usd"] is not None for run in runs):
        # Each run is rounded to a millionth of a dollar.
        expected = pytest.approx(dollars(billed), abs=1e-6 * max(1, len(runs)))
        pairs["cost_usd"] = (sum(run["cost_usd"] for run in runs), expected)
    return [f"{name}: {said} in the rows, {bill} billed" for name, (said, bill) in pairs.items() if said != bill]
