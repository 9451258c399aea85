"""What the model answered: checked where gligabao relies on it, and kept as it came everywhere else."""

import codecs
import json
import math
import re
import secrets
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from gligabao.model.conversation import Block
from gligabao.validation import find_faults


def _refuse_text(value: object) -> object:
    if isinstance(value, str | bool):
        raise ValueError("must be a number")
    return value


Count = Annotated[int, BeforeValidator(_refuse_text), Field(ge=0, le=10**9)]
"""Tokens in one call. A larger number is not a count, and no database could hold the sum."""


class MalformedAnswer(ValueError):
    """A 200 whose body is not an answer of the Messages API."""


class ServerToolUse(BaseModel):
    """Uses of the tools that run at the model's provider."""

    web_search_requests: Count | None = None


class RawUsage(BaseModel):
    """The token counts of one call, with the names of the Messages API."""

    input_tokens: Count = 0
    """The uncached rest of the prompt only."""
    cache_creation_input_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    output_tokens: Count = 0
    server_tool_use: ServerToolUse | None = None

    model_config = {"extra": "allow"}

    @property
    def prompt_tokens(self) -> int:
        """The whole prompt: uncached, written to and read from the cache."""
        return self.input_tokens + (self.cache_creation_input_tokens or 0) + (self.cache_read_input_tokens or 0)


@dataclass(frozen=True, slots=True)
class Counted:
    """What an answer tells of its own usage."""

    usage: RawUsage
    """Without the counts that cannot be right, which are 0 here."""
    is_whole: bool
    """False: something is missing or cannot be right, so nobody can say what the call cost."""


class _Body(BaseModel):
    content: list[dict[str, Any]]
    stop_reason: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model wants run."""

    id: str
    name: str
    input: Any
    """An object, where the model kept to the tool's schema."""
    cut: bool = False
    """The answer ended at its output limit in the middle of this call: it must not be run."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One whole answer of the model."""

    content: list[Block]
    stop_reason: str
    """As the API gave it: end_turn, tool_use, max_tokens, refusal, model_context_window_exceeded, ..."""
    details: dict[str, Any]
    """The API's `stop_details` ({} unless it refused)."""

    @property
    def text(self) -> str:
        """The text blocks, joined as the API wants them joined: without a separator."""
        return "".join(block["text"] for block in self.content if block["type"] == "text")

    @property
    def cut(self) -> bool:
        """Whether the answer ended because there was no room for more of it."""
        return self.stop_reason in ("max_tokens", "model_context_window_exceeded")

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls in the order given; the last is marked when the answer was cut in the middle of it."""
        last = self.content[-1] if self.content else {}
        return [
            ToolCall(block["id"], block["name"], block.get("input"), cut=self.cut and block is last)
            for block in self.content
            if block["type"] == "tool_use"
        ]


def decode(content: bytes) -> Any:
    """Return the JSON of an answer without halves of surrogate pairs, which the API refuses when they go back to it.

    Raises `ValueError` or `RecursionError` when it cannot be read.
    """
    text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace")
    body = json.loads(text, parse_constant=lambda name: None, parse_float=_finite)
    if b"\\ud" in content or b"\\uD" in content:  # whole pairs too, from servers that write all in ASCII
        body = json.loads(json.dumps(body, ensure_ascii=False).encode("utf-8", "ignore"))
    return body


def _finite(text: str) -> float | None:
    # JSON has no infinity, so a number beyond what a float can hold could not go back to the server.
    number = float(text)
    return number if math.isfinite(number) else None


def parse_usage(body: Any) -> Counted:
    """Return the usage in an answer, even in a malformed one."""
    given = body.get("usage") if isinstance(body, dict) else None
    given = given if isinstance(given, dict) else {}
    try:
        return Counted(RawUsage.model_validate(given), is_whole={"input_tokens", "output_tokens"} <= given.keys())
    except ValidationError as error:
        odd = {fault["loc"][0] for fault in error.errors()}
        good = {name: value for name, value in given.items() if name not in odd}
        return Counted(RawUsage.model_validate(good), is_whole=False)


def parse_reply(body: Any) -> Reply:
    """Return the answer in a decoded body, or raise `MalformedAnswer` saying what is wrong with it."""
    try:
        parsed = _Body.model_validate(_usual_form(body))
    except ValidationError as error:
        fault = find_faults(error)[0]
        raise MalformedAnswer(f"{fault.field or 'the body'} {fault.words}") from error
    for block in parsed.content:
        _check_block(block)
    details = body.get("stop_details")
    return Reply(parsed.content, parsed.stop_reason or "", details if isinstance(details, dict) else {})


def _usual_form(body: Any) -> Any:
    """Return a body whose content is a list: some servers send a text alone, or null for an empty answer."""
    if not isinstance(body, dict) or "content" not in body:
        return body
    content, reason = body["content"], body.get("stop_reason")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return body | {
        "content": [] if content is None else content,
        "stop_reason": reason if isinstance(reason, str) else None,
    }


def with_good_ids(content: list[Block], taken: set[str]) -> list[Block]:
    """Return the content with new ids for tool calls whose id the API would refuse, or has had before; note all ids.

    The API wants every id of a conversation to be different, and made of these characters.
    """
    named = []
    for block in content:
        if block["type"] == "tool_use":
            given = block.get("id")
            if not isinstance(given, str) or not _TOOL_ID.fullmatch(given) or given in taken:
                block = block | {"id": f"toolu_{secrets.token_hex(12)}"}
            taken.add(block["id"])
        named.append(block)
    return named


_TOOL_ID = re.compile(r"[a-zA-Z0-9_-]{1,128}")


def sendable(content: list[Block]) -> list[Block]:
    """Return an answer as it goes back to the server: as it came, but for what the API refuses.

    That is blank texts, and tool inputs that are not objects; the model is told of those in the results.
    """
    return [
        block | {"input": {}} if block["type"] == "tool_use" and not isinstance(block.get("input"), dict) else block
        for block in content
        if block["type"] != "text" or block["text"].strip()
    ]


def _check_block(block: Block) -> None:
    needed = {"text": ("text",), "tool_use": ("name",)}.get(str(block.get("type")), ())
    if not isinstance(block.get("type"), str):
        raise MalformedAnswer("a content block has no type")
    for field in needed:
        if not isinstance(block.get(field), str):
            raise MalformedAnswer(f"a {block['type']} block has no {field}")
