"""The simulated API refuses what the real one refuses, and takes what the real one takes."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests

from gligabao.simulator import Simulator
from gligabao.simulator.replies import (
    Reply,
    call,
    pause_turn,
    redacted_thinking,
    searched,
    text,
    thinking,
    tool_calls,
    unknown_block,
)

MODEL = "claude-sonnet-5-5"
HEADERS = {"x-api-key": "any", "anthropic-version": "2026-10-21"}
TOOL = {"name": "look_up", "input_schema": {"type": "object", "properties": {"word": {"type": "string"}}}}
SEARCH_TOOL = {"type": "web_search_20250305", "name": "web_search"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"word": "tide"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "the rise and fall of the sea"}
SERVER_CALL = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "tide"}}
MARK = {"type": "ephemeral"}
LONG_MARK = {"type": "ephemeral", "ttl": "1h"}

Body = dict[str, Any]


@pytest.fixture(scope="module")
def sim() -> Iterator[Simulator]:
    with Simulator() as simulator:
        simulator.play("rule", *[text("taken")] * 1000)
        yield simulator


def simple(**fields: Any) -> Body:
    """A request that is taken, with these fields on top; None takes a field out."""
    body = {"model": MODEL, "max_tokens": 100, "messages": [user("a rule")], **fields}
    return {name: value for name, value in body.items() if value is not None}


def user(content: Any) -> Body:
    return {"role": "user", "content": content}


def assistant(content: Any) -> Body:
    return {"role": "assistant", "content": content}


def words(said: str, **fields: Any) -> Body:
    return {"type": "text", "text": said, **fields}


def talk(*messages: Body, **fields: Any) -> Body:
    """A request with a conversation that begins with the user's turn."""
    return simple(messages=[user("a rule"), *messages], **{"tools": [TOOL], **fields})


def send(simulator: Simulator, body: Any, headers: dict[str, str] = HEADERS) -> requests.Response:
    return requests.post(f"{simulator.url}/v1/messages", json=body, headers=headers, timeout=10)


def tool(**fields: Any) -> Body:
    return {**copy.deepcopy(TOOL), **fields}


