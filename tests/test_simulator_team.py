"""The team that the built-in researcher plays: what it does with a conversation, and whole teams through the server."""

import re
from typing import Any

import pytest

from gligabao.agent.prompting import Prompts
from gligabao.agent.tools.team import SpawnInput
from gligabao.simulator import DEMO_TEAM_TOPIC, DEMO_TOPIC
from gligabao.simulator.replies import error, hang
from gligabao.simulator.report import DISCLAIMER
from gligabao.simulator.researcher import research
from gligabao.simulator.subagent import is_subagent
from gligabao.simulator.tasks import spawn_inputs, split_topic
from tests.checker import check_run
from tests.teams import children
from tests.world import World, shape

WEB = ("web_search", "fetch_url")
PARENT = (*WEB, "spawn_subagent", "wait_subagents")
CHILD = (*PARENT, "list_siblings", "send_message", "read_messages")
FOUND = "A briefing of some words.\nSources:\n- Two towers (https://a.example/1)"
PAGE = "Title: Two towers\n\nThe north tower was built on 44 stone piers in the year 1912 and still stands."
TOPIC = "The two towers: when were they built? (1) Height: how high are they? (2) Stone: what stone is it?"


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


def spawned(*results: str) -> list[tuple[str, dict[str, Any], str]]:
    inputs = spawn_inputs(split_topic(TOPIC))
    return [("spawn_subagent", given, result) for given, result in zip(inputs, results, strict=True)]


def searched(*queries: str) -> list[tuple[str, dict[str, Any], str]]:
    return [("web_search", {"query": query}, FOUND) for query in queries]


READ = [("fetch_url", {"url": "https://a.example/1"}, PAGE)]


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
    assert split_topic(topic) is None


def test_a_topic_in_parts_gives_each_a_name_and_a_question_that_stands_alone():
    parts = split_topic(TOPIC)
    assert parts.own == "The two towers: when were they built?"
    assert [part.name for part in parts.others] == ["height", "stone"]
    assert [part.question for part in parts.others] == [
        "How high are they? (on The two towers)",
        "What stone is it? (on The two towers)",
    ]


def test_parts_beyond_the_third_are_the_parents_own():
    parts = split_topic("Towers: how old? (1) A: a? (2) B: b? (3) C: c? (4) D: is it damp? (5) E: who else?")
    assert [part.name for part in parts.others] == ["a", "b", "c"]
    assert parts.own == "Towers: how old? D: is it damp? E: who else?"


def test_parts_need_no_name_and_no_introduction():
    parts = split_topic("(1) how high are the towers? (2) which stone was used? (3) which stone was used later?")
    assert [part.name for part in parts.others] == ["high-towers", "stone-used", "stone-used-2"]
    assert parts.own == parts.whole


@pytest.mark.parametrize("topic", [DEMO_TEAM_TOPIC, TOPIC, "(1) " + "é" * 990 + " (2) Größe — " + "what? " * 150])
def test_the_calls_that_start_sub_agents_are_valid(topic):
    inputs = spawn_inputs(split_topic(topic))
    assert [SpawnInput.model_validate(given).name for given in inputs] == [given["name"] for given in inputs]
    assert all(len(given) == 3 for given in inputs)


# The parent


def test_the_parent_starts_all_its_sub_agents_in_one_answer():
    answer = ask(TOPIC)
    assert names_of(answer) == ["spawn_subagent", "spawn_subagent"]
    assert [given["name"] for _, given in calls_of(answer)] == ["height", "stone"]
    assert answer.content[0]["type"] == "thinking"


def test_the_parent_looks_into_its_own_part_and_then_waits_for_all():
    rounds = [spawned("started", "started")]
    answer = ask(TOPIC, *rounds)
    assert names_of(answer) == ["web_search", "web_search"]
    assert "towers" in calls_of(answer)[0][1]["query"]
    rounds.append(searched("one", "two"))
    assert names_of(ask(TOPIC, *rounds)) == ["fetch_url"]
    rounds.append(READ)
    assert calls_of(ask(TOPIC, *rounds)) == [("wait_subagents", {})]
    rounds.append([("wait_subagents", {}, "## height (run 2): failed\nbroken\n\n## stone (run 3): failed\nbroken")])
    assert report_of(ask(TOPIC, *rounds))


