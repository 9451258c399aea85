"""A server with routes that take long, as their queries say, and clients for it.

The module is the program of that server too. `TEST_ANSWER_SECONDS` and `TEST_CLIENT_SECONDS` in the environment lower
the limits of the product.
"""

import io
import logging
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import requests
from flask import Flask, Response, request, send_file

from gligabao.app import Services, create_app
from gligabao.config import Config
from gligabao.server import serve
from gligabao.web import deadlines
from tests.process import ServerProcess

log = logging.getLogger(__name__)

PIECE = b"x" * 65_536
EVENT_SECONDS = 0.2
NEVER = threading.Event()


@contextmanager
def slow_server(folder: Path, **limits: float) -> Iterator[ServerProcess]:
    """Run the server; `limits` are `answer` and `client`, in seconds."""
    environ = {f"TEST_{name.upper()}_SECONDS": str(seconds) for name, seconds in limits.items()}
    server = ServerProcess(
        folder,
        environ=environ | {"PYTHONPATH": str(Path(__file__).parent.parent)},
        program=["-m", "tests.slow_server"],
        database_url=f"sqlite:///{folder}/g.db",
        threads="64",
    )
    try:
        yield server.wait_until_ready()
    finally:
        server.kill()


def get(server: ServerProcess, path: str, **options: Any) -> requests.Response:
    """GET a path of the server."""
    return requests.get(f"{server.url}{path}", timeout=200, **options)


@contextmanager
def deaf_client(server: ServerProcess, path: str) -> Iterator[socket.socket]:
    """A client that asks and then takes nothing."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        yield connection


def make_app(services: Services) -> Flask:
    """Return the application with the slow routes."""
    app = create_app(services)
    long_answers = services.long_answers

    @app.get("/slow/answer")
    def answer() -> Response:
        """Answer after `seconds`; `allow` says how long that may take. A cut or a stop ends the wait."""
        deadline = deadlines.deadline_of(request.environ)
        if "allow" in request.args:
            deadline.allow(float(request.args["allow"]))
        with long_answers.wait() as wait, deadline.waking(wait.wake):
            log.warning("waiting")
            goes_on = wait.wait(float(request.args["seconds"]))
        log.warning("the wait ended: %s", "cut" if deadline.is_cut else "in time" if goes_on else "stop")
        return Response("done")

    @app.get("/slow/stream")
    def stream() -> Response:
        """Stream a line each `EVENT_SECONDS` for `seconds`, then the last one, which tells why it ends."""
        deadlines.deadline_of(request.environ).allow_stream()
        count = round(float(request.args["seconds"]) / EVENT_SECONDS)
        with ExitStack() as held:
            place = held.enter_context(long_answers.stream(request.args["user"]))

            def lines() -> Iterator[bytes]:
                goes_on = True
                for number in range(count):
                    yield b"%d\n" % number
                    goes_on = place.wait(EVENT_SECONDS)
                    if not goes_on:
                        break
                yield b"end\n" if goes_on else b"stop\n"

            response = Response(lines(), mimetype="text/plain")
            response.call_on_close(held.pop_all().close)
        return response

    @app.get("/slow/flood")
    def flood() -> Response:
        """Stream without end, or with `pieces` an answer of that many."""
        if "pieces" not in request.args:
            deadlines.deadline_of(request.environ).allow_stream()
        pieces = int(request.args.get("pieces", 0))
        response = Response((PIECE for _ in range(pieces)) if pieces else iter(lambda: PIECE, b""))
        response.call_on_close(lambda: log.warning("the flood was closed"))
        return response

    @app.get("/slow/deaf")
    def deaf() -> Response:
        """Never answer, whatever happens."""
        log.warning("waiting")
        NEVER.wait()
        return Response("never")

    @app.get("/slow/file")
    def file() -> Response:
        """Send a file, which gunicorn does with sendfile."""
        copy = _ToldFile(tempfile.TemporaryFile(buffering=0))
        copy.write(PIECE * 4)
        copy.seek(0)
        return send_file(copy, mimetype="text/plain")

    return app


class _ToldFile(io.BufferedRandom):
    """A file that tells of its end."""

    def close(self) -> None:
        """Close it."""
        if not self.closed:
            log.warning("the file was closed")
        super().close()


if __name__ == "__main__":
    deadlines.ANSWER_SECONDS = float(os.environ.get("TEST_ANSWER_SECONDS", deadlines.ANSWER_SECONDS))
    deadlines.CLIENT_SECONDS = float(os.environ.get("TEST_CLIENT_SECONDS", deadlines.CLIENT_SECONDS))
    serve(Config.load(None, environ=os.environ, flags={"port": int(sys.argv[2])}), make_app=make_app)
