"""The tools of a team: starting sub-agents and waiting for them, and what siblings say to each other.

The team, which lives above, keeps the rules (limits, who may write to whom); here is what the model sees of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import AfterValidator, Field, StringConstraints

from gligabao.agent.limits import (
    DEFAULT_SUBAGENT_STEPS,
    MAX_MESSAGE_CHARACTERS,
    MAX_REASON_CHARACTERS,
    MAX_STEPS,
    MAX_SUBAGENT_NAME_CHARACTERS,
    MAX_SUBAGENTS_PER_AGENT,
    MAX_SUBAGENTS_PER_TREE,
    MAX_TASK_CHARACTERS,
    MAX_WAIT_SECONDS,
)
from gligabao.agent.marking import Marker
from gligabao.agent.tools import Tool, ToolInput
from gligabao.records import StateName, Status

DETAIL_CHARACTERS = 200

SPAWN_DESCRIPTION = f"""\
Starts a sub-agent: another research agent with the same tools that works on one part of your topic in the \
background, and costs as much as you do. Returns at once, so you can start several in one turn and go on with your own \
part. The sub-agent knows nothing of this conversation: its task must stand on its own. You may start \
{MAX_SUBAGENTS_PER_AGENT}, and {MAX_SUBAGENTS_PER_TREE} may be started in a whole research. Call it only where your \
instructions say that a sub-agent is warranted; collect what it found with wait_subagents."""

WAIT_DESCRIPTION = """\
Waits until sub-agents you started have ended and returns, for each, a line "## name (run id): status" and its report, \
or the error of one that failed. Only this call waits: text without a tool call ends your research and stops them. \
A failed sub-agent does not fail you: decide whether you do its part yourself or \
report the gap. Do your own part first; call it once, when you need the reports."""

LIST_DESCRIPTION = """\
Lists your siblings, the other sub-agents of the agent that started you: a line each with the name, whether it is \
still working, and the reason it was started for. They are the only agents you can write to. Call it when you have to \
decide whether one of them can use what you found, or has what you need."""

SEND_DESCRIPTION = """\
Puts a message into the inbox of a sibling and returns at once. The sibling sees it when it next reads its messages, \
perhaps never. Use it for one fact or one question that saves work, with the source's URL: no greetings, thanks or \
progress notes."""

READ_DESCRIPTION = """\
Takes the messages out of your inbox, oldest first, each as "From name (run id): text", or says that there are none. \
Give wait_seconds only when you cannot go on without an answer."""


def _check_text(text: str) -> str:
    if not text.strip() or "\x00" in text:
        raise ValueError("must not be empty, and must be text")
    return text


Text = Annotated[str, AfterValidator(_check_text)]
"""Text that is not blank, taken as it is."""

_NAME = f"1 to {MAX_SUBAGENT_NAME_CHARACTERS} letters, digits, - or _"


class SpawnInput(ToolInput):
    """Input of `spawn_subagent`."""

    name: Annotated[str, StringConstraints(pattern=rf"^[A-Za-z0-9_-]{{1,{MAX_SUBAGENT_NAME_CHARACTERS}}}$")] = Field(
        description=f"A short name of its own among your sub-agents: {_NAME}."
    )
    reason: Annotated[Text, StringConstraints(max_length=MAX_REASON_CHARACTERS)] = Field(
        description="Why this sub-agent has to exist, in a sentence: what it covers that you cannot cover cheaply."
    )
    task: Annotated[Text, StringConstraints(max_length=MAX_TASK_CHARACTERS)] = Field(
        description="What it has to do and bring back, complete in itself: the question, what is known, what to "
        "leave out, the kind of sources, the language."
    )
    max_steps: Annotated[int, Field(strict=True, ge=1, le=MAX_STEPS)] = Field(
        default=DEFAULT_SUBAGENT_STEPS,
        description=f"The most model calls it makes: 6 for a narrow question, {DEFAULT_SUBAGENT_STEPS} as a rule, more "
        "only for a broad one.",
    )

    hints: ClassVar = {
        "name": f'"name" must be {_NAME}',
        "reason": f'"reason" must say in 1 to {MAX_REASON_CHARACTERS:,} characters why this sub-agent has to exist. '
        "Decide first whether you need it at all: if you cannot say what it covers that you cannot cover cheaply "
        "yourself, do that part yourself",
        "task": f'"task" must say in 1 to {MAX_TASK_CHARACTERS:,} characters what the sub-agent has to do and bring '
        "back",
        "max_steps": f'"max_steps" must be a whole number from 1 to {MAX_STEPS}',
    }


class WaitInput(ToolInput):
    """Input of `wait_subagents`."""

    names: list[str] | None = Field(
        default=None, description="Which sub-agents; leave it out to wait for all of yours."
    )

    hints: ClassVar = {"names": '"names" must be a list of names of your sub-agents'}


class NoInput(ToolInput):
    """Input of `list_siblings`: none."""


class SendInput(ToolInput):
    """Input of `send_message`."""

    to: str = Field(description="The name of the sibling.")
    text: Annotated[Text, StringConstraints(max_length=MAX_MESSAGE_CHARACTERS)] = Field(
        description="What to tell it: short and specific."
    )

    hints: ClassVar = {"text": f'"text" must have 1 to {MAX_MESSAGE_CHARACTERS:,} characters'}


