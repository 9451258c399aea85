"""The commands that start something: what they say, how they end, and that nothing stays behind."""

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import requests

from gligabao.simulator import DEMO_TEAM_TOPIC, DEMO_TOPIC

SECONDS = 120


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch, no_settings):
    monkeypatch.chdir(tmp_path)
    # Temporary folders of the program come here, so that what is left of them is seen.
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))


def program(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gligabao", *arguments]


def run_program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(program(*arguments), capture_output=True, text=True, timeout=SECONDS, check=False)


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        program(*arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def read_until(stream, text: str) -> str:
    """Return the first line with this text."""
    for line in stream:
        if text in line:
            return line
    raise AssertionError(f"the output ended without {text!r}")


def left_behind(tmp_path: Path) -> list[str]:
    """Processes whose command line names a folder of this test, and what is left in its temporary folder."""
    commands = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(entry.read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has just ended
            continue
    return [c for c in commands if str(tmp_path / "temporary") in c] + os.listdir(tmp_path / "temporary")


needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="no /proc to look for processes in")


# Simulate


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_simulate_says_how_to_use_it_and_ends_with_0(number):
    with started("simulate", "--port", "0") as process:
        said = read_until(process.stdout, "ANTHROPIC_BASE_URL=")
        said += read_until(process.stdout, "GLIGABAO_FETCH_ALLOW=")
        assert read_until(process.stdout, "electricity").strip() == DEMO_TOPIC
        assert read_until(process.stdout, "electricity").strip() == DEMO_TEAM_TOPIC
        url = said.split("ANTHROPIC_BASE_URL=")[1].split()[0]
        assert f"GLIGABAO_FETCH_ALLOW='[\"{url.removeprefix('http://')}\"]' gligabao serve" in said
        assert requests.get(url, timeout=30).headers["x-simulated"] == "gligabao"
        process.send_signal(number)
        assert process.wait(SECONDS) == 0
        assert process.stderr.read() == ""


def test_simulate_on_a_port_in_use_exits_with_1():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = run_program("simulate", "--port", str(port))
    assert ended.returncode == 1
    assert ended.stderr == f"Error: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_simulate_on_a_port_that_is_none_exits_with_2():
    assert run_program("simulate", "--port", "70000").returncode == 2


# Serve


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_ends_with_0(number):
    with started("serve", "--port", "0", "--database-url", "sqlite:///a.db") as process:
        read_until(process.stderr, "is ready on")
        process.send_signal(number)
        assert process.wait(SECONDS) == 0
    assert Path("a.db").exists()


def test_a_flag_of_serve_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("GLIGABAO_PORT", "1")
    monkeypatch.setenv("GLIGABAO_HOST", "127.0.0.2")
    with started("serve", "--port", "0", "--host", "localhost") as process:
        assert "http://127.0.0.1:" in read_until(process.stderr, "is ready on")


def test_serve_on_an_open_address_needs_insecure():
    ended = run_program("serve", "--host", "0.0.0.0", "--port", "0")
    assert ended.returncode == 2
    assert "--insecure" in ended.stderr
    with started("serve", "--host", "0.0.0.0", "--port", "0", "--insecure") as process:
        read_until(process.stderr, "is ready on")


# Demo


def test_the_demo_shows_states_report_and_cost_and_says_that_it_is_simulated(tmp_path):
    ended = run_program("demo")
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert "simulated" in lines[0]
    assert "simulated" in lines[-1]
    shown = [line.split() for line in lines]
    assert [words[2:] for words in shown if words[1:3] == ["s", "starting"]] == [["starting"]]
    assert any(words[1:3] == ["s", "searching"] for words in shown)
    assert any(words[1:3] == ["s", "reading"] for words in shown)
    assert any("status 404" in line for line in lines)
    assert "## Sources" in lines
    assert any("would have cost $0." in line for line in lines)
    assert left_behind(tmp_path) == []


def test_the_demo_uses_the_database_that_is_named_and_no_other_setting(monkeypatch):
    monkeypatch.setenv("GLIGABAO_PORT", "nonsense")
    monkeypatch.setenv("GLIGABAO_API_KEY", "gb_other")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-real")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    Path("gligabao.toml").write_text("nonsense = 1")
    ended = run_program("demo", "--database-url", "sqlite:///mine.db")
    assert (ended.returncode, ended.stderr) == (0, "")
    with closing(sqlite3.connect("mine.db")) as db:
        assert db.execute("SELECT status FROM gb_agent_research_runs").fetchall() == [("completed",)]


def test_a_demo_that_fails_shows_the_log_and_exits_with_1(tmp_path):
    ended = run_program("demo", "--database-url", "mysql://u:canary@h/d")
    assert ended.returncode == 1
    assert "database_url (GLIGABAO_DATABASE_URL): must be sqlite:///FILE" in ended.stderr
    assert "exited during startup with code 2" in ended.stderr
    assert "canary" not in ended.stderr
    assert left_behind(tmp_path) == []


def test_the_demo_of_a_team_shows_all_agents_their_tree_and_what_they_cost(database_url, tmp_path):
    ended = run_program("demo", "--team", "--database-url", database_url)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert "simulated" in lines[0]
    assert "simulated" in lines[-1]
    shown = [line.split() for line in lines]
    for agent in (["1", "root"], ["2", "output"], ["3", "machines"], ["4", "nature"]):
        states = [words[4] for words in shown if words[:2] == agent and words[3:4] == ["s"]]
        assert (states[0], states[-1]) == ("starting", "completed")
        assert len([words for words in shown if words[:3] == [*agent, "completed"]]) == 1
    assert [words[5] for words in shown if words[:2] == ["1", "root"] and "spawning" in words] == [
        *("output:", "machines:", "nature:")
    ]
    assert any(words[:2] == ["2", "output"] and words[4:6] == ["messaging", "machines:"] for words in shown)
    tree = [line for line in lines if re.search(r"completed +\d+/\d+ +\$0", line)]
    total = sum(float(line.rpartition("$")[2]) for line in tree)
    [said] = [line for line in lines if "would have cost" in line]
    assert float(said.split("$")[1].split()[0]) == pytest.approx(total, abs=0.0005)
    assert any(line.startswith("- output (run 2) wrote: ") for line in lines)
    assert any(words[:1] == ["Steps:"] and words[2:5] == ["by", "4", "agents,"] for words in shown)
    assert left_behind(tmp_path) == []


@needs_proc
@pytest.mark.parametrize(
    ("arguments", "moment", "number", "code"),
    [
        (["demo"], "starting", signal.SIGINT, 130),
        (["demo"], "starting", signal.SIGTERM, 143),
        (["demo", "--team"], "spawning", signal.SIGINT, 130),
    ],
)
def test_a_demo_that_is_interrupted_leaves_nothing_behind(arguments, moment, number, code, tmp_path):
    with started(*arguments) as process:
        read_until(process.stdout, f" s  {moment}")
        assert left_behind(tmp_path) != []
        process.send_signal(number)
        assert process.wait(SECONDS) == code
        assert "Traceback" not in process.stderr.read()
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("redirect", "code"),
    [(">&-", 0), (">/dev/full", 1), ("</dev/null | head -c 1", 0), ("<&-", 0)],
)
def test_a_stream_that_is_closed_or_full_brings_no_traceback(tmp_path, redirect, code):
    command = f"{sys.executable} -m gligabao config {redirect}"
    done = subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_standard_input_that_is_no_text_is_told(tmp_path):
    command = [sys.executable, "-m", "gligabao", "research", "start", "-"]
    done = subprocess.run(command, cwd=tmp_path, input=b"\xff\xfe", capture_output=True, timeout=60)
    assert done.returncode == 2
    assert b"not text in UTF-8" in done.stderr
