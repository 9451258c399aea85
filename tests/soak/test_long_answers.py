"""Answers that take long, with the limits of the product: in time, cut, and in the middle of a stop."""

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests

from tests.process import ServerProcess
from tests.site import STOP_SECONDS
from tests.slow_server import deaf_client, get, slow_server

LONG_SECONDS = 100


def test_a_stream_and_an_answer_of_100_s_beside_a_client_that_takes_nothing(
    tmp_path: Path, figures: Callable[[str], None]
) -> None:
    with slow_server(tmp_path) as server, ThreadPoolExecutor(4) as pool:
        stream = pool.submit(get, server, f"/slow/stream?seconds={LONG_SECONDS}&user=u1")
        answer = pool.submit(get, server, f"/slow/answer?seconds={LONG_SECONDS}&allow=120")
        late = pool.submit(get, server, f"/slow/answer?seconds={LONG_SECONDS}")
        with deaf_client(server, "/slow/flood"), deaf_client(server, "/slow/flood?pieces=1000"):
            with pytest.raises(requests.ConnectionError):
                late.result()
            assert stream.result().text.split()[-1] == "end"
            assert answer.result().text == "done"
        cuts = sorted(line.partition("deadlines: ")[2].strip() for line in server.log if " cut: " in line)
        assert cuts == [
            "GET /slow/answer cut: the answer was not made in 30 s",
            "GET /slow/flood cut: the answer was not taken in 30 s",
            "GET /slow/flood cut: the client took nothing for 30 s",
        ]
        figures(f"both whole after {LONG_SECONDS} s; {len(cuts)} cuts, each with its line in the log")
        seconds = _stop_in_the_middle(server)
        assert seconds <= STOP_SECONDS
        figures(f"SIGTERM in the middle of others: exit after {seconds:.2f} s")


def _stop_in_the_middle(server: ServerProcess) -> float:
    """Stop the server beside all kinds of answers that are not out, and return how long its exit took."""
    waits = server.count_lines("waiting")
    with ThreadPoolExecutor(1) as pool, ExitStack() as held:
        stream = held.enter_context(get(server, "/slow/stream?seconds=600&user=u1", stream=True))
        answer = pool.submit(get, server, "/slow/answer?seconds=600&allow=600")
        for path in ("/slow/flood", "/slow/deaf"):
            held.enter_context(deaf_client(server, path))
        server.wait_for_line("waiting", count=waits + 2)
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        seconds = time.monotonic() - began
        assert stream.text.split()[-1] == "stop" and answer.result().text == "done"
        return seconds
