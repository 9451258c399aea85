"""A TCP proxy that can be told to fail in the ways in which networks do."""

import socket
import threading
from contextlib import suppress

Address = str | tuple[str, int]
"""The path of a Unix socket, or a host and a port."""


class Proxy:
    """Passes connections on to `target`. One lock guards the open connections and the listener."""

    def __init__(self, target: Address) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._flowing = threading.Event()
        self._flowing.set()
        self._listener: socket.socket | None = None
        self.port = 0
        self.restore()

    def restore(self) -> None:
        """Take connections and let everything through."""
        self._flowing.set()
        if self._listener is None:
            listener = socket.create_server(("127.0.0.1", self.port), backlog=256)
            self.port = listener.getsockname()[1]
            self._listener = listener
            threading.Thread(target=self._accept, args=(listener,), name="proxy", daemon=True).start()

    def cut(self) -> None:
        """End all connections that are open now."""
        with self._lock:
            open_now, self._open = self._open, set()
        for connection in open_now:
            _shut(connection)

    def refuse(self) -> None:
        """End all connections and refuse new ones."""
        if self._listener is not None:
            _shut(self._listener)
            self._listener.close()
            self._listener = None
        self.cut()

    def swallow(self) -> None:
        """Take connections and keep them open, but let nothing through any more: a half-open network."""
        self._flowing.clear()

    def close(self) -> None:
        """End everything."""
        self.refuse()
        self._flowing.set()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        self._flowing.wait()
        far = socket.socket(socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET)
        try:
            far.connect(self._target)
        except OSError:
            near.close()
            return
        with self._lock:
            self._open |= {near, far}
        back = threading.Thread(target=self._pump, args=(far, near), daemon=True)
        back.start()
        self._pump(near, far)
        back.join()
        with self._lock:
            self._open -= {near, far}
        near.close()
        far.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                sink.sendall(data)
        _shut(source)
        _shut(sink)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
