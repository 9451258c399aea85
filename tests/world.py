"""A whole server in this process beside a simulated model: real database, real HTTP to the model, real threads."""

import itertools
import threading
from typing import Any

from gligabao.app import Services, create_app, open_services
from gligabao.config import Config
from gligabao.simulator import Simulator

_topics = itertools.count(1)


class World:
    """A simulator and a server that uses it, driven through the routes."""

    def __init__(self, database_url: str, tmp_path: Any, **settings: Any) -> None:
        self.simulator = Simulator().start()
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
        self.services: Services = open_services(self.config)
        self.app = create_app(self.services)
        self.client = self.app.test_client()

    def close(self) -> None:
        """Stop the server, then the model."""
        self.services.close()
        self.simulator.stop()

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
        join_research(run_id)
        run = self.get(run_id, user=user)
        assert run["status"] != "running", run
        return run

    def get(self, run_id: int, *, user: str = "u1") -> dict[str, Any]:
        """Return the run."""
        response = self.client.get(f"/v1/gb/research/{run_id}?user_id={user}")
        assert response.status_code == 200, response.json
        return response.json

    def run(self, *replies: Any, **body: Any) -> dict[str, Any]:
        """Play a whole research and return its run."""
        return self.finish(self.start(*replies, **body))


def join_research(run_id: int, seconds: float = 60) -> None:
    """Wait for the thread of a run."""
    for thread in threading.enumerate():
        if thread.name == f"research-{run_id}":
            thread.join(seconds)
            assert not thread.is_alive()


def shape(run: dict[str, Any]) -> list[str]:
    """The states of a run, a line each: `3 searching the query`, with ` ! error` where there is one."""
    return [
        f"{state['step']} {state['state']} {state['detail']}".rstrip()
        + (f" ! {state['error']}" if state["error"] else "")
        for state in run["states"]
    ]


def check_run(run: dict[str, Any]) -> None:
    """Check what holds for every run that has ended: its states, their order and times, its end."""
    states = run["states"]
    assert [state["seq"] for state in states] == list(range(1, len(states) + 1))
    assert states[0]["state"] == "starting" and states[-1]["state"] == run["state"] == run["status"]
    terminal = [state for state in states if state["state"] in ("completed", "failed")]
    assert terminal == states[-1:]
    times = [time for state in states for time in (state["started_at"], state["finished_at"])]
    assert None not in times and times == sorted(times)
    assert states[-1]["started_at"] == states[-1]["finished_at"] == run["finished_at"]
    assert all(before["finished_at"] == after["started_at"] for before, after in itertools.pairwise(states))
    assert bool(run["report"]) == (run["status"] == "completed")
    assert bool(run["error"]) == (run["status"] == "failed")
    if run["error"]:
        assert states[-1]["error"] == states[-2]["error"] == run["error"]
