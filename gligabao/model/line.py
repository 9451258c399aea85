"""The line of one agent to the model's server: connections that another thread can cut at any moment.

Closing the HTTP client does not wake a thread that waits for an answer; a shutdown of its socket does (both measured,
anthropic 2.14 on httpx2 2.16). And a thread that is looking a name up, or connecting, has no socket yet that the
HTTP library would show. So the line does both itself, as the network backend of the HTTP library.

Private parts used, read in httpx2 and httpcore2 2.16: where a client keeps its transports and they their pool and
its backend, and the stream class of the backend. tests/test_model.py names the version.
"""

import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import httpcore2
import httpx2
from httpcore2._backends.sync import SyncStream

from gligabao.cancel import Cancel, Wake
from gligabao.lookup import Addresses, LookupFailed, look_up

CONNECT_SECONDS = 5.0
"""For the look-up of the name and all its addresses together."""


class Line(httpcore2.SyncBackend):
    """Looks up, connects, and can be cut. Used by one agent's thread; `cut` is called from others."""

    def __init__(self, cancel: Cancel, *, connect_seconds: float = CONNECT_SECONDS) -> None:
        self._cancel = cancel
        self._connect_seconds = connect_seconds
        self._lock = threading.Lock()
        self._wake: Wake | None = None
        self._twin: socket.socket | None = None

    def carry(self, client: httpx2.Client) -> None:
        """Have all connections of the client made by this line, those through a proxy included."""
        transports = [client._transport, *client._mounts.values()]
        for transport in transports:
            if isinstance(transport, httpx2.HTTPTransport):
                transport._pool._network_backend = self

    def cut(self) -> None:
        """End whatever the agent waits for: a look-up, a connection, an answer."""
        with self._lock:
            if self._wake:
                self._wake()
            if self._twin:
                with suppress(OSError):
                    self._twin.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the connection."""
        self._hold(None)

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        """Return a connection to the host, as httpcore asks for one. Raises httpcore's errors."""
        deadline = time.monotonic() + self._connect_seconds
        try:
            addresses = look_up(host, port, seconds=self._connect_seconds, waking=self._wake_by)
        except LookupFailed as error:
            raise httpcore2.ConnectError(f"{host}: {error}") from error
        return SyncStream(self._connect(addresses, deadline, socket_options or ()))

    def _connect(self, addresses: Addresses, deadline: float, options: Iterable[Any]) -> socket.socket:
        reason: OSError = OSError("no address")
        for family, kind, protocol, _, address in addresses:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            connection = socket.socket(family, kind, protocol)
            self._hold(connection)
            try:
                # After it can be cut: a stop that came before has cut nothing.
                if self._cancel.is_set():
                    raise OSError("stopped")
                connection.settimeout(left)
                connection.connect(address)
                for option in options:
                    connection.setsockopt(*option)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection
            except OSError as error:
                connection.close()
                reason = error
        if isinstance(reason, TimeoutError):
            raise httpcore2.ConnectTimeout("connecting took too long") from reason
        raise httpcore2.ConnectError(str(reason)) from reason

    def _wake_by(self, wake: Wake) -> None:
        with self._lock:
            self._wake = wake
        if self._cancel.is_set():
            wake()

    def _hold(self, connection: socket.socket | None) -> None:
        # A twin, since TLS takes the descriptor away from its socket, and since a descriptor that its owner has
        # closed may be another agent's by the time it is shut down.
        with self._lock:
            self._wake = None
            if self._twin:
                self._twin.close()
            self._twin = connection.dup() if connection else None
