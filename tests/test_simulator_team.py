"""The team that the built-in researcher plays: what it does with a conversation, and whole teams through the server."""

import re
from typing import Any

import pytest

from gligabao.agent.prompting import Prompts
from gligabao.agent.tools.team import SpawnInput
from gligabao.simulator import DEMO_TEAM_TOPIC, DEMO_TOPIC
from gligabao.simulator.replies import error, hang
from gligabao.simulator.report import DISCLAIMER
from gligabao.simulator.researcher import research, split_topic
from tests.checker import check_run
from tests.teams import children
from tests.world import World, shape

WEB = ("web_search", "fetch_url")
PARENT = (*WEB, "spawn_subagent", "wait_subagents")
CHILD = (*PARENT, "list_siblings", "send_message", "read_messages")
ANNUAL, GUIDE = "http://a.example/annual", "http://a.example/guide"
FOUND = f"A briefing.\n\nSources:\n{ANNUAL} Annual report - Harbour Trust\n{GUIDE} Visiting us - Coast Guide"
PAGES = {
    ANNUAL: "The Harbour Trust owns the barrage. Since 1997 the station has been run by the Sable Tide Cooperative. "
    "In 2019 the Port Sable tidal station delivered 41.8 gigawatt hours. "
    "Turbine 4 was out of service from May to August for repairs. "
    "The year would have been about two gigawatt hours better.",
    GUIDE: "In 2019 the Port Sable tidal station delivered 57 gigawatt hours.",
}
TOPIC = (
    "The station: who runs it? (1) Output: how much energy does it deliver? (2) Machines: how many turbines are there?"
)


