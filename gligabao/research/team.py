"""The team of a research: who spawned whom, the limits, who may write to whom, and how a family ends.

All agents of one research are members of one tree, in one process. The function that starts an agent is passed in;
the messenger carries the messages.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from gligabao.agent.limits import INBOX_SIZE, MAX_DEPTH, MAX_SUBAGENTS_PER_AGENT, MAX_SUBAGENTS_PER_TREE
from gligabao.agent.tools import MAX_NAME_CHARACTERS
from gligabao.agent.tools.team import Ended, Received, Sibling
from gligabao.cancel import Cancel
from gligabao.errors import Conflict, StoreError, ToolError, Unavailable
from gligabao.records import Ending, Run, Status, Stop, StopKind
from gligabao.research.messenger import InboxFull, Messenger, NoInbox, send_message

log = logging.getLogger(__name__)

PARENT_ENDED = "cancelled: the agent that spawned it ended"
LOST_START = "the database failed during the start; this research never ran"
_PASSED_DOWN = frozenset({StopKind.INTERRUPTED})
"""The kinds of stop that are the same for the agents below: the others tell them only that their parent ended."""
STUCK_SECONDS = 5.0
"""An agent that has not stopped this long after it was told to is given up."""
_LOOK_SECONDS = 30.0


class Tree:
    """What the agents of one research share. One lock guards all memberships, counts and waiters."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held for moments only: never during a write to the database or a wait."""
        self.spawned = 0
        """How many sub-agents there ever were, including those being started and those in doubt."""
        self.waiters: set[threading.Event] = set()
        """Set whenever an agent of the tree has ended."""


class Member:
    """An agent's place in the tree. `children` is guarded by the tree's lock."""

    def __init__(self, run: Run, *, dataset: str = "", parent: "Member | None" = None) -> None:
        self.run = run
        self.parent = parent
        self.dataset: str = parent.dataset if parent else dataset
        """The part of the user's knowledge base that the agents of this tree use. It is not stored with the run."""
        self.tree: Tree = parent.tree if parent else Tree()
        self.depth: int = parent.depth + 1 if parent else 0
        self.cancel: Cancel = parent.cancel.child(stop_below) if parent else Cancel()
        self.children: dict[str, Member] = {}
        self.ending: Ending | None = None
        """How it ended; None while it works."""
        self.ended_at = ""
        self.at_rest = threading.Event()
        """Its agent has finished: all that is left is to end those below it and to store its end."""
        self.ended = threading.Event()

    @property
    def may_spawn(self) -> bool:
        """Whether it may start sub-agents."""
        return self.depth < MAX_DEPTH

    def add(self, child: "Member") -> None:
        """Take a sub-agent into the tree."""
        with self.tree.lock:
            self.children[child.run.name] = child

    def end(self, ending: Ending, at: str) -> None:
        """Note that this agent has ended, with the time stored for it, and wake those that wait for it."""
        self.ending = ending
        self.ended_at = at
        self.ended.set()
        if self.parent:
            self.parent.cancel.forget(self.cancel)
        with self.tree.lock:
            for waiter in self.tree.waiters:
                waiter.set()


class StartAgent(Protocol):
    """Starts the agent of a sub-agent of `parent`, adds it to the tree and returns its place."""

    def __call__(self, parent: Member, *, name: str, reason: str, task: str, max_steps: int) -> Member: ...


class EndRuns(Protocol):
    """Ends a run, and all runs below it that are still at work, in the database.

    Returns the time of the end, "" when it could not be stored.
    """

    def __call__(self, run_id: int, *, stop: Stop) -> str: ...


class FindLost(Protocol):
    """Returns the sub-agents of a member that are stored but not in the tree: the answer to their start was lost."""

    def __call__(self, member: Member) -> list[Run]: ...


def stop_below(stop: Stop | None) -> Stop:
    """Return the stop of an agent's sub-agents when that agent ends because of `stop` (None: it is done)."""
    if stop is not None and stop.kind in _PASSED_DOWN:
        return stop
    return Stop(StopKind.PARENT_ENDED, PARENT_ENDED)


