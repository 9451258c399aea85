"""The rules about the conversation: who speaks when, what stands in a turn, and which call has which result."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from gligabao.simulator.models import ModelFacts
from gligabao.simulator.prompt import Block, blocks_of, searches_the_web
from gligabao.simulator.refusals import invalid

_USER_BLOCKS = frozenset({"text", "image", "document", "search_result", "tool_result"})
_NOT_FOR_ASSISTANTS = frozenset({"image", "document", "search_result", "tool_result"})


@dataclass(frozen=True, slots=True)
class Placed:
    """A block and where it stands."""

    message: int
    place: int
    block: Block

    @property
    def path(self) -> str:
        """How the API names the place in its messages."""
        return f"messages.{self.message}.content.{self.place}"

    @property
    def type(self) -> str:
        """The type of the block."""
        return str(self.block["type"])


@dataclass(frozen=True, slots=True)
class Turn:
    """Consecutive messages of one role: the API takes them as one."""

    role: str
    blocks: list[Placed]

    def of_type(self, kind: str) -> list[Placed]:
        """Return the blocks of one type."""
        return [placed for placed in self.blocks if placed.type == kind]


def turns_of(body: dict[str, Any]) -> list[Turn]:
    """Return the conversation as turns; `role: system` messages are turns of their own."""
    turns: list[Turn] = []
    for index, message in enumerate(body["messages"]):
        if not turns or turns[-1].role != message["role"]:
            turns.append(Turn(message["role"], []))
        turns[-1].blocks.extend(Placed(index, i, block) for i, block in enumerate(blocks_of(message["content"])))
    return turns


def check_turns(body: dict[str, Any], model: ModelFacts, *, lax: frozenset[str], paused: bool) -> None:
    """Raise the refusal of a conversation that the API would not take. `paused`: it ends with a turn we paused."""
    if not body["messages"]:
        raise invalid("messages: at least one message is required")
    _check_roles(body, model)
    _check_emptiness(body, lax)
    turns = turns_of(body)
    for turn in turns:
        _check_places(turn)
    for turn, following in zip(turns, [*turns[1:], None], strict=True):
        _check_calls(turn, following)
        _check_server_calls(turn, following, turns)
    for before, turn in zip([None, *turns], turns, strict=False):
        _check_results(before, turn)
    _check_tools_given(body, turns, lax)
    _check_end(body, turns, model, paused=paused)


def _check_roles(body: dict[str, Any], model: ModelFacts) -> None:
    roles = [message["role"] for message in body["messages"]]
    if roles[0] != "user":
        raise invalid('messages: first message must use the "user" role')
    for index, role in enumerate(roles):
        if role != "system":
            continue
        if not model.system_turns:
            raise invalid(f"messages.{index}: role 'system' is not supported on this model")
        if roles[index - 1] != "user":
            raise invalid(f"messages.{index}: a 'system' message must come right after a user turn")


def _check_emptiness(body: dict[str, Any], lax: frozenset[str]) -> None:
    _check_texts("system", blocks_of(body.get("system") or []))
    last = len(body["messages"]) - 1
    for index, message in enumerate(body["messages"]):
        if not message["content"]:
            if message["role"] == "assistant" and (index == last or "empty" in lax):
                continue
            raise invalid(
                f"messages.{index}: all messages must have non-empty content except for the optional final "
                "assistant message"
            )
        _check_texts("messages", blocks_of(message["content"]))


def _check_texts(where: str, blocks: list[Block]) -> None:
    for block in blocks:
        if block["type"] == "tool_result" and isinstance(block.get("content"), list):
            _check_texts(where, block["content"])
        if block["type"] != "text":
            continue
        if not block["text"]:
            raise invalid(f"{where}: text content blocks must be non-empty")
        if not block["text"].strip():
            raise invalid(f"{where}: text content blocks must contain non-whitespace text")


def _check_places(turn: Turn) -> None:
    for placed in turn.blocks:
        if turn.role == "assistant" and placed.type in _NOT_FOR_ASSISTANTS:
            raise invalid(f"{placed.path}: `{placed.type}` blocks are not allowed in `assistant` messages")
        if turn.role == "user" and placed.type not in _USER_BLOCKS:
            raise invalid(f"{placed.path}: `{placed.type}` blocks can only be in `assistant` messages")
        if turn.role == "user" and placed.block.get("citations") and placed.type == "text":
            raise invalid(f"{placed.path}.text.citations: citations are not allowed in `user` messages")
        if turn.role == "system" and placed.type != "text":
            raise invalid(f"{placed.path}: only `text` blocks are allowed in `system` messages")


def _check_calls(turn: Turn, following: Turn | None) -> None:
    """Every tool_use is answered by the leading run of tool_results of the turn that follows."""
    calls = turn.of_type("tool_use")
    ids = [str(placed.block["id"]) for placed in calls]
    if len(set(ids)) < len(ids):
        raise invalid(f"messages.{calls[0].message}: `tool_use` ids must be unique")
    answered = {placed.block["tool_use_id"] for placed in _leading_results(following)}
    missing = [call_id for call_id in ids if call_id not in answered]
    if missing:
        raise invalid(
            f"messages.{calls[0].message}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the next "
            "message."
        )


def _leading_results(turn: Turn | None) -> list[Placed]:
    if turn is None or turn.role != "user":
        return []
    return list(takewhile(lambda placed: placed.type == "tool_result", turn.blocks))


def _check_results(before: Turn | None, turn: Turn) -> None:
    """Every tool_result answers one tool_use of the turn before, and says something if it is an error."""
    called = {placed.block["id"] for placed in before.of_type("tool_use")} if before else set()
    answered: set[str] = set()
    for placed in turn.of_type("tool_result"):
        call_id = placed.block["tool_use_id"]
        if call_id not in called:
            raise invalid(
                f"{placed.path}: unexpected `tool_use_id` found in `tool_result` blocks: {call_id}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        if call_id in answered:
            raise invalid(
                f"{placed.path}: each tool_use must have a single result. Found multiple `tool_result` blocks with "
                f"id: {call_id}"
            )
        answered.add(call_id)
        if placed.block.get("is_error") and not placed.block.get("content"):
            raise invalid(f"{placed.path}: content cannot be empty if `is_error` is true")


def _check_server_calls(turn: Turn, following: Turn | None, turns: list[Turn]) -> None:
    """A server_tool_use has its result in its turn, unless the turn is paused or also calls tools of the client."""
    results = {placed.block["tool_use_id"] for placed in turn.of_type("web_search_tool_result")}
    waits = following is None or bool(turn.of_type("tool_use"))
    for placed in turn.of_type("server_tool_use"):
        if placed.block["id"] not in results and not waits:
            raise invalid(
                f"messages.{placed.message}: `web_search` tool use with id `{placed.block['id']}` was found without a "
                "corresponding `web_search_tool_result` block"
            )
    called = {placed.block["id"] for placed in _server_calls_before(turn, turns)} if results else set()
    for placed in turn.of_type("web_search_tool_result"):
        if placed.block["tool_use_id"] not in called:
            raise invalid(
                f"{placed.path}: unexpected `tool_use_id` found in `web_search_tool_result` blocks: "
                f"{placed.block['tool_use_id']}. Each `web_search_tool_result` block must have a corresponding "
                "`server_tool_use` block before it."
            )


def _server_calls_before(turn: Turn, turns: list[Turn]) -> Iterator[Placed]:
    for earlier in turns:
        yield from earlier.of_type("server_tool_use")
        if earlier is turn:
            return


def _check_tools_given(body: dict[str, Any], turns: list[Turn], lax: frozenset[str]) -> None:
    if body.get("tools") or "tools" in lax:
        return
    if any(turn.of_type("tool_use") or turn.of_type("tool_result") for turn in turns):
        raise invalid("Requests which include `tool_use` or `tool_result` blocks must define tools")


def _check_end(body: dict[str, Any], turns: list[Turn], model: ModelFacts, *, paused: bool) -> None:
    last = turns[-1]
    if last.role != "assistant":
        return
    done = {placed.block["tool_use_id"] for placed in last.of_type("web_search_tool_result")}
    waiting = [placed for placed in last.of_type("server_tool_use") if placed.block["id"] not in done]
    if waiting and not searches_the_web(body):
        raise invalid(
            f"{waiting[0].path}: `server_tool_use` cannot be resumed: the request does not define the `web_search` tool"
        )
    ends_in_search = bool(last.blocks) and last.blocks[-1].type in ("server_tool_use", "web_search_tool_result")
    if paused or ends_in_search:
        return
    if not model.prefill:
        raise invalid(
            "This model does not support assistant message prefill. The conversation must end with a user message."
        )
    if last.blocks and last.blocks[-1].type == "text" and last.blocks[-1].block["text"] != _trimmed(last.blocks[-1]):
        raise invalid("messages: final assistant content cannot end with trailing whitespace")


def _trimmed(placed: Placed) -> str:
    return str(placed.block["text"]).rstrip()
