"""A research with its sub-agents: all of them followed at once, and shown as a tree."""

import threading
from typing import Any

from gligabao.cli.client import Client
from gligabao.cli.follow import Pace
from gligabao.cli.output import print_table
from gligabao.cli.progress import Progress, StateLines
from gligabao.cli.text import one_line, say_cost, say_steps

Run = dict[str, Any]

_LABEL_WIDTH = 10
_MOST_CHILDREN = 500
"""The most runs of one page of the list; an agent has far fewer sub-agents."""


def follow_tree(client: Client, run_id: int, progress: Progress, *, pace: Pace) -> list[Run]:
    """Show the states of a run and of all below it as they come, and return the runs once the first has ended.

    Each run stands before its sub-agents. A poll that fails is not tried again.
    """
    lines: dict[int, StateLines] = {}
    pause_seconds = pace.first_seconds
    while True:
        runs = _read_tree(client, run_id, lines)
        _show(runs, lines, progress)
        # It was read before those below it, which end before it: all of them have been shown to their ends.
        if runs[0]["status"] != "running":
            return runs
        # An Event that nobody sets: the wait ends at Ctrl-C all the same.
        threading.Event().wait(pause_seconds)
        pause_seconds = min(pause_seconds * pace.growth, pace.longest_seconds)


def print_tree(runs: list[Run]) -> None:
    """Print a table of a run and those below it: each under the one that spawned it, a little further in."""
    depths: dict[int, int] = {}
    rows = []
    for run in runs:
        depth = depths[run["id"]] = depths.get(run.get("parent_id") or 0, -1) + 1
        shown = (run["id"], "  " * depth + _name(run), run["status"], say_steps(run), say_cost(run.get("cost_usd")))
        rows.append(tuple(text if isinstance(text, str) else one_line(text) for text in shown))
    print_table(("id", "name", "status", "steps", "cost"), rows)


def _read_tree(client: Client, run_id: int, lines: dict[int, StateLines]) -> list[Run]:
    run = client.get_research(run_id, states_after=lines.setdefault(run_id, StateLines()).ended_to)
    children = client.list_researches({"parent_id": run_id, "limit": _MOST_CHILDREN})["runs"]
    return [run, *(each for child in reversed(children) for each in _read_tree(client, child["id"], lines))]


def _show(runs: list[Run], lines: dict[int, StateLines], progress: Progress) -> None:
    """Show what is new of all runs, in the order in which it happened, in seconds since the first of them began."""
    start = {"created_at": runs[0].get("created_at")}
    events = [
        (moment, f"{one_line(run['id'])} {_name(run)}".ljust(_LABEL_WIDTH) + line)
        for run in runs
        for moment, line in lines[run["id"]].new_events(run | start)
    ]
    for _, line in sorted(events, key=lambda event: event[0]):
        progress.show_line(line)
    if runs[0].get("states"):
        progress.show_now(runs[0], runs[0]["states"][-1])


def _name(run: Run) -> str:
    return one_line(run.get("name")) or "root"