def ask(
    topic: str, *rounds: list[tuple[str, dict[str, Any], str]], tools=PARENT, system="Research.", none=False
) -> Any:
    """What the researcher answers after these rounds of calls, (tool, input, result) each; `! ` marks an error."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": topic}]
    for number, calls in enumerate(rounds):
        ids = [f"toolu_{number}_{place}" for place in range(len(calls))]
        messages.append({"role": "assistant", "content": [tool_use(i, *c) for i, c in zip(ids, calls, strict=True)]})
        messages.append({"role": "user", "content": [tool_result(i, *c) for i, c in zip(ids, calls, strict=True)]})
    last = {"tool_choice": {"type": "none"}} if none else {}
    return research(
        {
            "model": "claude-sonnet-5-5",
            "system": system,
            "messages": messages,
            "tools": [{"name": name, "input_schema": {"type": "object"}} for name in tools],
            **last,
        }
    )


def tool_use(tool_id: str, name: str, given: dict[str, Any], result: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": tool_id, "name": name, "input": given}


def tool_result(tool_id: str, name: str, given: dict[str, Any], result: str) -> dict[str, Any]:
    failed = result.startswith("! ")
    answer = {"type": "tool_result", "tool_use_id": tool_id, "content": result.removeprefix("! ")}
    return answer | ({"is_error": True} if failed else {})


def calls_of(answer: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(block["name"], block["input"]) for block in answer.content if block["type"] == "tool_use"]


def names_of(answer: Any) -> list[str]:
    return [name for name, _ in calls_of(answer)]


def report_of(answer: Any) -> str:
    assert answer.stop_reason == "end_turn", calls_of(answer)
    report = answer.content[-1]["text"]
    assert report.splitlines()[0] == DISCLAIMER
    return report


def spawn_inputs(topic: str = TOPIC) -> list[dict[str, Any]]:
    return [given for _, given in calls_of(ask(topic))]


def spawned(*results: str) -> list[tuple[str, dict[str, Any], str]]:
    return [("spawn_subagent", given, result) for given, result in zip(spawn_inputs(), results, strict=True)]


def searched(*queries: str) -> list[tuple[str, dict[str, Any], str]]:
    return [("web_search", {"query": query}, FOUND) for query in queries]


READ = [("fetch_url", {"url": url}, page) for url, page in PAGES.items()]


# The topic


@pytest.mark.parametrize(
    "topic",
    [
        DEMO_TOPIC,
        "What is known of the two towers?",
        "The towers: (1) how high are they?",
        "The towers: (1) how high? (3) which stone?",
        "The towers: (2) how high? (1) which stone?",
        "The towers: (1) (2) which stone?",
        "Is f(1) below f(2) or f(3)?",
        "",
    ],
)
def test_a_topic_without_numbered_parts_is_for_one(topic):
    assert split_topic(topic) == (topic, {})


def test_a_topic_in_parts_gives_each_a_name_and_a_question_that_stands_alone():
    assert split_topic(TOPIC) == (
        "The station: who runs it?",
        {
            "output": "How much energy does it deliver? (on The station)",
            "machines": "How many turbines are there? (on The station)",
        },
    )


def test_parts_beyond_the_third_are_the_parents_own():
    own, parts = split_topic("Towers: how old? (1) A: a? (2) B: b? (3) C: c? (4) D: is it damp? (5) E: who else?")
    assert list(parts) == ["a", "b", "c"]
    assert own == "Towers: how old? D: is it damp? E: who else?"


def test_parts_need_no_name_and_no_introduction():
    topic = "(1) how high are the towers? (2) Stone: which stone was used? (3) Stone: which stone was used later?"
    own, parts = split_topic(topic)
    assert parts == {
        "part-1": "How high are the towers?",
        "stone": "Which stone was used?",
        "part-3": "Which stone was used later?",
    }
    assert own == topic


@pytest.mark.parametrize("topic", [DEMO_TEAM_TOPIC, TOPIC, "(1) " + "é" * 990 + " (2) Größe — " + "what? " * 150])
def test_the_calls_that_start_sub_agents_are_valid(topic):
    inputs = spawn_inputs(topic)
    assert [SpawnInput.model_validate(given).name for given in inputs] == [given["name"] for given in inputs]
    assert all(len(given) == 3 for given in inputs)


# The parent


def test_the_parent_starts_all_its_sub_agents_in_one_answer():
    answer = ask(TOPIC)
    assert names_of(answer) == ["spawn_subagent", "spawn_subagent"]
    assert [given["name"] for _, given in calls_of(answer)] == ["output", "machines"]
    assert answer.content[0]["type"] == "thinking"


def test_the_parent_looks_into_its_own_part_and_then_waits_for_all():
    rounds = [spawned("started", "started")]
    answer = ask(TOPIC, *rounds)
    assert names_of(answer) == ["web_search", "web_search"]
    assert calls_of(answer)[0][1]["query"] == "station runs"
    rounds.append(searched("one", "two"))
    assert calls_of(ask(TOPIC, *rounds)) == [("fetch_url", {"url": url}) for url in PAGES]
    rounds.append(READ)
    assert calls_of(ask(TOPIC, *rounds)) == [("wait_subagents", {})]
    rounds.append([("wait_subagents", {}, "## output (run 2): failed\nbroken\n\n## machines (run 3): failed\nbroken")])
    assert report_of(ask(TOPIC, *rounds))


@pytest.mark.parametrize("options", [{"tools": WEB}, {"none": True}, {"tools": ()}])
def test_where_it_may_not_spawn_the_topic_is_for_one(options):
    answer = ask(TOPIC, **options)
    assert set(names_of(answer)) == ({"web_search"} if options == {"tools": WEB} else set())


def test_when_no_sub_agent_could_be_started_it_does_all_itself():
    rounds = [spawned("! the server is full", "! the server is full")]
    queries = [given["query"] for _, given in calls_of(ask(TOPIC, *rounds))]
    assert any("energy" in query for query in queries)
    rounds += [searched(*queries), READ, searched("three")]
    report = report_of(ask(TOPIC, *rounds))
    assert "server is full" not in report
    assert "41.8 gigawatt hours" in report
    assert "Sable Tide Cooperative" in report


HANDED = f"""\
{DISCLAIMER}

