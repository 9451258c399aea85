"""A TCP proxy that can be told to fail in the ways in which networks do."""

import socket
import threading
from contextlib import suppress

BACKLOG = 256

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
        self._accepting = threading.Event()
        self._parked = threading.Event()
        self._listener: socket.socket | None = None
        self._fillers: list[socket.socket] = []
        self.port = 0
        self.restore()

    def restore(self) -> None:
        """Take connections and let everything through."""
        self._flowing.set()
        self._accepting.set()
        while self._fillers:
            self._fillers.pop().close()
        if self._listener is not None:
            self._listener.listen(BACKLOG)
        else:
            listener = socket.create_server(("127.0.0.1", self.port), backlog=BACKLOG)
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

    def swallow_connections(self) -> None:
        """End all connections, and answer no new one: nobody accepts, and the queue of the listener is full."""
        assert self._listener is not None
        self._accepting.clear()
        self._parked.clear()
        # The thread sits in accept: it takes one more, and then waits.
        socket.create_connection(("127.0.0.1", self.port)).close()
        assert self._parked.wait(10)
        self._listener.listen(0)
        self._fillers = [socket.socket() for _ in range(8)]
        for filler in self._fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self.port))
        self.cut()

    def close(self) -> None:
        """End everything."""
        self.refuse()
        self._flowing.set()
        self._accepting.set()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                if not self._accepting.is_set():
                    self._parked.set()
                    self._accepting.wait()
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
