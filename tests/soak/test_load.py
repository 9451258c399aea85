"""Many at once, and clients that do not behave."""

import json
import random
import re
import resource
import selectors
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import pytest
import requests

from gligabao.web.deadlines import ANSWER_SECONDS
from tests.process import ServerProcess
from tests.site import Site

USERS, STARTS_EACH = 100, 5
AGENTS = 201
MALFORMED = 10_000
DRIPPING = 300
ANSWERS_EACH = 50
HEALTH_SECONDS = 0.05
START_SECONDS = 30.0
"""The most that nearly all starts may take among hundreds of others."""


def _percentile(seconds: list[float], share: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))]


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: str
    seconds: float


def _send_at_once(server: ServerProcess, sent: list[bytes]) -> list[_Answer]:
    """Send each request over a connection of its own, all at once, and return the answers and how long each took.

    From one thread: hundreds of them would fight for the interpreter, and what is measured would be that fight.
    """
    answers: dict[int, _Answer] = {}
    received: dict[int, bytes] = {}
    with selectors.DefaultSelector() as selector, ExitStack() as connections:
        began = time.monotonic()
        for number, request in enumerate(sent):
            connection = connections.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            connection.sendall(request)
            received[number] = b""
            selector.register(connection, selectors.EVENT_READ, number)
        while len(answers) < len(sent):
            ready = selector.select(60)
            assert ready, f"{len(sent) - len(answers)} requests were not answered"
            for key, _ in ready:
                piece = key.fileobj.recv(65536)  # type: ignore[union-attr]  # a socket, as registered
                received[key.data] += piece
                if not piece:
                    selector.unregister(key.fileobj)
                    head, _, body = received[key.data].decode().partition("\r\n\r\n")
                    answers[key.data] = _Answer(int(head.split()[1]), body, time.monotonic() - began)
    return [answers[number] for number in range(len(sent))]


def _start(user: str, topic: str) -> bytes:
    body = json.dumps({"user_id": user, "topic": topic}).encode()
    head = "POST /v1/gb/research HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_five_hundred_starts_at_once(site: Site, figures: Callable[[str], None]) -> None:
    # Each start holds a place while it waits for the database, one that will be refused too.
    server = site.serve(max_working="1000")
    site.simulator.latency_seconds = 1.0
    for number in range(AGENTS):
        site.start(f"busy-{number // 3}", max_steps=40)
    assert site.simulator.wait_for_requests(2 * AGENTS, 60)
    users = [f"new-{number % USERS}" for number in range(USERS * STARTS_EACH)]
    answers = _send_at_once(server, [_start(user, site.script.new_topic()) for user in users])
    seconds = [answer.seconds for answer in answers]
    codes = Counter(answer.status for answer in answers)
    assert set(codes) <= {202, 409, 503}, codes
    assert not any("locked" in answer.body for answer in answers)
    site.started += [json.loads(answer.body)["id"] for answer in answers if answer.status == 202]
    accepted = Counter(user for user, answer in zip(users, answers, strict=True) if answer.status == 202)
    assert set(accepted.values()) == {3} and len(accepted) == USERS, accepted
    assert not any("locked" in line or "Traceback" in line for line in server.log)
    code, stop_seconds = site.stop(signal.SIGTERM)
    assert code == 0
    found = site.check()
    p50, p99 = _percentile(seconds, 0.5), _percentile(seconds, 0.99)
    figures(
        f"{dict(codes)} beside {AGENTS} agents, exactly 3 for each of {USERS} users, p50 {p50:.2f} s, p99 {p99:.2f} s; "
        f"the stop of {len(found.runs)} runs took {stop_seconds:.1f} s"
    )
    assert p99 <= START_SECONDS


# Malformed requests

HEAD = "Host: localhost\r\nUser-Agent: test\r\nAccept: */*\r\n"


def _post(body: str, path: str = "/v1/gb/research") -> bytes:
    head = f"POST {path} HTTP/1.1\r\n{HEAD}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


REAL = [
    _post('{"user_id": "u1", "topic": "What is known?", "max_steps": 3, "model": "", "dataset": "main"}'),
    _post('{"user_id": "u2", "topic": "Nothing but \\u00e9 and \\ud83d\\ude00"}', "/v1/gb/research?user_id=u2"),
    f"GET /v1/gb/research?user_id=u1&active=true&limit=5&before=9 HTTP/1.1\r\n{HEAD}\r\n".encode(),
    f"GET /v1/gb/research/1?user_id=u1&states_after=2 HTTP/1.1\r\n{HEAD}Connection: close\r\n\r\n".encode(),
    f"GET /readyz HTTP/1.1\r\n{HEAD}\r\n".encode(),
    f"POST /v1/gb/research HTTP/1.1\r\n{HEAD}Transfer-Encoding: chunked\r\n\r\n"
    'b\r\n{"user_id":\r\n8\r\n "u3"  }\r\n0\r\n\r\n'.encode(),
]
SCRAPS = [
    *(
        b"\x00",
        b"\r\n",
        b"\r\n\r\n",
        b"\xff\xfe",
        b"%00",
        b"%",
        b"..",
        b"{",
        b"[" * 5000,
        b"]",
        b'"',
        b"\\u",
        b"\\ud800",
    ),
    *(b"-1", b"1e999", b"NaN", b"9" * 400, b"null", b"true", b": ", b"Content-Length: 5\r\n", b"HTTP/9.9", b"HTTP/1.0"),
    *(b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"Host: a\r\n", b"Host:\r\n", b"A" * 9000, b" "),
    *(
        b"Origin: null\r\n",
        b"Origin: http://[\r\n",
        b"Host: [::1\r\n",
        b"Host: a:b:c\r\n",
        b"Content-Type: \xe9\r\n",
        b"&",
    ),
    *(b"Content-Type: text/plain; charset=utf-99\r\n", b"Upgrade: h2c\r\n", b"Content-Encoding: gzip\r\n", b"?", b"#"),
]


