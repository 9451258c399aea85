"""One researcher: an agent at work as a job, on a thread of its own.

What it alone uses is made and closed here: its connection to the model, its page reader, its marker, its recorder. It
shares the database, the model and the prompts with all others, and its tree with its team.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from gligabao.agent.loop import Agent, Outcome
from gligabao.agent.marking import Marker
from gligabao.agent.prompting import Prompts
from gligabao.agent.tools import Toolbox
from gligabao.agent.tools.team import sibling_tools, subagent_tools
from gligabao.agent.tools.web import WebTools
from gligabao.config import Config
from gligabao.errors import Cancelled, GligabaoError, RunLost, StoreFault
from gligabao.model.client import ModelConnection, ModelServer
from gligabao.model.conversation import Conversation
from gligabao.reader.page import Allow, PageReader
from gligabao.records import Ending, Run, Status, Stop, StopKind, StopReason, now
from gligabao.research.messenger import Messenger, close_inbox
from gligabao.research.recorder import Recorder, store_in_the_end
from gligabao.research.team import Member, Siblings, StartAgent, Subagents
from gligabao.search import SearchNeeds, open_search
from gligabao.store.runs import Runs

log = logging.getLogger(__name__)

FAULT = "internal error; see the server log"
_FAULT = Stop(StopKind.FAULT, FAULT)


@dataclass(frozen=True)
class Shared:
    """What all researchers of a server use together. All of it is safe to share."""

    config: Config
    runs: Runs
    model: ModelServer
    prompts: Prompts
    allow: Allow
    messenger: Messenger
    owner: str
    """The node: who owns the runs that start here."""
    closing: threading.Event
    """Set when the server is about to leave: nothing waits for the database any more."""


class Researcher:
    """The agent of one run, from its first model call to its stored end."""

    def __init__(self, shared: Shared, member: Member, start_agent: StartAgent) -> None:
        self.member = member
        self._shared = shared
        self._run = member.run
        self._today = datetime.now(UTC).date().isoformat()
        self._subagents = Subagents(member, start=start_agent, end_runs=self._end_runs, find_lost=self._find_lost)

    def work(self) -> None:
        """Do the whole research and store its end. Raises nothing: this is the top of a thread."""
        recorder = Recorder(
            runs=self._shared.runs,
            run=self._run,
            owner=self._shared.owner,
            cancel=self.member.cancel,
            closing=self._shared.closing,
        )
        ending = _FAULT.ending()
        ended_at = ""
        try:
            ending = self._research_to_end(recorder)
            self.member.at_rest.set()
            if self._subagents.is_in_doubt:
                self._store(self._subagents.settle, "what became of the sub-agents")
            last_below = self._subagents.end_all()
            ended_at = recorder.end(ending, not_before=last_below)
            log.info("run %s %s (%s)", self._run.id, ending.status, ending.stop_reason)
        except Exception:
            # Whatever could not be written, the run must not stay at work: store its end and nothing else.
            log.exception("the thread of run %s failed", self._run.id)
            ending = _FAULT.ending()
            self.member.cancel.set(_FAULT)
            ended_at = self._end_runs(self._run.id, stop=_FAULT)
        finally:
            self.member.at_rest.set()
            self.member.end(ending, ended_at or now())

    def _research_to_end(self, recorder: Recorder) -> Ending:
        try:
            outcome = self._research(recorder)
        except Cancelled as cancelled:
            return cancelled.stop.ending()
        except RunLost as lost:
            # Someone else ended the run, and its stored end stays as it is.
            return (self.member.cancel.stop or Stop(StopKind.RUN_LOST, str(lost))).ending()
        except GligabaoError as error:
            return Ending(Status.FAILED, StopReason.ERROR, error=error.client_text)
        except Exception:
            log.exception("run %s failed", self._run.id)
            return _FAULT.ending()
        return Ending(Status.COMPLETED, outcome.stop_reason, report=outcome.report)

    def _research(self, recorder: Recorder) -> Outcome:
        shared = self._shared
        connection = shared.model.connect(self.member.cancel)
        reader = PageReader(allow=shared.allow, cancel=self.member.cancel, watchdog=shared.model.watchdog)
        try:
            agent = self._agent(connection, reader, recorder)
            return agent.run(self._conversation(agent.toolbox))
        finally:
            reader.close()
            connection.close()
            close_inbox(shared.messenger, self._run.id)

    def _agent(self, connection: ModelConnection, reader: PageReader, recorder: Recorder) -> Agent:
        return Agent(
            connection=connection,
            model=self._run.model,
            toolbox=self._toolbox(connection, reader, recorder),
            max_steps=self._run.max_steps,
            max_answer_tokens=self._shared.config.max_answer_tokens,
            observer=recorder,
        )

    def _toolbox(self, connection: ModelConnection, reader: PageReader, recorder: Recorder) -> Toolbox:
        shared, member = self._shared, self.member
        needs = SearchNeeds(
            connection=connection,
            model=self._run.model,
            system=shared.prompts.web_search(date=self._today),
            observer=recorder,
            cancel=member.cancel,
            watchdog=shared.model.watchdog,
        )
        marker = Marker()
        tools = [*WebTools(search=open_search(shared.config, needs), reader=reader, marker=marker).tools()]
        if member.may_spawn:
            tools += subagent_tools(self._subagents, marker)
        if member.parent:
            tools += sibling_tools(Siblings(member, shared.messenger), marker)
        return Toolbox(tools)

    def _conversation(self, toolbox: Toolbox) -> Conversation:
        run = self._run
        system = self._shared.prompts.system(
            date=self._today,
            max_steps=run.max_steps,
            may_spawn=self.member.may_spawn,
            name=run.name,
            reason=" ".join(run.reason.split()),
        )
        return Conversation(system=system, topic=run.topic, tools=toolbox.schemas)

    def _end_runs(self, run_id: int, *, stop: Stop) -> str:
        shared = self._shared
        ended_at = ""

        def end() -> None:
            nonlocal ended_at
            reason = stop.kind.stop_reason
            shared.runs.end_subtree(run_id, owner=shared.owner, error=stop.text, stop_reason=reason, at=now())
            run = shared.runs.get_run(run_id, user_id=self._run.user_id)
            ended_at = (run and run.finished_at) or ""

        try:
            self._store(end, f"the end of run {run_id} and those below it")
        except StoreFault:
            log.exception("run %s stays at work in the database until the server stops", run_id)
        close_inbox(shared.messenger, run_id)
        return ended_at

    def _find_lost(self, member: Member) -> list[Run]:
        runs = self._shared.runs.list_started(member.run.id, owner=self._shared.owner)
        with member.tree.lock:
            return [run for run in runs if run.name not in member.children]

    def _store(self, write: Callable[[], None], what: str) -> None:
        store_in_the_end(write, closing=self._shared.closing, what=what)
