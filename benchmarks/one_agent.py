"""Our agent with a tool that costs nothing, for measuring the rest of a step: loop, states stored, model client."""

import threading
from collections.abc import Callable

from gligabao.agent.loop import Agent
from gligabao.agent.tools import Tool, Toolbox, ToolInput
from gligabao.cancel import Cancel, Watchdog
from gligabao.model.client import ModelServer
from gligabao.model.conversation import Conversation
from gligabao.model.prices import Prices
from gligabao.records import Ending, NewRun, StateName, Status
from gligabao.research.recorder import Recorder
from gligabao.store.database import open_database
from gligabao.store.migrate import migrate
from gligabao.store.runs import Runs

MODEL = "claude-sonnet-5-5"


class LookUp(ToolInput):
    """Input of the tool."""

    word: str


class OneAgent:
    """A database, a model and an agent between them, without the server around."""

    def __init__(self, database_url: str, model_url: str, look_up: Callable[[str], str]) -> None:
        self.db = open_database(database_url)
        migrate(self.db)
        self.runs = Runs(self.db)
        self.watchdog = Watchdog()
        self.model = ModelServer(api_key="k", base_url=model_url, prices=Prices({}), watchdog=self.watchdog)
        self._closing = threading.Event()
        self._toolbox = Toolbox(
            [
                Tool(
                    "lookup",
                    "Looks a word up.",
                    LookUp,
                    StateName.USING_TOOL,
                    lambda given: given.word,
                    lambda given: look_up(given.word),
                )
            ]
        )

    def run(self, steps: int) -> int:
        """Do one whole run, from its row to its stored end, and return its id."""
        new = NewRun(user_id="bench", topic="The topic", model=MODEL, max_steps=steps, priced=True)
        run = self.runs.start_run(new, owner="bench", max_working=10**9)
        cancel = Cancel()
        recorder = Recorder(runs=self.runs, run=run, owner="bench", cancel=cancel, closing=self._closing)
        connection = self.model.connect(cancel)
        try:
            outcome = Agent(
                connection=connection,
                model=MODEL,
                toolbox=self._toolbox,
                max_steps=steps,
                max_answer_tokens=16000,
                observer=recorder,
            ).run(Conversation(system="Research.", topic="The topic", tools=self._toolbox.schemas))
        finally:
            connection.close()
        recorder.end(Ending(Status.COMPLETED, outcome.stop_reason, report=outcome.report))
        return run.id