REFUSED: dict[str, tuple[Body | list[Any], str]] = {
    # fields
    "a body that is no object": ([1], "must be a JSON object"),
    "no max_tokens": (simple(max_tokens=None), "max_tokens: Field required"),
    "no model": (simple(model=None), "model: Field required"),
    "no messages": (simple(messages=None), "messages: Field required"),
    "max_tokens of the wrong type": (simple(max_tokens="100"), "max_tokens: Input should be a valid integer"),
    "max_tokens below zero": (simple(max_tokens=-1), "max_tokens: Input should be greater than or equal to 0"),
    "temperature": (simple(temperature=0.5), "temperature: Extra inputs are not permitted"),
    "top_p": (simple(top_p=0.5), "top_p: Extra inputs are not permitted"),
    "top_k": (simple(top_k=5), "top_k: Extra inputs are not permitted"),
    "an unknown field": (simple(reasoning="much"), "reasoning: Extra inputs are not permitted"),
    "a beta field without a beta header": (simple(context_management={}), "context_management: Extra inputs"),
    "an unknown field of a message": (simple(messages=[{**user("a rule"), "name": "u"}]), "messages.0.name: Extra"),
    "an unknown field of a block": (
        simple(messages=[user([words("a rule", color="red")])]),
        "messages.0.content.0.text.color: Extra inputs are not permitted",
    ),
    "an unknown field of a tool": (simple(tools=[tool(title="x")]), "tools.0.custom.title: Extra inputs"),
    "an unknown field of tool_choice": (
        simple(tools=[TOOL], tool_choice={"type": "none", "disable_parallel_tool_use": True}),
        "disable_parallel_tool_use: Extra inputs are not permitted",
    ),
    "an unknown field of metadata": (simple(metadata={"run": "1"}), "metadata.run: Extra inputs are not permitted"),
    "an unknown kind of block": (
        simple(messages=[user([{"type": "hologram", "data": 1}])]),
        "messages.0.content.0: Input tag 'hologram'",
    ),
    "an unknown role": (simple(messages=[{"role": "tool", "content": "x"}]), "messages.0.role"),
    "streaming": (simple(stream=True), "does not stream"),
    # models and limits
    "max_tokens beyond the model": (simple(max_tokens=200_000), "max_tokens: 200000 > 128000"),
    "thinking that the model does not have": (
        simple(thinking={"type": "disabled"}),
        '"thinking.type.disabled" is not supported for this model',
    ),
    "a thinking budget on a model without": (
        simple(thinking={"type": "enabled", "budget_tokens": 2000}, max_tokens=4000),
        '"thinking.type.enabled" is not supported',
    ),
    "between_tools on another model": (
        simple(model="claude-opus-5-5", thinking={"type": "between_tools"}),
        '"thinking.type.between_tools" is not supported',
    ),
    "a thinking budget beyond max_tokens": (
        simple(model="claude-haiku-4-5", thinking={"type": "enabled", "budget_tokens": 2000}),
        "`max_tokens` must be greater than `thinking.budget_tokens`",
    ),
    "a thinking budget that is too small": (
        simple(model="claude-haiku-4-5", thinking={"type": "enabled", "budget_tokens": 100}),
        "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
    ),
    # tools
    "two tools of one name": (simple(tools=[TOOL, TOOL]), "Tool names must be unique"),
    "a tool of its own beside the server tool of that name": (
        simple(tools=[tool(name="web_search"), SEARCH_TOOL]),
        "Tool names must be unique",
    ),
    "a tool name with a space": (simple(tools=[tool(name="look up")]), "tools.0.custom.name: String should match"),
    "a tool name that is too long": (simple(tools=[tool(name="x" * 129)]), "tools.0.custom.name: String should match"),
    "a tool without a schema": (simple(tools=[{"name": "t"}]), "tools.0.custom.input_schema: Field required"),
    "a schema that is no object": (
        simple(tools=[tool(input_schema={"type": "string"})]),
        "tools.0.custom.input_schema.type: Input should be 'object'",
    ),
    "a schema without a type": (simple(tools=[tool(input_schema={})]), "tools.0.custom.input_schema.type: Field"),
    "a schema with oneOf at the top": (
        simple(tools=[tool(input_schema={"type": "object", "oneOf": []})]),
        "does not support oneOf, allOf, or anyOf",
    ),
    "an unknown server tool": (simple(tools=[{"type": "web_search_2020", "name": "web_search"}]), "Input tag"),
    "both lists of domains": (
        simple(tools=[{**SEARCH_TOOL, "allowed_domains": ["a.test"], "blocked_domains": ["b.test"]}]),
        "only one of allowed_domains and blocked_domains",
    ),
    "a tool choice without tools": (simple(tool_choice={"type": "auto"}), "only be specified while providing tools"),
    "any tool on a model that does not take it": (
        simple(tools=[TOOL], tool_choice={"type": "any"}),
        'tool_choice: type "tool" and "any" are not supported for this model.',
    ),
    "one tool on a model that does not take it": (
        simple(tools=[TOOL], tool_choice={"type": "tool", "name": "look_up"}),
        'tool_choice: type "tool" and "any" are not supported for this model.',
    ),
    "a choice of a tool that is not there": (
        simple(model="claude-sonnet-5", tools=[TOOL], tool_choice={"type": "tool", "name": "other"}),
        "Tool 'other' not found in provided tools",
    ),
    "a forced tool with thinking": (
        simple(model="claude-sonnet-5", tools=[TOOL], tool_choice={"type": "any"}, thinking={"type": "adaptive"}),
        "Thinking may not be enabled when tool_choice forces tool use",
    ),
    # cache marks
    "five cache marks": (
        simple(messages=[user([words(f"rule {n}", cache_control=MARK) for n in range(5)])]),
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    ),
    "the automatic cache mark as the fifth": (
        simple(cache_control=MARK, messages=[user([words(f"rule {n}", cache_control=MARK) for n in range(4)])]),
        "Found 5.",
    ),
    "a long-lived mark after a short-lived one": (
        simple(system=[words("s", cache_control=MARK)], messages=[user([words("a rule", cache_control=LONG_MARK)])]),
        "must not come after a ttl='5m'",
    ),
    # who speaks when
    "no message": (simple(messages=[]), "at least one message is required"),
    "an assistant first": (simple(messages=[assistant("hello"), user("a rule")]), 'first message must use the "user"'),
    "an assistant last": (talk(assistant("The answer is")), "does not support assistant message prefill"),
    "trailing space in a prefill": (
        simple(model="claude-haiku-4-5", messages=[user("a rule"), assistant("It is ")]),
        "cannot end with trailing whitespace",
    ),
    "a system turn on an old model": (
        simple(model="claude-opus-4-6", messages=[user("a rule"), {"role": "system", "content": "be brief"}]),
        "role 'system' is not supported on this model",
    ),
    "a system turn first": (
        simple(messages=[{"role": "system", "content": "be brief"}, user("a rule")]),
        'first message must use the "user"',
    ),
    "a system turn after an assistant": (
        talk(assistant("ok"), {"role": "system", "content": "be brief"}, user("go on")),
        "must come right after a user turn",
    ),
    # what a turn holds
    "an empty text block": (simple(messages=[user([words("")])]), "text content blocks must be non-empty"),
    "a blank text block": (simple(messages=[user(" \n ")]), "must contain non-whitespace text"),
    "a blank text of the assistant": (talk(assistant([words("  ")]), user("x")), "must contain non-whitespace text"),
    "an empty system block": (simple(system=[words("")]), "system: text content blocks must be non-empty"),
    "an empty text inside a result": (
        talk(assistant([CALL]), user([{**RESULT, "content": [words("")]}])),
        "text content blocks must be non-empty",
    ),
    "empty content of a user": (simple(messages=[user([])]), "messages.0: all messages must have non-empty content"),
    "empty text of a user": (simple(messages=[user("")]), "messages.0: all messages must have non-empty content"),
    "empty content of an assistant": (talk(assistant([]), user("go on")), "messages.1: all messages must have"),
    "a document of the assistant": (
        talk(assistant([{"type": "document", "source": {"type": "text"}}]), user("x")),
        "`document` blocks are not allowed in `assistant` messages",
    ),
    "citations in a text of the user": (
        simple(messages=[user([words("a rule", citations=[{"type": "char_location"}])])]),
        "citations are not allowed in `user` messages",
    ),
    "a tool call of the user": (
        talk(assistant("ok"), user([CALL])),
        "`tool_use` blocks can only be in `assistant` messages",
    ),
    # calls and results
    "a call without a result": (
        talk(assistant([CALL]), user("and?")),
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1.",
    ),
    "a call at the end": (talk(assistant([CALL])), "`tool_use` ids were found without `tool_result` blocks"),
    "one of two calls without a result": (
        talk(assistant([CALL, {**CALL, "id": "toolu_2"}]), user([RESULT])),
        "immediately after: toolu_2.",
    ),
    "a result that comes late": (
        talk(assistant([CALL]), user("wait"), assistant("ok"), user([RESULT])),
        "`tool_use` ids were found without `tool_result` blocks",
    ),
    "a text before the result": (
        talk(assistant([CALL]), user([words("here"), RESULT])),
        "`tool_use` ids were found without `tool_result` blocks",
    ),
    "a result without a call": (
        talk(assistant("ok"), user([RESULT])),
        "messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks: toolu_1.",
    ),
    "a result for another call": (
        talk(assistant([CALL]), user([RESULT, {**RESULT, "tool_use_id": "toolu_9"}])),
        "messages.2.content.1: unexpected `tool_use_id`",
    ),
    "two results for one call": (
        talk(assistant([CALL]), user([RESULT, RESULT])),
        "each tool_use must have a single result",
    ),
    "two calls of one id": (talk(assistant([CALL, CALL]), user([RESULT])), "`tool_use` ids must be unique"),
    "an error without words": (
        talk(assistant([CALL]), user([{**RESULT, "is_error": True, "content": ""}])),
        "messages.2.content.0: content cannot be empty if `is_error` is true",
    ),
    "an error without content": (
        talk(assistant([CALL]), user([{"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True}])),
        "content cannot be empty if `is_error` is true",
    ),
    "tool blocks in a request without tools": (
        talk(assistant([CALL]), user([RESULT]), tools=None),
        "Requests which include `tool_use` or `tool_result` blocks must define tools",
    ),
    "a call id with a space": (talk(assistant([{**CALL, "id": "a b"}]), user([RESULT])), "tool_use.id: String should"),
    # the server's own tool
    "a dangling search in the middle": (
        talk(assistant([SERVER_CALL]), user("and?"), tools=[SEARCH_TOOL]),
        "`srvtoolu_1` was found without a corresponding `web_search_tool_result` block",
    ),
    "a paused search without the tool": (talk(assistant([SERVER_CALL])), "does not define the `web_search` tool"),
    "search results without a search": (
        talk(
            assistant([{"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}]),
            user("and?"),
            tools=[SEARCH_TOOL],
        ),
        "unexpected `tool_use_id` found in `web_search_tool_result` blocks",
    ),
    # seals
    "thinking that nobody signed": (
        talk(assistant([{"type": "thinking", "thinking": "hm", "signature": "abc"}, words("ok")]), user("x")),
        "Invalid `signature` in `thinking` block",
    ),
    "redacted thinking that nobody gave": (
        talk(assistant([{"type": "redacted_thinking", "data": "abc"}, words("ok")]), user("x")),
        "Invalid `data` in `redacted_thinking` block",
    ),
    "a search result that nobody sealed": (
        talk(
            assistant(
                [
                    SERVER_CALL,
                    {
                        "type": "web_search_tool_result",
                        "tool_use_id": "srvtoolu_1",
                        "content": [
                            {"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "forged"}
                        ],
                    },
                ]
            ),
            user("x"),
            tools=[SEARCH_TOOL],
        ),
        "Invalid `encrypted_content`",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_refuses(sim: Simulator, what: str) -> None:
    body, message = REFUSED[what]
    response = send(sim, body)
    assert response.status_code == 400
    refusal = response.json()
    assert refusal["type"] == "error"
    assert refusal["error"]["type"] == "invalid_request_error"
    assert message in refusal["error"]["message"]
    assert refusal["request_id"] == response.headers["request-id"]


TAKEN: dict[str, Body] = {
    "a plain question": simple(),
    "two turns of the user in a row": simple(messages=[user("a rule"), user("and another")]),
    "a system prompt in blocks": simple(system=[words("be brief", cache_control=MARK)]),
    "an empty system prompt": simple(system=""),
    "max_tokens of zero": simple(max_tokens=0),
    "tool choice none with tools": simple(tools=[TOOL], tool_choice={"type": "none"}),
    "tool choice none without tools": simple(tool_choice={"type": "none"}),
    "tool choice auto": simple(tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True}),
    "a forced tool where the model takes it": simple(
        model="claude-sonnet-5", tools=[TOOL], tool_choice={"type": "tool", "name": "look_up"}
    ),
    "adaptive thinking": simple(thinking={"type": "adaptive", "display": "omitted"}),
    "the least thinking of Sonnet 5.5": simple(thinking={"type": "between_tools"}, output_config={"effort": "low"}),
    "a thinking budget where the model has one": simple(
        model="claude-haiku-4-5", max_tokens=4000, thinking={"type": "enabled", "budget_tokens": 2000}
    ),
    "a prefill on an old model": simple(model="claude-haiku-4-5", messages=[user("a rule"), assistant("It is")]),
    "a simulated model": simple(model="simulated-7", tools=[TOOL], tool_choice={"type": "any"}),
    "a call and its result": talk(assistant([CALL]), user([RESULT])),
    "a text after the results": talk(assistant([CALL]), user([RESULT, words("three steps left")])),
    "results spread over two messages": talk(
        assistant([CALL, {**CALL, "id": "toolu_2"}]), user([RESULT]), user([{**RESULT, "tool_use_id": "toolu_2"}])
    ),
    "an empty result": talk(assistant([CALL]), user([{**RESULT, "content": ""}])),
    "an error with words": talk(assistant([CALL]), user([{**RESULT, "is_error": True, "content": "status 404"}])),
    "a system turn after the results": talk(
        assistant([CALL]), user([RESULT]), {"role": "system", "content": "be brief"}
    ),
    "four cache marks, the long-lived first": simple(
        system=[words("s", cache_control=LONG_MARK)],
        messages=[user([words(f"rule {n}", cache_control=MARK) for n in range(3)])],
    ),
    "a mixed turn of server and client tools": talk(
        assistant([SERVER_CALL, CALL]), user([RESULT]), tools=[TOOL, SEARCH_TOOL]
    ),
    "metadata and stop sequences": simple(metadata={"user_id": "u1"}, stop_sequences=["END"]),
}


@pytest.mark.parametrize("what", TAKEN)
def test_it_takes(sim: Simulator, what: str) -> None:
    response = send(sim, TAKEN[what])
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("headers", "status", "error_type"),
    [
        ({"anthropic-version": "2026-10-21"}, 401, "authentication_error"),
        ({"anthropic-version": "2026-10-21", "x-api-key": ""}, 401, "authentication_error"),
        ({"anthropic-version": "2026-10-21", "authorization": "Bearer "}, 401, "authentication_error"),
        ({"x-api-key": "k"}, 400, "invalid_request_error"),
        ({"x-api-key": "k", "anthropic-version": "1999-01-01"}, 400, "invalid_request_error"),
    ],
)
def test_it_wants_a_key_and_a_known_version(
    sim: Simulator, headers: dict[str, str], status: int, error_type: str
) -> None:
    response = send(sim, simple(), headers)
    assert response.status_code == status
    assert response.json()["error"]["type"] == error_type


def test_a_key_may_come_as_a_bearer_token(sim: Simulator) -> None:
    headers = {"authorization": "Bearer k", "anthropic-version": "2026-10-21"}
    assert send(sim, simple(), headers).status_code == 200


def test_an_unknown_model_is_not_found(sim: Simulator) -> None:
    response = send(sim, simple(model="claude-nonesuch-1"))
    assert response.status_code == 404
    assert response.json()["error"] == {"type": "not_found_error", "message": "model: claude-nonesuch-1"}


@pytest.mark.parametrize(
    "raw",
    [b"", b'{"model": ', b'{"max_tokens": NaN}', b'"\\ud83d alone"', b"\xff", b"[" * 100_000],
    ids=["nothing", "half an object", "NaN", "half a surrogate pair", "no UTF-8", "a deep nest"],
)
def test_broken_json_is_refused(sim: Simulator, raw: bytes) -> None:
    response = requests.post(f"{sim.url}/v1/messages", data=raw, headers=HEADERS, timeout=10)
    assert response.status_code == 400
    assert "not valid JSON" in response.json()["error"]["message"]


def test_a_body_over_32_megabytes_is_too_large(sim: Simulator) -> None:
    response = requests.post(f"{sim.url}/v1/messages", data=b" " * (32 * 1024 * 1024 + 1), headers=HEADERS, timeout=30)
    assert response.status_code == 413
    assert response.json()["error"]["type"] == "request_too_large"


def test_sampling_is_taken_from_clients_of_the_old_version(sim: Simulator) -> None:
    assert send(sim, simple(temperature=0.5), {**HEADERS, "anthropic-version": "2023-06-01"}).status_code == 200


def test_beta_fields_are_taken_with_a_beta_header(sim: Simulator) -> None:
    headers = {**HEADERS, "anthropic-beta": "context-management-2025-06-27"}
    assert send(sim, simple(context_management={"edits": []}), headers).status_code == 200


def test_a_prompt_beyond_the_context_window_is_too_long() -> None:
    with Simulator(context_tokens=500) as small:
        small.play("rule", text("taken"))
        assert send(small, simple(messages=[user("a rule " + "x" * 1000)])).status_code == 200
        response = send(small, simple(messages=[user("a rule " + "x" * 3000)]))
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert message.startswith("prompt is too long: ")
    assert message.endswith(" tokens > 500 maximum")


def test_a_chinese_character_is_about_one_token() -> None:
    with Simulator(context_tokens=500) as small:
        response = send(small, simple(messages=[user("潮" * 600)]))
    assert int(response.json()["error"]["message"].split()[4]) in range(600, 650)


def test_lax_empty_takes_empty_turns_of_the_assistant() -> None:
    with Simulator(lax=frozenset({"empty"})) as lax:
        lax.play("rule", text("taken"))
        assert send(lax, talk(assistant([]), user("go on"))).status_code == 200


def test_lax_tools_takes_tool_blocks_without_tools() -> None:
    with Simulator(lax=frozenset({"tools"})) as lax:
        lax.play("rule", text("taken"))
        assert send(lax, talk(assistant([CALL]), user([RESULT]), tools=None)).status_code == 200


def test_an_unknown_lax_rule_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="no such rule: everything"):
        Simulator(lax=frozenset({"everything"}))


@pytest.fixture
def thought(sim: Simulator) -> Body:
    """A conversation whose second turn is a signed thought and a tool call, which was answered."""
    sim.play("sealed", thinking("Let me look that up.", tool_calls(call("look_up", word="tide"))), text("taken"))
    first = simple(messages=[user("sealed")], tools=[TOOL], system="be brief")
    content = send(sim, first).json()["content"]
    result = {"type": "tool_result", "tool_use_id": content[1]["id"], "content": "the sea"}
    return {**first, "messages": [user("sealed"), assistant(content), user([result])]}


def test_thinking_is_taken_back_as_it_came(sim: Simulator, thought: Body) -> None:
    assert send(sim, thought).status_code == 200


def test_thinking_may_be_left_out(sim: Simulator, thought: Body) -> None:
    del thought["messages"][1]["content"][0]
    assert send(sim, thought).status_code == 200


CHANGES: dict[str, Callable[[Body], Any]] = {
    "the thought": lambda body: body["messages"][1]["content"][0].update(thinking="Something else."),
    "the signature": lambda body: body["messages"][1]["content"][0].update(signature="x.y"),
    "the turn before it": lambda body: body["messages"].insert(0, user("sealed, and more")),
    "the system prompt": lambda body: body.update(system="be long"),
    "the tools": lambda body: body["tools"].append(tool(name="other")),
}


@pytest.mark.parametrize("what", CHANGES)
def test_thinking_is_refused_once_something_before_it_was_changed(sim: Simulator, thought: Body, what: str) -> None:
    body = copy.deepcopy(thought)
    CHANGES[what](body)
    response = send(sim, body)
    assert response.status_code == 400
    assert "Invalid `signature` in `thinking` block" in response.json()["error"]["message"]


def test_older_models_do_not_bind_thinking_to_the_conversation(sim: Simulator, thought: Body) -> None:
    thought["system"] = "be long"
    thought["model"] = "claude-sonnet-5"
    assert send(sim, thought).status_code == 200


def test_search_results_and_citations_are_taken_back_only_unchanged(sim: Simulator) -> None:
    sim.play_search("sealed search", searched("It rises.", ("https://a.test/", "Tides")), *[text("taken")] * 2)
    first = simple(messages=[user("sealed search")], tools=[SEARCH_TOOL])
    content = send(sim, first).json()["content"]
    following = {**first, "messages": [user("sealed search"), assistant(content), user("and?")]}
    assert send(sim, following).status_code == 200
    content[1]["content"][0]["url"] = "https://b.test/"
    assert "Invalid `encrypted_content`" in send(sim, following).json()["error"]["message"]


def test_a_paused_turn_is_taken_back_at_the_end(sim: Simulator) -> None:
    sim.play("paused", pause_turn("One moment."), pause_turn("Another."), text("done"))
    body = simple(messages=[user("paused")], tools=[TOOL])
    content: list[Body] = []
    for expected in ("pause_turn", "pause_turn", "end_turn"):
        sent = {**body, "messages": [user("paused"), *([assistant(content)] if content else [])]}
        answer = send(sim, sent).json()
        assert answer["stop_reason"] == expected
        content += answer["content"]


def test_a_turn_that_was_not_paused_is_no_end(sim: Simulator) -> None:
    sim.play("unpaused", pause_turn("One moment."))
    body = simple(messages=[user("unpaused")])
    content = send(sim, body).json()["content"]
    content[0]["text"] += " Changed."
    response = send(sim, {**body, "messages": [user("unpaused"), assistant(content)]})
    assert "does not support assistant message prefill" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("reply", "block_type"),
    [(unknown_block("hologram"), "hologram"), (redacted_thinking(text("a")), "redacted_thinking")],
)
def test_a_block_that_means_nothing_to_a_client_is_taken_back(sim: Simulator, reply: Reply, block_type: str) -> None:
    sim.play(f"block {block_type}", reply, text("taken"))
    body = simple(messages=[user(f"block {block_type}")])
    content = send(sim, body).json()["content"]
    assert content[0]["type"] == block_type
    response = send(sim, {**body, "messages": [*body["messages"], assistant(content), user("and?")]})
    assert response.status_code == 200


def test_a_refused_request_takes_no_reply_from_a_script(sim: Simulator) -> None:
    script = sim.play("untouched", text("taken"))
    assert send(sim, simple(messages=[user("untouched")], temperature=1)).status_code == 400
    assert script.asked == 0
    assert send(sim, simple(messages=[user("untouched")])).status_code == 200
