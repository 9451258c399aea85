"""`gligabao research` against a server that plays its answers: what is sent, what is printed, how it exits."""

import json
import signal
import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result

from gligabao.cli import main
from gligabao.cli.client import Client, NoServer, Refused
from gligabao.cli.follow import Pace, follow
from gligabao.cli.progress import PlainProgress
from tests.played_server import COMPLETED, FAILED, Played, PlayedServer, run, state

STARTED = Played(run(), status=202)
QUICK = Pace(first_seconds=0.01, longest_seconds=0.01, away_seconds=30)

pytestmark = pytest.mark.usefixtures("no_settings")


def call(server: PlayedServer | None, *arguments: str, user: str | None = "ann", stdin: str | bytes = "") -> Result:
    options = ["--url", server.url] if server else []
    options += ["--user", user] if user else []
    return CliRunner().invoke(main, ["research", *arguments, *options], input=stdin)


def free_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


# Start


def test_start_sends_the_topic_and_prints_the_run():
    with PlayedServer(STARTED) as server:
        result = call(server, "start", "Why is the sky blue?")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == run()
    [asked] = server.asked
    assert (asked.method, asked.path, asked.query) == ("POST", "/v1/gb/research", {})
    assert asked.body == {"user_id": "ann", "topic": "Why is the sky blue?"}


def test_start_sends_only_the_options_that_were_given():
    with PlayedServer(STARTED) as server:
        call(server, "start", "T", "--max-steps", "0", "--model", "m", "--dataset", "d")
    assert server.asked[0].body == {"user_id": "ann", "topic": "T", "max_steps": 0, "model": "m", "dataset": "d"}


def test_a_dash_reads_the_topic_from_standard_input():
    with PlayedServer(STARTED) as server:
        call(server, "start", "-", stdin="a topic\nin two lines: é\n")
    assert server.asked[0].body["topic"] == "a topic\nin two lines: é"


def test_json_is_the_whole_body_and_the_user_is_filled_in():
    with PlayedServer(STARTED) as server:
        call(server, "start", "--json", '{"topic": "T", "future": [1]}')
        call(server, "start", "--json", '{"topic": "T", "user_id": "bob"}')
    assert server.asked[0].body == {"topic": "T", "future": [1], "user_id": "ann"}
    assert server.asked[1].body == {"topic": "T", "user_id": "bob"}


