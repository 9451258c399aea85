"""Following a research with its sub-agents, against a server that plays its answers."""

import io

import pytest

from gligabao.cli.client import Client, Refused
from gligabao.cli.follow import Pace
from gligabao.cli.progress import PlainProgress
from gligabao.cli.tree import follow_tree, print_tree
from tests.played_server import Played, PlayedServer, run, state

QUICK = Pace(first_seconds=0.01, longest_seconds=0.01)
LATER = "2026-11-01T10:00:03.000Z"


def follow(*answers: dict) -> tuple[list[dict], list[str], PlayedServer]:
    """Follow run 7 through these answers; return the runs, the lines that were shown, and the server."""
    shown = io.StringIO()
    with PlayedServer(*map(Played, answers)) as server, Client(server.url, user="ann") as client:
        runs = follow_tree(client, 7, PlainProgress(shown), pace=QUICK)
    return runs, shown.getvalue().splitlines(), server


def child(run_id: int = 8, name: str = "alpha", **more) -> dict:
    return run(**{"id": run_id, "parent_id": 7, "name": name, "max_steps": 10, "created_at": LATER} | more)


NONE = {"runs": []}
STARTING = state(1, "starting")
ENDED = {"status": "completed", "state": "completed"}


def test_all_states_of_all_agents_are_shown_once_in_the_order_of_their_times():
    root = run(states=[STARTING, state(2, "spawning", "alpha: why"), state(5, "waiting", "alpha", ended=False)])
    alpha = child(states=[state(3, "starting"), state(4, "thinking", "step 1 of 10", ended=False)])
    last = run(**ENDED, states=[state(5, "waiting", "alpha"), state(9, "completed")])
    failed = child(
        status="failed", state="failed", states=[state(4, "thinking", "step 1 of 10", error="no"), state(6, "failed")]
    )
    runs, lines, server = follow(
        *(root, {"runs": [alpha]}, alpha, NONE),
        *(last, {"runs": [failed]}, failed, NONE),
    )
    assert [each["id"] for each in runs] == [7, 8]
    assert lines == [
        "7 root        1.0 s  starting",
        "7 root        2.0 s  spawning  alpha: why",
        "8 alpha       3.0 s  starting",
        "8 alpha       4.0 s  thinking  step 1 of 10",
        "7 root        5.0 s  waiting  alpha",
        "8 alpha              no",
        "8 alpha       6.0 s  failed",
        "7 root        9.0 s  completed",
    ]
    assert [(asked.path, asked.query) for asked in server.asked][4:6] == [
        ("/v1/gb/research/7", {"states_after": "2", "user_id": "ann"}),
        ("/v1/gb/research", {"parent_id": "7", "limit": "500", "user_id": "ann"}),
    ]


def test_children_stand_under_their_parent_in_the_order_they_were_started(capsys):
    runs, _, _ = follow(
        run(**ENDED, steps=6, cost_usd=0.25, states=[]),
        {"runs": [child(9, "beta"), child(8)]},
        *(child(**ENDED, steps=3, cost_usd=0.0512, states=[]), {"runs": [child(10, "alpha-1", parent_id=8)]}),
        *(child(10, "alpha-1", parent_id=8, status="failed", cost_usd=None, states=[]), NONE),
        *(child(9, "beta\x1b[2J", **ENDED, steps=10, cost_usd=0.1, states=[]), NONE),
    )
    print_tree(runs)
    assert capsys.readouterr().out.splitlines() == [
        "id  name         status     steps  cost",
        "7   root         completed  6/20   $0.2500",
        "8     alpha      completed  3/10   $0.0512",
        "10      alpha-1  failed     0/10   unknown",
        "9     beta       completed  10/10  $0.1000",
    ]


def test_a_refusal_ends_the_following():
    refused = Played({"error": "no research 7"}, status=404)
    with PlayedServer(refused) as server, Client(server.url, user="ann") as client:
        with pytest.raises(Refused, match="no research 7"):
            follow_tree(client, 7, PlainProgress(io.StringIO()), pace=QUICK)
