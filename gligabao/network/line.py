"""The dialler: looks a name up, connects to one of its addresses, and can be cut by another thread at any moment.

Closing an HTTP client does not wake a thread that waits for an answer; shutting its socket down does. And a thread that
looks a name up or connects has no socket yet that an HTTP library would show. So all connections of agents are made
here, and HTTP libraries are handed the connected socket: `model/transport.py` (httpcore2), `network/session.py`
(requests).
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from gligabao.cancel import Cancel, Wake, Watchdog
from gligabao.network.lookup import Addresses, Unreachable, look_up

log = logging.getLogger(__name__)

CONNECT_SECONDS: float = 5
"""For the look-up of the name and all its addresses together."""

Judge = Callable[[str, int, Addresses], None]
"""Raises when a host and port with these addresses may not be connected to."""


@dataclass(slots=True)
class Watch:
    """One attempt on a line: whether it was cut, and why. The lock of the line guards it."""

    is_cut: bool = False
    expired: bool = False
    """True when it was cut because its time was up."""


class Line:
    """Makes the connections of one thread, one at a time. Other threads only cut them; one lock guards all of it."""

    def __init__(self, *, connect_seconds: float = CONNECT_SECONDS, judge: Judge | None = None) -> None:
        self._connect_seconds = connect_seconds
        self._judge = judge
        self._lock = threading.Lock()
        self._watch = Watch()
        self._wake: Wake | None = None
        self._twin: socket.socket | None = None

    @contextmanager
    def watched(self, cancel: Cancel, watchdog: Watchdog, *, seconds: float) -> Iterator[Watch]:
        """While the block runs, the line is cut when the agent is told to stop or when `seconds` have passed.

        Whatever waits on the line then returns at once, and the block makes no further connection. Raises `Cancelled`,
        without running the block, if the agent was told to stop before.
        """
        watch = self._begin()
        try:
            with (
                cancel.waking(lambda: self._cut(watch)),
                watchdog.deadline(seconds, lambda: self._cut(watch, expired=True)),
            ):
                yield watch
        finally:
            self._begin()

    def dial(self, host: str, port: int, *, options: Iterable[Any] = ()) -> socket.socket:
        """Return a socket connected to the host. Raises `Unreachable`, or what the judge raises.

        The name is looked up once, the judge sees every address, and the socket goes to one of those: no second
        look-up can answer differently.
        """
        deadline = time.monotonic() + self._connect_seconds
        addresses = look_up(host, port, seconds=self._connect_seconds, waking=self._wake_by)
        if self._judge:
            self._judge(host, port, addresses)
        return self._connect(addresses, deadline, options)

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            self._drop()

    def _connect(self, addresses: Addresses, deadline: float, options: Iterable[Any]) -> socket.socket:
        too_late = reason = f"could not connect within {self._connect_seconds:g} s"
        for number, (family, kind, protocol, _, address) in enumerate(addresses):
            # A share of what is left: an address that never answers must not use up the time of those after it.
            seconds = (deadline - time.monotonic()) / (len(addresses) - number)
            if seconds <= 0:
                break
            try:
                return self._connect_to(socket.socket(family, kind, protocol), address, seconds, options)
            except TimeoutError:
                reason = too_late
            except OSError as error:
                reason = f"could not connect: {error.strerror or error}"
            log.debug("%s: %s", address[0], reason)
        raise Unreachable(reason)

    def _connect_to(
        self, connection: socket.socket, address: Any, seconds: float, options: Iterable[Any]
    ) -> socket.socket:
        try:
            self._hold(connection)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option in options:
                connection.setsockopt(*option)
            connection.settimeout(seconds)
            connection.connect(address)
            # For a TLS handshake, until the HTTP library sets its own.
            connection.settimeout(self._connect_seconds)
        except BaseException:
            connection.close()
            self.close()
            raise
        return connection

    def _begin(self) -> Watch:
        # A new watch for each attempt, so that a clock which strikes late does not cut the next one.
        with self._lock:
            self._watch = Watch()
            return self._watch

    def _cut(self, watch: Watch, *, expired: bool = False) -> None:
        with self._lock:
            if watch is not self._watch:
                return
            watch.is_cut = True
            watch.expired |= expired
            if self._wake:
                self._wake()
            if self._twin:
                with suppress(OSError):
                    self._twin.shutdown(socket.SHUT_RDWR)

    def _wake_by(self, wake: Wake) -> None:
        with self._lock:
            self._require_uncut()
            self._wake = wake

    def _hold(self, connection: socket.socket) -> None:
        with self._lock:
            self._require_uncut()
            self._drop()
            # A twin, since TLS takes the descriptor away from its socket, and since a descriptor that its owner has
            # closed may belong to another agent by the time it is shut down.
            self._twin = connection.dup()

    def _require_uncut(self) -> None:
        if self._watch.is_cut:
            raise Unreachable("the connection was given up")

    def _drop(self) -> None:
        self._wake = None
        if self._twin:
            self._twin.close()
            self._twin = None
