"""One researcher: an agent at work as a job, on a thread of its own.

All that it uses alone is made here and closed here: its connection to the model, its page reader, its marker, its
recorder. It shares the database, the model and the prompts with the others.
"""

import logging
import threading
from dataclasses import dataclass
from datetime import UTC, datetime

from gligabao.agent.loop import Agent, Outcome
from gligabao.agent.marking import Marker
from gligabao.agent.prompting import Prompts
from gligabao.agent.tools import Toolbox
from gligabao.agent.tools.web import Search, WebTools
from gligabao.cancel import Cancel
from gligabao.config import Config
from gligabao.errors import Cancelled, GligabaoError, RunLost
from gligabao.model.client import Connection, Model
from gligabao.reader.page import Allow, PageReader
from gligabao.records import INTERRUPTED, Ending, Run, Status, StopReason
from gligabao.research.recorder import Recorder
from gligabao.search.anthropic_search import AnthropicSearch
from gligabao.search.unavailable import UnavailableSearch
from gligabao.store.runs import Runs

log = logging.getLogger(__name__)

FAULT = "a fault of the server ended this research: its log has the details"


@dataclass(frozen=True)
class Shared:
    """What all researchers of a server use together. All of it is safe to share."""

    config: Config
    runs: Runs
    model: Model
    prompts: Prompts
    allow: Allow
    owner: str
    """The node: who owns the runs that start here."""
    closing: threading.Event
    """Set when the server is about to leave: nothing waits for the database any more."""


class Researcher:
    """The agent of one run, from its first model call to its stored end."""

    def __init__(self, shared: Shared, run: Run) -> None:
        self.run_id = run.id
        self.cancel = Cancel()
        self._shared = shared
        self._run = run

    def work(self) -> None:
        """Do the whole research and store its end. Raises nothing: this is the top of a thread."""
        try:
            self._work()
        except Exception:
            log.exception("the thread of run %s failed", self.run_id)

    def _work(self) -> None:
        recorder = Recorder(
            runs=self._shared.runs,
            run=self._run,
            owner=self._shared.owner,
            cancel=self.cancel,
            closing=self._shared.closing,
        )
        try:
            outcome = self._research(recorder)
            ending = Ending(Status.COMPLETED, outcome.stop_reason, report=outcome.report)
        except RunLost:
            log.warning("run %s was ended by someone else: its agent stops", self.run_id)
            return
        except Cancelled as reason:
            ending = _failed(str(reason), _why_cancelled(str(reason)))
        except GligabaoError as error:
            ending = _failed(str(error), StopReason.ERROR)
        except Exception:
            log.exception("run %s failed", self.run_id)
            ending = _failed(FAULT, StopReason.ERROR)
        recorder.end(ending)
        log.info("run %s %s (%s)", self.run_id, ending.status, ending.stop_reason)

    def _research(self, recorder: Recorder) -> Outcome:
        shared = self._shared
        connection = shared.model.connect(self.cancel)
        reader = PageReader(allow=shared.allow, cancel=self.cancel, watchdog=shared.model.watchdog)
        try:
            return self._agent(connection, reader, recorder).run(self._run.topic)
        finally:
            reader.close()
            connection.close()

    def _agent(self, connection: Connection, reader: PageReader, recorder: Recorder) -> Agent:
        shared = self._shared
        today = datetime.now(UTC).date().isoformat()
        web = WebTools(search=self._search(connection, today), reader=reader, marker=Marker())
        return Agent(
            connection=connection,
            model=self._run.model,
            system=shared.prompts.system(date=today, max_steps=self._run.max_steps),
            toolbox=Toolbox(web.tools()),
            max_steps=self._run.max_steps,
            max_answer_tokens=shared.config.max_answer_tokens,
            observer=recorder,
        )

    def _search(self, connection: Connection, today: str) -> Search:
        provider = self._shared.config.search_provider
        if provider != "anthropic":
            return UnavailableSearch(provider)
        system = self._shared.prompts.web_search(date=today)
        return AnthropicSearch(connection=connection, model=self._run.model, system=system)


def _failed(error: str, stop_reason: StopReason) -> Ending:
    return Ending(Status.FAILED, stop_reason, error=error)


def _why_cancelled(reason: str) -> StopReason:
    return StopReason.INTERRUPTED if reason == INTERRUPTED else StopReason.CANCELLED
