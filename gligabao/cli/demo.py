"""`gligabao demo`: a whole research on a simulated model, with a server, a database and web pages of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gligabao.simulator import Simulator

Run = dict[str, Any]

USER = "demo"
READY_SECONDS = 60.0
"""The first start after an installation compiles all modules, which is slow on a slow machine."""
STOP_SECONDS = 10.0
LATENCY_SECONDS = 0.25
"""How long the simulated model thinks: long enough to watch."""

_LOG_LINES = 40
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command()
@click.option("--team", is_flag=True, help="Watch several agents work at once, on a topic that has parts.")
@click.option("--database-url", metavar="URL", help="A database to use.  [default: a temporary one]")
def demo(team: bool, database_url: str | None) -> None:
    """Watch a research from start to report on a simulated model: no key and no network are needed."""
    from gligabao.simulator import DEMO_TEAM_TOPIC, DEMO_TOPIC, Simulator

    click.echo("The model of this demo is simulated: a script over a few bundled pages answers in its place.")
    with (
        _ending_at_signals(),
        tempfile.TemporaryDirectory(prefix="gligabao-demo-") as folder,
        Simulator(latency_seconds=LATENCY_SECONDS) as simulator,
        _running_server(Path(folder), simulator, database_url) as url,
    ):
        _tell_end(_research(url, DEMO_TEAM_TOPIC if team else DEMO_TOPIC, with_team=team))


def _research(url: str, topic: str, *, with_team: bool) -> list[Run]:
    """Do what `gligabao research start TOPIC --wait` does, with shorter pauses; return the run, then its team."""
    from gligabao.cli.client import Client
    from gligabao.cli.follow import Pace, follow
    from gligabao.cli.progress import open_progress
    from gligabao.cli.tree import follow_tree

    pace = Pace(first_seconds=0.1, longest_seconds=0.5)
    with Client(url, user=USER) as client, open_progress(sys.stdout) as progress:
        progress.show_line(f"Topic: {topic}\n")
        run = client.start_research({"topic": topic})
        if with_team:
            return follow_tree(client, run["id"], progress, pace=pace)
        return [follow(client, run["id"], progress, pace=pace)]


def _tell_end(runs: list[Run]) -> None:
    from gligabao.cli.output import print_report
    from gligabao.cli.text import clean, say_cost, say_steps
    from gligabao.cli.tree import print_tree

    run = runs[0]
    if len(runs) > 1:
        click.echo()
        print_tree(runs)
    if run["status"] != "completed":
        raise click.ClickException(f"the demo's research failed: {clean(run.get('error', ''))}")
    click.echo()
    print_report(run)
    click.echo()
    steps = say_steps(run) if len(runs) == 1 else f"{_total(runs, 'steps')} by {len(runs)} agents"
    click.echo(f"Steps: {steps}, tool calls: {_total(runs, 'tool_calls')}")
    click.echo(f"Tokens: {_total(runs, 'input_tokens'):,} in, {_total(runs, 'output_tokens'):,} out")
    click.echo(f"With the real {run['model']} this would have cost {say_cost(_total_cost(runs))} at list prices.")
    click.echo("Nothing was spent: the model was simulated. A real one needs ANTHROPIC_API_KEY and `gligabao serve`.")


def _total(runs: list[Run], field: str) -> int:
    return sum(run[field] for run in runs)


def _total_cost(runs: list[Run]) -> float | None:
    costs = [run["cost_usd"] for run in runs]
    return None if None in costs else sum(costs)


# The server of the demo


@contextmanager
def _running_server(folder: Path, simulator: "Simulator", database_url: str | None) -> Iterator[str]:
    """Yield the address of a `gligabao serve` that is ready, and stop it after the block."""
    port = _find_free_port()
    log_file = folder / "server.log"
    settings_file = folder / "gligabao.toml"
    settings_file.touch()  # Empty, so that the one in the working directory is not used.
    process = _start_server(
        ["--config", str(settings_file), "serve", "--port", str(port)],
        environ={**_clean_environment(os.environ), **_settings(folder, simulator, database_url)},
        log_file=log_file,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(process, url)
        yield url
    except click.ClickException:
        _show_log(log_file)
        raise
    finally:
        _stop_server(process)


def _start_server(arguments: list[str], *, environ: Mapping[str, str], log_file: Path) -> subprocess.Popen[bytes]:
    with log_file.open("wb") as log:
        # In its own session, so that Ctrl-C does not reach it: only _stop_server stops it.
        return subprocess.Popen(
            [sys.executable, "-m", "gligabao", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        )


def _settings(folder: Path, simulator: "Simulator", database_url: str | None) -> dict[str, str]:
    return {
        "GLIGABAO_DATABASE_URL": database_url or f"sqlite:///{folder / 'demo.db'}",
        "GLIGABAO_DATA_DIR": str(folder),
        "GLIGABAO_FETCH_ALLOW": json.dumps([simulator.address]),
        "ANTHROPIC_BASE_URL": simulator.url,
        "ANTHROPIC_API_KEY": "simulated",
    }


def _clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without settings, keys and proxies: the demo stays on this machine."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(("GLIGABAO_", "ANTHROPIC_")) and not name.lower().endswith("_proxy")
    }


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    from gligabao.cli.client import Client

    deadline = time.monotonic() + READY_SECONDS
    with Client(url, user=USER) as client:
        while not client.is_ready():
            if process.poll() is not None:
                raise click.ClickException(f"the demo's server exited during startup with code {process.returncode}")
            if time.monotonic() > deadline:
                raise click.ClickException(f"the demo's server was not ready within {READY_SECONDS:g} s")
            threading.Event().wait(0.1)


def _stop_server(process: subprocess.Popen[bytes]) -> None:
    # A second Ctrl-C must not leave the server behind; the wait below has a limit.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        process.terminate()
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its worker too
        process.wait()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _show_log(log_file: Path) -> None:
    from gligabao.cli.text import clean

    lines = log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    click.echo("The last lines of the server's log:", err=True)
    for line in lines[-_LOG_LINES:]:
        click.echo(f"  {clean(line)}", err=True)


@contextmanager
def _ending_at_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception within the block, so that everything is cleaned up."""
    before = {number: signal.signal(number, _exit_at_signal) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_at_signal(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
