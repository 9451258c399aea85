"""The HTTP side of the simulator: connections, routes, and how a reply is delivered."""

import itertools
import json
import logging
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from gligabao.simulator import controls, web
from gligabao.simulator.api import MessagesApi, Recorded
from gligabao.simulator.models import MODELS, find_model
from gligabao.simulator.prompt import Prompt
from gligabao.simulator.refusals import Refusal, invalid
from gligabao.simulator.replies import Drip, Drop, Failure, Hang, Malformed, MessageReply, Raw, Reply, text

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 1024 * 1024
_STOP_SECONDS = 5.0


class Server(HTTPServer):
    """A server with a thread for each connection, known by its socket so that `close_all` can end it."""

    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], api: MessagesApi) -> None:
        self.api = api
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._numbers = itertools.count(1)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread of its own."""
        thread = threading.Thread(
            target=self._serve,
            args=(request, client_address),
            name=f"simulator-{self.server_port}-{next(self._numbers)}",
            daemon=True,
        )
        with self._lock:
            self._open[request] = thread
        thread.start()

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:
            log.debug("a connection ended early", exc_info=True)  # The client left, or the simulator is stopping.
        except Exception:
            log.exception("the simulator failed to answer")  # Most likely a fault in a function of a script.
        finally:
            with self._lock:
                self._open.pop(request, None)
            self.shutdown_request(request)

    def close_all(self) -> None:
        """End all connections and wait for their threads."""
        with self._lock:
            open_now = list(self._open.items())
        for connection, _ in open_now:
            with suppress(OSError):  # It may close by itself at this moment.
                connection.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + _STOP_SECONDS
        for _, thread in open_now:
            thread.join(max(0.0, deadline - time.monotonic()))


class _Gone(OSError):
    """The client left, or the simulator stopped, before there was an answer."""


class _Handler(BaseHTTPRequestHandler):
    """The requests of one connection, one after the other."""

    protocol_version = "HTTP/1.1"
    server_version = "gligabao-simulator"
    # Headers and body are two writes; without this the second would wait for the client to acknowledge the first.
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Server

    @property
    def api(self) -> MessagesApi:
        """The API that this connection leads to."""
        return self.server.api

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: `requests` keeps what came in."""

    def do_GET(self) -> None:
        """Serve pages, models and controls."""
        path = self.path.partition("?")[0]
        page = web.read(path)
        if page is not None:
            self.send_body(200, page, "text/html; charset=utf-8")
        elif path.startswith("/pages/"):
            self.send_body(404, web.NOT_FOUND, "text/html; charset=utf-8")
        elif path == "/v1/models":
            data = [model.as_json() for model in MODELS.values()]
            listing = {"data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]}
            self.send_json(200, listing)
        elif path.startswith("/v1/models/"):
            self._send_model(path.removeprefix("/v1/models/"))
        else:
            self._send_control(controls.get(self.api, self.path))

    def do_DELETE(self) -> None:
        """Serve the controls."""
        self._send_control(controls.delete(self.api, self.path))

    def do_POST(self) -> None:
        """Serve the API and the controls."""
        path = self.path.partition("?")[0]
        if "transfer-encoding" in self.headers:
            self.close_connection = True  # The body is not read, so the connection cannot be reused.
            self.refuse(Refusal(411, "invalid_request_error", "send the body whole, with a content-length"))
            return
        raw = self._read_body()
        if path == "/v1/messages":
            self._converse(raw)
        elif path == "/v1/messages/count_tokens":
            self._count(raw)
        else:
            self._send_control(controls.post(self.api, self.path, raw))

    def _send_control(self, answer: controls.Answered | None) -> None:
        if answer is None:
            self.refuse(Refusal(404, "not_found_error", f"{self.command} {self.path} is not served here"))
        else:
            self.send_body(answer.status, answer.body, answer.content_type)

    def _send_model(self, model_id: str) -> None:
        model = find_model(model_id)
        if model is None:
            self.refuse(Refusal(404, "not_found_error", f"model: {model_id}"))
        else:
            self.send_json(200, model.as_json())

    def _read_body(self) -> bytes:
        """Return the body, cut if it is too large; the rest is read and thrown away."""
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(min(length, MAX_BODY_BYTES + 1))
        left = length - len(body)
        while left > 0:
            # A client that is still sending would not read the refusal.
            chunk = self.rfile.read(min(left, 1 << 20))
            if not chunk:
                raise _Gone("the body ended early")
            left -= len(chunk)
        return body

    def _count(self, raw: bytes) -> None:
        try:
            self.send_json(200, {"input_tokens": self.api.count_tokens(self._headers(), _parse(raw))})
        except Refusal as refusal:
            self.refuse(refusal)

    def _converse(self, raw: bytes) -> None:
        body, refusal = _try_to_parse(raw)
        recorded = self.api.record(self._headers(), body)
        try:
            if refusal is not None:
                raise refusal
            reply, prompt = self.api.answer(self._headers(), body)
        except Refusal as refused:
            recorded.status = refused.status
            self.refuse(refused)
            return
        self._wait(reply)
        _Delivery(self, recorded, prompt).deliver(reply)

    def _headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items()}

    def _wait(self, reply: Reply) -> None:
        seconds = self.api.latency_seconds + reply.delay_seconds
        if seconds > 0:
            self.wait_for_client_to_leave(seconds)
        while reply.hold is not None and not reply.hold.wait(0.05):
            self.wait_for_client_to_leave(0.0)

    def wait_for_client_to_leave(self, seconds: float | None) -> None:
        """Return when the seconds are over (None: never); raise if the connection ends first."""
        self.connection.settimeout(seconds)
        try:
            # A client sends nothing while it waits, so this returns only when the connection ends.
            self.connection.recv(1, socket.MSG_PEEK)
        except (TimeoutError, BlockingIOError):
            return
        finally:
            self.connection.settimeout(None)
        raise _Gone("the client has gone")

    def refuse(self, refusal: Refusal) -> None:
        """Write an error answer."""
        request_id = self.api.next_request_id()
        headers = {**refusal.headers, "request-id": request_id}
        self.send_json(refusal.status, refusal.as_json(request_id), headers)

    def send_json(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        """Write an answer in JSON."""
        self.send_body(status, json.dumps(value).encode(), "application/json", headers)

    def send_body(self, status: int, body: bytes, content_type: str, headers: Mapping[str, str] | None = None) -> None:
        """Write a whole answer."""
        self.send_head(status, len(body), content_type, headers)
        self.wfile.write(body)
        self.wfile.flush()

    def send_head(self, status: int, length: int, content_type: str, headers: Mapping[str, str] | None = None) -> None:
        """Write the status line and the headers."""
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(length))
        self.send_header("x-simulated", "gligabao")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()


