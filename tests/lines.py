"""Places on loopback that fail, or hide, in the ways in which networks do."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

Address = tuple[str, int]

CERTIFICATE = Path(__file__).parent / "localhost.pem"
"""A certificate for "localhost" that signed itself, and its key, made for these tests and used nowhere else."""


@contextmanager
def silent_address() -> Iterator[Address]:
    """An address that answers no connection: nobody accepts, and the queue of its listener is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
        waiting = [socket.socket() for _ in range(8)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        try:
            yield listener.getsockname()
        finally:
            for one in waiting:
                one.close()


def closed_address() -> Address:
    """An address that refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address: Address = listener.getsockname()
        return address


def resolves_to(*addresses: Address) -> Callable[..., Any]:
    """A getaddrinfo that gives these addresses, whatever the name and the port."""
    return lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]


def server_tls() -> ssl.SSLContext:
    """The SSL context of a server that is called "localhost"."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


def trusting_tls() -> ssl.SSLContext:
    """The SSL context of a client that takes the certificate of these tests."""
    return ssl.create_default_context(cafile=str(CERTIFICATE))


class Proxy:
    """An HTTP proxy that takes CONNECT, and whatever name is asked for it connects to `target`."""

    def __init__(self, target: Address, *, tls: ssl.SSLContext | None = None) -> None:
        self.heads: list[bytes] = []
        """What it was asked."""
        self._target = target
        self._tls = tls
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="test-proxy", daemon=True).start()

    def close(self) -> None:
        """End everything."""
        for one in [self._listener, *self._open]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with suppress(OSError):
            near = self._tls.wrap_socket(near, server_side=True) if self._tls else near
            self._open.append(near)
            head = b""
            while b"\r\n\r\n" not in head:
                head += near.recv(4096)
            self.heads.append(head)
            far = socket.create_connection(self._target)
            self._open.append(far)
            near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            threading.Thread(target=_pump, args=(far, near), daemon=True).start()
            _pump(near, far)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
