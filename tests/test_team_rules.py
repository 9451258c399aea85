"""The rules of a team against a small model of them: limits, names, who may write to whom, and how a family ends.

No server: the real team and the real queues, with agents that do nothing by themselves and end as soon as they are
told to stop.
"""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, precondition, rule

from gligabao.agent.tools.team import Ended, Received, Sibling
from gligabao.errors import Conflict, StoreError, ToolError, Unavailable
from gligabao.records import INTERRUPTED, Ending, Status, Stop, StopKind, StopReason, now
from gligabao.research.messenger import QueueMessenger
from gligabao.research.team import LOST_START, PARENT_ENDED, Member, Siblings, Subagents
from tests.fakes import new_run
from tests.teams import WAIT_SECONDS

NAMES = ["a", "b", "c", "d", "e", "f", "g"]
COMPLETED = Ending(Status.COMPLETED, StopReason.ANSWERED, report="The report.")
FAILED = Ending(Status.FAILED, StopReason.ERROR, error="it broke")
LOST = Ending(Status.FAILED, StopReason.ERROR, error=LOST_START)
ANSWER_LOST = StoreError("no answer")
"""Refuses a start that is stored all the same."""


class Office:
    """Starts agents in place of the manager. Shared by threads: a lock guards what it keeps."""

    def __init__(self):
        self.messenger = QueueMessenger()
        self.refuse = None
        """The error that the next start meets."""
        self.agents = {}
        self.lost = {}
        """The runs that were stored though their start was refused."""
        self.ended = []
        """The ids of the agents that ended, in that order."""
        self._lock = threading.Lock()
        self._ids = itertools.count(1)

    def start_root(self):
        return self._employ(Member(new_run(next(self._ids))))

    def start(self, parent, *, name, reason, task, max_steps):
        refusal, self.refuse = self.refuse, None
        if refusal and refusal is not ANSWER_LOST:
            raise refusal
        with self._lock:
            run_id = next(self._ids)
        run = new_run(run_id, parent_id=parent.run.id, name=name, reason=reason)
        if refusal:
            self.lost[run_id] = run
            raise refusal
        member = Member(run, parent=parent)
        self.messenger.open(run_id)
        parent.add(member)
        self._employ(member)
        return member

    def end_runs(self, run_id, *, stop):
        assert run_id in self.lost and stop.ending() == LOST, "no agent is ever stuck here"
        return now()

    def find_lost(self, member):
        return [run for run in self.lost.values() if run.parent_id == member.run.id and run.name not in member.children]

    def _employ(self, member):
        agent = Agent(self, member)
        with self._lock:
            self.agents[member.run.id] = agent
        return agent


class Agent:
    """An agent that does what it is told from outside, and ends at once when it is told to stop."""

    def __init__(self, office, member):
        self.member = member
        self.id = member.run.id
        self.subagents = Subagents(member, start=office.start, end_runs=office.end_runs, find_lost=office.find_lost)
        self.siblings = Siblings(member, office.messenger) if member.parent else None
        self._office = office
        self._waking = member.cancel.waking(self._stop)
        self._waking.__enter__()

    def end(self, ending):
        self._office.messenger.close(self.id)
        below = self.subagents.end_all()
        self.member.at_rest.set()
        self._office.ended.append(self.id)
        self.member.end(ending, max(now(), below))
        self._waking.__exit__(None, None, None)

    def _stop(self):
        self.end(self.member.cancel.stop.ending())


