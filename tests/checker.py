"""The checker: what must hold of a database whose server has ended, whatever happened to the server.

Every test of a fault ends with it. It reads the rows with the plain drivers, so that a fault of the store cannot hide
itself, and rebuilds from them what cannot be seen at once: how many worked at the same time, who was whose child, which
way each agent went, and whether the figures are those that the simulated model billed.
"""

import functools
import itertools
import re
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from gligabao.model.prices import Prices
from gligabao.records import INTERRUPTED, StateName, format_time
from gligabao.research.manager import NO_INBOX, NO_THREAD
from gligabao.research.researcher import FAULT
from gligabao.research.team import LOST_START
from gligabao.simulator import Totals
from gligabao.store.database import is_sqlite, sqlite_path

Row = dict[str, Any]
State = Mapping[str, Any]

STATES = frozenset(StateName)
TERMINAL = ("completed", "failed")
STOP_REASONS = {"completed": ("answered", "max_steps", "context"), "failed": ("error", "cancelled", "interrupted")}
NEVER_BEGAN = (LOST_START, NO_THREAD, NO_INBOX)
"""Errors of runs that were stored, and for which no agent was started."""
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
    billed: Totals | Mapping[str, Totals] | None = None,
    charges: Mapping[str, Sequence[Totals]] | None = None,
    max_lost_calls: int = 0,
    reports: Mapping[str, str] | None = None,
    started: Collection[int] | None = None,
    unanswered: int = 0,
    answers: Mapping[int, Mapping[str, Any]] | None = None,
    max_working: int | None = 3,
    prices: Prices | None = None,
) -> Checked:
    """Check all runs of the database and return what was found.

    `billed` is the bill of all of them together, or of those of each model, to be met exactly. `charges` are the bills
    by topic after each call in order (`BilledSimulator.charges`): each that is not empty has a run, and one that was
    interrupted may lack the last `max_lost_calls` of them. `reports` are those that were played, by topic. `started`
    are the ids that were answered with a 202; as many as `unanswered` roots may have had none. `answers` are these
    answers by id. `max_working` None: the clock was set while the server ran, so that the times of one run tell
    nothing about those of another, or about now. `prices` tell which models have one (None: as the library knows).
    """
    runs, states = read_rows(database_url)
    by_run: dict[int, list[Row]] = {run["id"]: [] for run in runs}
    for state in states:
        by_run[state["run_id"]].append(state)
    for run in runs:
        check_run(run, by_run[run["id"]])
        _check_row(run, prices or _library_prices())
    _check_trees(runs)
    _check_spawned(runs, by_run)
    if max_working is not None:
        _check_clock(runs, by_run)
        _check_working(runs, max_working)
    if started is not None:
        _check_started(runs, started, unanswered)
    _check_answers(runs, answers or {})
    _check_reports(runs, reports or {})
    for bill, billed_runs in _bills(runs, billed):
        check_bill(billed_runs, bill)
    return Checked(runs, len(states), _check_charges(runs, charges, max_lost_calls) if charges else 0)


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


