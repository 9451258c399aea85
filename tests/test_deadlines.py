"""How long answers may take, in real servers with routes that take long (tests/slow_server.py)."""

import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest
import requests
from flask import Flask, request

from gligabao.web import deadlines
from gligabao.web.deadlines import AnswerDeadline, AnswerWatch, _count_bytes, deadline_of
from tests.slow_server import deaf_client, get, slow_server
from tests.teams import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with slow_server(tmp_path_factory.mktemp("server"), answer=1, client=1) as server:
        yield server


def test_an_answer_that_is_not_made_in_time_is_cut_and_its_view_is_told(server):
    with pytest.raises(requests.ConnectionError):
        get(server, "/slow/answer?seconds=60")
    server.wait_for_line("GET /slow/answer cut: the answer was not made in 1 s")
    server.wait_for_line("the wait ended: cut")


def test_a_route_may_allow_more(server):
    assert get(server, "/slow/answer?seconds=3&allow=60").text == "done"


def test_a_stream_has_no_limit(server):
    assert get(server, "/slow/stream?seconds=3&user=u1").text.split()[-1] == "end"


def test_a_client_that_takes_nothing_is_cut_in_a_stream(server):
    line, closed = "GET /slow/flood cut: the client took nothing for 1 s", server.count_lines("the flood was closed")
    with deaf_client(server, "/slow/flood?user=secret"):
        server.wait_for_line(line)
        server.wait_for_line("the flood was closed", count=closed + 1)
    assert not server.count_lines("secret")


def test_an_answer_that_is_not_taken_in_time_is_cut(server):
    closed = server.count_lines("the flood was closed")
    with deaf_client(server, "/slow/flood?pieces=1000"):
        server.wait_for_line("GET /slow/flood cut: ", count=server.count_lines("GET /slow/flood cut: ") + 1)
        server.wait_for_line("the flood was closed", count=closed + 1)


def test_a_client_that_is_slow_is_not_cut_in_a_stream(server):
    """It takes a little each time, and far less than the system keeps for it."""
    with deaf_client(server, "/slow/flood") as connection:
        for _ in range(12):
            threading.Event().wait(0.25)
            assert connection.recv(32_768)


def test_a_cut_leaves_no_mark_on_other_answers(server):
    with requests.Session() as session:
        for _ in range(5):
            assert session.get(f"{server.url}/healthz", timeout=60).status_code == 200
            threading.Event().wait(0.3)


def test_files_heads_and_chunks_go_out_as_before(server):
    assert len(get(server, "/slow/file").content) == 4 * 65_536
    server.wait_for_line("the file was closed")
    chunked = get(server, "/slow/flood?pieces=3")
    assert chunked.headers["Transfer-Encoding"] == "chunked" and len(chunked.content) == 3 * 65_536
    closed = server.count_lines("the flood was closed")
    head = requests.head(f"{server.url}/slow/flood?pieces=3", timeout=60)
    assert (head.status_code, head.content) == (200, b"")
    server.wait_for_line("the flood was closed", count=closed + 1)


def test_streams_and_waits_beyond_the_limits_are_a_429(server):
    """64 threads: 8 streams, 16 waits. What was refused, closed or only asked for with HEAD holds no place."""
    for _ in range(10):
        requests.head(f"{server.url}/slow/stream?seconds=60&user=u1", timeout=60).raise_for_status()
    with ExitStack() as streams:
        for number in range(8):
            response = streams.enter_context(get(server, f"/slow/stream?seconds=60&user=u{number % 2}", stream=True))
            assert response.status_code == 200
        refused = get(server, "/slow/stream?seconds=60&user=u3")
        assert refused.status_code == 429 and int(refused.headers["Retry-After"]) > 0
        assert refused.json() == {"error": "the server is busy: 8 streams are open (at most 8)"}
    retry = threading.Event()
    while get(server, "/slow/stream?seconds=0&user=u3").status_code == 429:
        retry.wait(0.1)
    with ThreadPoolExecutor(24) as pool:
        codes = list(pool.map(lambda _: get(server, "/slow/answer?seconds=3&allow=60").status_code, range(24)))
    assert (codes.count(200), codes.count(429)) == (16, 8)


