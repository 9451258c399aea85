"""The simulator as a server: the real SDK talks to it, scripts and faults play, the bill adds up, it stops."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import pytest
import requests

from gligabao.simulator import DEMO_TOPIC, Simulator, replies
from gligabao.simulator.replies import call, error, searched, text, tool_calls

MODEL = "claude-sonnet-5-5"
SEARCH_TOOL = {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}
TOOL = {"name": "look_up", "input_schema": {"type": "object"}}


def ask(client: anthropic.Anthropic, topic: str, **fields: Any) -> Any:
    body = {"model": MODEL, "max_tokens": 1000, "messages": [{"role": "user", "content": topic}], **fields}
    return client.messages.create(**body)


def types_of(message: Any) -> list[str]:
    return [block.type for block in message.content]


# Replies


def test_a_script_plays_its_replies_in_order(simulator: Simulator, client: anthropic.Anthropic) -> None:
    script = simulator.play("tides", text("one"), text("two"))
    assert [ask(client, "about tides").content[0].text for _ in range(2)] == ["one", "two"]
    assert script.asked == 2
    assert script.reached(2).is_set()
    assert not script.reached(3).is_set()


def test_a_script_that_is_used_up_says_so(simulator: Simulator, client: anthropic.Anthropic) -> None:
    simulator.play("tides", text("one"))
    ask(client, "tides")
    with pytest.raises(anthropic.BadRequestError, match='the script for "tides" has no reply 2, only 1'):
        ask(client, "tides")


def test_each_conversation_goes_through_the_script_from_its_start(
    simulator: Simulator, client: anthropic.Anthropic
) -> None:
    simulator.play("tides", text("one"), text("two"))
    assert ask(client, "tides, a").content[0].text == "one"
    assert ask(client, "tides, b").content[0].text == "one"
    assert ask(client, "tides, a").content[0].text == "two"


def test_the_latest_script_for_a_topic_counts(simulator: Simulator, client: anthropic.Anthropic) -> None:
    simulator.play("tides", text("old"))
    simulator.play("tides", text("new"))
    assert ask(client, "tides").content[0].text == "new"


def test_searches_are_played_apart_from_the_conversation(simulator: Simulator, client: anthropic.Anthropic) -> None:
    simulator.play("tides", text("the loop"))
    simulator.play_search("tides", searched("It rises.", ("https://a.test/x", "Tides"), query="tides"))
    found = ask(client, "tides", tools=[SEARCH_TOOL])
    assert types_of(found) == ["server_tool_use", "web_search_tool_result", "text"]
    assert found.content[1].content[0].url == "https://a.test/x"
    assert found.content[1].tool_use_id == found.content[0].id
    assert found.usage.server_tool_use.web_search_requests == 1
    assert ask(client, "tides").content[0].text == "the loop"


def test_a_failed_search_is_an_error_inside_a_200_and_costs_nothing(
    simulator: Simulator, client: anthropic.Anthropic
) -> None:
    simulator.play_search("tides", replies.search_error("max_uses_exceeded"))
    found = ask(client, "tides", tools=[SEARCH_TOOL])
    assert found.content[1].content.error_code == "max_uses_exceeded"
    assert found.usage.server_tool_use is None
    assert simulator.billed().total.web_search_requests == 0


@pytest.mark.parametrize(
    ("reply", "stop_reason", "types"),
    [
        (text("a"), "end_turn", ["text"]),
        (tool_calls(call("look_up", word="tide"), call("look_up", word="sea")), "tool_use", ["tool_use", "tool_use"]),
        (tool_calls(call("look_up"), text="Let me see."), "tool_use", ["text", "tool_use"]),
        (replies.thinking("hm", text("a")), "end_turn", ["thinking", "text"]),
        (replies.redacted_thinking(text("a")), "end_turn", ["redacted_thinking", "text"]),
        (replies.pause_turn(), "pause_turn", ["text"]),
        (replies.refusal("cyber"), "refusal", []),
        (replies.cut_text("half a"), "max_tokens", ["text"]),
        (replies.cut_call("look_up", word="ti"), "max_tokens", ["tool_use"]),
        (replies.cut_thinking(), "max_tokens", ["thinking"]),
        (replies.empty(), "end_turn", []),
    ],
)
def test_the_sdk_finds_nothing_wrong_with_an_answer(
    simulator: Simulator, client: anthropic.Anthropic, reply: replies.Scripted, stop_reason: str, types: list[str]
) -> None:
    simulator.play("tides", reply)
    answer = ask(client, "tides", tools=[TOOL])
    assert (answer.stop_reason, types_of(answer)) == (stop_reason, types)
    assert len({block.id for block in answer.content if block.type == "tool_use"}) == types.count("tool_use")
    assert answer.usage.input_tokens > 0
    assert answer.usage.output_tokens > 0


def test_a_refusal_names_its_category(simulator: Simulator, client: anthropic.Anthropic) -> None:
    simulator.play("tides", replies.refusal("bio", explanation="no"))
    details = ask(client, "tides").stop_details
    assert (details.category, details.explanation) == ("bio", "no")


def test_a_pause_with_the_server_tool_waits_in_a_search_and_is_resumed(
    simulator: Simulator, client: anthropic.Anthropic
) -> None:
    topic = "Port Sable tidal station electricity"
    simulator.faults.add(replies.pause_turn("Searching.", query=topic))
    paused = ask(client, topic, tools=[SEARCH_TOOL])
    assert types_of(paused) == ["text", "server_tool_use"]
    messages = [{"role": "user", "content": topic}, {"role": "assistant", "content": paused.content}]
    resumed = ask(client, topic, tools=[SEARCH_TOOL], messages=messages)
    assert types_of(resumed)[0] == "web_search_tool_result"
    assert resumed.content[0].tool_use_id == paused.content[1].id


def test_a_function_may_be_the_reply(simulator: Simulator, client: anthropic.Anthropic) -> None:
    simulator.play("tides", lambda body: text(f"limit {body['max_tokens']}"))
    assert ask(client, "tides", max_tokens=77).content[0].text == "limit 77"


def test_a_function_that_fails_ends_only_its_connection(
    simulator: Simulator, client: anthropic.Anthropic, caplog: pytest.LogCaptureFixture
) -> None:
    simulator.play("tides", lambda body: text(body["nonesuch"]), text("still here"))
    with pytest.raises(anthropic.APIConnectionError):
        ask(client, "tides")
    assert ask(client, "tides").content[0].text == "still here"
    assert "the simulator failed to answer" in caplog.text


def test_a_reply_is_held_until_its_event(simulator: Simulator, client: anthropic.Anthropic) -> None:
    go = threading.Event()
    script = simulator.play("tides", text("at last").after(go))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, client, "tides")
        assert script.reached(1).wait(10)
        assert not answer.done()
        assert simulator.billed().total.calls == 0
        go.set()
        assert answer.result(10).content[0].text == "at last"


def test_a_delayed_reply_comes(simulator: Simulator, client: anthropic.Anthropic) -> None:
    simulator.play("tides", text("later").delayed(0.01))
    assert ask(client, "tides").content[0].text == "later"


def test_a_raw_reply_goes_out_as_it_is(simulator: Simulator) -> None:
    simulator.play("tides", replies.raw({"so": "what"}, status=201))
    response = post(simulator, "tides")
    assert (response.status_code, response.json()) == (201, {"so": "what"})


def post(simulator: Simulator, topic: str, *, stream: bool = False, session: Any = requests) -> requests.Response:
    body = {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": topic}]}
    headers = {"x-api-key": "x", "anthropic-version": "2026-10-21"}
    response: requests.Response = session.post(
        f"{simulator.url}/v1/messages", json=body, headers=headers, timeout=20, stream=stream
    )
    return response


# Faults


def test_errors_have_their_type_and_headers(simulator: Simulator, client: anthropic.Anthropic) -> None:
    simulator.faults.status(529, count=2, retry_after=1.5)
    for _ in range(2):
        with pytest.raises(anthropic.OverloadedError) as caught:
            ask(client, "tides")
        assert caught.value.type == "overloaded_error"
        assert caught.value.response.headers["retry-after"] == "1.5"
    assert ask(client, "tides").stop_reason == "end_turn"


def test_a_scripted_error_stands_between_replies(simulator: Simulator, client: anthropic.Anthropic) -> None:
    simulator.play("tides", error(429, message="slow down", headers={"retry-after": "7"}), text("ok"))
    with pytest.raises(anthropic.RateLimitError, match="slow down"):
        ask(client, "tides")
    assert ask(client, "tides").content[0].text == "ok"


def test_a_fault_for_a_topic_leaves_others_alone(simulator: Simulator, client: anthropic.Anthropic) -> None:
    simulator.faults.status(500, count=None, topic="tides")
    assert ask(client, "clouds").stop_reason == "end_turn"
    for _ in range(3):
        with pytest.raises(anthropic.InternalServerError):
            ask(client, "tides")
    simulator.faults.clear()
    assert ask(client, "tides").stop_reason == "end_turn"


def test_a_malformed_answer_is_half_a_json_with_a_200(simulator: Simulator) -> None:
    simulator.faults.add(replies.malformed())
    response = post(simulator, "tides")
    assert response.status_code == 200
    with pytest.raises(ValueError):
        response.json()
    assert simulator.billed().total.calls == 0


@pytest.mark.parametrize("midway", [False, True])
def test_a_dropped_connection_is_a_connection_error(
    simulator: Simulator, client: anthropic.Anthropic, midway: bool
) -> None:
    simulator.faults.add(replies.drop(midway=midway))
    with pytest.raises(anthropic.APIConnectionError):
        ask(client, "tides")
    assert simulator.billed().total.calls == 0
    assert ask(client, "tides").stop_reason == "end_turn"


def test_a_hang_with_an_end_closes_the_connection(simulator: Simulator, client: anthropic.Anthropic) -> None:
    simulator.faults.add(replies.hang(0.01))
    with pytest.raises(anthropic.APIConnectionError):
        ask(client, "tides")


def test_dripped_bytes_make_a_whole_answer(simulator: Simulator, client: anthropic.Anthropic) -> None:
    simulator.faults.add(replies.drip(text("drop by drop"), seconds_per_byte=0.0001))
    assert ask(client, "tides").content[0].text == "drop by drop"
    assert simulator.billed().total.calls == 1


def test_the_connection_of_a_dripped_answer_takes_the_next_request_at_once(simulator: Simulator) -> None:
    simulator.faults.add(replies.drip(text("drop by drop"), seconds_per_byte=0.002))
    with requests.Session() as session:
        for _ in range(2):
            assert post(simulator, "tides", session=session).status_code == 200


def test_a_client_that_leaves_early_is_not_billed(simulator: Simulator) -> None:
    script = simulator.play("tides", replies.drip(text("too slow" * 100), seconds_per_byte=5), text("ok"))
    post(simulator, "tides", stream=True).close()
    assert script.reached(1).is_set()
    assert post(simulator, "tides").json()["content"][0]["text"] == "ok"
    simulator.stop()
    assert simulator.billed().total.calls == 1


def test_stop_ends_requests_that_hang(client: anthropic.Anthropic, simulator: Simulator) -> None:
    script = simulator.play("tides", *[replies.hang()] * 8)
    held = simulator.play("clouds", text("never").after(threading.Event()))
    with ThreadPoolExecutor(9) as pool:
        calls = [pool.submit(ask, client, "tides") for _ in range(8)] + [pool.submit(ask, client, "clouds")]
        assert script.reached(8).wait(10)
        assert held.reached(1).wait(10)
        simulator.stop()
        assert all(isinstance(failed.exception(10), anthropic.APIConnectionError) for failed in calls)
    assert not [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith(f"simulator-{simulator.address.rpartition(':')[2]}-")
    ]


def test_a_simulator_that_was_never_started_stops() -> None:
    Simulator().stop()


# The bill


def test_the_bill_equals_what_the_answers_said(simulator: Simulator, client: anthropic.Anthropic) -> None:
    simulator.play("tides", text("one"), text("two"), error(500))
    usages = [ask(client, "tides, a", cache_control={"type": "ephemeral"}).usage for _ in range(2)]
    with pytest.raises(anthropic.InternalServerError):
        ask(client, "tides, a")
    usages.append(ask(client, "Port Sable tidal station", tools=[SEARCH_TOOL]).usage)
    bill = simulator.billed()
    assert bill.total.calls == 3
    assert bill.total.output_tokens == sum(usage.output_tokens for usage in usages)
    assert bill.total.prompt_tokens == sum(
        usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens for usage in usages
    )
    assert bill.total.web_search_requests == 1
    assert bill.topic("tides").calls == 2
    assert bill.topic("Port").web_search_requests == 1
    assert set(bill.by_topic) == {"tides, a", "Port Sable tidal station"}


def test_without_cache_control_nothing_is_cached(simulator: Simulator, client: anthropic.Anthropic) -> None:
    simulator.play("tides", text("one"), text("two"))
    for _ in range(2):
        usage = ask(client, "tides", system="be brief " * 1000).usage
        assert (usage.cache_creation_input_tokens, usage.cache_read_input_tokens) == (0, 0)
        assert usage.input_tokens > 2000


def test_the_cache_serves_the_prefix_of_the_request_before(simulator: Simulator, client: anthropic.Anthropic) -> None:
    simulator.play("tides", text("one"), text("two"), text("three"))
    fields: dict[str, Any] = {"system": "be brief " * 1000, "cache_control": {"type": "ephemeral"}}
    first = ask(client, "tides", **fields)
    assert first.usage.cache_read_input_tokens == 0
    assert first.usage.cache_creation_input_tokens > 2000
    messages = [
        {"role": "user", "content": "tides"},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": "and then? " * 400},
    ]
    second = ask(client, "tides", messages=messages, **fields)
    assert second.usage.cache_read_input_tokens == first.usage.cache_creation_input_tokens
    assert second.usage.cache_creation_input_tokens > 900
    third = ask(client, "tides", messages=messages, tools=[TOOL], tool_choice={"type": "none"}, **fields)
    assert third.usage.cache_read_input_tokens == 0


def test_another_tool_choice_leaves_only_tools_and_system_cached(
    simulator: Simulator, client: anthropic.Anthropic
) -> None:
    simulator.play("tides", text("one"), text("two"))
    fields: dict[str, Any] = {
        "system": [{"type": "text", "text": "be brief " * 1000, "cache_control": {"type": "ephemeral"}}],
        "tools": [TOOL],
    }
    messages = [{"role": "user", "content": "tides " * 1000}]
    first = ask(client, "tides", messages=messages, **fields).usage
    second = ask(client, "tides", messages=messages, tool_choice={"type": "none"}, **fields).usage
    assert second.cache_read_input_tokens == first.cache_creation_input_tokens
    assert second.cache_creation_input_tokens == 0
    assert second.input_tokens == first.input_tokens


def test_a_short_prefix_is_not_cached(simulator: Simulator, client: anthropic.Anthropic) -> None:
    simulator.play("tides", text("one"))
    usage = ask(client, "tides", cache_control={"type": "ephemeral"}).usage
    assert usage.cache_creation_input_tokens == 0
    assert usage.input_tokens > 0


def test_the_same_request_uses_the_same_tokens() -> None:
    usages = []
    for _ in range(2):
        with Simulator() as simulator:
            usages.append(post(simulator, DEMO_TOPIC).json()["usage"])
    assert usages[0] == usages[1]


# What was asked


def test_requests_are_kept_without_the_key(simulator: Simulator) -> None:
    post(simulator, "tides")
    (recorded,) = simulator.requests
    assert recorded.status == 200
    assert recorded.topic == "tides"
    assert recorded.body["max_tokens"] == 100
    assert recorded.headers["anthropic-version"] == "2026-10-21"
    assert "x-api-key" not in recorded.headers
    assert recorded.time > 0


def test_refused_requests_are_kept_too(simulator: Simulator) -> None:
    requests.post(f"{simulator.url}/v1/messages", data=b"{", timeout=10)
    (recorded,) = simulator.requests
    assert (recorded.status, recorded.body, recorded.topic) == (400, None, "")


def test_waiting_for_requests_ends_when_they_have_come(simulator: Simulator) -> None:
    assert not simulator.wait_for_requests(1, timeout=0.01)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(simulator.wait_for_requests, 2)
        post(simulator, "tides")
        post(simulator, "tides")
        assert waiting.result(10)
    assert simulator.received == 2


def test_only_so_many_requests_are_kept() -> None:
    with Simulator(keep_requests=2) as simulator:
        for number in range(3):
            post(simulator, f"tides {number}")
        assert [recorded.topic for recorded in simulator.requests] == ["tides 1", "tides 2"]
        assert simulator.received == 3


# Other routes


def test_models_are_listed(simulator: Simulator, client: anthropic.Anthropic) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert listed[MODEL].max_input_tokens == 1_000_000
    assert listed["claude-haiku-4-5"].max_tokens == 64_000
    assert client.models.retrieve("claude-opus-5-5").id == "claude-opus-5-5"
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("claude-nonesuch")


def test_tokens_are_counted(simulator: Simulator, client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "tides " * 100}])
    assert 150 <= counted.input_tokens <= 200
    with pytest.raises(anthropic.BadRequestError):
        client.messages.count_tokens(model=MODEL, messages=[{"role": "assistant", "content": "tides"}])


def test_every_answer_says_that_it_is_simulated(simulator: Simulator) -> None:
    for path in ("/", "/v1/models", "/pages/museum-history.html", "/nonesuch", "/simulator/billed"):
        assert requests.get(simulator.url + path, timeout=10).headers["x-simulated"] == "gligabao"
    assert post(simulator, "tides").headers["x-simulated"] == "gligabao"


def test_the_front_page_says_what_it_is(simulator: Simulator) -> None:
    about = requests.get(simulator.url, timeout=10)
    assert about.headers["content-type"].startswith("text/plain")
    assert "no real model" in about.text
    assert f"{simulator.url}/pages/museum-history.html" in about.text
    assert "/simulator/faults" in about.text


def test_pages_are_served_and_one_is_gone(simulator: Simulator) -> None:
    page = requests.get(f"{simulator.url}/pages/harbour-trust-annual-report-2019.html", timeout=10)
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "41.8 gigawatt hours" in page.text
    assert requests.get(f"{simulator.url}/pages/monthly-output-tables.html", timeout=10).status_code == 404


def test_unknown_routes_are_not_found(simulator: Simulator) -> None:
    assert requests.get(f"{simulator.url}/v2/nonesuch", timeout=10).status_code == 404
    assert requests.post(f"{simulator.url}/v2/nonesuch", json={}, timeout=10).status_code == 404
    assert requests.delete(f"{simulator.url}/v2/nonesuch", timeout=10).status_code == 404


def test_the_bill_and_the_requests_can_be_read_over_http(simulator: Simulator) -> None:
    post(simulator, "tides")
    post(simulator, "clouds")
    billed = requests.get(f"{simulator.url}/simulator/billed", timeout=10).json()
    assert billed["total"]["calls"] == 2
    assert set(billed["by_topic"]) == {"tides", "clouds"}
    kept = requests.get(f"{simulator.url}/simulator/requests?last=1", timeout=10).json()
    assert kept["received"] == 2
    assert kept["requests"][0]["body"]["messages"][0]["content"] == "clouds"
    assert requests.get(f"{simulator.url}/simulator/requests?last=x", timeout=10).status_code == 400


@pytest.mark.parametrize(
    ("order", "effect"),
    [
        ({"status": 529, "count": 1, "retry_after": 1}, anthropic.OverloadedError),
        ({"kind": "drop"}, anthropic.APIConnectionError),
        ({"kind": "drop_midway"}, anthropic.APIConnectionError),
        ({"kind": "hang", "seconds": 0.01}, anthropic.APIConnectionError),
        ({"kind": "malformed"}, json.JSONDecodeError),
    ],
)
def test_faults_are_ordered_over_http(
    simulator: Simulator, client: anthropic.Anthropic, order: dict[str, Any], effect: type[Exception]
) -> None:
    assert requests.post(f"{simulator.url}/simulator/faults", json=order, timeout=10).status_code == 200
    with pytest.raises(effect):
        ask(client, "tides")
    assert ask(client, "tides").stop_reason == "end_turn"


def test_dripping_and_failed_searches_are_ordered_over_http(simulator: Simulator, client: anthropic.Anthropic) -> None:
    for order in ({"kind": "drip", "seconds": 0.0001}, {"kind": "search_error", "error_code": "unavailable"}):
        requests.post(f"{simulator.url}/simulator/faults", json=order, timeout=10)
    assert ask(client, "tides").content[0].text == "This answer came very slowly."
    assert ask(client, "tides", tools=[SEARCH_TOOL]).content[1].content.error_code == "unavailable"


def test_a_failed_search_that_was_ordered_waits_for_a_search(simulator: Simulator, client: anthropic.Anthropic) -> None:
    requests.post(f"{simulator.url}/simulator/faults", json={"kind": "search_error"}, timeout=10)
    assert types_of(ask(client, "tides"))[-1] == "text"
    assert ask(client, "tides", tools=[SEARCH_TOOL]).content[1].content.error_code == "unavailable"


def test_a_fault_may_spare_searches(simulator: Simulator, client: anthropic.Anthropic) -> None:
    simulator.faults.add(error(500), searches=False)
    assert ask(client, "tides", tools=[SEARCH_TOOL]).stop_reason == "end_turn"
    with pytest.raises(anthropic.InternalServerError):
        ask(client, "tides")


def test_a_body_in_chunks_is_refused(simulator: Simulator) -> None:
    response = requests.post(f"{simulator.url}/v1/messages", data=iter([b"{", b"}"]), timeout=10)
    assert response.status_code == 411


def test_faults_are_deleted_over_http(simulator: Simulator, client: anthropic.Anthropic) -> None:
    requests.post(f"{simulator.url}/simulator/faults", json={"status": 500, "count": None}, timeout=10)
    assert requests.delete(f"{simulator.url}/simulator/faults", timeout=10).status_code == 204
    assert ask(client, "tides").stop_reason == "end_turn"


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ({}, "give either a status or a kind"),
        ({"status": 500, "kind": "hang"}, "give either a status or a kind"),
        ({"status": 200}, "status: must be at least 400"),
        ({"kind": "fire"}, 'kind: must be "hang", "drip", "drop", '),
        ({"status": 500, "colour": "red"}, "colour: is not a known field"),
    ],
)
def test_an_unclear_fault_is_refused(simulator: Simulator, order: dict[str, Any], message: str) -> None:
    response = requests.post(f"{simulator.url}/simulator/faults", json=order, timeout=10)
    assert response.status_code == 400
    assert message in response.json()["error"]


def test_an_order_that_is_not_json_is_refused(simulator: Simulator) -> None:
    response = requests.post(f"{simulator.url}/simulator/faults", data="status=500", timeout=10)
    assert response.status_code == 400
    assert response.json() == {"error": "the body: must be JSON"}
