"""The sub-agent that the built-in researcher plays: its task alone, a message to or from a sibling, dense findings."""

import re
from typing import Any

from gligabao.simulator.notes import Claim, ToolRun, take_notes, tool_runs
from gligabao.simulator.prompt import Block, first_user_text, text_of
from gligabao.simulator.replies import call
from gligabao.simulator.steps import Step, closer_look, first_look
from gligabao.simulator.tasks import read_task
from gligabao.simulator.team_report import Letter, write_findings
from gligabao.simulator.web import stems_of

LIST = "list_siblings"
SEND = "send_message"
READ = "read_messages"
WAIT_SECONDS = 5
"""How long it waits for a message that it was told of."""
_SIBLING = re.compile(r"^- (\S+) \[([^\]]*)\]: (.*)$", re.MULTILINE)
_LETTER = re.compile(r"^From (\S+) \(run (\d+)\): ", re.MULTILINE)
_MARKER = re.compile(r"^\[untrusted [0-9a-f]+\]$", re.MULTILINE)


def is_subagent(body: dict[str, Any]) -> bool:
    """Tell whether the system prompt says that another agent started this one."""
    return "you are a sub-agent" in text_of(body.get("system") or "").lower()


class Subagent:
    """A sub-agent at work. It spawns none itself, also where it may."""

    def __init__(self, body: dict[str, Any]) -> None:
        runs = tool_runs(body)
        self._errand = read_task(first_user_text(body))
        self._notes = take_notes(body, self._errand.question, focus=self._errand.asked)
        self._used = {run.tool for run in runs}
        self._siblings = _read_siblings(runs)
        self._letters = _read_letters(runs)

    def next_step(self) -> Step:
        """Return the next searches or pages, and beside them what there is to say to a sibling or to hear of one."""
        step = first_look(self._notes)
        if not step.calls:
            step = closer_look(self._notes)
        spoken = self._tell() if self._errand.tells else []
        if not step.calls and not spoken and self._errand.listens and self._may(READ):
            return Step([call(READ, wait_seconds=WAIT_SECONDS)], "A sibling may have something for me. I will look.")
        return Step([*step.calls, *spoken], step.thought)

    def report(self) -> str:
        """Return the findings, for the agent that asked for them."""
        return write_findings(self._notes, self._letters)

    def _tell(self) -> list[Block]:
        """Once something is read, look whether the sibling that may need it is at work, and write to it."""
        if not self._notes.undisputed:
            return []
        if self._may(LIST):
            return [call(LIST)]
        reason = self._siblings.get(self._errand.tells)
        if reason is None or not self._may(SEND):
            return []
        claim = self._find_for(reason)
        return [call(SEND, to=self._errand.tells, text=f"{claim.text} {claim.url}")]

    def _may(self, tool: str) -> bool:
        return tool in self._notes.tools and tool not in self._used

    def _find_for(self, reason: str) -> Claim:
        """Return the claim that bears most on a sibling's reason to exist."""
        wanted = stems_of(reason)
        claims = [claim for claim in self._notes.undisputed if not claim.leans] or self._notes.undisputed
        # Of those that bear on it as much as any, one with a figure, and the shortest.
        return max(claims, key=lambda claim: (len(claim.stems & wanted), bool(claim.figures), -len(claim.text)))


def _read_siblings(runs: list[ToolRun]) -> dict[str, str]:
    """Return those that were at work when they were listed, with the reason of each."""
    listed = next((run.output for run in runs if run.tool == LIST), "")
    return {name: reason for name, doing, reason in _SIBLING.findall(listed) if doing == "working"}


def _read_letters(runs: list[ToolRun]) -> list[Letter]:
    read = "\n".join(_MARKER.sub("", run.output) for run in runs if run.tool == READ)
    _, *pieces = _LETTER.split(read)
    return [Letter(*letter) for letter in zip(pieces[::3], pieces[1::3], map(str.strip, pieces[2::3]), strict=True)]