class ReadInput(ToolInput):
    """Input of `read_messages`."""

    wait_seconds: Annotated[int, Field(strict=True, ge=0, le=MAX_WAIT_SECONDS)] = Field(
        default=0, description=f"How long to wait for a message if there is none, at most {MAX_WAIT_SECONDS}."
    )

    hints: ClassVar = {"wait_seconds": f'"wait_seconds" must be a whole number from 0 to {MAX_WAIT_SECONDS}'}


@dataclass(frozen=True, slots=True)
class Ended:
    """A sub-agent that has ended."""

    name: str
    run_id: int
    status: Status
    report: str
    error: str


@dataclass(frozen=True, slots=True)
class Sibling:
    """Another sub-agent of the same parent, as it is now."""

    name: str
    reason: str
    status: Status


@dataclass(frozen=True, slots=True)
class Received:
    """A message as its reader gets it."""

    from_name: str
    from_run: int
    text: str


class Subagents(Protocol):
    """What an agent can do with the agents it starts. Failures are `ToolError`s for the model."""

    def spawn(self, *, name: str, reason: str, task: str, max_steps: int) -> int:
        """Start a sub-agent and return the id of its run."""

    def names(self) -> list[str]:
        """Return the names of the sub-agents in the order they were started."""

    def wait(self, names: Sequence[str]) -> list[Ended]:
        """Wait until these have ended ([]: all) and return how, in the order asked for."""


class Siblings(Protocol):
    """What a sub-agent can do with the others of its parent."""

    def list(self) -> list[Sibling]:
        """Return the others as they are now."""

    def send(self, to: str, text: str) -> None:
        """Put a message into the inbox of one."""

    def read(self, wait_seconds: float) -> "Sequence[Received]":
        """Take out what has arrived, waiting that long for a first message."""


def subagent_tools(team: Subagents, marker: Marker) -> list[Tool[Any]]:
    """Return the tools of an agent that may start others."""

    def spawn(given: SpawnInput) -> str:
        run_id = team.spawn(name=given.name, reason=given.reason, task=given.task, max_steps=given.max_steps)
        return (
            f'started sub-agent "{given.name}" (run {run_id}): it works in the background, and wait_subagents '
            "returns its report"
        )

    def wait(given: WaitInput) -> str:
        return "\n\n".join(_show_ended(ended, marker) for ended in team.wait(given.names or []))

    return [
        Tool("spawn_subagent", SPAWN_DESCRIPTION, SpawnInput, StateName.SPAWNING, _describe_spawn, spawn),
        Tool(
            "wait_subagents",
            WAIT_DESCRIPTION,
            WaitInput,
            StateName.WAITING,
            lambda given: ", ".join(given.names or team.names()),
            wait,
        ),
    ]


def sibling_tools(siblings: Siblings, marker: Marker) -> list[Tool[Any]]:
    """Return the tools of a sub-agent for its siblings."""

    def list_all(given: NoInput) -> str:
        others = siblings.list()
        if not others:
            return "You have no siblings now. The agent that started you may still start some."
        return marker.wrap("\n".join(map(_show_sibling, others)))

    def send(given: SendInput) -> str:
        siblings.send(given.to, given.text)
        return f'sent to "{given.to}"'

    def read(given: ReadInput) -> str:
        received = siblings.read(given.wait_seconds)
        if not received:
            return "No new messages."
        # A pair of marker lines each: a message cannot pretend to be two.
        return "\n\n".join(marker.wrap(f"From {m.from_name} (run {m.from_run}): {m.text}") for m in received)

    return [
        Tool("list_siblings", LIST_DESCRIPTION, NoInput, StateName.MESSAGING, lambda given: "", list_all),
        Tool(
            "send_message",
            SEND_DESCRIPTION,
            SendInput,
            StateName.MESSAGING,
            lambda given: f"{given.to}: {_one_line(given.text)[:DETAIL_CHARACTERS]}",
            send,
        ),
        Tool("read_messages", READ_DESCRIPTION, ReadInput, StateName.MESSAGING, _describe_read, read),
    ]


def _describe_spawn(given: SpawnInput) -> str:
    return f"{given.name}: {_one_line(given.reason)}"


def _describe_read(given: ReadInput) -> str | tuple[StateName, str]:
    if not given.wait_seconds:
        return ""
    return StateName.WAITING, f"a message, up to {given.wait_seconds} s"


def _show_ended(ended: Ended, marker: Marker) -> str:
    # An error too: it may quote what a model, or the server of one, wrote.
    said = ended.report if ended.status is Status.COMPLETED else ended.error
    return f"## {ended.name} (run {ended.run_id}): {ended.status}\n{marker.wrap(said)}"


def _show_sibling(sibling: Sibling) -> str:
    doing = {Status.RUNNING: "working", Status.COMPLETED: "ended", Status.FAILED: "ended, failed"}
    return f"- {sibling.name} [{doing[sibling.status]}]: {_one_line(sibling.reason)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