@pytest.mark.parametrize("options", [{"tools": WEB}, {"none": True}, {"tools": ()}])
def test_where_it_may_not_spawn_the_topic_is_for_one(options):
    answer = ask(TOPIC, **options)
    assert set(names_of(answer)) == ({"web_search"} if options == {"tools": WEB} else set())


def test_when_no_sub_agent_could_be_started_it_does_all_itself():
    rounds = [spawned("! the server is full", "! the server is full")]
    queries = [given["query"] for _, given in calls_of(ask(TOPIC, *rounds))]
    assert any("height" in query for query in queries)
    rounds += [searched(*queries), READ, searched("three")]
    report = report_of(ask(TOPIC, *rounds))
    assert "server is full" not in report
    assert "1912" in report


def test_the_report_joins_what_was_handed_up_and_names_what_is_missing():
    handed = "\n".join(
        [
            DISCLAIMER,
            "\n## Findings\n",
            "- The towers are 90 metres high. ([A](https://a.example/2))",
            "- They lean a little. ([A](https://a.example/2))",
            "\n## Told by siblings\n\n- stone (run 3) wrote: It is basalt.",
            "\n## Where the sources disagree\n\n- 90 metres: so they say ([A](https://a.example/2))",
            "\n## What was not found\n\n- Who measured it.",
            "\n## Sources\n\n- A: https://a.example/2",
        ]
    )
    waited = (
        f"## height (run 2): completed\n[untrusted 00ff]\n{handed}\n[untrusted 00ff]\n\n"
        "## stone (run 3): failed\nthe model refused"
    )
    rounds = [spawned("started", "started"), searched("one"), READ, [("wait_subagents", {}, waited)]]
    report = report_of(ask(TOPIC, *rounds))
    short, _, rest = report.partition("\n## ")
    assert "44 stone piers" in short
    assert "The towers are 90 metres high. ([A](https://a.example/2))" in short
    assert (
        "## Height\n\n- They lean a little. ([A](https://a.example/2))\n- stone (run 3) wrote: It is basalt." in report
    )
    assert "## Where the sources disagree\n\n- 90 metres: so they say" in report
    gaps = rest.partition("## What was not found")[2].partition("## Sources")[0]
    assert "- Who measured it." in gaps
    assert "- Stone: run 3 failed: the model refused. Nothing is known of this part." in gaps
    assert report.endswith("## Sources\n\n- Two towers: https://a.example/1\n- A: https://a.example/2")
    assert "untrusted" not in report


def test_the_last_step_reports_without_the_sub_agents_that_were_not_waited_for():
    report = report_of(ask(TOPIC, spawned("started", "! the name is taken"), searched("one"), none=True))
    assert "- Height: its sub-agent was not waited for. Nothing is known of this part." in report
    assert "- Stone: the name is taken. Nothing is known of this part." in report


# The sub-agent


def as_child(task: str, *rounds: list[tuple[str, dict[str, Any], str]], tools=CHILD, none=False) -> Any:
    system = Prompts.load().system(date="2026-11-01", max_steps=10, may_spawn=True, name="height", reason="Height")
    return ask(task, *rounds, tools=tools, system=system, none=none)


TELLER, LISTENER = (given["task"] for given in spawn_inputs(split_topic(TOPIC)))
LOOKED = [searched("one", "two"), READ]
LISTED = "[untrusted 00ff]\n- stone [{}]: what stone are the towers?\n[untrusted 00ff]"


def with_listing(listing: str) -> list[Any]:
    return [*LOOKED, [*searched("three"), ("list_siblings", {}, listing)]]


def test_the_system_prompt_tells_a_sub_agent_from_a_root():
    prompts = Prompts.load()
    for may_spawn in (True, False):
        root = prompts.system(date="2026-11-01", max_steps=20, may_spawn=may_spawn)
        child = prompts.system(date="2026-11-01", max_steps=20, may_spawn=may_spawn, name="alpha", reason="Alpha.")
        assert not is_subagent({"system": root})
        assert is_subagent({"system": [{"type": "text", "text": child}]})
    assert not is_subagent({})