class Subagents:
    """The sub-agents of one agent. Used by that agent's thread."""

    def __init__(self, member: Member, *, start: StartAgent, end_runs: EndRuns, find_lost: FindLost) -> None:
        self._member = member
        self._start = start
        self._end_runs = end_runs
        self._find_lost = find_lost
        self.is_in_doubt = False
        """A start failed in the database, and may be stored all the same: its place in the tree stays taken."""

    def spawn(self, *, name: str, reason: str, task: str, max_steps: int) -> int:
        """Start a sub-agent and return the id of its run, or raise `ToolError`."""
        if self.is_in_doubt:
            try:
                self.settle()
            except StoreError as error:
                raise self._not_started(name, error) from error
        with self._place(name):
            try:
                child = self._start(self._member, name=name, reason=reason, task=task, max_steps=max_steps)
            except (Conflict, StoreError) as error:
                self.is_in_doubt = isinstance(error, StoreError)
                raise self._not_started(name, error) from error
            except Unavailable as error:
                raise ToolError(f'sub-agent "{name}" could not be started: {error}. Do its part yourself') from error
        return child.run.id

    def _not_started(self, name: str, error: Conflict | StoreError) -> ToolError:
        if isinstance(error, StoreError):
            log.warning('run %s could not start its sub-agent "%s": %s', self._member.run.id, name, error)
        return ToolError(f'sub-agent "{name}" could not be started: {error.client_text}')

    def settle(self) -> None:
        """Find out whether the start in doubt was stored. If so it counts, though the sub-agent never ran.

        Raises `StoreError`, and the doubt stays.
        """
        lost = [Member(run, parent=self._member) for run in self._find_lost(self._member)]
        with self._member.tree.lock:
            # They take the place that was held for the one in doubt.
            self._member.tree.spawned += len(lost) - 1
            self._member.children.update({child.run.name: child for child in lost})
            self.is_in_doubt = False
        stop = Stop(StopKind.LOST_START, LOST_START)
        for child in lost:
            child.at_rest.set()
            child.end(stop.ending(), self._end_runs(child.run.id, stop=stop))

    def names(self) -> list[str]:
        """Return the names of the sub-agents in the order they were started."""
        with self._member.tree.lock:
            return list(self._member.children)

    def wait(self, names: Sequence[str]) -> list[Ended]:
        """Wait until these have ended ([]: all) and return how, in the order asked for."""
        members = self._find(names)
        tree = self._member.tree
        changed = threading.Event()
        with tree.lock:
            tree.waiters.add(changed)
        try:
            with self._member.cancel.waking(changed.set):
                while not all(member.ended.is_set() for member in members):
                    self._member.cancel.check()
                    changed.wait(_LOOK_SECONDS)
                    changed.clear()
        finally:
            with tree.lock:
                tree.waiters.discard(changed)
        return [_show(member) for member in members]

    def end_all(self) -> str:
        """Stop the sub-agents that still work, because this agent ends, and wait until their ends are stored.

        Returns the time of the last end of a sub-agent: this agent's must not be before it.
        """
        stop = stop_below(self._member.cancel.stop)
        with self._member.tree.lock:
            children = list(self._member.children.values())
        working = [child for child in children if not child.ended.is_set()]
        for child in working:
            child.cancel.set(stop)
        deadline = time.monotonic() + STUCK_SECONDS
        for child in working:
            if child.at_rest.wait(max(0.0, deadline - time.monotonic())):
                # It waits for those below it no longer than we do, and then only for the database.
                child.ended.wait()
            else:
                log.error("run %s was cancelled and its agent is stuck: ending the run without it", child.run.id)
                child.ended_at = self._end_runs(child.run.id, stop=stop)
        return max((child.ended_at for child in children), default="")

    @contextmanager
    def _place(self, name: str) -> Iterator[None]:
        """Hold a place in the tree while a sub-agent is started, and give it back if that surely failed.

        Agents of a tree that spawn at the same time never pass a limit. The lock is not held meanwhile: a slow
        database must not keep others of the tree from ending and being stopped.
        """
        tree = self._member.tree
        with tree.lock:
            self._check_limits(name)
            tree.spawned += 1
        try:
            yield
        finally:
            with tree.lock:
                if name not in self._member.children and not self.is_in_doubt:
                    tree.spawned -= 1

    def _check_limits(self, name: str) -> None:
        children, tree = self._member.children, self._member.tree
        if name in children:
            raise ToolError(f'the name "{name}" is taken: you have {", ".join(children)}. Choose another')
        if len(children) >= MAX_SUBAGENTS_PER_AGENT:
            raise ToolError(f"you have started {len(children)} sub-agents, the most an agent may: do the rest yourself")
        if tree.spawned >= MAX_SUBAGENTS_PER_TREE:
            raise ToolError(
                f"{tree.spawned} sub-agents were started in this research, the most there may be: do the rest yourself"
            )

    def _find(self, names: Sequence[str]) -> list[Member]:
        with self._member.tree.lock:
            children = dict(self._member.children)
        if not children:
            raise ToolError("you have no sub-agents to wait for: start some with spawn_subagent, or go on yourself")
        for name in names:
            if name not in children:
                raise ToolError(f'no sub-agent "{name[:MAX_NAME_CHARACTERS]}": you have {", ".join(children)}')
        return [children[name] for name in dict.fromkeys(names)] or list(children.values())


class Siblings:
    """The other sub-agents of one sub-agent's parent. Used by that sub-agent's thread."""

    def __init__(self, member: Member, messenger: Messenger) -> None:
        self._member = member
        self._messenger = messenger

    def list(self) -> list[Sibling]:
        """Return the others as they are now."""
        return [
            Sibling(other.run.name, other.run.reason, other.ending.status if other.ending else Status.RUNNING)
            for other in self._others().values()
        ]

    def send(self, to: str, text: str) -> None:
        """Put a message into the inbox of the sibling of that name, or raise `ToolError`.

        This is where it is decided who may write to whom: the children of one parent, to each other.
        """
        others = self._others()
        if to == self._member.run.name:
            raise ToolError("you cannot write to yourself")
        if to not in others:
            known = f"you have {', '.join(others)}" if others else "you have none now"
            raise ToolError(f'no sibling "{to[:MAX_NAME_CHARACTERS]}": {known}')
        me = self._member.run
        try:
            send_message(self._messenger, from_run=me.id, from_name=me.name, to_run=others[to].run.id, text=text)
        except NoInbox as error:
            raise ToolError(f'"{to}" has ended: your message was not delivered') from error
        except InboxFull as error:
            raise ToolError(
                f'the inbox of "{to}" is full ({INBOX_SIZE} unread messages): your message was not delivered'
            ) from error

    def read(self, wait_seconds: float) -> Sequence[Received]:
        """Take out the messages that have arrived, waiting up to that long for the first."""
        me = self._member
        messages = self._messenger.receive(me.run.id, wait_seconds=wait_seconds, cancel=me.cancel)
        return [Received(message.from_name, message.from_run, message.text) for message in messages]

    def _others(self) -> dict[str, Member]:
        assert self._member.parent is not None, "a root has no siblings"
        with self._member.tree.lock:
            return {name: one for name, one in self._member.parent.children.items() if one is not self._member}


def _show(member: Member) -> Ended:
    ending = member.ending
    assert ending is not None, "waited for"
    return Ended(member.run.name, member.run.id, ending.status, ending.report, ending.error)