@dataclass(eq=False)
class Node:
    """What the model knows of an agent."""

    id: int
    name: str = ""
    reason: str = ""
    parent: "Node | None" = None
    children: dict[str, "Node"] = field(default_factory=dict)
    ending: Ending | None = None
    inbox: list[Received] = field(default_factory=list)
    doubt: "Node | None" = None
    """The sub-agent whose start failed in the database and was stored (then it has an id), or was not."""

    @property
    def root(self):
        return self.parent.root if self.parent else self

    @property
    def depth(self):
        return self.parent.depth + 1 if self.parent else 0

    @property
    def below(self):
        return [node for child in self.children.values() for node in (child, *child.below)]

    @property
    def places(self):
        """How many places of the tree are taken from here downwards."""
        return len(self.children) + bool(self.doubt) + sum(child.places for child in self.children.values())

    def settle(self):
        """Find out about the start in doubt; return the sub-agent if it was stored."""
        lost, self.doubt = self.doubt, None
        if lost and lost.id:
            self.children[lost.name] = lost
            lost.ending = LOST
            return lost
        return None

    @property
    def siblings(self):
        return {name: node for name, node in self.parent.children.items() if node is not self}

    @property
    def works(self):
        return self.ending is None

    def end(self, ending):
        below = Ending(Status.FAILED, StopReason.CANCELLED, error=PARENT_ENDED)
        for child in self.children.values():
            if child.works:
                child.end(ending if ending.stop_reason is StopReason.INTERRUPTED else below)
        self.ending = ending
        self.inbox.clear()


