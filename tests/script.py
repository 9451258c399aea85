"""A research played to a script, with a point at each request that its agent sends: where a test may strike."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote

from gligabao.simulator import Recorded, Simulator, Totals
from gligabao.simulator.billing import Used
from gligabao.simulator.messages import Message
from gligabao.simulator.prompt import Prompt, first_user_text
from gligabao.simulator.replies import Reply, call, searched, text, tool_calls

STEPS = 15
POINTS_PER_STEP = 4
POINTS = STEPS * POINTS_PER_STEP + 1
"""A model call, a search and two pages for each step, and the call for the report."""

_numbers = itertools.count(1)


class BilledSimulator(Simulator):
    """A simulator that keeps what it charged, call by call."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.on_request: Callable[[], None] = lambda: None
        """Called for each request to the model, before it is answered."""
        self.reports: dict[str, str] = {}
        """The reports of the researches on these topics: what a script plays in the end."""
        self._charges: list[tuple[str, str, Used]] = []
        self._charging = threading.Lock()

    def record(self, headers: Mapping[str, str], body: Any) -> Recorded:
        """Note a request that came in."""
        recorded = super().record(headers, body)
        self.on_request()
        return recorded

    def charge(self, prompt: Prompt, message: Message, *, times: int = 1) -> None:
        """Put a call on the bill, or take it off again."""
        super().charge(prompt, message, times=times)
        charged = (prompt.model, prompt.topic, message.used)
        with self._charging:
            if times > 0:
                self._charges.append(charged)
            else:
                self._charges.remove(charged)

    def bills_by_model(self) -> dict[str, Totals]:
        """Return what the calls of each model came to."""
        with self._charging:
            charged = list(self._charges)
        bills: dict[str, Totals] = {}
        for model, _, used in charged:
            bills[model] = bills.get(model, Totals()).plus(used)
        return bills

    def charges(self, topics: Sequence[str]) -> dict[str, list[Totals]]:
        """Return the bills after each call whose first user text contains the topic, for each of them."""
        with self._charging:
            charged = list(self._charges)
        bills: dict[str, list[Totals]] = {topic: [] for topic in topics}
        for _, asked, used in charged:
            topic = next((topic for topic in topics if topic in asked), None)
            if topic is not None:
                bills[topic].append((bills[topic] or [Totals()])[-1].plus(used))
        return bills


class Points:
    """Counts the points that each research has reached, and acts at those that were armed. One lock guards all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reached: Counter[str] = Counter()
        self._acts: dict[tuple[str, int], Callable[[], None]] = {}

    def arm(self, topic: str, number: int, act: Callable[[], None]) -> None:
        """Call `act` when the research on that topic reaches the point of that number, from 1, before it goes on."""
        with self._lock:
            self._acts[topic, number] = act

    def reach(self, topic: str) -> None:
        """Count one more."""
        with self._lock:
            self._reached[topic] += 1
            act = self._acts.pop((topic, self._reached[topic]), None)
        if act is not None:
            act()


class Gate:
    """Where requests stand until they are let through, so that several researches are struck at chosen points."""

    def __init__(self) -> None:
        self._arrived = threading.Semaphore(0)
        self._open = threading.Event()

    def stand(self) -> None:
        """Wait at the gate."""
        self._arrived.release()
        assert self._open.wait(60)

    def wait_for(self, number: int) -> None:
        """Return when so many more stand here."""
        for _ in range(number):
            assert self._arrived.acquire(timeout=60)

    def open(self) -> None:
        """Let all through."""
        self._open.set()


class Script:
    """The script of a research of `steps` steps. Each topic from `new_topic` goes through it from the start."""

    def __init__(self, simulator: BilledSimulator, *, steps: int = STEPS, name: str = "soak") -> None:
        self.points = Points()
        self.topics: list[str] = []
        self._reports = simulator.reports
        self._name = name
        self._pages = _PageServer(self.points)
        self.address = f"127.0.0.1:{self._pages.server_port}"
        """Where the pages are: for `fetch_allow`."""
        simulator.play(f"{name} run", *[self._at(self._step, step) for step in range(steps)], self._at(_report, 0))
        simulator.play_search(f"{name} run", self._at(_found, 0))

    def close(self) -> None:
        """Close the page server."""
        self._pages.close()

    def new_topic(self) -> str:
        """Return the topic of one more research."""
        # Of one length, so that none is part of another.
        topic = f"{self._name} run number {next(_numbers):05d}."
        self.topics.append(topic)
        self._reports[topic] = _report_on(topic)
        return topic

    def _at(self, make: Callable[[str, int], Reply], step: int) -> Callable[[dict[str, Any]], Reply]:
        def reply(body: dict[str, Any]) -> Reply:
            # A search asks for more than the topic, after it.
            topic = first_user_text(body).partition(".")[0] + "."
            self.points.reach(topic)
            return make(topic, step)

        return reply

    def _step(self, topic: str, step: int) -> Reply:
        pages = [f"http://{self.address}/{quote(topic)}/{step}/{page}" for page in ("one", "two")]
        search = call("web_search", query=f"{topic} Part {step}?")
        return tool_calls(search, *[call("fetch_url", url=url) for url in pages])


def _report(topic: str, step: int) -> Reply:
    return text(_report_on(topic))


def _report_on(topic: str) -> str:
    return f"All that is known: {topic}"


def _found(topic: str, step: int) -> Reply:
    return searched("Something was found.", ("https://example.org/", "A page"))


class _PageServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, points: Points) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.points = points
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), name="pages", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self._thread.join(5)
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no error."""


class _Page(BaseHTTPRequestHandler):
    server: _PageServer

    def do_GET(self) -> None:
        self.server.points.reach(unquote(self.path.split("/")[1]))
        body = b"<title>A page</title><p>" + b"It says little, at some length. " * 30
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
