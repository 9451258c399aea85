"""A Messages API, and the pages that its answers send agents to, at next to no cost: raw sockets, a process of its own.

It checks nothing (the simulator does that); here it must not be what limits a measurement. A conversation gets
`steps - 1` answers with a tool call and then one with the report. Which step a request is at follows from the
requests before it on the same connection, and for the first of a connection from the tool results in it.
"""

import contextlib
import itertools
import json
import random
import resource
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from tests.lines import server_tls

ANSWER_CHARACTERS = 2000
USAGE = {
    "input_tokens": 1000,
    "output_tokens": 500,
    "cache_read_input_tokens": 2000,
    "cache_creation_input_tokens": 300,
}
SENTENCE = "The “tide” gauge at the mole reads a little over four metres at springs. "
KEPT_ARRIVALS = 10_000
NEVER_SECONDS = 1e6


@dataclass(frozen=True, slots=True)
class Play:
    """What the model does."""

    steps: int
    latency_seconds: float = 0.0
    """Between the last byte of a request and the first of its answer."""
    tool: str = "lookup"
    """`lookup`, or `fetch_url` for one of the pages of this server."""
    page_bytes: int = 20_000
    """Size of a page: HTML with about 17,500 characters of text, the rest of it markup."""
    pages_over: str = "http"
    """`http`, or `https` for pages at `https://localhost`, with the certificate of the tests."""
    gate: int = 0
    """First answers wait until so many conversations have begun, and then up to `latency_seconds` more by chance."""


