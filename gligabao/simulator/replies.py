"""The replies that a script can have: what the simulated model says, and all that can go wrong instead.

    sim.play("tides", tool_calls(call("web_search", query="tides")), text("High at noon."))

A reply is a plain value. The server puts the envelope around it: ids, signatures, usage.
"""

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from gligabao.simulator.models import find_model
from gligabao.simulator.prompt import Block, searches_the_web
from gligabao.simulator.seals import block_seal, redacted_thinking_seal

SIGN = "sign me"
"""Stands for the signature of a thinking block until the server, which knows the conversation, puts it in."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What is answered to one request."""

    hold: threading.Event | None = None
    """The answer goes out only once this is set."""
    delay_seconds: float = 0.0
    """The answer goes out this much later."""

    def after(self, hold: threading.Event) -> Self:
        """Return the same reply, given only once the event is set."""
        return dataclasses.replace(self, hold=hold)

    def delayed(self, seconds: float) -> Self:
        """Return the same reply, given that much later."""
        return dataclasses.replace(self, delay_seconds=seconds)


@dataclass(frozen=True)
class MessageReply(Reply):
    """A message of the model, HTTP 200."""

    content: Sequence[Block] = ()
    stop_reason: str = "end_turn"
    stop_details: Mapping[str, Any] | None = None
    web_searches: int = 0
    """How many searches of the server tool it is billed for."""
    obeys_max_tokens: bool = False
    """Whether it is cut at the request's `max_tokens`, like the answers of the built-in researcher."""


@dataclass(frozen=True)
class Failure(Reply):
    """An error of the API."""

    status: int = 500
    type: str = "api_error"
    message: str = "Internal server error"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Raw(Reply):
    """Exactly this, whatever it is: JSON, or bytes that may be something else."""

    body: Any = None
    status: int = 200


@dataclass(frozen=True)
class Malformed(Reply):
    """HTTP 200 with only the first half of the JSON of an answer."""

    answer: MessageReply = field(default_factory=lambda: text("This answer breaks off in its middle."))


@dataclass(frozen=True)
class Hang(Reply):
    """No answer at all, until the simulator stops, the client goes away, or the seconds are over."""

    seconds: float | None = None


@dataclass(frozen=True)
class Drip(Reply):
    """An answer that is sent byte by byte."""

    answer: MessageReply = field(default_factory=lambda: text("This answer came very slowly."))
    seconds_per_byte: float = 0.05


@dataclass(frozen=True)
class Drop(Reply):
    """The connection is closed: without an answer, or halfway through one."""

    midway: bool = False


Scripted = Reply | Callable[[dict[str, Any]], Reply]
"""A reply, or a function that gets the body of the request and returns one."""


def text(words: str, *, stop_reason: str = "end_turn") -> MessageReply:
    """The model says this and ends its turn."""
    return MessageReply([{"type": "text", "text": words}], stop_reason)


def call(name: str, /, **arguments: Any) -> Block:
    """One call of a tool, for `tool_calls`. The server gives it its id."""
    return {"type": "tool_use", "name": name, "input": arguments}


def tool_calls(*calls: Block, text: str = "") -> MessageReply:
    """The model calls these tools in one answer, after a preamble if there is a text."""
    preamble = [{"type": "text", "text": text}] if text else []
    return MessageReply([*preamble, *calls], "tool_use")


def thinking(thought: str, then: MessageReply) -> MessageReply:
    """The same answer with a signed thinking block in front."""
    block = {"type": "thinking", "thinking": thought, "signature": SIGN}
    return dataclasses.replace(then, content=[block, *then.content])


def thinks(body: dict[str, Any]) -> bool:
    """Tell whether the model thinks before it answers this request."""
    if (body.get("output_config") or {}).get("effort") == "low":
        return False
    model = find_model(body["model"])
    kind = (body.get("thinking") or {}).get("type")
    return kind in ("adaptive", "enabled") or (kind is None and model is not None and model.thinks_by_default)


def thinking_blocks(body: dict[str, Any], thought: str) -> list[Block]:
    """Return a thinking block for a request, none where there is no thought or the model does not think.

    Its text is empty where the request asks to leave thinking out.
    """
    if not thought or not thinks(body):
        return []
    shown = "" if (body.get("thinking") or {}).get("display") == "omitted" else thought
    return [{"type": "thinking", "thinking": shown, "signature": SIGN}]


