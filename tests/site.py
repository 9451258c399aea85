"""A place where servers run one after the other, as processes, on one database beside one simulated model."""

import itertools
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import requests

from tests.checker import Checked, check_database, read_rows
from tests.process import ServerProcess
from tests.script import BilledSimulator, Script

MAX_LOST_CALLS = 1
"""What a death may cost an agent: the call whose answer was not stored yet."""
STOP_SECONDS = 4.0
"""How long a server may take to stop, as the docs promise."""


class Site:
    """A database, a simulated model with a script, and the server that runs at the moment."""

    def __init__(self, database_url: str, folder: Path, **settings: str) -> None:
        self.database_url = database_url
        self.simulator = BilledSimulator().start()
        self.script = Script(self.simulator)
        self.started: list[int] = []
        self.answers: dict[int, dict[str, Any]] = {}
        """What the starts were answered with, by the ids of their runs."""
        self.unanswered = 0
        self.servers: list[ServerProcess] = []
        self._folder = folder
        self._users = itertools.count(1)
        self._settings = {
            "database_url": database_url,
            "data_dir": str(folder),
            "anthropic_api_key": "sk-ant-canary-key",
            "anthropic_base_url": self.simulator.url,
            "fetch_allow": '["127.0.0.1"]',
        } | settings

    def __enter__(self) -> "Site":
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            # The servers first, and all of it even if one cannot be ended.
            stack.callback(self.simulator.stop)
            stack.callback(self.script.close)
            for server in self.servers:
                stack.callback(server.kill)

    @property
    def server(self) -> ServerProcess:
        """The server that was started last."""
        return self.servers[-1]

    def serve(self, *, prefix: tuple[str, ...] = (), **settings: str) -> ServerProcess:
        """Start a server and wait until it takes requests."""
        self.servers.append(ServerProcess(self._folder, prefix=prefix, **self._settings | settings))
        return self.server.wait_until_ready()

    def new_user(self) -> str:
        """Return a user who has not been here yet."""
        return f"user-{next(self._users)}"

    def post(self, user: str, topic: str, **body: Any) -> requests.Response:
        """Start a research, and note it when it is answered with a 202."""
        response = self.server.post(user, topic, **body)
        if response.status_code == 202:
            run = response.json()
            self.started.append(run["id"])
            self.answers[run["id"]] = run
        return response

    def start(self, user: str | None = None, *, topic: str | None = None, **body: Any) -> str:
        """Start a research of the script and return its user. The server may die before it answers."""
        user = user or self.new_user()
        try:
            assert self.post(user, topic or self.script.new_topic(), **body).status_code == 202
        except requests.ConnectionError:
            self.unanswered += 1
        return user

    def runs(self, user: str) -> list[dict[str, Any]]:
        """Return the runs of a user, newest first."""
        listed: list[dict[str, Any]] = self.server.get(f"/v1/gb/research?user_id={user}&limit=500")["runs"]
        return listed

    def wait_until_idle(self, seconds: float = 120) -> None:
        """Wait until no research is at work, by the rows: a server that cannot be asked may be what is tested."""
        deadline = time.monotonic() + seconds
        while any(run["status"] == "running" for run in read_rows(self.database_url)[0]):
            assert time.monotonic() < deadline, "researches are still at work"
            time.sleep(0.1)

    def check(self, **allowed: Any) -> Checked:
        """Check the database after the end of the server."""
        # Those of the script too: what was billed must be stored.
        topics = {*self.script.topics, *(run["topic"] for run in read_rows(self.database_url)[0])}
        given = {
            "charges": self.simulator.charges(sorted(topics)),
            "reports": self.simulator.reports,
            "started": self.started,
            "answers": self.answers,
            "unanswered": self.unanswered,
            "max_lost_calls": MAX_LOST_CALLS,
        }
        return check_database(self.database_url, **given | allowed)

    def stop(self, *signals: int) -> tuple[int, float]:
        """Send these signals to the server; return its exit code and how long it took to end."""
        began = time.monotonic()
        with suppress(ProcessLookupError):
            self.server.signal(*signals)
        code = self.server.wait(30)
        return code, time.monotonic() - began