class Stats:
    """What was asked of the server. Shared by its threads; one lock guards it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = self._pages = self._bytes = 0
        self._late_seconds = 0.0
        self._arrivals: list[float] = []

    def count_call(self, size: int, late_seconds: float) -> None:
        """Count a model call that was answered."""
        with self._lock:
            self._calls += 1
            self._bytes += size
            self._late_seconds += late_seconds

    def arrive(self, at: float) -> None:
        """Note when a model call came in, by the clock that all processes of the machine share."""
        with self._lock:
            if len(self._arrivals) < KEPT_ARRIVALS:
                self._arrivals.append(at)

    def count_page(self) -> None:
        """Count a page."""
        with self._lock:
            self._pages += 1

    def as_json(self) -> dict:
        """Return the figures: `late_ms` is how much later than asked for an answer was sent, on average."""
        with self._lock:
            return {
                "calls": self._calls,
                "pages": self._pages,
                "bytes": self._bytes,
                "late_ms": 1000 * self._late_seconds / max(1, self._calls),
                "arrivals": list(self._arrivals),
                "cpu_seconds": time.process_time(),
            }


class Server:
    """The server's side: a thread for each connection."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._tls_listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._tls = server_tls()
        self.port: int = self._listener.getsockname()[1]
        self.tls_port: int = self._tls_listener.getsockname()[1]
        site = f"https://localhost:{self.tls_port}" if play.pages_over == "https" else f"http://127.0.0.1:{self.port}"
        self._answers = _answers(play, site)
        self._page = _page(play.page_bytes)
        self._stats = Stats()
        self._gate = threading.Barrier(play.gate or 1)

    def run(self) -> None:
        """Take connections for ever."""
        threading.Thread(target=self._accept, args=(self._tls_listener, self._serve_tls), daemon=True).start()
        self._accept(self._listener, self._serve)

    def _accept(self, listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    def _serve_tls(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            self._serve(self._tls.wrap_socket(connection, server_side=True))

    def _serve(self, connection: socket.socket) -> None:
        step: Iterator[int] | None = None
        with contextlib.suppress(OSError), connection:
            while received := _receive(connection):
                head, body = received
                if head.startswith(b"GET /stats"):
                    connection.sendall(_response(json.dumps(self._stats.as_json()).encode(), "application/json"))
                elif head.startswith(b"GET"):
                    self._stats.count_page()
                    connection.sendall(self._page)
                    return
                else:
                    step = step or itertools.count(body.count(b'"tool_result"'))
                    self._answer(connection, len(body), next(step))

    def _answer(self, connection: socket.socket, size: int, step: int) -> None:
        arrived_at = time.monotonic()
        self._stats.arrive(arrived_at)
        answer_at = arrived_at + self._play.latency_seconds
        if self._play.gate and step == 0:
            self._gate.wait()
            answer_at = time.monotonic() + random.uniform(0, self._play.latency_seconds)
        time.sleep(max(0.0, answer_at - time.monotonic()))
        late_seconds = time.monotonic() - answer_at
        connection.sendall(self._answers[step % len(self._answers)])
        self._stats.count_call(size, late_seconds)


def _receive(connection: socket.socket) -> tuple[bytes, bytes] | None:
    data = b""
    while b"\r\n\r\n" not in data:
        received = connection.recv(65536)
        if not received:
            return None
        data += received
    head, _, body = data.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
    parts = [body]
    left = int(length or 0) - len(body)
    while left > 0:
        parts.append(connection.recv(min(left, 1 << 20)))
        left -= len(parts[-1])
    return head, b"".join(parts)


def _response(body: bytes, content_type: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _answers(play: Play, site: str) -> list[bytes]:
    said = {"type": "text", "text": "word " * (ANSWER_CHARACTERS // 5)}
    calls = [[said, _call(play.tool, step, site)] for step in range(1, play.steps)]
    return [*(_message(content, "tool_use") for content in calls), _message([said], "end_turn")]


def _call(tool: str, step: int, site: str) -> dict:
    given = {"word": f"w{step}"} if tool == "lookup" else {"url": f"{site}/pages/{step}"}
    return {"type": "tool_use", "id": f"toolu_{step}", "name": tool, "input": given}


def _message(content: list[dict], stop_reason: str) -> bytes:
    message = {
        "id": "msg_bench",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5-5",
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": USAGE,
    }
    return _response(json.dumps(message).encode(), "application/json")


def _page(size: int) -> bytes:
    """Return a page of 40 paragraphs with links; what it is to be longer than that is in more and more tags."""
    paragraphs = [f"<p class='text'>{SENTENCE * 6}<a href='/a/{number}'>see {number}</a></p>\n" for number in range(40)]
    text = "".join(paragraphs)
    tags = "<div class='row'><span></span><img src='/i.png' alt=''><br></div>\n"
    filling = tags * max(0, (size - len(text.encode())) // len(tags))
    page = f"<!doctype html><html><head><title>Tides</title></head><body>{text}{filling}</body></html>"
    return _response(page.encode(), "text/html; charset=utf-8\r\nconnection: close")


def main() -> None:
    """Serve until the standard input is closed; print the port first."""
    threading.stack_size(256 * 1024)
    allow_many_files()
    server = Server(Play(**json.loads(sys.argv[1])))
    print(server.port, server.tls_port, flush=True)
    threading.Thread(target=server.run, daemon=True).start()
    sys.stdin.read()


def allow_many_files() -> None:
    """Let this process have as many connections as the system lets it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@dataclass(frozen=True, slots=True)
class FakeModel:
    """The server, seen from outside."""

    url: str
    tls_url: str = ""
    """Where its pages are over TLS."""

    @property
    def address(self) -> str:
        """Its host and port, for `fetch_allow`."""
        return self.url.removeprefix("http://")

    def stats(self) -> dict:
        """Return what was asked of it so far."""
        with urllib.request.urlopen(f"{self.url}/stats", timeout=60) as answer:
            return json.load(answer)


@contextlib.contextmanager
def fake_model(play: Play) -> Iterator[FakeModel]:
    """Run the server beside this process for as long as the block runs."""
    command = [sys.executable, "-m", "benchmarks.fake_model", json.dumps(asdict(play))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            port, tls_port = map(int, process.stdout.readline().split())
            yield FakeModel(f"http://127.0.0.1:{port}", f"https://localhost:{tls_port}")
        finally:
            process.stdin.close()


if __name__ == "__main__":
    main()
