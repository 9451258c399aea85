"""The process: gunicorn with one gthread worker, and a stop that leaves no run behind.

The master forks the worker, and only the worker has threads, the database and the agents. gunicorn's plain
recipe (stop the agents in `worker_exit`) lost every run at SIGTERM when a stream was open, and its HUP, TTIN and
USR2 start a second worker beside the live one. So the stop begins at the signal itself, those signals do
nothing, and the last act is one transaction that ends what is still running.

A client must hold neither a thread nor the loop: a connection waits for its first byte without a thread, a request
that is not complete soon after is cut, and an answered connection waits at the poller for its client to close.

Private hooks used, read in gunicorn 27.0.1: `Arbiter.handle_*`, and of `ThreadWorker` `handle_exit`, `handle_quit`,
`enqueue_req`, `finish_request`, `get_thread_pool`, `handle`, `handle_error`, `murder_keepalived`, `murder_pending`,
`on_client_socket_readable`, `on_pending_socket_readable`, `keepalived_conns`, `pending_conns`, `nr_conns` and `poller`.
And, read in Python 3.11 to 3.13, `ThreadPoolExecutor._adjust_thread_count`. tests/test_gunicorn.py has a test for each.
"""

import ctypes
import errno
import gc
import io
import logging
import os
import queue
import resource
import select
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import takewhile
from typing import Any, NoReturn

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.glogging import Logger
from gunicorn.http.errors import InvalidHeader, UnsupportedTransferCoding
from gunicorn.workers.gthread import ThreadWorker

from gligabao import __version__
from gligabao.app import Services, create_app, open_services
from gligabao.config import Config
from gligabao.errors import GligabaoError, StartError
from gligabao.logs import configure_logs, keep_secret
from gligabao.web.failures import MAX_BODY_BYTES

log = logging.getLogger(__name__)

MASTER_PATIENCE_SECONDS = 10
"""After SIGTERM the master kills a worker that takes longer than this."""
OPEN_REQUESTS_SECONDS = 2
"""How long a stopping worker waits for requests that are being answered."""
LINGER_SECONDS = 2.0
"""How long an answered connection that is to be closed waits for its client to close it first."""
FIRST_BYTE_SECONDS = 5.0
REQUEST_SECONDS = 5.0
"""A request, body included, must have come in this long after its first bytes."""
SEND_SECONDS = 20
"""A client that takes nothing of its answer for this long is let go."""
DRAIN_BYTES = 65_536
MAX_OPEN_FILES = 65_536
PR_SET_PDEATHSIG = 1
"""Linux, prctl(2): the signal that a process gets when its parent dies."""


