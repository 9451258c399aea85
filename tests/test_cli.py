"""The program as a whole: help, version, settings, what a terminal shows, and that the docs name everything."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import gligabao
from gligabao.cli import main
from gligabao.config import Config
from tests.played_server import COMPLETED, Played, PlayedServer, run, state

DOCS = Path(gligabao.__file__).parent.parent / "docs"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch, no_settings):
    monkeypatch.chdir(tmp_path)


def commands(command: click.Command = main, path: str = "gligabao") -> Iterator[tuple[str, click.Command]]:
    """Every command with its path, groups included."""
    yield path, command
    if isinstance(command, click.Group):
        for name, child in sorted(command.commands.items()):
            yield from commands(child, f"{path} {name}")


COMMANDS = dict(commands())


def run_program(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gligabao", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environ},
    )


def run_on_terminal(*arguments: str) -> str:
    """Run the program on a terminal of its own and return all that it showed."""
    controller, terminal = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        [sys.executable, "-m", "gligabao", *arguments], stdin=terminal, stdout=terminal, stderr=terminal, env=environ
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            piece = os.read(controller, 65536)
        except OSError:  # what Linux says when the other side is closed
            piece = b""
        if not piece:
            break
        shown += piece
    os.close(controller)
    assert process.wait(60) == 0
    return shown.decode()


# Program


def test_the_version_is_printed():
    ended = run_program("--version")
    assert (ended.returncode, ended.stdout) == (0, f"gligabao {gligabao.__version__}\n")


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_help(path):
    arguments = path.split()[1:]
    result = CliRunner().invoke(main, [*arguments, "--help"])
    assert result.exit_code == 0
    assert COMMANDS[path].help
    for parameter in COMMANDS[path].params:
        assert not isinstance(parameter, click.Option) or parameter.help


def test_without_a_command_the_help_is_shown_and_the_usage_is_wrong():
    ended = run_program()
    assert ended.returncode == 2
    assert "Usage: gligabao" in ended.stderr


def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from gligabao.cli import main\n"
        "main(['research', 'start', '--help'], standalone_mode=False)\n"
        "heavy = {'requests', 'rich', 'pydantic', 'flask', 'gunicorn', 'anthropic', 'gligabao.simulator'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


# Settings


def test_config_prints_the_settings_in_force_and_their_sources(tmp_path):
    Path("gligabao.toml").write_text("port = 9000\n")
    ended = run_program("config", GLIGABAO_THREADS="32", ANTHROPIC_API_KEY="sk-ant-canary-1234")
    settings = {line["key"]: line for line in json.loads(ended.stdout)["settings"]}
    assert ended.returncode == 0
    assert list(settings) == list(Config.model_fields)
    assert settings["port"] == {"key": "port", "value": 9000, "source": "gligabao.toml"}
    assert settings["threads"] == {"key": "threads", "value": 32, "source": "GLIGABAO_THREADS"}
    assert settings["anthropic_api_key"]["value"] == "(set)"
    assert settings["host"] == {"key": "host", "value": "127.0.0.1", "source": "default"}
    assert "canary" not in ended.stdout + ended.stderr


def test_config_prints_a_table_as_text():
    ended = run_program("config", "-o", "text", GLIGABAO_DATABASE_URL="postgresql://ann:canary@db/x")
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert lines[0] == ["key", "value", "source"]
    assert ["database_url", "postgresql://ann:***@db/x", "GLIGABAO_DATABASE_URL"] in lines
    assert ["anthropic_api_key", "(not", "set)", "default"] in lines
    assert ["fetch_allow", "[]", "default"] in lines


def test_config_reads_the_file_that_is_named(tmp_path):
    Path("other.toml").write_text("port = 9001\n")
    for ended in (run_program("--config", "other.toml", "config"), run_program("config", GLIGABAO_CONFIG="other.toml")):
        settings = {line["key"]: line for line in json.loads(ended.stdout)["settings"]}
        assert settings["port"] == {"key": "port", "value": 9001, "source": "other.toml"}


@pytest.mark.parametrize("command", ["config", "serve"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "prot (gligabao.toml): unknown key, did you mean port?"),
        ('host = "0.0.0.0"', "host (gligabao.toml): 0.0.0.0 can be reached from other machines"),
        ("port =", "configuration file gligabao.toml: cannot be read as TOML"),
    ],
)
def test_a_bad_configuration_exits_with_2_and_one_line(command, text, message):
    Path("gligabao.toml").write_text(text)
    ended = run_program(command)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_named_file_that_is_missing_exits_with_2():
    ended = run_program("--config", "absent.toml", "config")
    assert ended.returncode == 2
    assert ended.stderr == "Error: configuration file absent.toml: there is no such file\n"


# On a terminal


def test_a_terminal_gets_text_without_being_asked():
    with PlayedServer(Played({"runs": [COMPLETED | {"topic": "very long " * 30}]})) as server:
        shown = run_on_terminal("research", "ls", "--user", "ann", "--url", server.url)
    [row] = [line for line in shown.splitlines() if "completed" in line]
    plain = re.sub(r"\x1b\[[0-9;]*m", "", row)
    assert plain.split()[:5] == ["7", "completed", "completed", "5/20", "$0.1300"]
    assert plain.rstrip().endswith("…")
    assert len(plain) <= 80


def test_a_terminal_shows_the_states_live_and_then_the_run():
    working = run(
        state="thinking", steps=3, cost_usd=0.0512, states=[state(1, "thinking", "step 3 of 20", ended=False)]
    )
    with PlayedServer(Played(run(), status=202), Played(working), Played(COMPLETED)) as server:
        shown = run_on_terminal("research", "start", "T", "--wait", "--user", "ann", "--url", server.url)
    assert "thinking  step 3 of 20" in shown
    assert "thinking · steps 3/20 · $0.0512" in shown
    assert "run 7: completed (answered)" in shown
    assert "# Blue" in shown
    assert "\x1b[?25h" in shown  # the cursor is there again


def test_control_sequences_of_the_server_do_not_reach_a_terminal():
    nasty = "\x1b]0;title\x07\x9b2J[bold]plain[/bold]"
    states = [state(1, "reading", nasty, error=nasty, ended=False)]
    end = COMPLETED | {"report": nasty, "topic": nasty, "states": states}
    with PlayedServer(Played(run(), status=202), Played(run(states=states, state=nasty)), Played(end)) as server:
        shown = run_on_terminal("research", "start", "T", "--wait", "--user", "ann", "--url", server.url)
        shown += run_on_terminal("research", "get", "7", "--raw", "--user", "ann", "--url", server.url)
    assert shown.count("[bold]plain[/bold]") >= 4
    assert not {"\x07", "\x9b", "\x1b]"} & {sign for sign in ("\x07", "\x9b", "\x1b]") if sign in shown}


# Docs


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_and_option_is_in_the_docs(path):
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    sections = {title.strip("`"): body for title, body in re.findall(r"(?ms)^#+ (.*?)$(.*?)(?=^#+ |\Z)", text)}
    assert path in sections, f"docs/cli.md has no section `{path}`"
    shared = sections["Talking to a server"] if "--url" in names_of(COMMANDS[path]) else ""
    missing = [name for name in names_of(COMMANDS[path]) if f"`{name}" not in sections[path] + shared]
    assert not missing


def names_of(command: click.Command) -> list[str]:
    return [name for parameter in command.params for name in parameter.opts if isinstance(parameter, click.Option)]


@pytest.mark.parametrize("code", [0, 1, 2, 3, 130])
def test_every_exit_code_is_in_the_docs(code):
    assert f"| {code} |" in (DOCS / "cli.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("key", Config.model_fields)
def test_every_setting_and_its_default_are_in_the_docs(key):
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    [row] = [line for line in text.splitlines() if line.startswith(f"| `{key}` |")]
    default = Config().model_dump(mode="json")[key]
    shown = "none" if default is None else f"`{default if isinstance(default, str) else json.dumps(default)}`"
    if key == "model_timeout_seconds":
        shown = "`300`"
    assert row.split("|")[2].strip().startswith(shown)
