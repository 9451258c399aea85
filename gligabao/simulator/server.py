"""The simulator: the simulated API and its pages, listening on a port."""

import threading
from typing import Any

from gligabao.simulator.api import MessagesApi
from gligabao.simulator.connections import Server

_STOP_SECONDS = 5.0


class Simulator(MessagesApi):
    """A simulated Messages API on a port of its own, with a few web pages beside it.

    It listens as soon as it is made, and answers once it is started.
    """

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, **settings: Any) -> None:
        """The other settings are those of `MessagesApi`."""
        super().__init__(**settings)
        self._http = Server((host, port), self)
        self._thread: threading.Thread | None = None
        bound_host, bound_port = self._http.server_address[:2]
        self.address = f"{bound_host!s}:{bound_port}"
        """`host:port`: what `fetch_allow` must name to make the pages readable."""
        self.url = f"http://{self.address}"

    def __enter__(self) -> "Simulator":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> "Simulator":
        """Answer from now on."""
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), name="simulator", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End all connections, even those that hang, and free the port."""
        if self._thread is not None:
            self._http.shutdown()
            self._thread.join(_STOP_SECONDS)
            self._thread = None
        self._http.close_all()
        self._http.server_close()
