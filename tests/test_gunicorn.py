"""The private parts of gunicorn that the server builds on, each with what would break if it changed.

They were read in gunicorn 27.0.1. A newer version may have moved them: these tests say which.
"""

import inspect
import logging
import os
import selectors
import signal
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress

import gunicorn.http.wsgi
import gunicorn.util
import gunicorn.workers.base
import pytest
import requests
from gunicorn.arbiter import Arbiter
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.workers import gthread
from gunicorn.workers.gthread import PollableMethodQueue, ThreadWorker

from gligabao import worker as worker_module
from gligabao.worker import Worker
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


def test_a_request_that_ends_after_the_loop_writes_into_no_file(tmp_path):
    """gunicorn's own queue closes its pipe and goes on using its number, which the next file to be opened gets."""
    methods = worker_module._MethodQueue()
    methods.init()
    methods.close()
    with (tmp_path / "database").open("wb") as first, (tmp_path / "other").open("wb") as second:
        methods.defer(lambda: None)
        assert first.tell() == second.tell() == 0
    assert [path.stat().st_size for path in sorted(tmp_path.iterdir())] == [0, 0]
    PollableMethodQueue.close(methods)


def test_signals_are_held_back_until_the_worker_has_its_handlers():
    source = inspect.getsource(Worker.__mro__[2].init_process)
    assert source.index("self.init_signals()") < source.index("self.load_wsgi()")
    assert "os.fork()" in inspect.getsource(Arbiter.spawn_worker)
    assert "worker.tmp.last_update() <= self.timeout" in inspect.getsource(Arbiter.murder_workers)


def test_signals_to_the_whole_group_change_nothing(tmp_path):
    server = ServerProcess(tmp_path, database_url=f"sqlite:///{tmp_path}/g.db").wait_until_ready()
    try:
        for number in (signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR2, signal.SIGHUP):
            os.killpg(server.process.pid, number)
            assert requests.get(f"{server.url}/healthz", timeout=30).status_code == 200
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert sum("is ready on" in line for line in server.log) == 1
    finally:
        server.kill()


def test_more_connections_than_file_descriptors_end_no_worker(tmp_path):
    server = ServerProcess(
        tmp_path,
        prefix=["sh", "-c", 'ulimit -n 128; exec "$@"', "sh"],
        database_url=f"sqlite:///{tmp_path}/g.db",
        threads="16",
    ).wait_until_ready()
    connections = []
    try:
        with suppress(ConnectionError):
            for _ in range(200):
                connections += open_connections(server, 1, b"")
        for connection in connections:
            connection.close()
        assert requests.get(f"{server.url}/healthz", timeout=30).status_code == 200
        assert sum("is ready on" in line for line in server.log) == 1
    finally:
        for connection in connections:
            connection.close()
        server.kill()


def test_the_loop_takes_connections_back_and_ends_them_through_these():
    finish = inspect.getsource(ThreadWorker.finish_request)
    assert "result = fs.result() if not fs.cancelled() else False" in finish
    assert finish.index("elif result:") < finish.index("self.nr_conns -= 1\n                conn.close(graceful=True)")
    loop = inspect.getsource(ThreadWorker.run)
    assert loop.count("self.murder_pending()") == loop.count("self.murder_keepalived()") == 2
    assert "sock.recv" in inspect.getsource(gunicorn.util.close_graceful)  # what must not happen in the loop


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


CLOSING = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def test_clients_that_do_not_close_hold_nobody_up(server):
    """gunicorn waits two seconds for each in the thread of its loop: from 15 on, its master took the loop for dead."""
    connections = open_connections(server, 24, CLOSING)
    try:
        for connection in connections:
            assert read_all(connection).startswith(b"HTTP/1.1 200 ")
        assert requests.get(f"{server.url}/healthz", timeout=20).status_code == 200
        for connection in connections:
            wait_until_refused(connection)
    finally:
        for connection in connections:
            connection.close()


def read_all(connection):
    return b"".join(iter(lambda: connection.recv(4096), b""))


def wait_until_refused(connection):
    """Wait until the server has let go of a connection: what is sent on it is refused then."""
    deadline = time.monotonic() + 20
    with suppress(ConnectionError):
        while time.monotonic() < deadline:
            connection.sendall(b"x")
            time.sleep(0.05)
        pytest.fail("the server keeps a connection open that it has answered")