def test_json_can_come_from_a_file(tmp_path):
    file = tmp_path / "body.json"
    file.write_text('{"topic": "é"}', encoding="utf-8")
    with PlayedServer(STARTED) as server:
        call(server, "start", "--json", f"@{file}")
    assert server.asked[0].body == {"topic": "é", "user_id": "ann"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["start"], "TOPIC"),
        (["start", "T", "--raw"], "--raw needs --wait"),
        (["start", "T", "--json", "{}"], "--json is the whole body"),
        (["start", "--json", "{}", "--max-steps", "3"], "--json is the whole body"),
        (["start", "--json", "[1]"], "must be an object"),
        (["start", "--json", "{"], "is not JSON"),
        (["start", "--json", '{"a": NaN}'], "NaN is not a JSON value"),
        (["start", "--json", '{"a": 1, "a": 2}'], "a key appears twice"),
        (["start", "--json", "@/nowhere/body.json"], "No such file"),
        (["start", "T", "--max-steps", "x"], "not a valid integer"),
        (["start", "T", "U"], "unexpected extra argument"),
        (["get"], "Missing argument"),
        (["get", "x"], "not a valid integer"),
        (["ls", "--status", "done"], "--status"),
        (["ls", "-o", "xml"], "-o"),
        (["ls", "--url", "127.0.0.1:8080"], "--url must be like"),
        (["ls", "--url", "http://h/?a=b"], "--url must be like"),
        (["ls", "--api-key", "a\nb"], "--api-key must be plain ASCII"),
        (["ls", "--api-key", "clé✓"], "--api-key must be plain ASCII"),
        (["ls", "--url", "http://a..b"], "check --url"),
        (["nothing"], "No such command"),
    ],
)
def test_wrong_usage_exits_with_2_and_asks_no_server(arguments, message):
    result = call(None, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_a_topic_that_is_no_text_exits_with_2():
    assert call(None, "start", "-", stdin=b"\xff\xfe").exit_code == 2


# Wait


def wait_answers(end: dict) -> list[Played]:
    reading = state(3, "reading", "https://example.com/paper", ended=False)
    return [
        STARTED,
        Played(run(states=[state(1, "starting"), state(2, "thinking", "step 1 of 20", ended=False)])),
        Played(run(states=[state(2, "thinking", "step 1 of 20"), reading])),
        Played({**end, "states": end["states"][2:]}),
        Played(end),
    ]


def test_wait_shows_the_states_on_standard_error_and_then_prints_the_whole_run():
    with PlayedServer(*wait_answers(COMPLETED)) as server:
        result = call(server, "start", "T", "--wait")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == COMPLETED
    shown = [line.split() for line in result.stderr.splitlines()]
    assert shown[1:] == [
        ["1.0", "s", "starting"],
        ["2.0", "s", "thinking", "step", "1", "of", "20"],
        ["3.0", "s", "reading", "https://example.com/paper"],
        ["example.com/paper:", "status", "404"],
        ["4.0", "s", "completed"],
    ]


def test_wait_asks_only_for_states_that_are_new_or_had_not_ended():
    with PlayedServer(*wait_answers(COMPLETED)) as server:
        call(server, "start", "T", "--wait")
    assert {asked.path for asked in server.asked[1:]} == {"/v1/gb/research/7"}
    assert [asked.query.get("states_after") for asked in server.asked[1:]] == ["0", "1", "2", None]


def test_wait_raw_prints_only_the_report():
    with PlayedServer(*wait_answers(COMPLETED)) as server:
        result = call(server, "start", "T", "--wait", "--raw")
    assert result.exit_code == 0
    assert result.stdout == "# Blue\n\nRayleigh.\n"


def test_wait_for_a_run_that_fails_prints_it_and_exits_with_1():
    with PlayedServer(STARTED, Played(FAILED)) as server:
        result = call(server, "start", "T", "--wait")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == FAILED
    assert "run 7 failed: the model refused" in result.stderr


def test_wait_raw_for_a_run_that_fails_prints_only_its_error():
    with PlayedServer(STARTED, Played(FAILED)) as server:
        result = call(server, "start", "T", "--wait", "--raw")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "run 7 failed: the model refused" in result.stderr


def test_wait_ends_when_the_run_is_gone():
    gone = Played({"error": "no research 7"}, status=404)
    with PlayedServer(STARTED, gone) as server:
        result = call(server, "start", "T", "--wait")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no research 7" in result.stderr


@pytest.mark.parametrize(
    "failure",
    [
        Played({"error": "the server is stopping"}, status=503),
        Played({"error": "too many"}, status=429),
        Played(raw=b"<html>bad gateway</html>", status=502),
        Played(closes=True),
    ],
)
def test_following_survives_failed_polls_and_says_so_once(failure, capsys):
    with (
        PlayedServer(
            failure, failure, Played(run(states=[state(1, "starting", ended=False)])), Played(COMPLETED)
        ) as server,
        Client(server.url, user="ann") as client,
    ):
        ended = follow(client, 7, PlainProgress(sys.stderr), pace=QUICK)
    assert ended == COMPLETED
    notes = [line for line in capsys.readouterr().err.splitlines() if "again" in line]
    assert len(notes) == 2
    assert "asking again for up to 30 s" in notes[0]
    assert notes[1] == "the server answers again"


def test_following_gives_up_on_a_server_that_stays_away(capsys):
    brief = Pace(first_seconds=0.01, longest_seconds=0.01, away_seconds=0.1)
    with Client(free_url(), user="ann") as client, pytest.raises(NoServer):
        follow(client, 7, PlainProgress(sys.stderr), pace=brief)
    with (
        PlayedServer(Played({"error": "no database"}, status=503)) as server,
        Client(server.url, user="ann") as client,
        pytest.raises(Refused, match="no database"),
    ):
        follow(client, 7, PlainProgress(sys.stderr), pace=brief)


def test_ctrl_c_under_wait_exits_with_130_and_names_the_run_that_goes_on():
    working = Played(run(states=[state(1, "starting", ended=False)]))
    with PlayedServer(STARTED, working) as server:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "gligabao",
                "research",
                "start",
                "T",
                "--wait",
                "--user",
                "ann",
                "--url",
                server.url,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        server.wait_for_requests(3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert "run 7 goes on" in err
    assert "gligabao research get 7" in err
    assert "Traceback" not in err


# List


def test_ls_sends_its_filters_and_prints_what_was_answered():
    answer = {"runs": [run()]}
    with PlayedServer(Played(answer)) as server:
        result = call(server, "ls", "--active", "--status", "failed", "--parent", "3", "--limit", "9")
        call(server, "ls")
    assert json.loads(result.stdout) == answer
    expected = {"user_id": "ann", "active": "true", "status": "failed", "parent_id": "3", "limit": "9"}
    assert server.asked[0].query == expected
    assert server.asked[1].query == {"user_id": "ann"}


def test_ls_prints_a_table_as_text():
    runs = [COMPLETED | {"topic": "one\ntwo"}, run(id=12, cost_usd=None, state="thinking", topic="three")]
    with PlayedServer(Played({"runs": runs})) as server:
        result = call(server, "ls", "-o", "text")
    head, first, second = result.stdout.splitlines()
    assert head.split() == ["id", "status", "state", "steps", "cost", "age", "topic"]
    assert first.split()[:5] == ["7", "completed", "completed", "5/20", "$0.1300"]
    assert first.endswith("  one two")
    assert second.split()[:5] == ["12", "running", "thinking", "0/20", "unknown"]


def test_ls_says_on_standard_error_that_there_is_nothing():
    with PlayedServer(Played({"runs": []})) as server:
        result = call(server, "ls", "-o", "text")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no researches\n")


# Get


def test_get_prints_the_run_that_was_answered():
    with PlayedServer(Played(COMPLETED)) as server:
        result = call(server, "get", "7")
    assert json.loads(result.stdout) == COMPLETED
    assert (server.asked[0].path, server.asked[0].query) == ("/v1/gb/research/7", {"user_id": "ann"})


def test_get_prints_figures_states_and_report_as_text():
    with PlayedServer(Played(COMPLETED)) as server:
        result = call(server, "get", "7", "-o", "text")
    assert result.exit_code == 0
    for part in (
        "run 7: completed (answered)",
        "topic     Why is the sky blue?",
        "steps     5/20, 6 tool calls",
        "tokens    12,345 in, 678 out",
        "cost      $0.1300",
        "after 4.0 s",
        "    3.0 s  reading  https://example.com/paper",
        "           example.com/paper: status 404",
        "# Blue\n\nRayleigh.",
    ):
        assert part in result.stdout


def test_get_of_a_failed_run_is_done_and_tells_its_error():
    with PlayedServer(Played(FAILED)) as server:
        result = call(server, "get", "7", "-o", "text")
    assert result.exit_code == 0
    assert "error     the model refused" in result.stdout


def test_get_raw_prints_only_the_report():
    with PlayedServer(Played(COMPLETED)) as server:
        result = call(server, "get", "7", "--raw", "-o", "text")
    assert result.stdout == "# Blue\n\nRayleigh.\n"


@pytest.mark.parametrize(
    ("answer", "message"), [(FAILED, "run 7 failed: the model refused"), (run(), "has no report yet: it is running")]
)
def test_get_raw_without_a_report_prints_nothing_and_exits_with_1(answer, message):
    with PlayedServer(Played(answer)) as server:
        result = call(server, "get", "7", "--raw")
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr


# Refusals


@pytest.mark.parametrize("arguments", [["start", "T"], ["start", "T", "--wait"], ["ls"], ["get", "7"]])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 500, 503])
def test_a_refusal_of_the_server_is_shown_and_exits_with_1(arguments, status):
    with PlayedServer(Played({"error": "topic: must not be empty"}, status=status)) as server:
        result = call(server, *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Error: topic: must not be empty" in result.stderr


@pytest.mark.parametrize("arguments", [["start", "T"], ["ls"], ["get", "7"]])
def test_no_server_exits_with_3_and_says_how_to_start_one(arguments):
    url = free_url()
    result = call(None, *arguments, "--url", url)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == f"Error: no server at {url}: start one with `gligabao serve`, or name another with --url\n"


@pytest.mark.parametrize(
    "answer",
    [
        Played(raw=b"<html>hello</html>"),
        Played({"hello": 1}),
        Played([1]),
        Played(raw=b"\xff\xfe"),
        Played({"error": 5}, status=404),
    ],
)
@pytest.mark.parametrize("arguments", [["start", "T"], ["ls"], ["get", "7"]])
def test_another_kind_of_server_is_told_apart(answer, arguments):
    with PlayedServer(answer) as server:
        result = call(server, *arguments)
    assert result.exit_code == 1
    assert "is it a gligabao server?" in result.stderr


def test_a_redirection_is_told_and_not_followed():
    answer = Played({}, status=301, headers=(("Location", "https://u:secret@elsewhere.example/"),))
    with PlayedServer(answer) as server:
        result = call(server, "start", "T")
    assert result.exit_code == 1
    assert "points to https://u:[secret]@elsewhere.example/" in result.stderr
    assert len(server.asked) == 1


def test_a_connection_that_is_cut_is_no_missing_server():
    with PlayedServer(Played(closes=True)) as server:
        result = call(server, "start", "T")
    assert result.exit_code == 1
    assert "ended the connection without an answer" in result.stderr


# User and key


def test_the_user_is_the_login_name_made_to_fit(monkeypatch):
    monkeypatch.setenv("LOGNAME", "DOMAIN\\ann lee")
    with PlayedServer(STARTED) as server:
        call(server, "start", "T", user=None)
    assert server.asked[0].body["user_id"] == "DOMAIN_ann_lee"


def test_a_login_name_that_makes_no_user_exits_with_2(monkeypatch):
    monkeypatch.setenv("LOGNAME", "李明")
    result = call(None, "ls", user=None)
    assert result.exit_code == 2
    assert "--user" in result.stderr


def test_user_address_and_key_come_from_the_environment(monkeypatch):
    with PlayedServer(Played({"runs": []})) as server:
        monkeypatch.setenv("GLIGABAO_URL", server.url + "/")
        monkeypatch.setenv("GLIGABAO_USER", "bob")
        monkeypatch.setenv("GLIGABAO_API_KEY", "gb_key")
        call(None, "ls", user=None)
    assert server.asked[0].path == "/v1/gb/research"
    assert server.asked[0].query == {"user_id": "bob"}
    assert server.asked[0].headers["authorization"] == "Bearer gb_key"


def test_with_a_key_the_key_says_who_the_user_is():
    with PlayedServer(STARTED) as server:
        call(server, "start", "T", "--api-key", "gb_key", user=None)
        call(server, "get", "7", "--api-key", "gb_key", user=None)
    assert server.asked[0].body == {"topic": "T"}
    assert server.asked[1].query == {}


def test_a_user_that_the_server_refuses_is_left_to_the_server():
    with PlayedServer(Played({"error": "user_id: bad"}, status=400)) as server:
        result = call(server, "ls", user="a b")
    assert result.exit_code == 1
    assert server.asked[0].query == {"user_id": "a b"}


def test_proxies_and_netrc_are_not_used_for_this_machine(monkeypatch, tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login x password y\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HTTP_PROXY", free_url())
    with PlayedServer(Played({"runs": []})) as server:
        assert call(server, "ls").exit_code == 0
    assert "authorization" not in server.asked[0].headers


# Text of the server on a terminal

EVIL = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x9b0m [bold]x[/bold] :smile:\x00"


@pytest.mark.parametrize("arguments", [["get", "7"], ["ls"]])
def test_control_sequences_do_not_reach_the_screen_as_text(arguments):
    nasty = COMPLETED | {
        "topic": EVIL,
        "report": EVIL,
        "model": EVIL,
        "states": [state(1, "reading", EVIL, error=EVIL)],
    }
    with PlayedServer(Played({**nasty, "runs": [nasty]})) as server:
        result = call(server, *arguments, "-o", "text")
    assert "red [bold]x[/bold] :smile:" in result.stdout
    assert not set(result.stdout) & {"\x1b", "\x9b", "\x07", "\x00"}


def test_control_sequences_do_not_reach_the_screen_in_errors():
    with PlayedServer(Played({"error": EVIL}, status=400)) as server:
        result = call(server, "get", "7")
    assert result.stderr == "Error: red [bold]x[/bold] :smile:\n"


def test_json_keeps_every_sign_as_an_escape():
    with PlayedServer(Played(COMPLETED | {"report": EVIL + "\ud800é"})) as server:
        result = call(server, "get", "7")
    assert json.loads(result.stdout)["report"] == EVIL + "\ud800é"
    assert "é" in result.stdout
    assert not set(result.stdout) & {"\x1b", "\x9b", "\x07", "\x00"}


def test_raw_into_a_file_is_the_report_to_the_letter():
    with PlayedServer(Played(COMPLETED | {"report": "a\x1b[0m\r\n b \n"})) as server:
        result = call(server, "get", "7", "--raw")
    assert result.stdout_bytes == b"a\x1b[0m\r\n b \n"