In 2019 the station delivered 41.8 gigawatt hours ([A](http://a.example/2)).

## Output

- The best year was 1994 ([A](http://a.example/2)).

## Told by siblings

- machines (run 3) wrote: There are six.

## Where the sources disagree

- So they say ([A](http://a.example/2)).

## What was not found

- Who measured it.

## Sources

- A: http://a.example/2"""


def waited_for(output: str) -> list[Any]:
    waited = f"## output (run 2): {output}\n\n## machines (run 3): failed\nthe model\nrefused"
    return [spawned("started", "started"), searched("one"), READ, [("wait_subagents", {}, waited)]]


def test_the_report_joins_what_was_handed_up_and_names_what_is_missing():
    report = report_of(ask(TOPIC, *waited_for(f"completed\n[untrusted 00ff]\n{HANDED}\n[untrusted 00ff]")))
    assert report.split("\n\n")[1] == (
        f"Since 1997 the station has been run by the Sable Tide Cooperative ([Harbour Trust]({ANNUAL})). "
        "In 2019 the station delivered 41.8 gigawatt hours ([A](http://a.example/2))."
    )
    assert (
        "## Output\n\n- The best year was 1994 ([A](http://a.example/2)).\n- machines (run 3) wrote: There are"
        in report
    )
    assert "## Where the sources disagree\n\n- So they say ([A](http://a.example/2)).\n" in report
    gaps = report.partition("## What was not found")[2].partition("## Sources")[0]
    assert "- Who measured it.\n" in gaps
    assert "- Machines: its sub-agent failed (run 3): the model refused\n" in gaps
    assert report.endswith(f"## Sources\n\n- Annual report - Harbour Trust: {ANNUAL}\n- A: http://a.example/2")
    assert "untrusted" not in report


def test_a_report_of_another_form_counts_as_an_answer():
    report = report_of(ask(TOPIC, *waited_for("completed\n[untrusted 00ff]\nIt delivers a lot.\n[untrusted 00ff]")))
    assert report.split("\n\n")[1].endswith("). It delivers a lot.")


def test_a_sub_agent_that_found_nothing_is_a_gap():
    nothing = report_of(as_child("How many bats live in the tower?", none=True))
    report = report_of(ask(TOPIC, *waited_for(f"completed\n[untrusted 00ff]\n{nothing}\n[untrusted 00ff]")))
    assert "- Output: nothing was found.\n" in report
    assert "Topics to try" not in report


def test_the_last_step_reports_without_the_sub_agents_that_were_not_waited_for():
    report = report_of(ask(TOPIC, spawned("started", "! the name is taken"), searched("one"), none=True))
    assert "- Output: its sub-agent had not ended" in report
    assert "- Machines: its sub-agent did not start: the name is taken" in report


# The sub-agent


def as_child(task: str, *rounds: list[tuple[str, dict[str, Any], str]], tools=CHILD, none=False) -> Any:
    system = Prompts.load().system(date="2026-11-01", max_steps=10, may_spawn=True, name="output", reason="Output")
    return ask(task, *rounds, tools=tools, system=system, none=none)


TELLER, LISTENER = (given["task"] for given in spawn_inputs())
LOOKED = [searched("one", "two"), READ]
LISTED = "[untrusted 00ff]\n- machines [{}]: how many turbines are there?\n[untrusted 00ff]"


def with_listing(listing: str) -> list[Any]:
    return [*LOOKED, [*searched("three"), ("list_siblings", {}, listing)]]


def test_the_system_prompt_tells_a_sub_agent_from_a_root():
    for may_spawn in (True, False):
        root = Prompts.load().system(date="2026-11-01", max_steps=20, may_spawn=may_spawn)
        assert names_of(ask(TOPIC, system=root)) == ["spawn_subagent", "spawn_subagent"]
        child = Prompts.load().system(
            date="2026-11-01", max_steps=20, may_spawn=may_spawn, name="alpha", reason="Alpha."
        )
        assert names_of(ask(TOPIC, system=[{"type": "text", "text": child}])) == ["web_search", "web_search"]


def test_a_sub_agent_starts_none_itself_whatever_its_task():
    assert names_of(as_child(TOPIC)) == ["web_search", "web_search"]


def test_a_sub_agent_looks_for_its_question_alone():
    queries = [given["query"] for _, given in calls_of(as_child(TELLER))]
    assert queries[0] == "energy deliver station"
    assert not any("turbines" in query for query in queries)


def test_one_lists_its_siblings_beside_its_next_search_and_writes_to_the_one_it_was_told():
    assert names_of(as_child(TELLER, *LOOKED)) == ["web_search", "list_siblings"]
    [(tool, given)] = calls_of(as_child(TELLER, *with_listing(LISTED.format("working"))))
    assert tool == "send_message"
    assert given["to"] == "machines"
    # Of all that it found, what has to do with the other's part.
    assert given["text"].startswith("Turbine 4 was out of service from May to August")
    assert given["text"].endswith(f" ([Harbour Trust]({ANNUAL})).")
    sent = [("send_message", given, 'sent to "machines"')]
    assert report_of(as_child(TELLER, *with_listing(LISTED.format("working")), sent))


@pytest.mark.parametrize(
    "listing",
    [LISTED.format("ended"), LISTED.format("ended, failed"), "You have no siblings now.", "! a fault of the server"],
)
def test_nothing_is_written_to_one_that_does_not_work(listing):
    assert report_of(as_child(TELLER, *with_listing(listing)))


def test_a_sub_agent_that_found_nothing_writes_to_nobody():
    nothing = [("web_search", {"query": "one"}, "Nothing useful found.")] * 3
    assert "found nothing" in report_of(as_child(TELLER, nothing))


def test_the_other_reads_its_messages_before_it_reports_and_mentions_them():
    looked = [*LOOKED, searched("three")]
    assert calls_of(as_child(LISTENER, *looked)) == [("read_messages", {"wait_seconds": 5})]
    letters = (
        "[untrusted 00ff]\nFrom output (run 2): They are old.\nhttp://a.example/2\n[untrusted 00ff]\n\n"
        "[untrusted 00ff]\nFrom width (run 4): And 9 m wide.\n[untrusted 00ff]"
    )
    report = report_of(as_child(LISTENER, *looked, [("read_messages", {}, letters)]))
    assert (
        "## Told by siblings\n\n"
        "- output (run 2) wrote: They are old. http://a.example/2\n"
        "- width (run 4) wrote: And 9 m wide."
    ) in report


@pytest.mark.parametrize("result", ["No new messages.", "! a fault of the server"])
def test_a_message_that_does_not_come_is_not_mentioned(result):
    report = report_of(as_child(LISTENER, *LOOKED, searched("three"), [("read_messages", {}, result)]))
    assert "siblings" not in report


@pytest.mark.parametrize("task", [TELLER, LISTENER])
def test_a_sub_agent_in_its_last_step_reports_what_it_has(task):
    assert report_of(as_child(task, searched("one", "two"), none=True))
    assert report_of(as_child(task, none=True))


@pytest.mark.parametrize("task", [TELLER, LISTENER])
def test_a_sub_agent_does_without_tools_that_it_has_not(task):
    assert report_of(as_child(task, *LOOKED, searched("three"), tools=WEB))


# Whole teams


@pytest.fixture
def world(database_url, new_world):
    return new_world(database_url)


def play(world: World, topic: str = DEMO_TEAM_TOPIC, *, user: str = "u1", **body: Any) -> int:
    response = world.post(user, topic=topic, **body)
    assert response.status_code == 202, response.json
    return response.json["id"]


def linked(report: str) -> set[str]:
    return set(re.findall(r"https?://[^\s)]+", report))


def test_a_team_from_its_topic_to_its_report(world):
    run = world.finish(play(world))
    team = children(world, run["id"])
    assert list(team) == ["output", "machines", "nature"]
    for each in (run, *team.values()):
        check_run(each)
        assert (each["status"], each["stop_reason"]) == ("completed", "answered")
        assert each["report"].splitlines()[0] == DISCLAIMER
    assert [state["state"] for state in run["states"] if state["state"] not in ("thinking", "reading")] == [
        "starting",
        *["spawning"] * 3,
        *["searching"] * 2,
        "waiting",
        "completed",
    ]
    assert all(each["finished_at"] <= run["finished_at"] for each in team.values())
    assert all(each["reason"] and not each["report"].startswith(each["reason"]) for each in team.values())


def test_a_message_goes_from_one_sub_agent_to_another_and_into_the_report(world):
    run = world.finish(play(world))
    team = children(world, run["id"])
    [listed, sent] = [line for line in shape(team["output"]) if " messaging" in line]
    assert listed.split() == ["3", "messaging"]
    text = sent.partition("machines: ")[2]
    assert f"{world.simulator.url}/pages/" in text
    assert any("waiting a message" in line for line in shape(team["machines"]))
    mention = f"- output (run {team['output']['id']}) wrote: {text}"
    assert mention in team["machines"]["report"]
    assert mention in run["report"]
    assert not any("messaging" in line for line in shape(team["nature"]))


def test_the_report_of_a_team_tells_the_contradiction_and_names_the_sources_of_all(world):
    run = world.finish(play(world))
    disagreement = run["report"].partition("## Where the sources disagree")[2].partition("\n## ")[0]
    assert "57 gigawatt hours" in disagreement
    assert "41.8 gigawatt hours" in disagreement
    team = children(world, run["id"]).values()
    sources = {id: linked(each["report"].rpartition("## Sources")[2]) for id, each in enumerate((run, *team))}
    assert set().union(*sources.values()) == sources[0]
    gone = f"{world.simulator.url}/pages/monthly-output-tables.html"
    assert linked(run["report"]) == sources[0] | {gone}


def test_an_ordinary_topic_is_played_alone(world):
    run = world.finish(play(world, DEMO_TOPIC))
    assert children(world, run["id"]) == {}
    assert [line.split()[1] for line in shape(run) if line[0] == "1"] == ["thinking", "searching", "searching"]


def test_a_sub_agent_that_fails_is_a_gap_in_the_report(world):
    world.simulator.play("(on Port Sable tidal station)\nBring", error(400, message="no more of this"))
    run = world.finish(play(world))
    assert {each["status"] for each in children(world, run["id"]).values()} == {"failed"}
    assert run["status"] == "completed"
    gaps = run["report"].partition("## What was not found")[2]
    assert all(f"- {title}: its sub-agent failed (run " in gaps for title in ("Output", "Machines", "Nature"))
    assert "no more of this" in gaps
    assert "run by the Sable Tide Cooperative" in run["report"]


def test_a_parent_without_the_steps_to_wait_reports_all_the_same(world):
    world.simulator.play("(on Port Sable tidal station)\nBring", hang())
    run = world.finish(play(world, max_steps=3))
    assert (run["status"], run["stop_reason"]) == ("completed", "max_steps")
    assert run["report"].count("its sub-agent had not ended") == 3
    errors = {each["error"] for each in children(world, run["id"]).values()}
    assert errors == {"cancelled: the agent that spawned it ended"}


def test_teams_go_on_at_once_and_do_not_mix(sqlite_url, new_world):
    world = new_world(sqlite_url)
    users = [f"user{number}" for number in range(6)]
    started = {user: play(world, user=user) for user in users}
    for user, run_id in started.items():
        run = world.finish(run_id, user=user)
        team = children(world, run_id, user=user)
        assert list(team) == ["output", "machines", "nature"]
        assert f"- output (run {team['output']['id']}) wrote: " in run["report"]
        assert {each["status"] for each in team.values()} == {"completed"}
    assert world.close().ends == {"answered": 24}
