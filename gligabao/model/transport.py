"""The HTTP transport of model calls: httpcore2's connection pool over a `Line`, directly or through a proxy.

Only public parts of httpx2 and httpcore2 are used. Should a version of them connect in its own way all the same, a
stop could not wake an agent: `Probe` finds that out when the server starts.
"""

import select
import socket
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpcore2
import httpx2
from urllib3.util.ssltransport import SSLTransport

from gligabao.network.line import Line
from gligabao.network.lookup import Unreachable

KEEP_SECONDS = 5.0
"""How long a connection is kept between two calls."""

_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 60, "TCP_KEEPCNT": 5}
SOCKET_OPTIONS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in _KEEP_ALIVE.items()
        if hasattr(socket, name)
    ),
]
"""A gateway must not forget a connection on which a long answer is awaited. The SDK sets the same."""

_ERRORS = (
    httpcore2.TimeoutException,
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.UnsupportedProtocol,
)


class Probe(Line):
    """Connects to nothing, and notes that it was asked to."""

    was_asked = False

    def dial(self, host: str, port: int, *, options: Iterable[Any] = ()) -> socket.socket:
        """Raise `Unreachable`."""
        self.was_asked = True
        raise Unreachable("this line is only a probe")


class LineTransport(httpx2.BaseTransport):
    """Sends requests over connections that the line makes."""

    def __init__(self, line: Line, *, tls: ssl.SSLContext, proxy: str | None = None) -> None:
        self._pool = httpcore2.ConnectionPool(
            ssl_context=tls,
            proxy=_parse_proxy(proxy, tls) if proxy else None,
            keepalive_expiry=KEEP_SECONDS,
            network_backend=_Backend(line),
            socket_options=SOCKET_OPTIONS,
        )

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the response of the server, its body not read yet."""
        asked = httpcore2.Request(
            request.method,
            _core_url(request.url),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _as_httpx_errors():
            answer = self._pool.handle_request(asked)
        return httpx2.Response(
            answer.status, headers=answer.headers, stream=_Body(answer), extensions=answer.extensions
        )

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()


class _Body(httpx2.SyncByteStream):
    def __init__(self, answer: httpcore2.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        with _as_httpx_errors():
            yield from self._answer.iter_stream()

    def close(self) -> None:
        self._answer.close()


@contextmanager
def _as_httpx_errors() -> Iterator[None]:
    try:
        yield
    except _ERRORS as error:
        # Both libraries have the same errors under the same names.
        raise getattr(httpx2, type(error).__name__, httpx2.NetworkError)(str(error)) from error


class _Backend(httpcore2.NetworkBackend):
    """Gets the connections of a pool from the line."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        """Return a connection to the host; the line has a time limit of its own."""
        try:
            return _Stream(self._line.dial(host, port, options=socket_options or ()))
        except Unreachable as error:
            raise httpcore2.ConnectError(f"{host}: {error}") from error


class _Stream(httpcore2.NetworkStream):
    """A connected socket, with TLS or without."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return what has come, at most this many bytes; none at the end."""
        with _as_core_errors(httpcore2.ReadTimeout, httpcore2.ReadError):
            self._connection.settimeout(timeout)
            received: bytes = self._connection.recv(max_bytes)
            return received

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all of it."""
        with _as_core_errors(httpcore2.WriteTimeout, httpcore2.WriteError):
            self._connection.settimeout(timeout)
            self._connection.sendall(buffer)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        """Return the connection with TLS, inside the TLS of a proxy if there is one."""
        try:
            # A handshake that gets no answer is a connection that could not be made, and is tried again as one.
            with _as_core_errors(httpcore2.ConnectError, httpcore2.ConnectError):
                self._connection.settimeout(timeout)
                if isinstance(self._connection, ssl.SSLSocket):
                    return _Stream(SSLTransport(self._connection, ssl_context, server_hostname))
                return _Stream(ssl_context.wrap_socket(self._connection, server_hostname=server_hostname))
        except BaseException:
            self.close()
            raise

    def get_extra_info(self, info: str) -> Any:
        """Return what the pool asks for: the TLS, and whether there is something to read, such as the end."""
        if info == "ssl_object":
            return self._connection if hasattr(self._connection, "selected_alpn_protocol") else None
        return _is_readable(self._connection) if info == "is_readable" else None


@contextmanager
def _as_core_errors(timeout: type[Exception], other: type[Exception]) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise timeout("the server did not answer in time") from error
    except OSError as error:
        raise other(str(error)) from error


def _is_readable(connection: Any) -> bool:
    if connection.fileno() < 0:
        return True
    # Not select(): it fails for descriptors from 1,024 on.
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _parse_proxy(url: str, tls: ssl.SSLContext) -> httpcore2.Proxy:
    proxy = httpx2.Proxy(url)
    return httpcore2.Proxy(
        _core_url(proxy.url), auth=proxy.raw_auth, ssl_context=tls if proxy.url.scheme == "https" else None
    )


def _core_url(url: httpx2.URL) -> httpcore2.URL:
    return httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
