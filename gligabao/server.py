"""The process: gunicorn with one gthread worker, and a stop that leaves no run behind.

The master forks the worker, and only the worker has threads, the database and the agents. gunicorn's plain
recipe (stop the agents in `worker_exit`) lost every run at SIGTERM when a stream was open, and its HUP, TTIN and
USR2 start a second worker beside the live one. So the stop begins at the signal itself, those signals do
nothing, and the last act is one transaction that ends what is still running.

What the worker does with its connections is left to `worker`.

Private hooks used, read in gunicorn 27.0.1, of `Arbiter`: `handle_*`, `spawn_worker`, `murder_workers`, `timeout`,
`pid` and `APP_LOAD_ERROR`; of `Logger`: `setup` and `_access_log_enabled`. tests/test_gunicorn.py tests what they do,
and names the version.
"""

import ctypes
import errno
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.glogging import Logger

from gligabao import __version__
from gligabao.app import Services, create_app, open_services
from gligabao.config import Config
from gligabao.errors import GligabaoError, StartError, StoreError, StoreFault
from gligabao.logs import configure_logs, keep_secret
from gligabao.worker import STOP_SIGNALS, WholeRequests, Worker

log = logging.getLogger(__name__)

MASTER_PATIENCE_SECONDS = 10
"""After SIGTERM the master kills a worker that takes longer than this."""
RESPAWN_SECONDS = 1.0
"""Minimum delay between two worker starts: while the database is away, each new worker ends at once."""
DATABASE_AWAY = 1
"""Exit code of a worker that finds the database away. The master replaces it, as it does after any code but gunicorn's
own two for a worker that can never work."""
OPEN_REQUESTS_SECONDS = 2
"""How long a stopping worker waits for requests that are being answered."""
MAX_OPEN_FILES = 65_536
PR_SET_PDEATHSIG = 1
"""Linux, prctl(2): the signal that a process gets when its parent dies."""


def serve(config: Config, *, make_app: Callable[[Services], Flask] = create_app) -> NoReturn:
    """Run the server until it is told to stop, and end the process.

    `make_app` makes the WSGI application, in the worker.
    Raises `ConfigError`, `StartError` or `StoreError` when it cannot start.
    """
    configure_logs(config.log_format)
    for secret in config.secrets():
        keep_secret(secret)
    _raise_file_limit()
    # Both before the fork: what cannot work is then one line and an exit code, not a worker that dies.
    listener = _listen(config)
    open_services(config).close()
    # The worker shares these objects with the master: keep its collector from touching, and so copying, them.
    gc.freeze()
    code, master = 0, os.getpid()
    try:
        _Application(config, listener, make_app).run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    if os.getpid() == master:
        # A worker keeps its own code: it tells the master whether to start another one.
        code = 1 if code else 0
    logging.shutdown()
    # Not a plain return: clearing up after all those libraries took the interpreter up to seconds on a busy machine.
    os._exit(code)


