"""The model client against the simulated Messages API: retries, wake-ups, odd answers, what it counts."""

import json
import socket
import threading
import tracemalloc
import zlib
from contextlib import contextmanager, suppress
from decimal import Decimal

import httpcore2
import pytest

from gligabao.cancel import Cancel
from gligabao.config import ModelPrice
from gligabao.errors import Cancelled, ModelError, ModelRefused, PromptTooLong, StartError, Unavailable
from gligabao.logs import keep_secret
from gligabao.model.client import ModelServer, Request, Retrying, least_thinking
from gligabao.model.conversation import Conversation
from gligabao.model.intake import MAX_ANSWER_BYTES
from gligabao.model.prices import Prices
from gligabao.model.proxy import find_proxy
from gligabao.model.reply import RawUsage
from gligabao.simulator import Simulator, replies
from tests.fakes import BY_USER, FakeObserver
from tests.lines import Proxy, resolves_to, server_tls, silent_address, trusting_tls

MODEL = "claude-sonnet-5-5"
QUICK = Retrying(first_wait_seconds=0.001)


@pytest.fixture
def connect(simulator, watchdog):
    """Connect to the simulator: `connect(cancel, **settings of ModelServer)`; `tls` is what it trusts."""
    opened = []

    def connect(cancel=None, **settings):
        settings = {"api_key": "k", "base_url": simulator.url, "prices": Prices({}), "retrying": QUICK} | settings
        tls = settings.pop("tls", None)
        server = ModelServer(watchdog=watchdog, **settings)
        server._ssl = tls or server._ssl
        connection = server.connect(cancel or Cancel())
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        connection.close()


