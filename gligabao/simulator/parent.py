"""The parent of a team that the built-in researcher plays: spawn, look into its own part, wait, join the reports."""

import re
from typing import Any

from gligabao.simulator.notes import ToolRun, offered_tools, take_notes, tool_runs
from gligabao.simulator.replies import call
from gligabao.simulator.steps import Step, first_look
from gligabao.simulator.tasks import Parts, spawn_inputs
from gligabao.simulator.team_report import Handed, join_reports

SPAWN = "spawn_subagent"
WAIT = "wait_subagents"
_HEAD = re.compile(r"^## (\S+) \(run (\d+)\): (completed|failed)$", re.MULTILINE)


def can_lead(body: dict[str, Any]) -> bool:
    """Tell whether it may spawn now, or has sub-agents."""
    spawned = [run for run in tool_runs(body) if run.tool == SPAWN]
    return any(not run.failed for run in spawned) if spawned else SPAWN in offered_tools(body)


class Parent:
    """A researcher that has sub-agents do parts of its topic."""

    def __init__(self, body: dict[str, Any], parts: Parts) -> None:
        self._parts = parts
        self._notes = take_notes(body, parts.own, focus=parts.own_asked)
        self._runs = tool_runs(body)

    def next_step(self) -> Step:
        """Return the spawns of all sub-agents, then the searches and pages of its own part, then the wait."""
        used = {run.tool for run in self._runs}
        if SPAWN not in used:
            calls = [call(SPAWN, **given) for given in spawn_inputs(self._parts)]
            return Step(calls, f"There are {len(calls)} parts that do not depend on each other. I will share them out.")
        step = first_look(self._notes)
        if step.calls or WAIT in used or WAIT not in self._notes.tools:
            return step
        return Step([call(WAIT)], "My own part is done. Now I need theirs.")

    def report(self) -> str:
        """Return the report of the whole team."""
        return join_reports(self._notes, self._parts, _read_handed(self._runs))


def _read_handed(runs: list[ToolRun]) -> dict[str, Handed]:
    """Return what there is of each sub-agent, by name."""
    handed = {
        str(run.given.get("name")): Handed(error=run.output if run.failed else "its sub-agent was not waited for")
        for run in runs
        if run.tool == SPAWN
    }
    for run in runs:
        if run.tool == WAIT and not run.failed:
            _, *pieces = _HEAD.split(run.output)
            for name, run_id, status, text in zip(*(pieces[place::4] for place in range(4)), strict=True):
                failed = status == "failed"
                handed[name] = Handed(error=f"run {run_id} failed: {text.strip()}") if failed else Handed(text)
    return handed