@dataclass(slots=True)
class _Delivery:
    """Delivers one reply to the client, in the way its type demands."""

    handler: _Handler
    recorded: Recorded
    prompt: Prompt
    api: MessagesApi = field(init=False)

    def __post_init__(self) -> None:
        self.api = self.handler.api

    def deliver(self, reply: Reply) -> None:
        """Write the reply."""
        match reply:
            case MessageReply():
                self._send_message(reply)
            case Drip():
                self._send_message(reply.answer, seconds_per_byte=reply.seconds_per_byte)
            case Failure():
                self.recorded.status = reply.status
                refusal = Refusal(reply.status, reply.type, reply.message, dict(reply.headers))
                self.handler.refuse(refusal)
            case Raw():
                self.recorded.status = reply.status
                if isinstance(reply.body, bytes):
                    self.handler.send_body(reply.status, reply.body, "application/json")
                else:
                    self.handler.send_json(reply.status, reply.body)
            case Malformed():
                body = self.api.seal(reply.answer, self.prompt).encode()
                self.recorded.status = 200
                self.handler.send_body(200, body[: len(body) // 2], "application/json")
            case Hang():
                self.handler.wait_for_client_to_leave(reply.seconds)
                self.handler.close_connection = True
            case Drop():
                self._drop(midway=reply.midway)

    def _send_message(self, answer: MessageReply, *, seconds_per_byte: float = 0.0) -> None:
        message = self.api.seal(answer, self.prompt)
        body = message.encode()
        # Before the last byte is sent: a client that has the answer may ask for the bill at once.
        self.api.charge(self.prompt, message)
        self.recorded.status = 200
        try:
            self.handler.send_head(200, len(body), "application/json", {"request-id": self.api.next_request_id()})
            self._write(body, seconds_per_byte)
        except OSError:
            self.api.charge(self.prompt, message, times=-1)
            raise

    def _write(self, body: bytes, seconds_per_byte: float) -> None:
        if not seconds_per_byte:
            self.handler.wfile.write(body)
        for byte in body if seconds_per_byte else b"":
            self.handler.wfile.flush()
            # Before the byte: after the last one the client may send its next request.
            self.handler.wait_for_client_to_leave(seconds_per_byte)
            self.handler.wfile.write(bytes([byte]))
        self.handler.wfile.flush()

    def _drop(self, *, midway: bool) -> None:
        self.handler.close_connection = True
        if midway:
            encoded = self.api.seal(text("An answer that never ends"), self.prompt).encode()
            self.handler.send_head(200, len(encoded), "application/json")
            self.handler.wfile.write(encoded[: len(encoded) // 2])
            self.handler.wfile.flush()


def _try_to_parse(raw: bytes) -> tuple[Any, Refusal | None]:
    try:
        return _parse(raw), None
    except Refusal as refusal:
        return None, refusal


def _parse(raw: bytes) -> Any:
    if len(raw) > MAX_BODY_BYTES:
        raise Refusal(413, "request_too_large", "Request exceeds the maximum size of 32 MB")
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
        if b"\\ud" in raw.lower():
            json.dumps(body, ensure_ascii=False).encode()  # Fails on half a surrogate pair, as the API does.
        return body
    except UnicodeEncodeError as error:
        raise invalid("The request body is not valid JSON: no low surrogate in string") from error
    except (ValueError, RecursionError) as error:
        raise invalid(f"The request body is not valid JSON: {error}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")
