"""The rules about everything but the messages: model, limits, tools, tool choice, thinking, cache marks."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from gligabao.simulator.models import ModelFacts, find_model
from gligabao.simulator.refusals import Refusal, invalid

MAX_CACHE_MARKS = 4


def check_model(body: dict[str, Any]) -> ModelFacts:
    """Return the model that is asked for; raise the refusal of an unknown one, or of a limit beyond its own."""
    model = find_model(body["model"])
    if model is None:
        raise Refusal(404, "not_found_error", f"model: {body['model']}")
    if body["max_tokens"] > model.max_output_tokens:
        raise invalid(
            f"max_tokens: {body['max_tokens']} > {model.max_output_tokens}, which is the maximum allowed number of "
            f"output tokens for {model.id}"
        )
    return model


def check_tools(body: dict[str, Any]) -> None:
    """Raise the refusal of tools that share a name or have a schema that is not taken."""
    names = Counter(tool["name"] for tool in body.get("tools") or ())
    if any(count > 1 for count in names.values()):
        raise invalid("tools: Tool names must be unique.")
    for place, tool in enumerate(body.get("tools") or ()):
        if {"oneOf", "anyOf", "allOf"} & set(tool.get("input_schema") or ()):
            raise invalid(
                f"tools.{place}.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the "
                "top level"
            )
        if tool.get("allowed_domains") and tool.get("blocked_domains"):
            raise invalid(f"tools.{place}: only one of allowed_domains and blocked_domains may be given")


def check_tool_choice(body: dict[str, Any], model: ModelFacts) -> None:
    """Raise the refusal of a choice without tools, of an unknown tool, or one that the model does not take."""
    choice = body.get("tool_choice")
    if not choice or choice["type"] == "none":
        return
    tools = body.get("tools") or ()
    if not tools:
        raise invalid("tool_choice: may only be specified while providing tools")
    if choice["type"] == "auto":
        return
    if not model.forced_tools:
        raise invalid('tool_choice: type "tool" and "any" are not supported for this model.')
    if (body.get("thinking") or {}).get("type") in ("enabled", "adaptive"):
        raise invalid("Thinking may not be enabled when tool_choice forces tool use.")
    if choice["type"] == "tool" and choice["name"] not in {tool["name"] for tool in tools}:
        raise invalid(f"Tool '{choice['name']}' not found in provided tools")


def check_thinking(body: dict[str, Any], model: ModelFacts) -> None:
    """Raise the refusal of a kind of thinking that the model does not have."""
    thinking = body.get("thinking")
    if not thinking:
        return
    kind = thinking["type"]
    if kind not in model.thinking:
        raise invalid(f'"thinking.type.{kind}" is not supported for this model. {_instead(model)}')
    if kind == "enabled" and thinking["budget_tokens"] >= body["max_tokens"]:
        raise invalid("`max_tokens` must be greater than `thinking.budget_tokens`.")


def _instead(model: ModelFacts) -> str:
    if "between_tools" in model.thinking:
        return 'Use "thinking.type.between_tools" for the least thinking.'
    if "adaptive" in model.thinking:
        return 'Use "thinking.type.adaptive" and "output_config.effort" to control thinking behavior.'
    return 'Use "thinking.type.enabled" with `budget_tokens`.'


def check_cache_marks(body: dict[str, Any]) -> None:
    """Raise the refusal of more than four cache breakpoints, or of a long-lived one after a short-lived one."""
    lives = [mark.get("ttl") or "5m" for mark in _cache_marks(body)]
    if len(lives) > MAX_CACHE_MARKS:
        raise invalid(f"A maximum of {MAX_CACHE_MARKS} blocks with cache_control may be provided. Found {len(lives)}.")
    if "5m" in lives and "1h" in lives[lives.index("5m") :]:
        raise invalid(
            "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block; the order is "
            "`tools`, `system`, `messages`"
        )


def _cache_marks(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from _marks_of(body.get("tools") or ())
    yield from _marks_of(body.get("system") or ())
    for message in body["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block.get("type") == "tool_result":
                yield from _marks_of(block.get("content") or ())
            yield from _marks_of([block])
    yield from _marks_of([body])


def _marks_of(items: Any) -> Iterator[dict[str, Any]]:
    for item in items if isinstance(items, (list, tuple)) else ():
        if item.get("cache_control"):
            yield item["cache_control"]
