"""Answers of servers that speak the Messages API in their own way: docs/other-servers.md has the table."""

import json
from decimal import Decimal

import pytest

from gligabao.cancel import Cancel
from gligabao.config import Config
from gligabao.errors import ConfigError, ModelError, PromptTooLong
from gligabao.model.client import ModelServer, Request, Retrying
from gligabao.model.conversation import Conversation
from gligabao.model.prices import Prices
from gligabao.simulator import replies
from tests.fakes import FakeObserver
from tests.world import shape

MODEL = "claude-sonnet-5-5"
USAGE = {"input_tokens": 7, "output_tokens": 3}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "fetch_url", "input": {"url": "http://127.0.0.1:1/"}}


@pytest.fixture
def connect(simulator, watchdog):
    """Connect to the simulator, or to the address given."""
    opened = []

    def connect(base_url=None, **settings):
        given = {"api_key": "k", "prices": Prices({}), "retrying": Retrying(first_wait_seconds=0.001)} | settings
        server = ModelServer(watchdog=watchdog, base_url=base_url or simulator.url, **given)
        opened.append(server.connect(Cancel()))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


class NoPrices(Prices):
    """Knows no model: what the checker is given for a run whose cost is unknown."""

    def is_known(self, model):
        return False


@pytest.fixture
def run_played(new_world, sqlite_url):
    """Run a research on these answers, which nobody bills; return the run and the requests."""

    def play(*answers):
        world = new_world(sqlite_url)
        run = world.run(*answers, replies.text("Report."))
        assert run["status"] == "completed", run["error"]
        world.close(billed=None, charges=None)
        return run, [asked.body for asked in world.simulator.requests]

    return play


def request(topic, model=MODEL, **options):
    return Request(model, Conversation(system="s", topic=topic), max_tokens=100, options=options)


def answer(*content, usage=USAGE, stop_reason="end_turn", **fields):
    body = {"content": list(content) or [{"type": "text", "text": "Good."}], "stop_reason": stop_reason}
    return replies.raw(body | ({} if usage is None else {"usage": usage}) | fields)


# The context is full

FULL = [
    ("Anthropic", 400, "prompt is too long: 280000 tokens > 200000 maximum", 1.4),
    ("Anthropic", 400, "input length and `max_tokens` exceed context limit: 180000 + 60000 > 200000, decrease", 1.2),
    ("Bedrock", 400, "Input is too long for requested model.", None),
    (
        "llama.cpp",
        400,
        "request (6000 tokens) exceeds the available context size (4000 tokens), try increasing it",
        1.5,
    ),
    ("llama.cpp", 500, "Context size has been exceeded.", None),
    ("llama.cpp", 500, "the request exceeds the available context size. try increasing the context size", None),
    ("llama-cpp-python", 400, "Requested tokens (3000) exceed context window of 2000", 1.5),
    (
        "vLLM",
        400,
        "This model's maximum context length is 16000 tokens. However, you requested 24000 tokens (14000 in the "
        "messages, 10000 in the completion). Please reduce the length of the messages or completion.",
        1.5,
    ),
    ("vLLM", 400, "The decoder prompt (length 3000) is longer than the maximum model length of 2000. Make sure", 1.5),
    ("vLLM", 400, "The prompt (total length 3000) is too long to fit into the model (context length 2000).", 1.5),
    ("Ollama", 400, "the input length exceeds the context length", None),
    (
        "LM Studio",
        400,
        "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 6000>= "
        "n_ctx: 4000). Try to load the model with a larger context length",
        1.5,
    ),
    (
        "LM Studio",
        400,
        "Trying to keep the first 3000 tokens when context the overflows. However, the model is loaded with context "
        "length of only 2000 tokens, which is not enough.",
        1.5,
    ),
    (
        "OpenRouter",
        400,
        "This endpoint's maximum context length is 100000 tokens. However, you requested about 150000 tokens",
        1.5,
    ),
    ("OpenAI", 400, "This model's maximum context length has been exceeded.", None),
    ("Gemini", 400, "The input token count (3000) exceeds the maximum number of tokens allowed (2000).", 1.5),
]


@pytest.mark.parametrize(("server", "status", "words", "excess"), FULL, ids=[f"{f[0]}-{f[2][:30]}" for f in FULL])
def test_a_full_context_is_known_by_the_words_of_each_server(connect, simulator, server, status, words, excess):
    simulator.play("long", replies.raw({"error": {"message": words}}, status=status))
    with pytest.raises(PromptTooLong) as raised:
        connect().ask(request("long"), FakeObserver())
    assert raised.value.excess == excess
    assert simulator.received == 1


