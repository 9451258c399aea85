"""The private parts of gunicorn that the server builds on, each with what would break if it changed.

They were read in gunicorn 27.0.1. A newer version may have moved them: these tests say which.
"""

import inspect
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import gunicorn
import pytest
import requests
from gunicorn.arbiter import Arbiter
from gunicorn.workers import gthread
from gunicorn.workers.gthread import ThreadWorker

from tests.process import ServerProcess

MADE_FOR = "27.0.1"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    server = ServerProcess(folder, database_url=f"sqlite:///{folder}/g.db", threads="16").wait_until_ready()
    yield server
    server.kill()


def test_this_is_the_version_that_was_read():
    assert gunicorn.__version__ == MADE_FOR


@pytest.mark.parametrize("name", ["handle_hup", "handle_ttin", "handle_ttou", "handle_usr2"])
def test_the_master_looks_its_signals_up_by_these_names(name):
    assert callable(getattr(Arbiter, name))
    assert 'getattr(self, "handle_%s" % signame' in inspect.getsource(Arbiter.run)


def test_the_worker_stops_through_handle_exit_and_handle_quit():
    assert list(inspect.signature(ThreadWorker.handle_exit).parameters) == ["self", "sig", "frame"]
    assert list(inspect.signature(ThreadWorker.handle_quit).parameters) == ["self", "sig", "frame"]
    assert "self.alive = False" in inspect.getsource(ThreadWorker.handle_exit)


def test_the_worker_loop_reads_its_own_graceful_timeout():
    assert "self.cfg.graceful_timeout" in inspect.getsource(ThreadWorker.run)


def test_connections_can_wait_at_the_poller():
    source = inspect.getsource(ThreadWorker.on_pending_socket_readable)
    assert "self.pending_conns.remove(conn)" in source and "conn.data_ready = True" in source
    assert "self.enqueue_req(conn)" in inspect.getsource(ThreadWorker.accept)
    assert {"initialized", "data_ready"} <= set(inspect.getsource(gthread.TConn.__init__).replace(".", " ").split())


def test_the_worker_gets_its_threads_and_answers_errors_through_these():
    assert "self.get_thread_pool()" in inspect.getsource(ThreadWorker.init_process)
    assert list(inspect.signature(ThreadWorker.handle_error).parameters) == ["self", "req", "client", "addr", "exc"]


def test_a_pool_queues_the_work_before_it_makes_a_thread_for_it():
    source = inspect.getsource(ThreadPoolExecutor.submit)
    assert source.index("self._work_queue.put(w)") < source.index("self._adjust_thread_count()")


def test_an_unknown_transfer_coding_is_the_fault_of_the_client(server):
    (connection,) = open_connections(
        server, 1, b"POST /v1/gb/research HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: knotted\r\n\r\n"
    )
    with connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")


def test_environment_variables_of_gunicorn_change_nothing(tmp_path):
    """`max_requests` would end the worker, and the agents in it, after so many requests."""
    server = ServerProcess(
        tmp_path, database_url=f"sqlite:///{tmp_path}/g.db", environ={"GUNICORN_CMD_ARGS": "--max-requests 3 -w 2"}
    ).wait_until_ready()
    try:
        for _ in range(12):
            assert requests.get(f"{server.url}/healthz", timeout=30).status_code == 200
        assert sum("is ready on" in line for line in server.log) == 1
    finally:
        server.kill()


def open_connections(server, count, send):
    connections = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(count)]
    for connection in connections:
        connection.sendall(send)
    return connections


def test_connections_that_send_nothing_hold_no_thread(server):
    connections = open_connections(server, 40, b"")
    try:
        assert requests.get(f"{server.url}/healthz", timeout=3).status_code == 200
    finally:
        for connection in connections:
            connection.close()


@pytest.mark.parametrize(
    "start",
    [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /v1/gb/research HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 1000\r\n\r\n{",
    ],
    ids=["head", "body"],
)
def test_requests_that_drip_are_cut(server, start):
    """More of them than there are threads: without the cut the server would be dead as long as they liked."""
    connections = open_connections(server, 24, start)
    stop = threading.Event()

    def drip():
        while not stop.wait(0.5):
            for connection in connections:
                try:
                    connection.sendall(b"x")
                except OSError:
                    pass

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        assert requests.get(f"{server.url}/healthz", timeout=60).status_code == 200
        deadline = time.monotonic() + 60
        for connection in connections:
            connection.settimeout(max(1, deadline - time.monotonic()))
            try:
                while connection.recv(4096):
                    pass
            except ConnectionError:
                pass
    finally:
        stop.set()
        thread.join(10)
        for connection in connections:
            connection.close()


def test_a_body_in_chunks_that_is_too_long_is_a_413(server):
    def chunks():
        yield b'{"user_id": "chunked", "topic": "x"}'
        for _ in range(12):
            yield b" " * 100_000

    response = requests.post(
        f"{server.url}/v1/gb/research", data=chunks(), headers={"Content-Type": "application/json"}, timeout=60
    )
    assert response.status_code == 413
    assert server.get("/v1/gb/research?user_id=chunked") == {"runs": []}


def test_a_header_of_a_client_cannot_set_variables_of_the_application(server):
    headers = {"SCRIPT_NAME": "/foo", "X-Forwarded-Proto": "https"}
    assert requests.get(f"{server.url}/healthz", headers=headers, timeout=30).status_code == 200


def test_half_a_request_is_not_taken_for_a_whole_one(server):
    body = b'{"user_id": "half", "topic": "t"}'
    head = b"POST /v1/gb/research HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (len(body) + 5)
    (connection,) = open_connections(server, 1, head + body)
    with connection:
        connection.shutdown(socket.SHUT_WR)
        assert b" 202 " not in connection.recv(4096)
    assert server.get("/v1/gb/research?user_id=half") == {"runs": []}