def take_request(connection):
    """Read a request whole: closing a connection with bytes unread resets it, and the answer may be lost."""
    with connection.makefile("rb") as stream:
        length = 0
        while (line := stream.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        stream.read(length)


@contextmanager
def server_of(*answers, tls=None):
    """The URL of a server that says these bytes, one each connection; the last of several pieces is said for ever."""

    opened = []

    def accept(listener):
        connection = listener.accept()[0]
        return tls.wrap_socket(connection, server_side=True) if tls else connection

    def say(listener):
        for answer in answers:
            with suppress(OSError), accept(listener) as connection:
                opened.append(connection)
                take_request(connection)
                first, *rest = answer if isinstance(answer, tuple) else (answer,)
                connection.sendall(first)
                while rest:
                    connection.sendall(rest[-1])
        # Nobody would answer another call: it is refused, and not left to wait.
        listener.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=say, args=(listener,))
        thread.start()
        try:
            port = listener.getsockname()[1]
            yield f"https://localhost:{port}" if tls else f"http://127.0.0.1:{port}"
        finally:
            for one in [listener, *opened]:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def http(status, *headers, body=b""):
    """The bytes of an answer, after which the connection is closed."""
    lines = [f"HTTP/1.1 {status}", *headers, "Connection: close"]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def message(*content, stop_reason="end_turn"):
    """The body of a whole answer with these blocks, in ASCII."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    return json.dumps({"content": content, "stop_reason": stop_reason, "usage": usage}).encode()


GOOD = http("200 OK", "Content-Type: application/json", body=message({"type": "text", "text": "Good."}))


def request(topic, **settings):
    conversation = Conversation(system="Be brief.", topic=topic)
    return Request(MODEL, conversation, **{"max_tokens": 100} | settings)


def test_an_answer_comes_with_its_usage_and_price(connect, simulator):
    simulator.play("hello", replies.text("Hello."))
    observer = FakeObserver()
    reply = connect().ask(request("hello"), observer)
    assert (reply.text, reply.stop_reason) == ("Hello.", "end_turn")
    billed = simulator.billed().total
    assert observer.usage.output_tokens == billed.output_tokens > 0
    assert observer.usage.input_tokens == billed.input_tokens + billed.cache_creation + billed.cache_read > 0
    assert observer.usage.cost_usd > 0


@pytest.mark.parametrize(
    ("failure", "note"),
    [
        (replies.error(529), "overloaded"),
        (replies.error(500), "server error"),
        (replies.error(429), "rate limited"),
        (replies.drop(), "connection failed"),
        (replies.drop(midway=True), "connection failed"),
        (replies.malformed(), "malformed answer"),
        (replies.raw({"type": "message"}), "malformed answer"),
        (replies.raw([]), "malformed answer"),
    ],
)
def test_what_may_pass_is_tried_again_and_shown(connect, simulator, failure, note):
    simulator.play("again", failure, failure, replies.text("Now."))
    observer = FakeObserver()
    assert connect().ask(request("again"), observer).text == "Now."
    assert observer.lines == [f"{note}, retry 1 of 6", f"{note}, retry 2 of 6"]


def test_what_does_not_pass_fails_after_the_last_retry(connect, simulator):
    simulator.play("down", *[replies.error(529)] * 9)
    with pytest.raises(ModelError, match=r"failed after 6 retries: overloaded \(status 529\): Overloaded"):
        connect().ask(request("down"), FakeObserver())
    assert simulator.received == 7


@pytest.mark.parametrize(
    "failure",
    [
        replies.error(400, message="no"),
        replies.error(401),
        replies.error(403),
        replies.error(404),
        replies.error(429, message="You have reached your specified API usage limits"),
        replies.raw(
            {
                "type": "error",
                "error": {
                    "type": "rate_limit_error",
                    "message": "stop",
                    "details": {"error_code": "contract_spend_limit_reached"},
                },
            },
            status=429,
        ),
        replies.error(500, headers={"x-should-retry": "false"}),
    ],
)
def test_what_will_not_pass_fails_at_once(connect, simulator, failure):
    simulator.play("refused", failure)
    with pytest.raises(ModelError):
        connect().ask(request("refused"), FakeObserver())
    assert simulator.received == 1


def test_the_wait_that_the_server_asks_for_is_kept(connect, simulator):
    simulator.play("later", replies.error(429, headers={"retry-after-ms": "400"}), replies.text("Now."))
    connect(retrying=Retrying(first_wait_seconds=60)).ask(request("later"), FakeObserver())
    first, second = simulator.requests
    assert second.time - first.time >= 0.4


def test_a_wait_longer_than_the_time_left_fails_at_once(connect, simulator):
    simulator.play("tomorrow", replies.error(429, headers={"retry-after": "86400"}))
    with pytest.raises(ModelError, match="rate limited"):
        connect().ask(request("tomorrow"), FakeObserver())


def test_the_last_attempt_is_made_before_the_time_is_up(connect, simulator):
    simulator.play("again", replies.error(529), replies.text("Now."), replies.error(529), replies.error(529))
    connection = connect(retrying=Retrying(first_wait_seconds=60, total_seconds=0.1))
    assert connection.ask(request("again"), FakeObserver()).text == "Now."
    with pytest.raises(ModelError, match="failed after 1 retry: overloaded"):
        connection.ask(request("again"), FakeObserver())


def test_a_time_out_is_tried_once_more(connect, simulator):
    simulator.play("slow", replies.hang(), replies.hang(), replies.text("never asked for"))
    observer = FakeObserver()
    with pytest.raises(ModelError, match="timed out"):
        connect(timeout_seconds=0.2).ask(request("slow"), observer)
    assert simulator.received == 2
    assert observer.lines == ["timed out, retry 1 of 6"]


def test_an_answer_that_drips_is_timed_out_too(connect, simulator):
    simulator.play("drip", replies.drip(seconds_per_byte=0.05), replies.text("Whole."))
    assert connect(timeout_seconds=0.5).ask(request("drip"), FakeObserver()).text == "Whole."


@pytest.mark.parametrize("reply", [replies.hang(), replies.drip(seconds_per_byte=0.2), replies.error(529)])
def test_a_stop_wakes_a_call_wherever_it_sits(connect, simulator, reply):
    simulator.play("stuck", *[reply] * 9)
    cancel = Cancel()
    connection = connect(cancel, retrying=Retrying(first_wait_seconds=60))
    stopped = threading.Event()

    def ask():
        with pytest.raises(Cancelled, match="by the user"):
            connection.ask(request("stuck"), FakeObserver())
        stopped.set()

    thread = threading.Thread(target=ask)
    thread.start()
    assert simulator.wait_for_requests(1)
    cancel.set(BY_USER)
    assert stopped.wait(10)
    thread.join(10)
    assert simulator.received == 1


def test_a_stopped_agent_makes_no_call(connect, simulator):
    cancel = Cancel()
    cancel.set(BY_USER)
    with pytest.raises(Cancelled):
        connect(cancel).ask(request("x"), FakeObserver())
    assert simulator.received == 0


def test_an_answer_thrown_away_is_counted(connect, simulator):
    simulator.play("refuse", replies.refusal("cyber", explanation="no exploits"))
    observer = FakeObserver()
    with pytest.raises(ModelRefused, match="the model refused to answer: cyber: no exploits"):
        connect().ask(request("refuse"), observer)
    assert observer.usage.input_tokens > 0
    unusable = {"content": [1], "usage": {"input_tokens": 7, "output_tokens": 3}}
    simulator.play("unusable", replies.raw(unusable), replies.text("Good."))
    observer = FakeObserver()
    connect().ask(request("unusable"), observer)
    assert observer.usage.input_tokens > 7


def test_a_paused_turn_is_continued_with_what_was_said(connect, simulator):
    simulator.play("pause", replies.pause_turn("One, "), replies.pause_turn("two, "), replies.text("three."))
    reply = connect().ask(request("pause"), FakeObserver())
    assert reply.text == "One, two, three."
    assert [block["text"] for block in simulator.requests[-1].body["messages"][-1]["content"]] == ["One, ", "two, "]


def test_a_turn_paused_for_ever_is_an_error(connect, simulator):
    simulator.play("pause", *[replies.pause_turn("and ")] * 12)
    with pytest.raises(ModelError, match="paused its turn more than 10 times"):
        connect().ask(request("pause"), FakeObserver())
    assert simulator.received == 11


@pytest.mark.parametrize(
    ("failure", "excess"),
    [
        (replies.error(400, message="prompt is too long: 280000 tokens > 200000 maximum"), 1.4),
        (replies.error(400, message="This model's maximum context length is 8192 tokens"), None),
        (replies.error(413), None),
    ],
)
def test_a_prompt_that_is_too_long_is_told_as_such(connect, simulator, failure, excess):
    simulator.play("long", failure)
    with pytest.raises(PromptTooLong) as raised:
        connect().ask(request("long"), FakeObserver())
    assert raised.value.excess == excess
    assert simulator.received == 1


def test_a_field_that_the_server_refuses_is_left_out_from_then_on(connect, simulator):
    refuse = replies.error(400, message="cache_control: Extra inputs are not permitted")
    simulator.play("local", refuse, replies.text("Hello."), replies.text("Again."))
    connection = connect()
    connection.ask(request("local"), FakeObserver())
    connection.ask(request("local"), FakeObserver())
    assert ["cache_control" in asked.body for asked in simulator.requests] == [True, False, False]


def test_caching_that_is_demanded_is_not_left_out(connect, simulator):
    simulator.play("local", replies.error(400, message="cache_control: Extra inputs are not permitted"))
    with pytest.raises(ModelError):
        connect(prompt_cache="on").ask(request("local"), FakeObserver())


def test_caching_can_be_off(connect, simulator):
    connect(prompt_cache="off").ask(request("anything"), FakeObserver())
    assert "cache_control" not in simulator.requests[0].body


@pytest.mark.parametrize("model", ["claude-sonnet-5-5", "claude-opus-5-5", "claude-sonnet-5", "claude-haiku-5-5"])
def test_little_thinking_is_asked_for_in_words_the_model_takes(connect, simulator, model):
    conversation = Conversation(system="Be brief.", topic="thinking")
    asked = Request(model, conversation, max_tokens=1024, options=least_thinking(model))
    connect().ask(asked, FakeObserver())
    assert [recorded.status for recorded in simulator.requests] == [200]


def test_without_a_key_there_is_no_connection(watchdog):
    with pytest.raises(Unavailable, match="ANTHROPIC_API_KEY"):
        ModelServer(api_key=None, base_url=None, prices=Prices({}), watchdog=watchdog).connect(Cancel())


def test_the_key_is_sent_and_never_told(connect, simulator):
    simulator.play("x", replies.error(401))
    with pytest.raises(ModelError) as raised:
        connect(api_key="sk-canary").ask(request("x"), FakeObserver())
    assert "sk-canary" not in str(raised.value)


def test_one_connection_is_kept_for_all_calls(connect, simulator):
    connection = connect()
    ports = set()
    for _ in range(3):
        connection.ask(request("x"), FakeObserver())
        ports.add(connection._line._twin.getsockname())
    assert len(ports) == 1


# Prices, computed by hand from the public price table: dollars a million tokens, $0.01 a search.
PRICED = [
    ("claude-sonnet-5-5", {"input_tokens": 1_000_000}, "2"),
    ("claude-sonnet-5-5", {"output_tokens": 1_000_000}, "10"),
    ("claude-sonnet-5-5", {"cache_creation_input_tokens": 1_000_000}, "2.5"),
    ("claude-sonnet-5-5", {"cache_read_input_tokens": 1_000_000}, "0.1"),
    ("claude-sonnet-5-5", {"server_tool_use": {"web_search_requests": 2}}, "0.02"),
    (
        "claude-sonnet-5-5",
        {
            "cache_creation_input_tokens": 2_000_000,
            "cache_creation": {"ephemeral_5m_input_tokens": 1_000_000, "ephemeral_1h_input_tokens": 1_000_000},
        },
        "6.5",
    ),
    ("claude-haiku-5-5", {"input_tokens": 100_000}, "0.01"),
    ("claude-haiku-5-5", {"input_tokens": 100_000, "cache_read_input_tokens": 100_000}, "0.055"),
    ("claude-opus-5-5", {"input_tokens": 1000, "output_tokens": 100}, "0.006"),
]


@pytest.mark.parametrize(("model", "usage", "dollars"), PRICED)
def test_calls_cost_what_the_price_table_says(model, usage, dollars):
    assert Prices({}).price(model, RawUsage.model_validate(usage)).cost_usd == Decimal(dollars)


@pytest.mark.parametrize(
    "odd",
    [
        {"cache_creation": {"ephemeral_5m_input_tokens": -5}},
        {"cache_creation": {"ephemeral_1h_input_tokens": 10**30}},
        {"cache_creation": {"ephemeral_1h_input_tokens": 50}},
        {"output_tokens_details": {"thinking_tokens": -5}},
    ],
)
def test_numbers_that_cannot_be_do_not_hide_the_price(odd, caplog):
    usage = {"input_tokens": 1_000_000, "output_tokens": 0}
    assert Prices({}).price("claude-sonnet-5-5", RawUsage.model_validate(usage | odd)).cost_usd == Decimal(2)
    assert f"impossible details of its usage ({next(iter(odd))})" in caplog.text


def test_a_model_without_a_price_is_said_so():
    prices = Prices({})
    assert not prices.is_known("qwen3:8b")
    assert prices.price("qwen3:8b", RawUsage(input_tokens=5)).cost_usd is None


def test_prices_of_ones_own_count_for_the_models_they_name():
    own = ModelPrice(input=1.0, output=2.0, cache_read=0.1, cache_write=1.5)
    usage = RawUsage(
        input_tokens=10**6, output_tokens=10**6, cache_read_input_tokens=10**6, cache_creation_input_tokens=10**6
    )
    prices = Prices({"qwen3:8b": own})
    assert prices.is_known("qwen3:8b")
    assert prices.price("qwen3:8b", usage).cost_usd == Decimal("4.6")


def test_the_retries_take_about_three_minutes():
    waits = [Retrying().wait_seconds(retry) for retry in range(1, 7)]
    assert 140 <= sum(waits) <= 190
    assert waits == sorted(waits)


@pytest.mark.parametrize(
    "answer",
    [
        {"content": 3, "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}},
        {"content": {}, "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}},
        {"content": [{"type": "text"}], "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}},
        {"content": [{"text": "x"}], "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}},
    ],
)
def test_an_answer_that_cannot_be_is_malformed(connect, simulator, answer):
    simulator.play("odd", replies.raw(answer), replies.text("Good."))
    observer = FakeObserver()
    assert connect().ask(request("odd"), observer).text == "Good."
    assert observer.lines == ["malformed answer, retry 1 of 6"]


def test_a_key_that_the_server_echoes_is_not_told(connect, simulator):
    keep_secret("sk-ant-api03-echoed-canary")
    simulator.play("echo", replies.error(401, message="bad key: Bearer sk-ant-api03-echoed-canary"))
    with pytest.raises(ModelError, match="the API key was refused") as raised:
        connect(api_key="sk-ant-api03-echoed-canary").ask(request("echo"), FakeObserver())
    assert "canary" not in str(raised.value)


def test_a_redirect_is_not_followed(connect, simulator):
    with Simulator() as elsewhere:
        headers = {"location": f"{elsewhere.url}/v1/messages"}
        simulator.play("moved", replies.error(307, message="over there", headers=headers))
        with pytest.raises(ModelError, match="redirected to another address"):
            connect().ask(request("moved"), FakeObserver())
        assert elsewhere.received == 0


def test_an_answer_to_a_cache_is_not_called_a_redirect(connect):
    with server_of(http("304 Not Modified")) as url, pytest.raises(ModelError) as raised:
        connect(base_url=url).ask(request("x"), FakeObserver())
    assert "not modified, which is no answer to a call (status 304)" in str(raised.value)


def test_the_answer_is_asked_for_unpacked(connect, simulator):
    connect().ask(request("x"), FakeObserver())
    assert simulator.requests[0].headers["accept-encoding"] == "identity"


def test_a_packed_answer_is_read_all_the_same(connect):
    body = zlib.compress(message({"type": "text", "text": "Good."}), wbits=31)
    with server_of(http("200 OK", "Content-Encoding: gzip", body=body)) as url:
        assert connect(base_url=url).ask(request("x"), FakeObserver()).text == "Good."


def test_an_answer_without_an_end_is_cut_and_tried_again(connect):
    observer = FakeObserver()
    with server_of((http("200 OK"), b"x" * 65536), GOOD) as url:
        assert connect(base_url=url).ask(request("x"), observer).text == "Good."
    assert observer.lines == ["malformed answer, retry 1 of 6"]


def test_an_answer_that_is_too_large_is_said_to_be(connect):
    endless = (http("200 OK"), b"x" * 65536)
    with server_of(endless) as url, pytest.raises(ModelError, match="it has more than 8,388,608 bytes"):
        connect(base_url=url, retrying=Retrying(retries=0)).ask(request("x"), FakeObserver())


def test_an_answer_that_cannot_be_unpacked_is_malformed(connect):
    odd = http("200 OK", "Content-Encoding: gzip", body=b"this is no gzip")
    observer = FakeObserver()
    with server_of(odd, GOOD) as url:
        assert connect(base_url=url).ask(request("x"), observer).text == "Good."
    assert observer.lines == ["malformed answer, retry 1 of 6"]


def test_an_error_that_cannot_be_unpacked_keeps_its_status(connect):
    odd = http("401 No", "Content-Encoding: gzip", body=b"this is no gzip")
    with server_of(odd) as url, pytest.raises(ModelError, match="the API key was refused"):
        connect(base_url=url).ask(request("x"), FakeObserver())


def test_an_error_without_an_end_is_cut_and_keeps_its_status(connect):
    endless = (http("400 Bad"), b"x" * 65536)
    with server_of(endless) as url, pytest.raises(ModelError, match=r"refused \(status 400\): x{300}$"):
        connect(base_url=url).ask(request("x"), FakeObserver())


@pytest.mark.parametrize("status", ["200 OK", "400 Bad"])
def test_a_small_answer_that_unpacks_to_a_huge_one_takes_little_memory(connect, status):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(MAX_ANSWER_BYTES)) for _ in range(20)) + packer.flush()
    with server_of(http(status, "Content-Encoding: gzip", body=bomb)) as url:
        connection = connect(base_url=url, retrying=Retrying(retries=0))
        tracemalloc.start()
        try:
            with pytest.raises(ModelError, match=r"malformed answer|status 400"):
                connection.ask(request("x"), FakeObserver())
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 6 * MAX_ANSWER_BYTES


@pytest.mark.parametrize("charset", ["hex", "zip", "idna", "undefined", "rot13", "utf-7", "no-such"])
@pytest.mark.parametrize("status", ["429 Slow", "503 Down"])
def test_an_error_in_an_odd_charset_is_tried_again_too(connect, status, charset):
    odd = http(status, f"Content-Type: text/plain; charset={charset}", body=b"zzzz")
    with server_of(odd, GOOD) as url:
        assert connect(base_url=url).ask(request("x"), FakeObserver()).text == "Good."


def test_what_an_error_in_an_odd_charset_says_is_told(connect):
    odd = http("400 Bad", "Content-Type: text/plain; charset=hex", body="zzzz \u00e9".encode())
    with server_of(odd) as url, pytest.raises(ModelError, match=r"\(status 400\): zzzz \u00e9$"):
        connect(base_url=url).ask(request("x"), FakeObserver())


@pytest.mark.parametrize(
    "wait",
    [
        "Mon, 01 Jan 2024 00:00:00 +99999999999999999",
        "Mon, 99999999999999999999 Jan 2024 00:00:00 GMT",
        "soon",
    ],
)
def test_a_wait_that_is_none_leaves_the_usual_one(connect, wait):
    with server_of(http("429 Slow", f"Retry-After: {wait}"), GOOD) as url:
        assert connect(base_url=url).ask(request("x"), FakeObserver()).text == "Good."


@pytest.mark.parametrize("half", [rb"\ud800", rb"\uDC00", "\ud800".encode("utf-8", "surrogatepass")])
def test_half_a_surrogate_pair_does_not_come_in(connect, half):
    call = {"type": "tool_use", "id": "a", "name": "look_up", "input": {"word HALF": ["HALF", 1]}}
    said = {"type": "text", "text": "HALF \U0001f600"}
    body = message(said, call, stop_reason="tool_use").replace(b"HALF", half)
    with server_of(http("200 OK", body=body)) as url:
        reply = connect(base_url=url).ask(request("x"), FakeObserver())
    assert json.dumps(reply.content, ensure_ascii=False).encode()
    assert reply.text.endswith(" \U0001f600")
    assert reply.tool_calls[0].name == "look_up" and next(iter(reply.tool_calls[0].input.values()))[1] == 1


# Connections


@pytest.fixture
def silent():
    """The address of a host that answers no connection."""
    with silent_address() as address:
        yield address


@pytest.fixture
def tls():
    """The TLS of a server that is called "localhost"."""
    return server_tls()


@contextmanager
def hearing(*, tls=None):
    """The URL of a server that takes connections and never says a word, and an event: set when one has come."""
    reached = threading.Event()
    taken = []

    def accept(listener):
        with suppress(OSError):
            while True:
                taken.append(listener.accept()[0])
                if tls:
                    taken[-1] = tls.wrap_socket(taken[-1], server_side=True)
                reached.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, args=(listener,))
        thread.start()
        yield listener.getsockname(), reached
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        for one in taken:
            one.close()


class Asking:
    """A call on a thread of its own that ends because its agent was told to stop."""

    def __init__(self, connection):
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self._ask, args=(connection,))
        self._thread.start()

    def _ask(self, connection):
        with pytest.raises(Cancelled, match="by the user"):
            connection.ask(request("x"), FakeObserver())
        self.stopped.set()

    def end(self):
        # Far less than any time limit of the calls here.
        assert self.stopped.wait(60)
        self._thread.join(10)


def never_times_out(connection):
    connection._line._connect_seconds = 3600
    return connection


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_stop_wakes_a_call_that_is_still_connecting(connect, silent, scheme):
    cancel = Cancel()
    asking = Asking(never_times_out(connect(cancel, base_url=f"{scheme}://127.0.0.1:{silent[1]}")))
    # There is nothing to wait on between the start and the connect; the stop must work on either side of it.
    threading.Event().wait(0.2)
    cancel.set(BY_USER)
    asking.end()


def test_a_stop_wakes_a_call_that_looks_a_name_up(connect, monkeypatch):
    begun, over = threading.Event(), threading.Event()

    def hang(*_, **__):
        begun.set()
        over.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "later")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    cancel = Cancel()
    asking = Asking(never_times_out(connect(cancel, base_url="http://model.test")))
    assert begun.wait(20)
    cancel.set(BY_USER)
    asking.end()
    over.set()


def test_a_stop_wakes_a_call_in_its_tls_handshake(connect, monkeypatch):
    monkeypatch.setattr("gligabao.model.client.CONNECT_SECONDS", 3600)
    cancel = Cancel()
    with hearing() as (address, reached):
        asking = Asking(connect(cancel, base_url=f"https://localhost:{address[1]}"))
        assert reached.wait(20)
        cancel.set(BY_USER)
        asking.end()


def test_a_stop_wakes_a_call_that_waits_for_its_answer_over_tls(connect, tls):
    cancel = Cancel()
    with hearing(tls=tls) as (address, reached):
        asking = Asking(connect(cancel, base_url=f"https://localhost:{address[1]}", tls=trusting_tls()))
        assert reached.wait(20)
        cancel.set(BY_USER)
        asking.end()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_stop_wakes_a_call_that_waits_for_a_proxy(connect, monkeypatch, scheme):
    cancel = Cancel()
    with hearing() as (address, reached):
        monkeypatch.setenv(f"{scheme}_proxy", f"http://127.0.0.1:{address[1]}")
        asking = Asking(connect(cancel, base_url=f"{scheme}://model.test"))
        assert reached.wait(20)
        cancel.set(BY_USER)
        asking.end()


def test_a_silent_address_leaves_time_for_the_next(connect, silent, monkeypatch):
    with server_of(GOOD) as url:
        good = ("127.0.0.1", int(url.rpartition(":")[2]))
        monkeypatch.setattr(socket, "getaddrinfo", resolves_to(silent, good))
        observer = FakeObserver()
        assert connect(base_url="http://model.test").ask(request("x"), observer).text == "Good."
    assert observer.lines == []


def test_a_host_that_cannot_be_reached_is_tried_again_and_told(connect):
    observer = FakeObserver()
    retrying = Retrying(retries=1, first_wait_seconds=0.001)
    with pytest.raises(ModelError, match="connection failed"):
        connect(base_url="http://127.0.0.1:1", retrying=retrying).ask(request("x"), observer)
    assert observer.lines == ["connection failed, retry 1 of 1"]
    with pytest.raises(ModelError, match=r"nowhere\.invalid: the host name could not be resolved"):
        connect(base_url="http://nowhere.invalid", retrying=retrying).ask(request("x"), observer)


def test_a_host_that_swallows_connections_is_tried_again_to_the_last_retry(connect, silent):
    observer = FakeObserver()
    connection = connect(base_url=f"http://127.0.0.1:{silent[1]}")
    connection._line._connect_seconds = 0.05
    with pytest.raises(
        ModelError, match=r"failed after 6 retries: connection failed: .*could not connect within 0\.05 s"
    ):
        connection.ask(request("x"), observer)
    assert observer.lines == [f"connection failed, retry {retry} of 6" for retry in range(1, 7)]


def test_a_tls_handshake_without_an_answer_is_tried_again_to_the_last_retry(connect, monkeypatch):
    monkeypatch.setattr("gligabao.model.client.CONNECT_SECONDS", 0.05)
    observer = FakeObserver()
    with hearing() as (address, _), pytest.raises(ModelError, match="after 6 retries: connection failed"):
        connect(base_url=f"https://localhost:{address[1]}").ask(request("x"), observer)
    assert len(observer.lines) == 6


def test_calls_go_over_tls_to_the_server_of_that_name_only(connect, tls):
    with server_of(GOOD, GOOD, tls=tls) as url:
        assert connect(base_url=url, tls=trusting_tls()).ask(request("x"), FakeObserver()).text == "Good."
        wrong = connect(
            base_url=url.replace("localhost", "127.0.0.1"), tls=trusting_tls(), retrying=Retrying(retries=0)
        )
        with pytest.raises(ModelError, match="certificate verify failed: IP address mismatch"):
            wrong.ask(request("x"), FakeObserver())


def test_a_server_that_nobody_vouches_for_is_not_asked(connect, tls):
    with server_of(GOOD, tls=tls) as url, pytest.raises(ModelError, match="certificate verify failed: self-signed"):
        connect(base_url=url, retrying=Retrying(retries=0)).ask(request("x"), FakeObserver())


def test_a_connection_that_the_server_has_closed_is_replaced_without_a_retry(connect):
    observer = FakeObserver()
    with server_of(GOOD.replace(b"Connection: close", b"X: y"), GOOD) as url:
        connection = connect(base_url=url)
        for _ in range(2):
            connection.ask(request("x"), observer)
    assert observer.lines == []


# Proxies


def test_calls_go_through_the_proxy_of_the_environment(connect, monkeypatch):
    with server_of(GOOD) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        assert connect(base_url="http://model.test").ask(request("x"), FakeObserver()).text == "Good."


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_calls_over_tls_go_through_a_tunnel_that_the_proxy_cannot_look_into(connect, monkeypatch, tls, scheme):
    with server_of(GOOD, tls=tls) as url:
        proxy = Proxy(("127.0.0.1", int(url.rpartition(":")[2])), tls=tls if scheme == "https" else None)
        monkeypatch.setenv("https_proxy", f"{scheme}://me:secret@localhost:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        connection = connect(base_url="https://localhost:9", tls=trusting_tls())
        assert connection.ask(request("x"), FakeObserver()).text == "Good."
        proxy.close()
    assert proxy.heads[0].startswith(b"CONNECT localhost:9 ")
    assert b"Basic bWU6c2VjcmV0" in proxy.heads[0]


@pytest.mark.parametrize(
    ("exempt", "url", "proxied"),
    [
        ("", "https://model.test/v1", True),
        ("*", "https://model.test/v1", False),
        ("other.test, model.test", "https://model.test/v1", False),
        ("model.test", "https://MODEL.test/v1", False),
        ("test", "https://model.test/v1", False),
        (".test", "https://model.test/v1", False),
        ("*.test", "https://model.test/v1", False),
        ("del.test", "https://model.test/v1", True),
        ("model.test:8443", "https://model.test/v1", True),
        ("model.test:8443", "https://model.test:8443/v1", False),
        ("https://model.test", "https://model.test/v1", False),
        ("localhost,127.0.0.1", "http://127.0.0.1:8080", False),
        ("10.0.0.0/8", "http://10.1.2.3", False),
        ("10.0.0.0/8", "http://11.1.2.3", True),
        ("::1", "http://[::1]:8080", False),
        ("[::1]", "http://[::1]:8080", False),
        ("not a name, 10.0.0.0/99,/", "http://10.1.2.3", True),
    ],
)
def test_what_the_environment_exempts_is_called_directly(monkeypatch, exempt, url, proxied):
    monkeypatch.setenv("all_proxy", "proxy.test:3128")
    monkeypatch.setenv("no_proxy", exempt)
    assert find_proxy(url) == ("http://proxy.test:3128" if proxied else None)


def test_the_proxy_of_the_scheme_comes_before_the_one_for_all(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://a.test")
    assert (find_proxy("https://model.test"), find_proxy("http://model.test")) == ("http://a.test", None)
    monkeypatch.setenv("all_proxy", "http://b.test")
    assert (find_proxy("https://model.test"), find_proxy("http://model.test")) == ("http://a.test", "http://b.test")


# The start of the server


def load(watchdog, url="https://model.test"):
    ModelServer(api_key="k", base_url=url, prices=Prices({}), watchdog=watchdog).load(MODEL)


def test_a_server_starts_without_reaching_the_model(watchdog, monkeypatch):
    monkeypatch.setattr(socket, "socket", None)
    load(watchdog)


def test_a_server_does_not_start_when_the_http_library_connects_in_its_own_way(watchdog, monkeypatch):
    class Other(httpcore2.ConnectionPool):
        def __init__(self, *, network_backend, **settings):
            super().__init__(**settings)

    monkeypatch.setattr(httpcore2, "ConnectionPool", Other)
    with pytest.raises(StartError, match="model calls could not be stopped"):
        load(watchdog, "http://127.0.0.1:1")


@pytest.mark.parametrize("proxy", ["ftp://proxy.test", "http://proxy.test:port", "socks5://proxy.test"])
def test_a_server_does_not_start_with_a_proxy_that_cannot_be_used(watchdog, monkeypatch, proxy):
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(StartError, match="the proxy that the environment names"):
        load(watchdog)