def serve(config: Config) -> NoReturn:
    """Run the server until it is told to stop, and end the process.

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
    code = 0
    try:
        _Application(config, listener).run()
    except SystemExit as end:
        code = 0 if end.code in (None, 0) else 1
    logging.shutdown()
    # Not a plain return: clearing up after all those libraries took the interpreter up to seconds on a busy machine.
    os._exit(code)


class _Application(BaseApplication):  # type: ignore[misc]
    """gunicorn's application: its settings, and the objects of the worker."""

    def __init__(self, config: Config, listener: socket.socket) -> None:
        self.config = config
        self._listener = listener
        self.services: Services | None = None
        super().__init__()

    def load_config(self) -> None:
        """Set gunicorn up. Nothing is read from its own files or variables."""
        settings: dict[str, Any] = {
            "bind": [f"fd://{self._listener.fileno()}"],
            "workers": 1,
            "worker_class": _Worker,
            "threads": self.config.threads,
            "worker_connections": max(2000, 2 * self.config.threads),
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
        """Build the objects of the worker, after the fork."""
        try:
            self.services = open_services(self.config)
        except GligabaoError as error:
            log.error("%s", error)
            sys.exit(Arbiter.APP_LOAD_ERROR)
        return _WholeRequests(create_app(self.services))

    def run(self) -> None:
        """Run the master until it ends."""
        _Arbiter(self).run()


class _Arbiter(Arbiter):  # type: ignore[misc]
    """The master, deaf to the signals that would put a second worker beside the one that owns the agents."""

    def _ignore(self) -> None:
        log.warning("signal ignored: restart the server to change it")

    handle_hup = handle_ttin = handle_ttou = handle_usr2 = _ignore


class _Worker(ThreadWorker):  # type: ignore[misc]
    """The worker: begins its stop at the signal, and is not torn from it by a second one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hurry = threading.Event()
        self.leaving = False
        self._signals: set[int] = set()
        self._lingering: deque[Any] = deque()
        # A put into a SimpleQueue is safe in a signal handler; taking a lock or starting a thread is not.
        self._stops: queue.SimpleQueue[None] = queue.SimpleQueue()

    def get_thread_pool(self) -> ThreadPoolExecutor:
        """Return the threads that answer requests."""
        return _RequestThreads(max_workers=self.cfg.threads)

    def enqueue_req(self, conn: Any) -> None:
        """Let a new connection wait for its first byte at the poller: gunicorn has a thread wait with it."""
        if conn.initialized or conn.data_ready:
            super().enqueue_req(conn)
            return
        conn.sock.setblocking(False)
        conn.timeout = time.monotonic() + FIRST_BYTE_SECONDS
        self.pending_conns.append(conn)
        self.poller.register(conn.sock, selectors.EVENT_READ, partial(self.on_pending_socket_readable, conn))

    def handle(self, conn: Any) -> Any:
        """Answer a request, unless it does not come in whole and soon."""
        conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        with ExitStack() as deadline:
            watchdog = self.app.services.watchdog
            deadline.enter_context(watchdog.deadline(REQUEST_SECONDS, partial(_cut, conn.sock)))
            _incoming.deadline = deadline
            return super().handle(conn)

    def finish_request(self, conn: Any, fs: Any) -> None:
        """Take a connection back. One that is to be closed waits for its client at the poller.

        gunicorn waits for it here, in the thread of the loop: two seconds for each client that does not close.
        """
        if fs.cancelled() or fs.exception() or fs.result():
            super().finish_request(conn, fs)
            return
        self.nr_conns -= 1
        try:
            # A close with something unread would be a reset, which takes the answer away (RFC 9112, section 9.6).
            conn.sock.shutdown(socket.SHUT_WR)
            conn.sock.setblocking(False)
            self.poller.register(conn.sock, selectors.EVENT_READ, partial(self._drain, conn))
        except OSError:
            conn.close()
            return
        conn.timeout = time.monotonic() + LINGER_SECONDS
        self._lingering.append(conn)

    def _drain(self, conn: Any, sock: socket.socket) -> None:
        try:
            is_open = bool(sock.recv(DRAIN_BYTES))
        except BlockingIOError:
            is_open = True
        except OSError:
            is_open = False
        if not is_open:
            self._lingering.remove(conn)
            self._let_go(conn)

    def _let_go(self, conn: Any) -> None:
        self.poller.unregister(conn.sock)
        conn.close()

    def murder_pending(self) -> None:
        """Close what waited too long for its first byte, and what lingered too long."""
        self._take_late(self.pending_conns, self.on_pending_socket_readable)
        super().murder_pending()
        now = time.monotonic()
        while self._lingering and self._lingering[0].timeout <= now:
            self._let_go(self._lingering.popleft())

    def murder_keepalived(self, force: bool = False) -> None:
        """Close what waited too long for its next request."""
        if not force:
            self._take_late(self.keepalived_conns, self.on_client_socket_readable)
        super().murder_keepalived(force)

    def _take_late(self, conns: Iterable[Any], take: Callable[[Any, socket.socket], None]) -> None:
        """Take what has come in time: beside hundreds of agents, this loop may look only after the time was over."""
        now = time.monotonic()
        for conn in list(takewhile(lambda conn: conn.timeout <= now, conns)):
            if _has_input(conn.sock):
                take(conn, conn.sock)

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """Answer what is no request of HTTP: with a 4xx, because the fault is not ours (gunicorn has one 501)."""
        if isinstance(exc, UnsupportedTransferCoding):
            exc = InvalidHeader(f"Transfer-Encoding: {exc}")
        super().handle_error(req, client, addr, exc)

    def watch_for_stop(self, services: Services) -> None:
        """Have the agents told to stop as soon as a signal says so."""

        def stop() -> None:
            self._stops.get()
            services.manager.begin_stop()

        threading.Thread(target=stop, name="stop", daemon=True).start()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """SIGTERM: stop in order. A second one changes nothing."""
        self._signals.add(sig)
        self._stops.put(None)
        super().handle_exit(sig, frame)

    def handle_quit(self, sig: int, frame: Any) -> None:
        """SIGINT from a terminal, SIGQUIT from the master: as SIGTERM. One more means: now.

        A single Ctrl-C brings both, one each; only a repeated one, or one that follows SIGTERM, hurries (the
        master then kills within 2 s).
        """
        again = sig in self._signals or signal.SIGTERM in self._signals
        self._signals.add(sig)
        if not again:
            self._stops.put(None)
            super().handle_exit(sig, frame)
            return
        self.hurry.set()
        if not self.leaving:
            sys.exit(0)


class _RequestThreads(ThreadPoolExecutor):
    """A pool that makes do with the threads it has when the system gives no more.

    The plain one raises then, though it has queued the request already; in gunicorn's loop that ends the worker, and
    with it every agent.
    """

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                raise
            log.warning("no more request threads can be started: %d answer all requests", len(self._threads))


_incoming = threading.local()
"""Of the thread that takes a request: `deadline`, to be closed when the request is in."""


class _WholeRequests:
    """The application behind a door that takes in the whole request first, so that its deadline covers the body."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Read the body, as far as it may be long, and pass the request on."""
        length = int(environ.get("CONTENT_LENGTH") or 0)
        if length <= MAX_BODY_BYTES:
            body = environ["wsgi.input"].read(MAX_BODY_BYTES + 1)
            if len(body) < length:
                # Half a request must not pass for a whole one, should its JSON happen to be complete.
                raise ConnectionResetError(errno.ECONNRESET, "the request broke off")
            # A body in chunks has no length until now.
            environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
            environ.pop("HTTP_TRANSFER_ENCODING", None)
        _incoming.deadline.close()
        answer: Iterable[bytes] = self._app(environ, start_response)
        return answer


def _cut(connection: socket.socket) -> None:
    # Only what is yet to come: a request that is there already, and that we were too busy to read, has its answer.
    connection.shutdown(socket.SHUT_RD)


def _has_input(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


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


def _after_fork(arbiter: Arbiter, worker: _Worker) -> None:
    # Only in this process: the master's patience must be longer than the worker's own.
    worker.cfg.set("graceful_timeout", OPEN_REQUESTS_SECONDS)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _worker_is_ready(worker: _Worker) -> None:
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


def _leave(arbiter: Arbiter, worker: _Worker) -> None:
    """End what is still running and leave at once: a request thread that never ends would block a normal exit."""
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