class TeamRules(RuleBasedStateMachine):
    """Random lives of a few researches."""

    nodes = Bundle("nodes")

    def __init__(self):
        super().__init__()
        self.office = Office()
        self.model = {}
        self.words = itertools.count(1)

    def agent(self, node):
        return self.office.agents[node.id]

    def add(self, node):
        self.model[node.id] = node
        return node

    @precondition(lambda self: sum(node.parent is None for node in self.model.values()) < 3)
    @rule(target=nodes)
    def start_research(self):
        return self.add(Node(self.office.start_root().id))

    @rule(target=nodes, node=nodes, names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=7))
    def spawn(self, node, names):
        if not node.works or node.depth == 2:  # The second generation has no tool for it.
            return multiple()
        spawned = [self.spawn_one(node, name) for name in names]
        return multiple(*[child for child in spawned if child])

    def spawn_one(self, node, name):
        fault = None
        self.settle(node)
        if name in node.children:
            fault = f'the name "{name}" is taken: you have {", ".join(node.children)}. Choose another'
        elif len(node.children) == 5:
            fault = "you have started 5 sub-agents, the most an agent may: do the rest yourself"
        elif node.root.places == 10:
            fault = "10 sub-agents were started in this research, the most there may be: do the rest yourself"
        reason = f"reason {next(self.words)}"
        given = {"name": name, "reason": reason, "task": "a task", "max_steps": 10}
        if fault:
            assert self.error(lambda: self.agent(node).subagents.spawn(**given)) == fault
            return None
        child = Node(self.agent(node).subagents.spawn(**given), name, reason, node)
        node.children[name] = child
        return self.add(child)

    @rule(
        node=nodes,
        name=st.sampled_from(NAMES),
        refusal=st.sampled_from([Conflict("no"), StoreError("no"), ANSWER_LOST, Unavailable("no")]),
    )
    def spawn_in_vain(self, node, name, refusal):
        if not node.works or node.depth == 2:
            return
        self.settle(node)
        if name in node.children or len(node.children) == 5 or node.root.places == 10:
            return
        self.office.refuse = refusal
        spawn = self.agent(node).subagents.spawn
        told = self.error(lambda: spawn(name=name, reason="r", task="t", max_steps=10))
        assert told.startswith(f'sub-agent "{name}" could not be started: {refusal.client_text}')
        assert self.office.refuse is None
        if isinstance(refusal, StoreError):
            run_id = max(self.office.lost) if refusal is ANSWER_LOST else 0
            node.doubt = Node(run_id, name, "r", node)

    def settle(self, node):
        """Before anything else that it starts, the agent finds out about the start in doubt."""
        if node.doubt:
            self.agent(node).subagents.settle()
            node.settle()

    @rule(node=nodes, ending=st.sampled_from([COMPLETED, FAILED]))
    def end(self, node, ending):
        if node.works:
            self.expect_ends(node, lambda: self.agent(node).end(ending), ending)

    @rule(node=nodes)
    def stop(self, node):
        """The server stops, as far as this research is concerned."""
        if node.root.works:
            interrupted = Ending(Status.FAILED, StopReason.INTERRUPTED, error=INTERRUPTED)
            self.expect_ends(node.root, lambda: self.cancel(node.root, StopKind.INTERRUPTED, INTERRUPTED), interrupted)

    @rule(node=nodes, words=st.sampled_from(["cancelled: by the user", INTERRUPTED]))
    def cancel_one(self, node, words):
        """The user cancels it. What the text says changes nothing."""
        if node.works:
            cancelled = Ending(Status.FAILED, StopReason.CANCELLED, error=words)
            self.expect_ends(node, lambda: self.cancel(node, StopKind.USER, words), cancelled)

    def cancel(self, node, kind, words):
        self.agent(node).member.cancel.set(Stop(kind, words))

    def expect_ends(self, node, act, ending):
        expected = {one.id for one in (node, *node.below) if one.works}
        before = len(self.office.ended)
        act()
        ended = self.office.ended[before:]
        assert len(ended) == len(set(ended)) and set(ended) == expected
        for place, run_id in enumerate(ended):
            assert not {child.id for child in self.model[run_id].below} & set(ended[place:])
        node.end(ending)

    @rule(node=nodes, to=st.sampled_from([*NAMES, ""]))
    def send(self, node, to):
        if node.depth:
            self.send_one(node, to)

    def send_one(self, node, to):
        if not node.works:
            return
        others, words = node.siblings, f"message {next(self.words)}"
        fault = None
        if to == node.name:
            fault = "you cannot write to yourself"
        elif to not in others:
            known = f"you have {', '.join(others)}" if others else "you have none now"
            fault = f'no sibling "{to}": {known}'
        elif not others[to].works:
            fault = f'"{to}" has ended: your message was not delivered'
        elif len(others[to].inbox) == 64:
            fault = f'the inbox of "{to}" is full (64 unread messages): your message was not delivered'
        if fault:
            assert self.error(lambda: self.agent(node).siblings.send(to, words)) == fault
        else:
            self.agent(node).siblings.send(to, words)
            others[to].inbox.append(Received(node.name, node.id, words))

    @rule(node=nodes, choice=st.integers(0, 4), number=st.sampled_from([1, 40, 65]))
    def send_to_one_that_is_there(self, node, choice, number):
        if node.depth and node.siblings:
            to = list(node.siblings)[choice % len(node.siblings)]
            for _ in range(number):
                self.send_one(node, to)

    @rule(node=nodes)
    def read(self, node):
        if node.works and node.depth:
            assert list(self.agent(node).siblings.read(0)) == node.inbox
            node.inbox.clear()

    @rule(node=nodes)
    def list_siblings(self, node):
        if node.works and node.depth:
            assert self.agent(node).siblings.list() == [
                Sibling(other.name, other.reason, other.ending.status if other.ending else Status.RUNNING)
                for other in node.siblings.values()
            ]

    @rule(node=nodes, names=st.lists(st.sampled_from(NAMES), max_size=4))
    def wait(self, node, names):
        if not node.works or node.depth == 2:
            return
        wait = self.agent(node).subagents.wait
        strange = next((name for name in names if name not in node.children), None)
        if not node.children:
            assert self.error(lambda: wait(names)).startswith("you have no sub-agents to wait for")
        elif strange:
            assert self.error(lambda: wait(names)) == f'no sub-agent "{strange}": you have {", ".join(node.children)}'
        else:
            asked = [node.children[name] for name in dict.fromkeys(names)] or list(node.children.values())
            if all(child.ending for child in asked):  # It would not return before.
                assert wait(names) == [
                    Ended(child.name, child.id, child.ending.status, child.ending.report, child.ending.error)
                    for child in asked
                ]

    @invariant()
    def the_team_is_what_the_model_says(self):
        for node in self.model.values():
            member = self.agent(node).member
            assert list(member.children) == self.agent(node).subagents.names() == list(node.children)
            assert len(node.children) <= 5 and node.depth <= 2
            assert (member.ending, member.ended.is_set()) == (node.ending, not node.works)
            if node.parent is None:
                assert member.tree.spawned == node.places <= 10
                assert len(node.below) + len([one for one in (node, *node.below) if one.doubt and one.doubt.id]) <= 10
                assert not member.tree.waiters
            if not node.works:
                times = [child.ended_at for child in member.children.values()]
                assert member.ended_at >= max(times, default="")

    def error(self, act):
        with pytest.raises(ToolError) as raised:
            act()
        return str(raised.value)