def test_a_client_that_sends_more_than_is_read_gets_the_whole_answer(server):
    """A close with something unread would be a reset, which takes the answer away from the client."""
    too_long = b"POST /v1/gb/research HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n" + b"x" * 500_000
    (connection,) = open_connections(server, 1, too_long)
    with connection:
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 413 ") and answer.rstrip().endswith(b"}")


def test_what_came_in_time_is_taken_by_a_loop_that_looks_late():
    worker = Worker(1, 1, [], None, 30, Config(), logging.getLogger())
    worker.poller = selectors.DefaultSelector()
    taken = []
    worker.enqueue_req = taken.append
    conns = []
    with ExitStack() as sockets:
        for sent in (b"GET", b""):
            ours, theirs = (sockets.enter_context(one) for one in socket.socketpair())
            theirs.sendall(sent)
            conns.append(gthread.TConn(worker.cfg, ours, "", ""))
            conns[-1].timeout = time.monotonic()
            worker.poller.register(ours, selectors.EVENT_READ)
        worker.pending_conns.extend(conns)
        worker.murder_pending()
        assert taken == conns[:1] and not worker.pending_conns and conns[1].sock.fileno() == -1
    worker.poller.close()
    worker.tmp.close()


def test_a_connection_that_is_let_go_for_want_of_room_may_close_in_the_same_moment(monkeypatch):
    monkeypatch.setattr(worker_module, "MAX_LINGERING", 1)
    worker = Worker(1, 1, [], None, 30, Config(), logging.getLogger())
    worker.poller = selectors.DefaultSelector()
    answered = Future()
    answered.set_result(False)
    with ExitStack() as sockets:
        for number in range(3):
            ours, theirs = (sockets.enter_context(one) for one in socket.socketpair())
            worker.nr_conns += 1
            worker.finish_request(gthread.TConn(worker.cfg, ours, "", ""), answered)
            if number == 0:
                theirs.close()
                seen = [(key.data, key.fileobj) for key, _ in worker.poller.select(10)]
        assert len(seen) == 1
        for callback, sock in seen:
            callback(sock)
        assert worker.nr_conns == 0 and len(worker.poller.get_map()) == 1
    worker.poller.close()
    worker.tmp.close()


@pytest.mark.parametrize(
    "used",
    [
        *("handle", "handle_request", "on_client_socket_readable", "murder_keepalived"),
        *("keepalived_conns", "pending_conns", "nr_conns", "method_queue", "poller"),
    ],
)
def test_the_worker_has_this_part_and_uses_it(used):
    assert f"self.{used}" in inspect.getsource(gunicorn.workers.base) + inspect.getsource(gthread)


def test_the_log_writes_no_access_lines_when_it_is_told_so():
    assert "return self._access_log_enabled" in inspect.getsource(Logger)
    assert "self.setup(cfg)" in inspect.getsource(Logger.__init__)


def test_the_worker_is_loaded_after_its_signals_and_told_that_it_is_before_its_loop():
    source = inspect.getsource(ThreadWorker.__mro__[1].init_process)
    steps = ["self.init_signals()", "self.load_wsgi()", "self.cfg.post_worker_init(self)", "self.run()"]
    assert [source.index(step) for step in steps] == sorted(source.index(step) for step in steps)


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


def test_the_environment_has_the_connection():
    assert '"gunicorn.socket": sock' in inspect.getsource(gunicorn.http.wsgi.default_environ)


def test_a_worker_that_exits_with_one_of_two_codes_ends_the_master():
    source = inspect.getsource(Arbiter.reap_workers)
    assert source.count("raise HaltServer(") == 2
    assert "exitcode == self.APP_LOAD_ERROR" in source and "exitcode == self.WORKER_BOOT_ERROR" in source
    assert "sys.exit(self.WORKER_BOOT_ERROR)" in inspect.getsource(Arbiter.spawn_worker)


def test_half_a_request_is_not_taken_for_a_whole_one(server):
    body = b'{"user_id": "half", "topic": "t"}'
    head = b"POST /v1/gb/research HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (len(body) + 5)
    (connection,) = open_connections(server, 1, head + body)
    with connection:
        connection.shutdown(socket.SHUT_WR)
        assert b" 202 " not in connection.recv(4096)
    assert server.get("/v1/gb/research?user_id=half") == {"runs": []}