def redacted_thinking(then: MessageReply) -> MessageReply:
    """The same answer with a redacted thinking block in front."""
    block = {"type": "redacted_thinking", "data": redacted_thinking_seal()}
    return dataclasses.replace(then, content=[block, *then.content])


def pause_turn(
    words: str = "Still searching.", *, query: str = "more of the same"
) -> Callable[[dict[str, Any]], Reply]:
    """A paused turn: where the request carries the web search server tool, with a search not yet run."""

    def paused(body: dict[str, Any]) -> Reply:
        content: list[Block] = [{"type": "text", "text": words}]
        if searches_the_web(body):
            content.append({"type": "server_tool_use", "name": "web_search", "input": {"query": query}})
        return MessageReply(content, "pause_turn")

    return paused


def refusal(category: str | None = "general_harms", *, explanation: str | None = None, words: str = "") -> MessageReply:
    """The model declines: HTTP 200, stop reason `refusal`, mostly without content."""
    content = [{"type": "text", "text": words}] if words else []
    return MessageReply(content, "refusal", {"type": "refusal", "category": category, "explanation": explanation})


def cut_text(words: str) -> MessageReply:
    """A text that the output limit cut off."""
    return text(words, stop_reason="max_tokens")


def cut_call(name: str, /, **arguments: Any) -> MessageReply:
    """A tool call that the output limit cut off: the arguments may be incomplete."""
    return MessageReply([call(name, **arguments)], "max_tokens")


def cut_thinking(thought: str = "Let me think about this for a long time") -> MessageReply:
    """An answer whose whole output went into thinking."""
    return MessageReply([{"type": "thinking", "thinking": thought, "signature": SIGN}], "max_tokens")


def empty() -> MessageReply:
    """The model ends its turn without a word."""
    return MessageReply()


def unknown_block(block_type: str, *, words: str = "An answer with a block of a new kind.") -> MessageReply:
    """A block of a type that no client knows, and a text. It is accepted back unchanged."""
    block = {"type": block_type, "id": block_seal(block_type), "data": {"new": True}}
    return MessageReply([block, {"type": "text", "text": words}])


def searched(words: str, *results: tuple[str, str], query: str = "a query") -> MessageReply:
    """A web search of the server tool with these results, (URL, title) each, and a text about them."""
    found = [{"type": "web_search_result", "url": url, "title": title, "page_age": None} for url, title in results]
    return MessageReply([*_search(query, found), {"type": "text", "text": words}], web_searches=1)


def search_error(error_code: str, *, words: str = "The search did not work.", query: str = "a query") -> MessageReply:
    """A web search that failed inside a 200. Failed searches are not billed."""
    error = {"type": "web_search_tool_result_error", "error_code": error_code}
    content = _search(query, error)
    return MessageReply([*content, {"type": "text", "text": words}] if words else content)


def _search(query: str, content: Any) -> list[Block]:
    use = {"type": "server_tool_use", "name": "web_search", "input": {"query": query}}
    return [use, {"type": "web_search_tool_result", "content": content}]


_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_ERROR_WORDS = {
    401: "invalid x-api-key",
    429: "This request would exceed your rate limit",
    500: "Internal server error",
    529: "Overloaded",
}


def error(status: int, error_type: str = "", message: str = "", *, headers: Mapping[str, str] | None = None) -> Failure:
    """An error answer; type and message are the usual ones of the status where they are not given."""
    return Failure(
        status,
        error_type or _ERROR_TYPES.get(status, "api_error"),
        message or _ERROR_WORDS.get(status, f"Simulated error {status}"),
        dict(headers or {}),
    )


def malformed(answer: MessageReply | None = None) -> Malformed:
    """HTTP 200 with half of the JSON of this answer."""
    return Malformed() if answer is None else Malformed(answer)


def hang(seconds: float | None = None) -> Hang:
    """No answer; after so many seconds (None: never) the connection is closed."""
    return Hang(seconds)


def drip(answer: MessageReply | None = None, *, seconds_per_byte: float = 0.05) -> Drip:
    """This answer, byte by byte."""
    return Drip(seconds_per_byte=seconds_per_byte) if answer is None else Drip(answer, seconds_per_byte)


def drop(*, midway: bool = False) -> Drop:
    """The connection closed without an answer, or in the middle of one."""
    return Drop(midway)


def raw(body: Any, *, status: int = 200) -> Raw:
    """Exactly this JSON, or these bytes."""
    return Raw(body, status)
