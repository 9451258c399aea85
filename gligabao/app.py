"""Builds every object of a server once and hands it down."""

import logging
import threading
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from flask import Flask

from gligabao.agent.prompting import Prompts
from gligabao.cancel import Watchdog
from gligabao.config import Config
from gligabao.handlers import Handlers
from gligabao.model.client import ModelServer
from gligabao.model.prices import Prices
from gligabao.reader.page import Allow
from gligabao.records import INTERRUPTED, now
from gligabao.research.manager import Manager
from gligabao.research.messenger import Messenger, QueueMessenger
from gligabao.research.researcher import Shared
from gligabao.stopping import StopOrder
from gligabao.store.database import Database, check_database_place, open_database
from gligabao.store.migrate import migrate
from gligabao.store.node import NodeLock, node_lock_path
from gligabao.store.runs import Runs
from gligabao.web.api import make_api
from gligabao.web.auth import guard
from gligabao.web.failures import MAX_BODY_BYTES, answer_errors
from gligabao.web.long_answers import LongAnswers
from gligabao.web.responses import Utf8Response, finish

log = logging.getLogger(__name__)

JOIN_SECONDS = 2.5
STOP_SECONDS = 3.0
LAST_SECONDS = 0.5
"""A stop waits `JOIN_SECONDS` for streams, waits and agents, and up to `STOP_SECONDS` for a database that does not
answer, both counted from its start. The database has `LAST_SECONDS` at least. The next start ends the runs left."""


@dataclass(frozen=True)
class Services:
    """The objects of a running server that outlive a request."""

    config: Config
    db: Database
    runs: Runs
    manager: Manager
    handlers: Handlers
    watchdog: Watchdog
    lock: NodeLock
    long_answers: LongAnswers
    stop_order: StopOrder
    """What has threads of its own, in the order in which it stops."""

    def close(self, *, hurry: threading.Event | None = None) -> None:
        """Stop in order: what has threads first, then the runs that are left, the database last."""
        self.stop_order.begin()
        left = max(LAST_SECONDS, STOP_SECONDS - self.stop_order.seconds)
        with self.watchdog.deadline(left, self.db.close):
            self.stop_order.join(JOIN_SECONDS, hurry)
            self.manager.interrupt_left()
        self.watchdog.close()
        self.db.close()
        self.lock.release()


def open_services(
    config: Config, *, open_db: Callable[[str], Database] = open_database, messenger: Messenger | None = None
) -> Services:
    """Open the database, end what a dead predecessor left behind, and build all that a server needs.

    `messenger` carries the messages between agents; without one, they stay in the memory of this process.
    Raises `ConfigError` when a setting cannot be used, `StartError` when another server has the database or a newer
    one made it, `StoreError` when it does not answer: each with one line.
    """
    prompts = Prompts.load()
    allow = Allow.parse(config.fetch_allow)
    watchdog = Watchdog()
    model = _open_model(config, watchdog)
    check_database_place(config.database_url)  # before the lock, which would leave its file behind
    with ExitStack() as undo:
        lock = NodeLock(node_lock_path(config.database_url, config.data_dir))
        predecessor = lock.acquire()
        undo.callback(lock.release)
        db = open_db(config.database_url)
        undo.callback(db.close)
        runs, node_id = _take_over(db, predecessor)
        lock.claim(node_id)
        watchdog.start()
        undo.pop_all()
    shared = Shared(
        config=config,
        runs=runs,
        model=model,
        prompts=prompts,
        allow=allow,
        messenger=QueueMessenger() if messenger is None else messenger,
        owner=node_id,
        closing=threading.Event(),
    )
    manager = Manager(shared)
    long_answers = LongAnswers(threads=config.threads)
    return Services(
        config=config,
        db=db,
        runs=runs,
        manager=manager,
        handlers=Handlers(config=config, db=db, runs=runs, manager=manager),
        watchdog=watchdog,
        lock=lock,
        long_answers=long_answers,
        stop_order=StopOrder(long_answers, manager),
    )


def create_app(services: Services) -> Flask:
    """Return the WSGI application over these services."""
    app = Flask("gligabao.web")
    app.response_class = Utf8Response
    app.json.sort_keys = False  # type: ignore[attr-defined]  # Flask types it as its base class
    app.json.ensure_ascii = False  # type: ignore[attr-defined]
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    guard(app, services.config)
    answer_errors(app)
    app.register_blueprint(make_api(services.handlers))
    app.after_request(finish)
    return app


def _open_model(config: Config, watchdog: Watchdog) -> ModelServer:
    model = ModelServer(
        api_key=config.anthropic_api_key,
        base_url=config.anthropic_base_url,
        prices=Prices(config.prices),
        watchdog=watchdog,
        timeout_seconds=config.model_timeout_seconds,
        prompt_cache=config.prompt_cache,
    )
    model.load(config.model)
    return model


def _take_over(db: Database, predecessor: str | None) -> tuple[Runs, str]:
    """Bring the schema up, end what a dead predecessor left, and return the runs and the id of this node."""
    migrate(db)
    runs = Runs(db)
    _end_orphans(db, runs, predecessor)
    return runs, str(uuid.uuid4())


def _end_orphans(db: Database, runs: Runs, predecessor: str | None) -> None:
    """End the runs that a dead process left running. On SQLite there is one server, so that is every run."""
    owner = None if db.dialect == "sqlite" else predecessor
    if predecessor is not None:
        # One that it began may be stored only now, and nobody would look for it later.
        runs.await_starts(owner=predecessor)
    if db.dialect == "sqlite" or predecessor is not None:
        ended = runs.interrupt_runs(owner=owner, error=INTERRUPTED, at=now())
        if ended:
            log.warning("ended %d runs that an earlier server left running", len(ended))