class _Application(BaseApplication):  # type: ignore[misc]
    """gunicorn's application: its settings, and the objects of the worker."""

    def __init__(self, config: Config, listener: socket.socket, make_app: Callable[[Services], Flask]) -> None:
        self.config = config
        self._make_app = make_app
        self._listener = listener
        self.services: Services | None = None
        super().__init__()

    def load_config(self) -> None:
        """Set gunicorn up. Nothing is read from its own files or variables."""
        settings: dict[str, Any] = {
            "bind": [f"fd://{self._listener.fileno()}"],
            "workers": 1,
            "worker_class": Worker,
            "threads": self.config.threads,
            # The other half is for agents, the database and what is left open for a moment.
            "worker_connections": min(max(2000, 2 * self.config.threads), _file_limit() // 2),
            "keepalive": 5,
            "graceful_timeout": MASTER_PATIENCE_SECONDS,
            "timeout": 30,
            "max_requests": 0,
            "preload_app": False,
            "control_socket_disable": True,
            "logger_class": _Logger,
            "accesslog": None,
            # No header of a client may set variables of the application: by default the local ones' SCRIPT_NAME may.
            "forwarder_headers": "",
            "forwarded_allow_ips": "",
            "proc_name": "gligabao",
            "post_fork": _after_fork,
            "post_worker_init": _worker_is_ready,
            "worker_exit": _leave,
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Build the objects of the worker, after the fork.

        A worker that replaces one that died may find what the first did not. While the database is away or locked, the
        worker ends and another one tries; anything else (a newer schema, a missing table, another server) ends the
        whole server.
        """
        try:
            services = open_services(self.config)
        except GligabaoError as error:
            if isinstance(error, StoreError) and not isinstance(error, StoreFault):
                log.error("trying again: %s", error)
                sys.exit(DATABASE_AWAY)
            log.error("%s", error)
            sys.exit(Arbiter.APP_LOAD_ERROR)
        app = self._make_app(services)
        self.services = services
        return WholeRequests(app)

    def run(self) -> None:
        """Run the master until it ends."""
        _Arbiter(self).run()


class _Arbiter(Arbiter):  # type: ignore[misc]
    """The master, deaf to the signals that would put a second worker beside the one that owns the agents."""

    def _ignore(self) -> None:
        log.warning("signal ignored: restart the server to change it")

    handle_hup = handle_ttin = handle_ttou = handle_usr2 = _ignore

    def __init__(self, app: BaseApplication) -> None:
        self._spawned = -RESPAWN_SECONDS
        self._looked = time.monotonic()
        self._patient_until = 0.0
        super().__init__(app)

    def spawn_worker(self) -> Any:
        """Start a worker, `RESPAWN_SECONDS` after the last one at the earliest."""
        threading.Event().wait(max(0.0, self._spawned + RESPAWN_SECONDS - time.monotonic()))
        self._spawned = time.monotonic()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            return super().spawn_worker()  # in the worker itself, this does not return
        finally:
            if os.getpid() == self.pid:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def murder_workers(self) -> None:
        """Kill a worker whose loop has stopped; not one that slept as this process did, and has just woken up."""
        now = time.monotonic()
        if now - self._looked > self.timeout / 2:
            self._patient_until = now + self.timeout
        self._looked = now
        if now >= self._patient_until:
            super().murder_workers()


class _Logger(Logger):  # type: ignore[misc]
    """gunicorn's log through ours: same format, same redaction."""

    def setup(self, cfg: Any) -> None:
        """Let the records go up to the root logger instead of to handlers of gunicorn's own."""
        self.cfg = cfg
        self.loglevel = logging.WARNING
        self._access_log_enabled = False
        self.error_log.handlers.clear()
        self.error_log.propagate = True
        # It tells of every start and stop in its own words; ours are enough.
        self.error_log.setLevel(self.loglevel)
        self.access_log.propagate = False


def _raise_file_limit() -> None:
    """Allow as many open files as the system lets us: each agent and each client needs some, and 1,024 is soon used."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def _file_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _listen(config: Config) -> socket.socket:
    """Return the socket of the address that is set up, listening."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=2048)
    except OSError as error:
        where = f"port {config.port} on {config.host}"
        if error.errno == errno.EADDRINUSE:
            raise StartError(f"{where} is in use: choose another with --port, or stop what listens there") from error
        raise StartError(f"cannot listen on {where}: {error.strerror or error}") from error


def _after_fork(arbiter: Arbiter, worker: Worker) -> None:
    # Only in this process: the master's patience must be longer than the worker's own.
    worker.cfg.set("graceful_timeout", OPEN_REQUESTS_SECONDS)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _worker_is_ready(worker: Worker) -> None:
    services: Services = worker.app.services
    worker.watch_for_stop(services)
    host, port = worker.sockets[0].sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    log.info("gligabao %s is ready on http://%s:%s", __version__, shown, port)
    if services.config.anthropic_api_key is None:
        log.warning("no model key (ANTHROPIC_API_KEY): runs can be read, but none can be started")
    if services.config.search_provider != "anthropic":
        log.warning(
            "search_provider %s is not in this version yet: agents cannot search", services.config.search_provider
        )


def _leave(arbiter: Arbiter, worker: Worker) -> None:
    """End what is still running and leave at once: a request thread that never ends would block a normal exit.

    A worker that could not load has nothing to end, and leaves with the exit code that it has chosen (see `serve`).
    """
    worker.leaving = True
    services: Services | None = worker.app.services
    if services is None:
        return
    try:
        services.close(hurry=worker.hurry)
        log.info("gligabao has stopped")
    except Exception:
        log.exception("the stop failed")
    finally:
        logging.shutdown()
        os._exit(0)
