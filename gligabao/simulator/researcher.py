"""The built-in researcher: what the simulated model does with a topic when no script says otherwise.

A small machine without memory: who it is and what comes next follow from what the request holds. Alone it searches,
reads, looks closer and writes its report. A topic that numbers its parts makes it the parent of a team, where it may
spawn, and a system prompt that says so makes it a sub-agent. With `tool_choice: none`, or without the tools, it
writes the report at once from what it has.
"""

from typing import Any, Protocol

from gligabao.simulator.notes import take_notes
from gligabao.simulator.parent import Parent, can_lead
from gligabao.simulator.prompt import Block, first_user_text
from gligabao.simulator.replies import MessageReply
from gligabao.simulator.report import write_report
from gligabao.simulator.search import thinking_blocks
from gligabao.simulator.steps import Step, closer_look, first_look
from gligabao.simulator.subagent import Subagent, is_subagent
from gligabao.simulator.tasks import split_topic


class Role(Protocol):
    """One way to play the conversation of a request."""

    def next_step(self) -> Step:
        """Return the calls to make now; without any it is time for the report."""

    def report(self) -> str:
        """Return the report, from what there is."""


class Alone:
    """A researcher that does it all itself."""

    def __init__(self, body: dict[str, Any], topic: str) -> None:
        self._notes = take_notes(body, topic)

    def next_step(self) -> Step:
        """Return the next searches or pages."""
        step = first_look(self._notes)
        return step if step.calls else closer_look(self._notes)

    def report(self) -> str:
        """Return the report."""
        return write_report(self._notes)


def research(body: dict[str, Any]) -> MessageReply:
    """Return the next step of the research that this conversation is about."""
    role = _find_role(body)
    step = role.next_step()
    if step.calls:
        return MessageReply([*thinking_blocks(body, step.thought), *step.calls], "tool_use", obeys_max_tokens=True)
    report: Block = {"type": "text", "text": role.report()}
    return MessageReply(
        [*thinking_blocks(body, "I have what there is to have. Now the report."), report], obeys_max_tokens=True
    )


def _find_role(body: dict[str, Any]) -> Role:
    if is_subagent(body):
        return Subagent(body)
    topic = first_user_text(body)
    parts = split_topic(topic)
    if parts is None:
        return Alone(body, topic)
    return Parent(body, parts) if can_lead(body) else Alone(body, parts.whole)