def check_run(run: Mapping[str, Any], states: Sequence[State] | None = None) -> None:
    """Check what holds for every run that has ended: its states, their order and times, its figures, its end.

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
    _check_end(name, run, states)
    entered = _entered(name, states)
    _check_way(name, entered)
    _check_details(name, run, entered)
    _check_errors(name, run, states)
    _check_stop(name, run, entered)
    _check_figures(name, run, entered)


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


def _check_end(name: str, run: Mapping[str, Any], states: Sequence[State]) -> None:
    assert bool(run["report"].strip()) == (run["status"] == "completed"), f"{name}: status and report do not fit"
    assert bool(run["error"].strip()) == (run["status"] == "failed"), f"{name}: status and error do not fit"
    assert run["stop_reason"], f"{name} has no stop_reason"
    assert run["stop_reason"] in STOP_REASONS[run["status"]], f"{name} is {run['status']} by {run['stop_reason']}"
    interrupted = run["stop_reason"] == "interrupted"
    assert interrupted == (run["error"] == INTERRUPTED), f"{name}: stop_reason and error do not fit"
    last = states[-1]
    assert last["error"] == run["error"], f"{name}: the last state has another error"
    assert (last["step"], last["detail"]) == (0, ""), f"{name}: the last state has a step or a detail"
    assert not run["error"] or states[-2]["error"], f"{name}: the state that failed carries no error"


# The way of an agent

WAY = {
    "starting": (),
    "thinking": ("starting", "tool"),
    "writing_report": ("starting", "tool"),
    "shortened": ("thinking", "writing_report"),
    "tool": ("thinking", "tool"),
}
"""What each kind of state may come after. `shortened`: the report is written from less, as the prompt was too long."""
NEXT_STEP = ("thinking", "writing_report")
"""The kinds that begin a step; the others belong to the step that was begun."""
DETAILS = {
    "starting": "",
    "thinking": "step {} of {}",
    "writing_report": "step {} of {}, the last: writing the report",
    "shortened": "step {} of {}, the last: the prompt was too long",
}
KINDS_BEFORE = {
    "answered": ("thinking",),
    "max_steps": ("writing_report",),
    "context": ("thinking", "writing_report", "shortened"),
}
"""In which kind of state a report is written, by the reason of the end."""
ASK_MODEL = ("thinking", "writing_report", "searching")
SAY_WHAT = ("searching", "reading", "spawning")
"""Tools whose calls always have a text to show, unless they do not fit the tool."""
RETRY = re.compile(r"[^\n]+, retry (\d+) of \d+")


def _kind(state: State) -> str:
    if state["state"] in ("starting", "thinking"):
        return str(state["state"])
    if state["state"] == "writing_report":
        return "shortened" if "prompt was too long" in state["detail"] else "writing_report"
    return "tool"


def _entered(name: str, states: Sequence[State]) -> list[State]:
    """Return the states that the agent entered to do something: without the repeats for retries, and without the end.

    A second call of a tool whose text ends like the note of a retry would be taken for a repeat; no test has one.
    """
    entered = [states[0]]
    retries = 0
    for state in states[1:-1]:
        assert state["state"] in STATES, f"{name}: there is no state {state['state']}"
        retry = _retry(entered[-1], state)
        assert retry in (0, 1, retries + 1), f"{name}: retry {retry} comes after {retries}"
        retries = retry
        if not retry:
            entered.append(state)
    return entered


def _retry(before: State, state: State) -> int:
    """Return which retry of the state before this one is, 0 if it is none."""
    same = (state["state"], state["step"]) == (before["state"], before["step"]) and state["state"] in ASK_MODEL
    begin = f"{before['detail']}: "
    found = RETRY.fullmatch(state["detail"], len(begin)) if same and state["detail"].startswith(begin) else None
    return int(found[1]) if found else 0


def _check_way(name: str, entered: Sequence[State]) -> None:
    """Check which state came after which, and that the steps are 1, 2, 3, ..., each begun by a call of the model."""
    assert entered[0]["step"] == 0, f"{name} started at a step"
    for before, state in itertools.pairwise(entered):
        kind = _kind(state)
        assert _kind(before) in WAY[kind], f"{name}: {state['state']} came after {before['state']}"
        step = before["step"] + (kind in NEXT_STEP)
        assert state["step"] == step, f"{name}: a state has the step {state['step']}, not {step}"


def _check_details(name: str, run: Mapping[str, Any], entered: Sequence[State]) -> None:
    for state in entered:
        kind, step, last_step = _kind(state), state["step"], run["max_steps"]
        if kind != "tool":
            expected = DETAILS[kind].format(step, last_step)
            assert state["detail"] == expected, f"{name}: {kind} says {state['detail']!r}, not {expected!r}"
        elif state["state"] in SAY_WHAT:
            assert state["detail"] or state["error"], f"{name}: {state['state']} does not say what"
        assert kind != "thinking" or step < last_step, f"{name} was still thinking in its last step"
        assert kind != "writing_report" or step == last_step, f"{name} wrote its report before its last step"


def _check_errors(name: str, run: Mapping[str, Any], states: Sequence[State]) -> None:
    """Check that only tools fail, and the state in which the run did; and that a call of no tool failed."""
    for state in states[: -1 if run["status"] == "completed" else -2]:
        assert not state["error"] or _kind(state) == "tool", f"{name}: {state['state']} failed and the run went on"
        assert state["error"] or state["state"] != "using_tool", f"{name}: a call of no tool did not fail"


def _check_stop(name: str, run: Mapping[str, Any], entered: Sequence[State]) -> None:
    """Check that the end fits the state that the agent was in."""
    kind, reason = _kind(entered[-1]), run["stop_reason"]
    assert kind in KINDS_BEFORE.get(reason, WAY), f"{name}: {reason} after {entered[-1]['state']}"
    assert run["error"] not in NEVER_BEGAN or len(entered) == 1, f"{name} was not begun, and worked"


def _check_figures(name: str, run: Mapping[str, Any], entered: Sequence[State]) -> None:
    assert 0 <= run["steps"] <= run["max_steps"], f"{name} took {run['steps']} steps of {run['max_steps']}"
    steps = _possible_steps(run, entered[-1])
    assert run["steps"] in steps, f"{name} took {run['steps']} steps, by its states {' or '.join(map(str, steps))}"
    tools = [_kind(state) == "tool" for state in entered]
    # A tool is counted when it has run: whether the last one had, when the agent was ended, no state tells.
    possible = (sum(tools[:-1]), sum(tools))
    assert run["tool_calls"] in possible, f"{name} says {run['tool_calls']} tool calls, its states {sum(tools)}"
    used = run["input_tokens"] > 0 and run["output_tokens"] > 0
    assert used or not run["steps"], f"{name} took steps and used no tokens"
    assert len(entered) > 1 or not (run["input_tokens"] or run["output_tokens"] or run["cost_usd"]), (
        f"{name} did nothing and used tokens"
    )


def _possible_steps(run: Mapping[str, Any], last: State) -> list[int]:
    """Return what may be stored as the number of steps: a step is counted once its first model call was answered.

    When a call failed, or the agent was ended from outside or by a fault, no state tells whether that was the first.
    """
    step = last["step"]
    if run["status"] == "completed" or _kind(last) in ("starting", "tool"):
        return [step]
    is_known = run["stop_reason"] == "error" and run["error"] != FAULT
    return [step] if is_known and not run["error"].startswith("the model call failed") else [step - 1, step]


# The runs together


def _check_row(run: Row, prices: Prices) -> None:
    """Check what REST does not show, and what only the runs of a whole database tell."""
    assert run["owner"], f"run {run['id']} has no owner"
    named = bool(run["name"] and run["reason"])
    assert named == bool(run["name"] or run["reason"]) == (run["parent_id"] is not None), (
        f"run {run['id']}: only a sub-agent has a name and a reason"
    )
    priced = run["cost_usd"] is not None
    assert priced == _is_known(prices, run["model"]), f"run {run['id']}: cost {run['cost_usd']} on {run['model']}"


@functools.cache
def _library_prices() -> Prices:
    return Prices({})


@functools.cache
def _is_known(prices: Prices, model: str) -> bool:
    return prices.is_known(model)


def _check_spawned(runs: Sequence[Row], by_run: Mapping[int, Sequence[State]]) -> None:
    """Check the sub-agents against the calls that started them."""
    children: dict[int, dict[str, Row]] = {run["id"]: {} for run in runs}
    for run in runs:
        if run["parent_id"] is not None:
            children[run["parent_id"]][run["name"]] = run
    for run in runs:
        calls = [state for state in by_run[run["id"]] if state["state"] == "spawning"]
        spawned = [_spawned_name(state) for state in calls if not state["error"]]
        missing = [name for name in spawned if name not in children[run["id"]]]
        assert not missing, f"run {run['id']} started sub-agents that are not stored: {missing}"
        # States that could not be stored yet are lost with the process, but not the sub-agents.
        if run["status"] == "completed":
            strange = set(children[run["id"]]) - {_spawned_name(state) for state in calls}
            assert not strange, f"run {run['id']} has sub-agents that it did not start: {sorted(strange)}"


def _check_clock(runs: Sequence[Row], by_run: Mapping[int, Sequence[State]]) -> None:
    """Check that nothing lies in the future, and that sub-agents began when their parent started them."""
    # A little more than now, for a clock that is being adjusted.
    now = format_time(datetime.now(UTC) + timedelta(seconds=1))
    by_id = {run["id"]: run for run in runs}
    for run in runs:
        assert run["finished_at"] <= now, f"run {run['id']} ended in the future: {run['finished_at']}"
        if run["parent_id"] is not None:
            parent = by_id[run["parent_id"]]
            assert run["created_at"] >= parent["created_at"], f"run {run['id']} began before its parent"
            if parent["status"] == "completed":
                assert _began_in_call(run, by_run[parent["id"]]), (
                    f"run {run['id']} began while its parent did not start it"
                )


def _began_in_call(run: Row, states: Sequence[State]) -> bool:
    """Tell whether the run was stored during a call of its parent, of whose states these are, that started it."""
    calls = [state for state in states if state["state"] == "spawning" and _spawned_name(state) == run["name"]]
    return any(state["started_at"] <= run["created_at"] <= state["finished_at"] for state in calls)


def _spawned_name(state: State) -> str:
    return str(state["detail"]).partition(":")[0]


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
            for shared in ("user_id", "model", "owner"):
                assert parent[shared] == run[shared], f"run {run['id']}: its parent has another {shared}"
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


def _check_answers(runs: Sequence[Row], answers: Mapping[int, Mapping[str, Any]]) -> None:
    """Check that what never changes in a run is what its start was answered with."""
    for run in runs:
        for key in ("user_id", "parent_id", "name", "reason", "topic", "model", "max_steps", "created_at"):
            said = answers.get(run["id"], run)[key]
            assert run[key] == said, f"run {run['id']}: its {key} was answered as {said!r}, and is {run[key]!r}"


def _check_reports(runs: Sequence[Row], reports: Mapping[str, str]) -> None:
    for run in runs:
        if run["status"] == "completed":
            report = reports.get(run["topic"], run["report"])
            assert run["report"] == report, f"run {run['id']} has another report: {run['report'][:80]!r}"


def _bills(runs: Sequence[Row], billed: Totals | Mapping[str, Totals] | None) -> Iterable[tuple[Totals, Sequence[Row]]]:
    """Yield each bill and the runs that it is of."""
    if isinstance(billed, Mapping):
        for model in {*billed, *(run["model"] for run in runs)}:
            yield billed.get(model, Totals()), [run for run in runs if run["model"] == model]
    elif billed is not None:
        yield billed, runs


def _check_charges(runs: Sequence[Row], charges: Mapping[str, Sequence[Totals]], max_lost_calls: int) -> int:
    """Check the bill of each run whose topic is among these, and return how many calls are missing."""
    missing = {topic for topic, bills in charges.items() if bills} - {run["topic"] for run in runs}
    assert not missing, f"billed, but not stored: {sorted(missing)}"
    lost = 0
    for run in runs:
        if run["topic"] in charges:
            # Only a death loses any.
            allowed = max_lost_calls if run["stop_reason"] == "interrupted" else 0
            lost += _lost_calls(run, charges[run["topic"]], allowed)
    return lost


def _lost_calls(run: Row, bills: Sequence[Totals], max_lost_calls: int) -> int:
    """Return how many of the last calls are missing in the run."""
    for lost, bill in enumerate(reversed([Totals(), *bills])):
        if not _differences([run], bill):
            assert lost <= max_lost_calls, f"run {run['id']} lacks its last {lost} calls"
            return lost
    shown = (run["input_tokens"], run["output_tokens"], run["cost_usd"])
    raise AssertionError(f"run {run['id']} says {shown}, which was billed at no time: {bills[-3:]}")


def _differences(runs: Sequence[Mapping[str, Any]], billed: Totals) -> list[str]:
    costs = [run["cost_usd"] for run in runs if run["cost_usd"] is not None]
    # Each run is rounded to a millionth of a dollar.
    expected = pytest.approx(dollars(billed), abs=1e-6 * max(1, len(runs)))
    cost = sum(costs)
    pairs = {
        "input_tokens": (sum(run["input_tokens"] for run in runs), billed.prompt_tokens),
        "output_tokens": (sum(run["output_tokens"] for run in runs), billed.output_tokens),
        # A part of it is not priced: of the rest is known only that it is no more than the whole.
        "cost_usd": (cost, cost if len(costs) < len(runs) and cost < dollars(billed) else expected),
    }
    return [f"{name}: {said} in the rows, {bill} billed" for name, (said, bill) in pairs.items() if said != bill]
