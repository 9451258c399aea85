"""A small HTTP server that plays the REST answers of a server, one after the other, and keeps what it was asked."""

import json
import threading
from collections import deque
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Asked:
    """A request that came in."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]


@dataclass(frozen=True)
class Played:
    """What is answered: JSON, or these bytes, or nothing at all but a closed connection."""

    body: Any = None
    status: int = 200
    raw: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()
    closes: bool = False


class PlayedServer:
    """Answers each request with the next reply; the last one is repeated. A context manager."""

    def __init__(self, *answers: Played) -> None:
        self.asked: list[Asked] = []
        self.seen = threading.Condition()
        self._answers = deque(answers)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "PlayedServer":
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="played", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def wait_for_requests(self, count: int) -> None:
        """Return once so many requests have come in."""
        with self.seen:
            assert self.seen.wait_for(lambda: len(self.asked) >= count, timeout=30)

    def next_answer(self, asked: Asked) -> Played:
        with self.seen:
            self.asked.append(asked)
            self.seen.notify_all()
            return self._answers[0] if len(self._answers) == 1 else self._answers.popleft()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        played = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = json.loads(text) if text else None
                asked = Asked(self.command, parts.path, dict(parse_qsl(parts.query)), body, headers)
                self.give(played.next_answer(asked))

            do_POST = do_DELETE = do_GET

            def give(self, answer: Played) -> None:
                if answer.closes:
                    self.close_connection = True
                    return
                raw = json.dumps(answer.body).encode() if answer.raw is None else answer.raw
                self.send_response(answer.status)
                for name, value in (*answer.headers, ("Content-Length", str(len(raw)))):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *args: object) -> None:
                pass

        return Handler


def run(**changes: Any) -> dict[str, Any]:
    """A run as REST answers it."""
    return {
        "id": 7,
        "user_id": "ann",
        "parent_id": None,
        "name": "",
        "reason": "",
        "topic": "Why is the sky blue?",
        "status": "running",
        "state": "starting",
        "model": "claude-sonnet-5-5",
        "max_steps": 20,
        "steps": 0,
        "tool_calls": 0,
        "input_tokens": 0,
        "output_tokens": 0,
        "cost_usd": 0.0,
        "report": "",
        "error": "",
        "stop_reason": None,
        "created_at": "2026-11-01T10:00:00.000Z",
        "finished_at": None,
    } | changes


def state(seq: int, name: str, detail: str = "", *, error: str = "", ended: bool = True) -> dict[str, Any]:
    """A state as REST answers it, entered `seq` seconds after the start."""
    return {
        "seq": seq,
        "state": name,
        "step": 0,
        "detail": detail,
        "error": error,
        "started_at": f"2026-11-01T10:00:{seq:02}.000Z",
        "finished_at": f"2026-11-01T10:00:{seq + 1:02}.000Z" if ended else None,
    }


COMPLETED = run(
    status="completed",
    state="completed",
    steps=5,
    tool_calls=6,
    input_tokens=12345,
    output_tokens=678,
    cost_usd=0.13,
    report="# Blue\n\nRayleigh.",
    stop_reason="answered",
    finished_at="2026-11-01T10:00:04.000Z",
    states=[
        state(1, "starting"),
        state(2, "thinking", "step 1 of 20"),
        state(3, "reading", "https://example.com/paper", error="example.com/paper: status 404"),
        state(4, "completed"),
    ],
)
FAILED = run(
    status="failed",
    state="failed",
    error="the model refused",
    stop_reason="error",
    finished_at="2026-11-01T10:00:02.000Z",
    states=[state(1, "starting"), state(2, "failed", error="the model refused")],
)
