"""A real server in a process of its own beside the fake model, with agents in it, driven over REST."""

import http.client
import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.fake_model import FakeModel
from tests.process import ServerProcess


class Client:
    """One connection that is kept open, as a program that polls has one."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, method: str, path: str, body: dict | None = None) -> Any:
        """Return the JSON of the answer; anything but a 2xx is an error."""
        headers = {"Content-Type": "application/json"} if body else {}
        self._connection.request(method, path, json.dumps(body) if body else None, headers)
        response = self._connection.getresponse()
        text = response.read()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status} {text!r}")
        return json.loads(text)

    def start(self, user: str, *, steps: int) -> dict:
        """Start a research and return its run."""
        run: dict = self.ask("POST", "/v1/gb/research", {"user_id": user, "topic": "The topic", "max_steps": steps})
        return run

    def get(self, run: dict) -> dict:
        """Return the run with its states."""
        found: dict = self.ask("GET", f"/v1/gb/research/{run['id']}?user_id={run['user_id']}")
        return found

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@contextmanager
def server(database_url: str, model: FakeModel, **settings: str) -> Iterator[ServerProcess]:
    """Run `gligabao serve` for the block, ready when it begins and killed when it ends."""
    with tempfile.TemporaryDirectory() as folder:
        process = ServerProcess(
            Path(folder),
            **{
                "database_url": database_url,
                "anthropic_api_key": "k",
                "anthropic_base_url": model.url,
                "fetch_allow": json.dumps([model.address]),
                "max_working": "1000",
            }
            | settings,
        )
        try:
            yield process.wait_until_ready()
        finally:
            process.kill()


def start_agents(port: int, count: int, *, steps: int) -> list[dict]:
    """Start so many agents, three of a user, eight at a time, and return their runs."""

    def start(user: int) -> list[dict]:
        client = Client(port)
        runs = [client.start(f"load-{user}", steps=steps) for _ in range(min(3, count - 3 * user))]
        client.close()
        return runs

    with ThreadPoolExecutor(8) as starters:
        return [run for runs in starters.map(start, range((count + 2) // 3)) for run in runs]