def _mutate(chance: random.Random) -> bytes:
    request = bytearray(chance.choice(REAL))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(request) + 1)
        match chance.randrange(6):
            case 0:
                request[at : at + chance.randint(1, 20)] = b""
            case 1:
                request[at:at] = chance.choice(SCRAPS)
            case 2:
                request[at : at + chance.randint(1, 8)] = chance.choice(SCRAPS)
            case 3:
                request[at : at + 1] = bytes([chance.randrange(256)])
            case 4:
                request[at:at] = request[max(0, at - 40) : at]
            case _:
                line_end = request.find(b"\r\n") + 2
                request[line_end:line_end] = chance.choice(SCRAPS)
        request = request or bytearray(b"\r\n")
    return bytes(request[:70_000])


def _send_raw(server: ServerProcess, request: bytes) -> list[str]:
    """Send it, and return the statuses that came back."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        with suppress(OSError):  # it may be refused before all of it was sent
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            while data := connection.recv(65536):
                received += data
    # At the beginning of an answer only: a body may quote anything.
    return re.findall(r"(?:^|\n|\})HTTP/1\.[01] (\d{3})", received.decode("latin-1")) or ["closed"]


def test_ten_thousand_malformed_requests(site: Site, figures: Callable[[str], None]) -> None:
    server = site.serve(max_working="10000", threads="64")
    worker = server.worker
    chance = random.Random(20261130)
    requests_made = [_mutate(chance) for _ in range(MALFORMED)]
    statuses: Counter[str] = Counter()
    began = time.monotonic()
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda raw: _send_raw(server, raw), requests_made))
    faulty = []
    for request, found in zip(requests_made, answers, strict=True):
        statuses.update(found)
        faulty += [request] if any(status.startswith("5") for status in found) else []
    assert not faulty, faulty[:20]
    seconds = time.monotonic() - began
    health = []
    for _ in range(5):
        began = time.monotonic()
        assert requests.get(f"{server.url}/healthz", timeout=10).status_code == 200
        health.append(time.monotonic() - began)
    assert server.worker == worker and sum("is ready on" in line for line in server.log) == 1
    assert not any("Traceback" in line for line in server.log)
    site.wait_until_idle()
    assert site.stop(signal.SIGTERM)[0] == 0
    # Some of them are still good starts; whose answers were read above, not their ids.
    site.check(charges=None, started=None, billed=site.simulator.billed().total)
    figures(
        f"{MALFORMED} in {seconds:.0f} s, {dict(sorted(statuses.items()))}, no 5xx, the same worker, "
        f"/healthz then {health[0] * 1000:.0f} ms (of five: at most {max(health) * 1000:.0f} ms)"
    )
    assert health[0] <= HEALTH_SECONDS


# Slow clients


def test_three_hundred_clients_that_drip(site: Site, figures: Callable[[str], None]) -> None:
    server = site.serve(threads="256")
    starts = [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        b"POST /v1/gb/research HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 1000\r\n\r\n{",
    ]
    began = time.monotonic()
    connections = []
    for number in range(DRIPPING):
        connections.append(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        connections[-1].sendall(starts[number % 2])
    stop = threading.Event()
    dripper = threading.Thread(target=_drip, args=(connections, stop))
    dripper.start()
    try:
        stop.wait(max(0.0, began + 15 - time.monotonic()))
        seconds = []
        for _ in range(500):
            asked = time.monotonic()
            assert requests.get(f"{server.url}/v1/gb/research?user_id=u1", timeout=60).status_code == 200
            seconds.append(time.monotonic() - asked)
        for connection in connections:
            connection.settimeout(60)
            with suppress(ConnectionError):
                while connection.recv(4096):
                    pass
        closed = time.monotonic() - began
    finally:
        stop.set()
        dripper.join(10)
        for connection in connections:
            connection.close()
    assert site.stop(signal.SIGTERM)[0] == 0
    site.check()
    p50, p99 = _percentile(seconds, 0.5), _percentile(seconds, 0.99)
    figures(
        f"all {DRIPPING} closed by the server (seen after {closed:.0f} s); a list, after 15 s of it: "
        f"p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms"
    )
    assert p99 < 1.0


def _drip(connections: list[socket.socket], stop: threading.Event) -> None:
    while not stop.wait(2):
        for connection in connections:
            with suppress(OSError):
                connection.sendall(b"x")


@pytest.fixture(autouse=True)
def _many_descriptors() -> None:
    """The clients of these tests hold hundreds of sockets in this process."""

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))


def test_clients_that_take_no_answer(site: Site, figures: Callable[[str], None]) -> None:
    """More of them than there are threads, each with more answers under way than its socket holds."""
    server = site.serve()
    worker, user = server.worker, site.start()
    site.wait_until_idle()
    request = f"GET /v1/gb/research/{site.started[0]}?user_id={user} HTTP/1.1\r\n{HEAD}\r\n".encode() * ANSWERS_EACH
    with ExitStack() as connections:
        for _ in range(DRIPPING):
            connection = connections.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(request)
        began = time.monotonic()
        assert requests.get(f"{server.url}/healthz", timeout=3 * ANSWER_SECONDS).status_code == 200
        seconds = time.monotonic() - began
    assert server.worker == worker
    assert site.stop(signal.SIGTERM)[0] == 0
    site.check()
    figures(f"{DRIPPING} clients that take nothing of {ANSWERS_EACH} answers: /healthz after {seconds:.1f} s")