def test_a_stop_ends_streams_and_waits(tmp_path):
    with slow_server(tmp_path) as server, ExitStack() as connections:
        pool = connections.enter_context(ThreadPoolExecutor(2))
        stream = connections.enter_context(get(server, "/slow/stream?seconds=600&user=u1", stream=True))
        lines = stream.iter_lines()
        assert next(lines) == b"0"
        answer = pool.submit(get, server, "/slow/answer?seconds=600&allow=600")
        server.wait_for_line("waiting")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert list(lines)[-1] == b"stop"
        assert answer.result(30).text == "done"
        assert server.count_lines("the wait ended: stop") == server.count_lines("gligabao has stopped") == 1


def test_a_stop_waits_neither_for_clients_that_take_nothing_nor_for_deaf_views(tmp_path):
    with slow_server(tmp_path) as server, deaf_client(server, "/slow/flood"), deaf_client(server, "/slow/deaf"):
        server.wait_for_line("waiting")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert server.count_lines("gligabao has stopped") == 1


def test_a_view_asks_for_time_without_a_worker_too():
    app = Flask(__name__)

    @app.get("/")
    def view():
        deadline = deadline_of(request.environ)
        deadline.allow(100)
        deadline.allow_stream()
        with deadline.waking(lambda: None):
            return {"cut": deadline.is_cut}

    assert app.test_client().get("/").json == {"cut": False}


def test_whoever_asks_after_the_cut_is_told_at_once():
    deadline, woken = AnswerDeadline(), []
    with deadline.waking(lambda: woken.append("before")):
        deadline.tell_cut()
    with deadline.waking(lambda: woken.append("after")):
        assert woken == ["before", "after"] and deadline.is_cut
    deadline.tell_cut()
    assert woken == ["before", "after"]


@contextmanager
def connected():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as theirs, listener.accept()[0] as ours:
            yield ours, theirs


def test_acknowledged_and_waiting_bytes_are_counted():
    """This reads a field of the kernel's at its place."""
    with connected() as (ours, _):
        ours.sendall(bytes(1000))
        wait_until(lambda: _count_bytes(ours) == (1000, 0), "1,000 bytes acknowledged")
        sent = 1000 + fill(ours)
        # The two are read one after the other, so an acknowledgement may come in between.
        wait_until(lambda: sum(_count_bytes(ours)) == sent, "the same count from both")
        assert _count_bytes(ours)[1] > 0


def fill(connection):
    """Send until nothing more goes out, and return how many bytes were sent."""
    connection.setblocking(False)
    sent = 0
    with suppress(BlockingIOError):
        while True:
            sent += connection.send(bytes(65_536))
    return sent


def test_a_client_that_went_away_is_noticed_while_the_view_waits(watchdog, monkeypatch):
    monkeypatch.setattr(deadlines, "CLIENT_SECONDS", 0.5)
    with connected() as (ours, _):
        deadline, told = AnswerDeadline(), threading.Event()
        deadline.allow_stream()
        fill(ours)
        watch = AnswerWatch(deadline, watchdog=watchdog, connection=ours, request="GET /")
        with watch, deadline.waking(told.set):
            assert told.wait(30)


def test_an_answer_that_is_out_is_not_cut(watchdog):
    with connected() as (ours, theirs):
        deadline = AnswerDeadline()
        deadline.allow(0.05)
        with AnswerWatch(deadline, watchdog=watchdog, connection=ours, request="GET /"):
            pass
        later = threading.Event()
        with watchdog.deadline(0.2, later.set):
            assert later.wait(30)
        ours.sendall(b"next")
        assert theirs.recv(10) == b"next" and not deadline.is_cut


def test_a_connection_that_was_closed_meanwhile_is_no_fault(watchdog, caplog):
    with connected() as (ours, _):
        deadline, told = AnswerDeadline(), threading.Event()
        deadline.allow(0.1)
        with AnswerWatch(deadline, watchdog=watchdog, connection=ours, request="GET /"), deadline.waking(told.set):
            ours.close()
            assert told.wait(30)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "GET / cut: the answer was not made in 0.1 s"
    ]