TestTeamRules = TeamRules.TestCase
TestTeamRules.settings = settings(
    max_examples=40, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)


# --- at the same instant


@pytest.mark.parametrize("agents", [2, 4])
def test_agents_of_one_tree_that_spawn_at_the_same_instant_never_pass_ten(agents):
    for _ in range(50):
        office = Office()
        root = office.start_root()
        for number in range(agents):
            root.subagents.spawn(name=f"s{number}", reason="r", task="t", max_steps=1)
        barrier = threading.Barrier(agents)

        def spawn_five(name, barrier=barrier, office=office, root=root):
            team = office.agents[root.member.children[name].run.id].subagents
            barrier.wait(WAIT_SECONDS)
            return [try_to_spawn(team, f"{number}") for number in range(6)]

        with ThreadPoolExecutor(agents) as pool:
            came = list(pool.map(spawn_five, list(root.member.children)))
        in_tree = agents + sum(map(sum, came))
        assert in_tree == min(10, agents + 5 * agents) == root.member.tree.spawned
        assert all(sum(one) <= 5 for one in came)
        root.end(COMPLETED)
        assert len(office.ended) == 1 + in_tree


def test_a_place_that_was_given_back_can_be_taken():
    office = Office()
    root = office.start_root()
    for number in range(5):
        office.refuse = StoreError("away")
        assert not try_to_spawn(root.subagents, f"s{number}")
        assert try_to_spawn(root.subagents, f"s{number}")
    assert not try_to_spawn(root.subagents, "s5")
    assert root.member.tree.spawned == 5
    root.end(COMPLETED)


@pytest.mark.parametrize("refusal", [ANSWER_LOST, StoreError("away")], ids=["stored", "not stored"])
def test_a_start_in_doubt_keeps_its_place_until_it_is_settled(refusal):
    office = Office()
    root = office.start_root()
    for name in ("a", "b", "c"):
        assert try_to_spawn(root.subagents, name)
    a, b, c = (office.agents[child.run.id].subagents for child in root.member.children.values())
    assert all(try_to_spawn(c, f"c{number}") for number in range(5))
    for team in (a, b):
        office.refuse = refusal
        assert not try_to_spawn(team, "x")
    assert not try_to_spawn(root.subagents, "d")
    assert root.member.tree.spawned == 10
    for team in (a, b):
        team.settle()
    free = 0 if refusal is ANSWER_LOST else 2
    assert [try_to_spawn(root.subagents, name) for name in ("d", "e")] == [free > 0, free > 1]
    assert root.member.tree.spawned == 10
    root.end(COMPLETED)


def try_to_spawn(team, name):
    try:
        team.spawn(name=name, reason="r", task="t", max_steps=1)
    except ToolError:
        return False
    return True


def test_a_start_whose_answer_was_lost_counts_once_it_is_found():
    office = Office()
    root = office.start_root()
    office.refuse = ANSWER_LOST
    assert not try_to_spawn(root.subagents, "s0")
    assert root.subagents.is_in_doubt and root.subagents.names() == []
    assert not try_to_spawn(root.subagents, "s0")
    assert root.subagents.names() == ["s0"] and not root.subagents.is_in_doubt
    assert [ended.error for ended in root.subagents.wait([])] == [LOST.error]
    assert [try_to_spawn(root.subagents, f"s{number}") for number in range(1, 6)] == [True] * 4 + [False]
    assert root.member.tree.spawned == 5
    root.end(COMPLETED)
