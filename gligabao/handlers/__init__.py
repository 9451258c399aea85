"""Each operation once, whichever door asks: do it and return a record.

`inputs` says what each operation takes, and checks it. The doors read requests into inputs and turn the records into
answers.
"""

from gligabao.config import Config
from gligabao.handlers.readiness import ReadinessHandler
from gligabao.handlers.research import ResearchHandlers
from gligabao.research.manager import Manager
from gligabao.store.database import Database
from gligabao.store.runs import Runs


class Handlers:
    """The operations of a server, by subject. Safe to share between threads."""

    def __init__(self, *, config: Config, db: Database, runs: Runs, manager: Manager) -> None:
        self.research = ResearchHandlers(runs=runs, manager=manager)
        self.readiness = ReadinessHandler(config=config, db=db, manager=manager)