@pytest.mark.parametrize(
    "error",
    [
        {"type": "exceed_context_size_error", "message": "no", "n_prompt_tokens": 1407, "n_ctx": 256},
        {"code": "context_length_exceeded", "message": "no"},
        "the input length exceeds the context length",
    ],
)
def test_a_full_context_is_known_by_type_and_code_and_in_an_error_that_is_a_text(connect, simulator, error):
    simulator.play("long", replies.raw({"error": error}, status=400))
    with pytest.raises(PromptTooLong):
        connect().ask(request("long"), FakeObserver())


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (429, "too many input tokens per minute: the context length does not matter"),
        (400, "max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens"),
        (400, "messages: text content blocks must be non-empty"),
        (503, "the prompt is too long a story for today"),
    ],
)
def test_other_errors_are_no_full_context(connect, simulator, status, words):
    simulator.play("other", *[replies.raw({"error": {"message": words}}, status=status)] * 7)
    with pytest.raises(ModelError) as raised:
        connect().ask(request("other"), FakeObserver())
    assert not isinstance(raised.value, PromptTooLong)


# Statuses, and errors inside a 200


@pytest.mark.parametrize("status", [408, 409, 425, 500, 524])
def test_statuses_that_may_pass_are_tried_again(connect, simulator, status):
    simulator.play("busy", replies.error(status), replies.text("Good."))
    observer = FakeObserver()
    assert connect().ask(request("busy"), observer).text == "Good."
    assert observer.lines == ["server error, retry 1 of 6"]


@pytest.mark.parametrize(
    ("error", "note"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, "overloaded"),
        ({"type": "rate_limit_error", "message": "slow down"}, "rate limited"),
        ({"message": "the model is loading", "code": 503}, "server error"),
        ("something broke", "server error"),
    ],
)
def test_an_error_inside_a_200_is_tried_again_by_its_own_rule(connect, simulator, error, note):
    simulator.play("inside", replies.raw({"type": "error", "error": error}), replies.text("Good."))
    observer = FakeObserver()
    assert connect().ask(request("inside"), observer).text == "Good."
    assert observer.lines == [f"{note}, retry 1 of 6"]


def test_an_error_inside_a_200_that_will_not_pass_fails_at_once_in_its_own_words(connect, simulator):
    body = {"type": "error", "error": {"type": "authentication_error", "message": "invalid key"}}
    simulator.play("inside", replies.raw(body))
    with pytest.raises(ModelError, match=r"^the model call failed: the API key was refused: invalid key$"):
        connect().ask(request("inside"), FakeObserver())
    assert simulator.received == 1


def test_a_full_context_inside_a_200_is_one(connect, simulator):
    error = {"code": 400, "message": "the request exceeds the available context size", "n_ctx": 8192}
    simulator.play("inside", replies.raw({"error": error}))
    with pytest.raises(PromptTooLong):
        connect().ask(request("inside"), FakeObserver())


@pytest.mark.parametrize(
    "body",
    [
        "<!DOCTYPE html>\n<html><title>Sign in</title>" + "x" * 300,
        "event: message_start\ndata: {}\n\n" + "data: {}\n" * 100,
    ],
)
def test_a_web_page_or_an_event_stream_is_tried_once_more_and_quoted(connect, simulator, body):
    simulator.play("portal", *[replies.raw(body.encode())] * 3)
    with pytest.raises(ModelError) as raised:
        connect().ask(request("portal"), FakeObserver())
    assert simulator.received == 2
    quoted = " ".join(body.split("\n"))[:200].strip()
    assert str(raised.value) == (
        f"the model call failed after 1 retry: malformed answer: {simulator.url}/v1/messages does not answer as the "
        f"Messages API does. Its answer begins: {quoted}"
    )


# Addresses


@pytest.mark.parametrize("end", ["/v1", "/v1/", "/v1/messages", "/"])
def test_an_address_that_ends_in_the_version_is_corrected(connect, simulator, caplog, end):
    simulator.play("there", replies.text("Good."))
    assert connect(simulator.url + end).ask(request("there"), FakeObserver()).text == "Good."
    assert ("anthropic_base_url: left out /v1" in caplog.text) == ("/v1" in end)


@pytest.mark.parametrize("end", ["?key=1", "/#top"])
def test_an_address_with_a_query_or_a_fragment_stops_the_start(end):
    with pytest.raises(ConfigError, match=r"anthropic_base_url \(.*\): must not contain \? or #"):
        Config.load(environ={"ANTHROPIC_BASE_URL": f"http://127.0.0.1:1{end}"})


def test_a_404_names_the_address_that_was_called(connect, simulator):
    simulator.play("lost", replies.error(404, message="nothing here"))
    with pytest.raises(ModelError, match=rf"nothing here \(called {simulator.url}/v1/messages\)$"):
        connect().ask(request("lost"), FakeObserver())


