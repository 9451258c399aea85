"""The server as its users run it: a process of its own, started by the command line and ended by signals."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import requests

READY_SECONDS = 30
LINE_SECONDS = 60


class ServerProcess:
    """`gligabao serve` in a process group of its own. Its log is kept in `log`."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        environ: Mapping[str, str] = MappingProxyType({}),
        prefix: Sequence[str] = (),
        program: Sequence[str] = ("-m", "gligabao", "serve"),
        **settings: str,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log: list[str] = []
        self._ready = threading.Event()
        environment = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        environment |= environ
        environment |= {f"GLIGABAO_{key.upper()}": value for key, value in settings.items()}
        self.process = subprocess.Popen(
            [*prefix, sys.executable, *program, "--port", str(self.port), *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if "is ready on" in line:
                self._ready.set()
        self._ready.set()

    def wait_until_ready(self) -> "ServerProcess":
        """Wait until the server takes requests."""
        assert self._ready.wait(READY_SECONDS), "".join(self.log)
        assert self.process.poll() is None, "".join(self.log)
        return self

    def count_lines(self, text: str) -> int:
        """Return how many lines of the log hold this text."""
        return sum(text in line for line in self.log)

    def wait_for_line(self, text: str, *, count: int = 1) -> None:
        """Wait until the log has that many lines that hold this text."""
        deadline = time.monotonic() + LINE_SECONDS
        while self.count_lines(text) < count:
            assert time.monotonic() < deadline, f"{text!r} is not in the log:\n{''.join(self.log)}"
            threading.Event().wait(0.02)

    def post(self, user: str, topic: str, **body: Any) -> requests.Response:
        """Start a research."""
        json = {"user_id": user, "topic": topic, **body}
        return requests.post(f"{self.url}/v1/gb/research", json=json, timeout=60)

    def get(self, path: str) -> Any:
        """Return the JSON of a GET."""
        return requests.get(f"{self.url}{path}", timeout=60).json()

    @property
    def worker(self) -> int:
        """The process id of the worker. Linux only."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        assert len(children) == 1, children
        return int(children[0])

    def signal(self, *signals: int) -> None:
        """Send signals to the master."""
        for number in signals:
            self.process.send_signal(number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the whole group, as a terminal does."""
        os.killpg(self.process.pid, number)

    def wait(self, seconds: float = 30) -> int:
        """Wait for the end of the process and return its exit code."""
        code = self.process.wait(seconds)
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def kill(self) -> None:
        """End the whole group at once, as a crash does."""
        try:
            self.signal_group(signal.SIGKILL)
        except ProcessLookupError:
            pass
        if self.process.stderr is not None and not self.process.stderr.closed:
            self.wait()


def free_port() -> int:
    """Return a port that nothing listens on at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
