"""A whole server in this process beside a simulated model: real database, real HTTP to the model, real threads."""

import itertools
import threading
from typing import Any

from gligabao.app import Services, create_app, open_services
from gligabao.config import Config
from gligabao.model.prices import Prices
from gligabao.research.messenger import Messenger
from gligabao.store.database import open_database
from tests.checker import Checked, check_database
from tests.faulty import FaultyDatabase
from tests.script import BilledSimulator

_topics = itertools.count(1)


class World:
    """A simulator and a server that uses it, driven through the routes."""

    def __init__(
        self, database_url: str, tmp_path: Any, *, messenger: Messenger | None = None, **settings: Any
    ) -> None:
        self.simulator = BilledSimulator().start()
        self.started: list[int] = []
        self.answers: dict[int, dict[str, Any]] = {}
        """What the starts were answered with, by the ids of their runs."""
        self.closed = False
        self.held: list[threading.Event] = []
        """What the test has agents wait for. Set when it fails, so that none is left to disturb the next test."""
        self.db = FaultyDatabase()
        self.config = Config(
            database_url=database_url,
            data_dir=tmp_path,
            **{
                "anthropic_api_key": "test-key",
                "anthropic_base_url": self.simulator.url,
                "fetch_allow": [self.simulator.address],
            }
            | settings,
        )
        try:
            self.services: Services = open_services(
                self.config, open_db=lambda url: self.db.over(open_database(url)), messenger=messenger
            )
        except BaseException:
            self.simulator.stop()
            raise
        self.app = create_app(self.services)
        self.app.after_request(self._note_start)
        self.client = self.app.test_client()

    def close(self, **allowed: Any) -> Checked:
        """Stop the server, then the model, and check what is stored; `allowed` goes to `check_database`."""
        was_idle = self.services.manager.working == 0
        self.stop()
        simulator = self.simulator
        given = {
            # Else an answer may have been billed at the very moment at which nobody wanted it any more.
            "billed": simulator.bills_by_model() if was_idle else None,
            "charges": simulator.charges(list(simulator.reports)) if was_idle else None,
            "reports": simulator.reports,
            "started": self.started,
            "answers": self.answers,
            "prices": Prices(self.config.prices),
        }
        return check_database(self.config.database_url, **given | allowed)

    def stop(self, *, hurry: threading.Event | None = None) -> None:
        """Stop the server, then the model, and check nothing."""
        self.closed = True
        try:
            self.services.close(hurry=hurry)
        finally:
            self.simulator.stop()

    def abandon(self) -> None:
        """Stop after a test that has failed: check nothing, and leave no agent behind."""
        self.services.manager.begin_stop()
        for event in self.held:
            event.set()
        if not self.closed:
            self.stop()
        self.join()

    def _note_start(self, response: Any) -> Any:
        if response.status_code == 202:
            self.started.append(response.json["id"])
            self.answers[response.json["id"]] = response.json
        return response

    def post(self, user: str = "u1", **body: Any) -> Any:
        """Start a research; return the response."""
        return self.client.post("/v1/gb/research", json={"user_id": user, "topic": "A topic"} | body)

    def start(self, *replies: Any, user: str = "u1", **body: Any) -> int:
        """Start a research whose model plays these replies; return the id of its run."""
        topic = f"topic number {next(_topics)}."
        if replies:
            self.simulator.play(topic, *replies)
        response = self.post(user, topic=topic, **body)
        assert response.status_code == 202, response.json
        return response.json["id"]

    def finish(self, run_id: int, *, user: str = "u1") -> dict[str, Any]:
        """Wait for the agent of a run to end and return the run."""
        self.join(run_id)
        run = self.get(run_id, user=user)
        assert run["status"] != "running", run
        return run

    def join(self, *run_ids: int, seconds: float = 90) -> None:
        """Wait until the agents of these runs (none given: all) do nothing any more."""
        assert self.services.manager.join(seconds, *run_ids), "agents are still at work"

    def get(self, run_id: int, *, user: str = "u1") -> dict[str, Any]:
        """Return the run."""
        response = self.client.get(f"/v1/gb/research/{run_id}?user_id={user}")
        assert response.status_code == 200, response.json
        return response.json

    def run(self, *replies: Any, **body: Any) -> dict[str, Any]:
        """Play a whole research and return its run."""
        return self.finish(self.start(*replies, **body))


def shape(run: dict[str, Any]) -> list[str]:
    """The states of a run, a line each: `3 searching the query`, with ` ! error` where there is one."""
    return [
        f"{state['step']} {state['state']} {state['detail']}".rstrip()
        + (f" ! {state['error']}" if state["error"] else "")
        for state in run["states"]
    ]