# Usage


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (None, (0, 0)),
        ([], (0, 0)),
        ({}, (0, 0)),
        ({"input_tokens": -1, "output_tokens": 3}, (0, 3)),
        ({"input_tokens": None, "output_tokens": 3}, (0, 3)),
        ({"input_tokens": 7.5, "output_tokens": 3}, (0, 3)),
        ({"input_tokens": "7", "output_tokens": 3}, (0, 3)),
        ({"input_tokens": True, "output_tokens": 3}, (0, 3)),
        ({"input_tokens": 10**30, "output_tokens": 3}, (0, 3)),
        ({"input_tokens": 7}, (7, 0)),
        (USAGE | {"cache_read_input_tokens": -5}, (7, 3)),
        (USAGE | {"server_tool_use": {"web_search_requests": "two"}}, (7, 3)),
    ],
)
def test_an_answer_with_odd_usage_counts_and_its_cost_is_unknown(connect, simulator, usage, tokens):
    simulator.play("odd", answer(usage=usage))
    observer = FakeObserver()
    assert connect().ask(request("odd"), observer).text == "Good."
    used = observer.usage
    assert (used.input_tokens, used.output_tokens, used.cost_usd) == (*tokens, None)
    assert simulator.received == 1


USUAL = [USAGE, USAGE | {"cache_read_input_tokens": None}, {name: float(count) for name, count in USAGE.items()}]


@pytest.mark.parametrize("usage", USUAL)
def test_an_answer_with_usual_usage_has_a_price(connect, simulator, usage):
    simulator.play("usual", answer(usage=usage))
    observer = FakeObserver()
    connect().ask(request("usual"), observer)
    assert observer.usage.cost_usd == Decimal("0.000044")


def test_the_cost_of_a_run_is_unknown_from_such_an_answer_on_and_the_log_says_so_once(new_world, sqlite_url, caplog):
    world = new_world(sqlite_url)
    odd = answer({**CALL}, usage={"input_tokens": -1, "output_tokens": 3}, stop_reason="tool_use")
    again = answer({**CALL, "id": "toolu_2"}, usage=None, stop_reason="tool_use")
    run = world.run(odd, again, replies.text("Report."))
    assert (run["status"], run["cost_usd"]) == ("completed", None)
    assert run["output_tokens"] > 3
    assert caplog.text.count("its cost is unknown from now on") == 1
    world.close(billed=None, charges=None, prices=NoPrices({}))


# Content


@pytest.mark.parametrize("fields", [{}, {"stop_reason": None}, {"stop_reason": 3}, {"id": None, "role": "bot"}])
def test_a_text_alone_and_odd_fields_are_an_answer(connect, simulator, fields):
    simulator.play("bare", replies.raw({"content": "Good.", "usage": USAGE} | fields))
    assert connect().ask(request("bare"), FakeObserver()).text == "Good."


@pytest.mark.parametrize("ids", [("same", "same"), ("", ""), (None, 5), ("a b", "ü"), ("x" * 200, "toolu_1")])
def test_tool_ids_that_the_api_would_refuse_are_replaced_in_calls_and_results(run_played, ids):
    first = answer(*[CALL | {"id": given} for given in ids], stop_reason="tool_use")
    second = answer(CALL | {"id": "same"}, stop_reason="tool_use")
    _, (*_, last) = run_played(first, second)
    called = [
        b["id"] for m in last["messages"] for b in m["content"] if isinstance(b, dict) and b["type"] == "tool_use"
    ]
    answered = [
        b["tool_use_id"] for m in last["messages"] for b in m["content"] if isinstance(b, dict) and "tool_use_id" in b
    ]
    assert called == answered and len(set(called)) == 3


@pytest.mark.parametrize("given", ['{"url": "http://127.0.0.1:1/"}', None, ["http://127.0.0.1:1/"], 3])
def test_an_input_that_is_not_an_object_is_a_tool_error_and_goes_back_as_one(run_played, given):
    run, (*_, last) = run_played(answer(CALL | {"input": given}, stop_reason="tool_use"))
    assert any("the input is not a JSON object" in line for line in shape(run))
    assert last["messages"][1]["content"][0]["input"] == {}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_json_lacks_does_not_go_back(run_played, number):
    body = json.dumps({"content": [CALL | {"input": {"url": 12345}}], "stop_reason": "tool_use", "usage": USAGE})
    _, (*_, last) = run_played(replies.raw(body.replace("12345", number).encode()))
    assert last["messages"][1]["content"][0]["input"] == {"url": None}


def test_a_blank_text_in_a_paused_turn_does_not_go_back(connect, simulator):
    said = [{"type": "text", "text": " \n"}, {"type": "text", "text": "So "}]
    paused = replies.MessageReply(said, "pause_turn")
    simulator.play("pause", paused, replies.text("far."))
    assert connect().ask(request("pause"), FakeObserver()).text == " \nSo far."
    assert simulator.requests[1].body["messages"][1]["content"] == said[1:]


# Optional fields


def test_a_refusal_of_a_field_is_about_that_model_and_that_value(connect, simulator):
    refusal = replies.error(400, message="output_config: effort low is not supported")
    simulator.play("field", refusal, *[replies.text("Good.")] * 4)
    connection = connect()
    for model, effort in ((MODEL, "low"), (MODEL, "low"), (MODEL, "high"), ("claude-opus-5-5", "low")):
        connection.ask(request("field", model, output_config={"effort": effort}), FakeObserver())
    assert ["output_config" in asked.body for asked in simulator.requests] == [True, False, False, True, True]
