"""How long an answer may take, and the end of one that takes longer.

The worker puts an `AnswerDeadline` into the WSGI environment of each request, under `ENVIRON_KEY`. An answer must be
made and taken `ANSWER_SECONDS` after its request came in. A view that needs longer gets the deadline from
`deadline_of` and says so: `allow` sets another limit, `allow_stream` none.

In each of them a client that takes nothing for `CLIENT_SECONDS` is cut. This is seen at its socket: bytes wait to be
sent, and none is acknowledged. So a stream that waits for its next event is left alone, and so is a client that is
slow; and a client that has gone without a word is noticed while the view itself waits.

A cut shuts the connection down, which wakes a thread that is sending, and calls what the view left with `waking`. Each
is a line in the log.
"""

import fcntl
import logging
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gligabao.cancel import Watchdog

log = logging.getLogger(__name__)

ENVIRON_KEY = "gligabao.answer"
ANSWER_SECONDS = 30.0
CLIENT_SECONDS = 30.0
LOOKS = 6
"""How often a client is looked at in `CLIENT_SECONDS`: it is cut at most one sixth of them late."""
BYTES_ACKED = 120
"""Linux, tcp(7): where `tcpi_bytes_acked`, 64 bits, stands in `struct tcp_info` (since 4.1; fields are only added)."""


class AnswerDeadline:
    """How long one answer may take: the view says it, and the worker's watch reads it. One lock guards the wakers."""

    def __init__(self) -> None:
        self.limit: float | None = ANSWER_SECONDS
        """Seconds since the request came in; None: no limit."""
        self.is_cut = False
        """Whether the connection was shut down: nobody will see the answer."""
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], None]] = []

    def allow(self, seconds: float) -> None:
        """Let the answer take this long, counted from the request; what is sent after a wait needs some of it."""
        self.limit = seconds

    def allow_stream(self) -> None:
        """Let the answer take any time, as long as its client takes what is sent."""
        self.limit = None

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """While the block runs, call `wake` (from another thread) when the answer is cut; at once if it was before."""
        with self._lock:
            self._wakers.append(wake)
            was_cut = self.is_cut
        try:
            if was_cut:
                wake()
            yield
        finally:
            with self._lock:
                self._wakers.remove(wake)

    def tell_cut(self) -> None:
        """Wake the view: its answer was cut."""
        with self._lock:
            self.is_cut = True
            wakers = list(self._wakers)
        for wake in wakers:
            wake()


def deadline_of(environ: Mapping[str, Any]) -> AnswerDeadline:
    """Return the deadline of a request's answer. Without a worker, as in Flask's test client, nobody watches it."""
    return environ.get(ENVIRON_KEY) or AnswerDeadline()


class AnswerWatch:
    """Cuts an answer that takes too long, while the block runs.

    The thread that answers and the watchdog share it: one lock makes sure that no cut hits a connection that has gone
    on to its next request.
    """

    def __init__(
        self, deadline: AnswerDeadline, *, watchdog: Watchdog, connection: socket.socket, request: str
    ) -> None:
        self._deadline = deadline
        self._watchdog = watchdog
        self._connection = connection
        self._request = request
        self._client = _Client(connection)
        self._lock = threading.Lock()
        self._is_over = False

    def __enter__(self) -> "AnswerWatch":
        self._began = time.monotonic()
        self._arm(self._began)
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True
            self._watchdog.disarm(self._key)

    def _arm(self, now: float) -> None:
        seconds, limit = CLIENT_SECONDS / LOOKS, self._deadline.limit
        if limit is not None:
            seconds = min(seconds, self._began + limit - now)
        self._key = self._watchdog.arm(seconds, self._look)

    def _look(self) -> None:
        """Cut the answer if that is due, otherwise look again later. Called by the watchdog."""
        with self._lock:
            if self._is_over:
                return
            now = time.monotonic()
            why = self._why_cut(now)
            if not why:
                self._arm(now)
                return
            self._is_over = True
            _shut_down(self._connection)
        log.warning("%s cut: %s", self._request, why)
        self._deadline.tell_cut()

    def _why_cut(self, now: float) -> str:
        if self._client.idle_seconds(now) >= CLIENT_SECONDS:
            return f"the client took nothing for {CLIENT_SECONDS:g} s"
        limit = self._deadline.limit
        if limit is None or now - self._began < limit:
            return ""
        return f"the answer was not {'taken' if self._client.is_behind else 'made'} in {limit:g} s"


class _Client:
    """What the client at the other end of a connection takes, as far as its acknowledgements tell."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._acked = self._waiting = 0
        self._moved = time.monotonic()

    @property
    def is_behind(self) -> bool:
        """Whether bytes waited for it at the last look."""
        return self._waiting > 0

    def idle_seconds(self, now: float) -> float:
        """Look, and return how long bytes have waited without any being taken."""
        acked, waiting = _count_bytes(self._connection)
        # The queue counts too, because not every system tells how much was acknowledged.
        if not waiting or acked != self._acked or waiting < self._waiting:
            self._moved = now
        self._acked, self._waiting = acked, waiting
        return now - self._moved


def _count_bytes(connection: socket.socket) -> tuple[int, int]:
    """Return how many bytes a connection's other end has acknowledged, and how many wait in its queue."""
    try:
        (waiting,) = struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))
        acked = 0
        if sys.platform == "linux":
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_ACKED + 8)
            (acked,) = struct.unpack_from("=Q", info, BYTES_ACKED)
    except (OSError, ValueError, struct.error):
        return 0, 0  # closed already, or a socket that does not tell: it has the limit alone
    return acked, waiting


def _shut_down(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        log.debug("a connection was gone before it was cut", exc_info=True)
