"""What runs out: threads, descriptors, memory; and what must not be left behind by many short runs."""

import os
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from gligabao.simulator.replies import hang, text
from tests.site import Site

SHORT_RUNS = 300
STRANGER = 58231
"""A user id that nobody here has: the limit on processes counts per user, and does not hold for root."""


@dataclass(frozen=True)
class Used:
    """What a process holds."""

    threads: int
    descriptors: int
    megabytes: float

    @classmethod
    def by(cls, pid: int) -> "Used":
        """Look at the process."""
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
        )
        return cls(int(status["Threads"]), len(os.listdir(f"/proc/{pid}/fd")), int(status["VmRSS"].split()[0]) / 1024)

    def __str__(self) -> str:
        return f"{self.threads} threads, {self.descriptors} descriptors, {self.megabytes:.1f} MB"


@pytest.mark.parametrize("at_once", [1, 10])
def test_many_short_runs_leave_nothing_behind(site: Site, figures: Callable[[str], None], at_once: int) -> None:
    # As few request threads as the setting allows: gunicorn makes them one by one, which would look like a leak.
    server = site.serve(threads="16")
    site.simulator.play("short", text("Report."))
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(lambda number: _run(site, f"a{number}"), range(16)))
        first = Used.by(server.worker)
        list(pool.map(lambda number: _run(site, f"b{number}"), range(SHORT_RUNS)))
        last = Used.by(server.worker)
    assert site.stop(signal.SIGTERM)[0] == 0
    found = site.check(charges=None, billed=site.simulator.billed().total)
    assert found.ends == {"answered": SHORT_RUNS + 16}
    figures(f"{SHORT_RUNS} runs, {at_once} at a time: {first} after the first 16, {last} after all")
    assert last.threads <= first.threads + 16 and last.descriptors <= first.descriptors + 10
    assert last.megabytes <= first.megabytes + 10


def _run(site: Site, user: str) -> None:
    """Run one research to its end, asking as a client would."""
    assert site.post(user, f"short {user}").status_code == 202
    with requests.Session() as session:
        url = f"{site.server.url}/v1/gb/research?user_id={user}&active=true"
        while session.get(url, timeout=30).json()["runs"]:
            pass


def test_no_more_threads_can_be_started(site: Site, tmp_path: Path, figures: Callable[[str], None]) -> None:
    """The system itself refuses: the server runs as a user of its own who has used up all that it may have."""
    limit = 60
    prefix = _as_stranger(limit)
    tmp_path.chmod(0o777)
    server = site.serve(prefix=prefix, threads="16")
    site.simulator.play("hold", hang())
    codes: list[int] = []
    for number in range(limit + 20):
        response = site.post(f"u{number}", f"hold {number}")
        codes.append(response.status_code)
        if response.status_code == 503:
            assert "thread" in response.json()["error"]
    refused = codes.count(503)
    assert refused >= 20 and set(codes) == {202, 503}
    running = sum(len(site.runs(f"u{number}")) for number in range(limit + 20))
    with ThreadPoolExecutor(30) as pool:  # more than there are request threads yet, and no more can be made
        probes = list(pool.map(lambda _: requests.get(f"{server.url}/healthz", timeout=30).status_code, range(300)))
    assert set(probes) == {200}
    assert sum("is ready on" in line for line in server.log) == 1, "the worker was replaced"
    site.simulator.faults.clear()
    assert site.stop(signal.SIGTERM)[0] == 0
    found = site.check(charges=None, unanswered=refused)
    assert found.ends == {"error": refused, "interrupted": limit + 20 - refused}
    assert running == limit + 20
    site.serve()
    site.start()
    site.wait_until_idle()
    assert site.stop(signal.SIGTERM)[0] == 0
    site.check(charges=None, unanswered=refused)
    figures(f"{refused} of {len(codes)} starts refused (503) and ended as failed, 0 left running; the next start works")


def _as_stranger(processes: int) -> tuple[str, ...]:
    """Return the command that runs another one as a user who may have so many processes and threads."""
    # It keeps the right to read all files, for a Python that lies in root's own folder.
    caps = ("--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override", "--bounding-set=-all,+dac_override")
    command = ("prlimit", f"--nproc={processes}", "setpriv", f"--reuid={STRANGER}", "--clear-groups", *caps)
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no other user can be had here: {error}")
    return command