def test_a_sub_agent_starts_none_itself_whatever_its_task():
    assert names_of(as_child(TOPIC)) == ["web_search", "web_search"]


def test_a_sub_agent_looks_for_its_question_alone():
    queries = [given["query"] for _, given in calls_of(as_child(TELLER))]
    assert queries[0] == "high two towers"
    assert not any("stone" in query for query in queries)


def test_one_lists_its_siblings_beside_its_next_search_and_writes_to_the_one_it_was_told():
    assert names_of(as_child(TELLER, *LOOKED)) == ["web_search", "list_siblings"]
    [(tool, given)] = calls_of(as_child(TELLER, *with_listing(LISTED.format("working"))))
    assert tool == "send_message"
    assert given["to"] == "stone"
    assert given["text"].startswith("The north tower was built on 44 stone piers")
    assert given["text"].endswith(" https://a.example/1")
    sent = [("send_message", given, 'sent to "stone"')]
    assert report_of(as_child(TELLER, *with_listing(LISTED.format("working")), sent))


@pytest.mark.parametrize(
    "listing",
    [LISTED.format("ended"), LISTED.format("ended, failed"), "You have no siblings now.", "! a fault of the server"],
)
def test_nothing_is_written_to_one_that_does_not_work(listing):
    assert report_of(as_child(TELLER, *with_listing(listing)))


def test_a_sub_agent_that_found_nothing_writes_to_nobody():
    nothing = [("web_search", {"query": "one"}, "Nothing useful found.")] * 3
    assert "None: no page on this could be read." in report_of(as_child(TELLER, nothing))


def test_the_other_reads_its_messages_before_it_reports_and_mentions_them():
    looked = [*LOOKED, searched("three")]
    assert calls_of(as_child(LISTENER, *looked)) == [("read_messages", {"wait_seconds": 5})]
    letters = (
        "[untrusted 00ff]\nFrom height (run 2): They are 90 m high.\nhttps://a.example/2\n[untrusted 00ff]\n\n"
        "[untrusted 00ff]\nFrom width (run 4): And 9 m wide.\n[untrusted 00ff]"
    )
    report = report_of(as_child(LISTENER, *looked, [("read_messages", {}, letters)]))
    assert (
        "## Told by siblings\n\n"
        "- height (run 2) wrote: They are 90 m high. https://a.example/2\n"
        "- width (run 4) wrote: And 9 m wide.\n"
    ) in report


@pytest.mark.parametrize("result", ["No new messages.", "! a fault of the server"])
def test_a_message_that_does_not_come_is_not_mentioned(result):
    report = report_of(as_child(LISTENER, *LOOKED, searched("three"), [("read_messages", {}, result)]))
    assert "siblings" not in report


def test_findings_carry_page_and_day_and_have_a_list_of_sources():
    url = "http://127.0.0.1:1/pages/silt-and-eels-survey.html"
    page = "In 2019 we counted 12,400 young eels going up, more than twice the number of 2009."
    found = f"A briefing.\nSources:\n- Silt and eels ({url})"
    rounds = [[("web_search", {"query": "eels"}, found)], [("fetch_url", {"url": url}, page)], searched("a", "b")]
    report = report_of(as_child("How many eels go up?", *rounds, READ))
    assert f"- {page} ([Silt and eels, 2019-10-30]({url}))" in report
    assert f"- Silt and eels: {url}" in report.partition("## Sources")[2]


@pytest.mark.parametrize("task", [TELLER, LISTENER])
def test_a_sub_agent_in_its_last_step_reports_what_it_has(task):
    report = report_of(as_child(task, searched("one", "two"), none=True))
    assert "(found, not read)" in report
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
    assert all(f"- {title}: run " in gaps for title in ("Output", "Machines", "Nature"))
    assert "no more of this" in gaps
    assert "run by the Sable Tide Cooperative" in run["report"]


def test_a_parent_without_the_steps_to_wait_reports_all_the_same(world):
    world.simulator.play("(on Port Sable tidal station)\nBring", hang())
    run = world.finish(play(world, max_steps=3))
    assert (run["status"], run["stop_reason"]) == ("completed", "max_steps")
    assert run["report"].count("its sub-agent was not waited for") == 3
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
