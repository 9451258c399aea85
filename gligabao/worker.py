"""The worker: its connections, its request threads, and how its stop begins.

A client must hold neither a thread nor the loop: a connection waits for its first byte without a thread, a request
that is not complete soon after is cut, an answer that is not taken is given up, and an answered connection waits at
the poller for its client to close.

How long an answer may take is for its route to say: see `web/deadlines.py`.

Private hooks used, read in gunicorn 27.0.1, of `ThreadWorker`: `accept`, `enqueue_req`, `finish_request`,
`get_thread_pool`, `handle`, `handle_error`, `handle_exit`, `handle_quit`, `init_process`, `init_signals`,
`murder_keepalived`, `murder_pending`, `on_client_socket_readable`, `on_pending_socket_readable`, `keepalived_conns`,
`pending_conns`, `nr_conns`, `method_queue` and `poller`; of its connections `initialized`, `data_ready`,
`timeout` and `close`; `PollableMethodQueue.close`; and of the WSGI environment `gunicorn.socket`. And, read in Python
3.11 to 3.13, `ThreadPoolExecutor._adjust_thread_count`. tests/test_gunicorn.py tests what they do, and names the
versions.
"""

import errno
import io
import logging
import os
import queue
import select
import selectors
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import takewhile
from typing import Any

from gunicorn.http.errors import InvalidHeader, UnsupportedTransferCoding
from gunicorn.workers.gthread import PollableMethodQueue, ThreadWorker

from gligabao.app import Services
from gligabao.web import deadlines
from gligabao.web.failures import MAX_BODY_BYTES

log = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
"""Held back between the fork and the moment at which the worker has given up the master's handlers: one that came then
was lost."""
LINGER_SECONDS = 2.0
"""How long an answered connection that is to be closed waits for its client to close it first."""
MAX_LINGERING = 500
FIRST_BYTE_SECONDS = 5.0
REQUEST_SECONDS = 5.0
"""A request, body included, must have come in this long after its first bytes."""
DRAIN_BYTES = 65_536
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
FULL_SECONDS = 60.0
"""How often at most it is logged that connections are refused."""


class Worker(ThreadWorker):  # type: ignore[misc]
    """The worker: begins its stop at the signal, and is not torn from it by a second one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hurry = threading.Event()
        self.leaving = False
        self.method_queue = _MethodQueue()
        self._signals: set[int] = set()
        self._lingering: deque[Any] = deque()
        self._spare = -1
        self._told_full = 0.0
        # A put into a SimpleQueue is safe in a signal handler; taking a lock or starting a thread is not.
        self._stops: queue.SimpleQueue[None] = queue.SimpleQueue()

    def init_process(self) -> None:
        """Work until told to stop, in the process of its own."""
        self._spare = _open_spare()
        super().init_process()

    def init_signals(self) -> None:
        """Take over the signals. One to the whole group, as when a terminal closes, must not end the agents."""
        super().init_signals()
        for number in (signal.SIGHUP, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        # There are no agents yet, and a stop must not wait for a database that this process opens: see watch_for_stop.
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def get_thread_pool(self) -> ThreadPoolExecutor:
        """Return the threads that answer requests."""
        return _RequestThreads(max_workers=self.cfg.threads)

    def accept(self, listener: socket.socket) -> None:
        """Take a connection. One for which there is no descriptor left is refused: gunicorn's loop would end."""
        try:
            super().accept(listener)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                log.warning("a connection could not be taken: %s", error)
                return
            self._refuse(listener)

    def _refuse(self, listener: socket.socket) -> None:
        # Taken with the spare descriptor and closed: left in the queue, it would keep the loop busy.
        with suppress(OSError):
            os.close(self._spare)
        with suppress(OSError):
            listener.accept()[0].close()
        # When another thread was quicker to take it, this fails, and so does the next refusal.
        self._spare = _open_spare()
        now = time.monotonic()
        if now - self._told_full > FULL_SECONDS:
            self._told_full = now
            log.error("connections are refused: all file descriptors are in use (ulimit -n)")

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
        """Answer a request, unless it does not come in whole and soon, or its answer takes too long."""
        with ExitStack() as limits:
            _current.limits = limits
            _current.watchdog = watchdog = self.app.services.watchdog
            limits.enter_context(watchdog.deadline(REQUEST_SECONDS, partial(_take_no_more, conn.sock)))
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
        if len(self._lingering) > MAX_LINGERING:
            self._let_go(self._lingering.popleft())

    def _drain(self, conn: Any, sock: socket.socket) -> None:
        if conn not in self._lingering:
            return  # closed to make room, after the poller had seen something on it
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
        """Answer bytes that are not valid HTTP with a 4xx: the fault is the client's. gunicorn has one 501."""
        if isinstance(exc, UnsupportedTransferCoding):
            exc = InvalidHeader(f"Transfer-Encoding: {exc}")
        super().handle_error(req, client, addr, exc)

    def watch_for_stop(self, services: Services) -> None:
        """Take signals to stop from now on, and have all that stops told at once."""

        def stop() -> None:
            self._stops.get()
            services.stop_order.begin()

        threading.Thread(target=stop, name="stop", daemon=True).start()
        signal.signal(signal.SIGTERM, self.handle_exit)
        signal.signal(signal.SIGINT, self.handle_quit)
        signal.signal(signal.SIGQUIT, self.handle_quit)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """SIGTERM: stop in order. A second one changes nothing."""
        self._signals.add(sig)
        self._stops.put(None)
        super().handle_exit(sig, frame)

    def handle_quit(self, sig: int, frame: Any) -> None:
        """SIGINT from a terminal, SIGQUIT from the master: as SIGTERM. One more means: now.

        A single Ctrl-C brings both, one each; only a repeated one, or one that follows SIGTERM (the master then
        kills within 2 s), hurries.
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


_current = threading.local()
"""Of the thread that takes a request: its `limits`, and the `watchdog` that keeps them."""


class WholeRequests:
    """The application behind a door that takes in the whole request first, so that its time limit covers the body.

    From then on the time limit of the answer runs.
    """

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
        _current.limits.close()
        _current.limits.enter_context(_watch_answer(environ))
        answer: Iterable[bytes] = self._app(environ, start_response)
        return answer


def _take_no_more(connection: socket.socket) -> None:
    # A request that is there already, and that we were too busy to read, has its answer all the same.
    connection.shutdown(socket.SHUT_RD)


def _watch_answer(environ: dict[str, Any]) -> deadlines.AnswerWatch:
    """Put the deadline of the answer where its view finds it, and return what sees to it."""
    environ[deadlines.ENVIRON_KEY] = deadline = deadlines.AnswerDeadline()
    # The path only: a query string names users. WSGI has its bytes as Latin-1.
    path = environ["PATH_INFO"].encode("latin-1").decode("utf-8", "replace")
    return deadlines.AnswerWatch(
        deadline,
        watchdog=_current.watchdog,
        connection=environ["gunicorn.socket"],
        request=f"{environ['REQUEST_METHOD']} {path}",
    )


def _open_spare() -> int:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _has_input(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


class _MethodQueue(PollableMethodQueue):  # type: ignore[misc]
    """What request threads have the loop do. Its pipe stays open until the process ends.

    gunicorn closes it at the end of the loop and goes on using its number: a request that ended later wrote a byte into
    whatever had that number by then, which was the database.
    """

    def close(self) -> None:
        """Leave the pipe to the end of the process, which follows."""
