"""What the model answered: checked where gligabao relies on it, and kept as it came everywhere else."""

import codecs
import json
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from gligabao.model.conversation import Block
from gligabao.validation import find_faults

Count = Annotated[int, Field(ge=0, le=10**9)]
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


class _Body(BaseModel):
    content: list[dict[str, Any]]
    stop_reason: str | None = None
    usage: RawUsage


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
    body = json.loads(content.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace"))
    if b"\\ud" in content or b"\\uD" in content:  # whole pairs too, from servers that write all in ASCII
        body = json.loads(json.dumps(body, ensure_ascii=False).encode("utf-8", "ignore"))
    return body


def parse_usage(body: Any) -> RawUsage | None:
    """Return the usage in an answer, even in a malformed one; None when there is none that can be read."""
    try:
        return RawUsage.model_validate(body["usage"])
    except (KeyError, TypeError, ValidationError):
        return None


def parse_reply(body: Any) -> Reply:
    """Return the answer in a decoded body, or raise `MalformedAnswer` saying what is wrong with it."""
    try:
        parsed = _Body.model_validate(body)
    except ValidationError as error:
        fault = find_faults(error)[0]
        raise MalformedAnswer(f"{fault.field or 'the body'} {fault.words}") from error
    for block in parsed.content:
        _check_block(block)
    details = body.get("stop_details")
    return Reply(parsed.content, parsed.stop_reason or "", details if isinstance(details, dict) else {})


def _check_block(block: Block) -> None:
    needed = {"text": ("text",), "tool_use": ("id", "name")}.get(str(block.get("type")), ())
    if not isinstance(block.get("type"), str):
        raise MalformedAnswer("a content block has no type")
    for field in needed:
        if not isinstance(block.get(field), str):
            raise MalformedAnswer(f"a {block['type']} block has no {field}")
