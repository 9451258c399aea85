"""Tool calls that a model wrote out as text, because its server did not make calls of them.

Small models behind local servers do so. Such a text is not a report, whatever step it comes in.
"""

import json
import re
from collections.abc import Collection
from typing import Any

_TAGS = "function_calls|function_call|tool_calls|tool_call|invoke"
_ELEMENT = re.compile(
    rf"<(?:\w+:)?(?P<tag>{_TAGS})\b[^>]*>.*?(?:</(?:\w+:)?(?P=tag)>|\Z)|<\|(?:tool_call|python_tag)\|>.*?(?:<\|/?\w+\|>|\Z)",
    re.DOTALL,
)
"""As Claude, Hermes and Qwen, Llama and others were trained to write them; the last one may be cut."""
_PREFIX = re.compile(r"\A\[TOOL_CALLS\]")
"""Mistral's, before a list in JSON."""
_FENCE = re.compile(r"\A```\w*\n(.*)\n```\Z", re.DOTALL)
_NAME_KEYS = ("name", "tool", "tool_name", "function")


def is_written_call(text: str, tool_names: Collection[str]) -> bool:
    """Tell whether the text is nothing but a call of a tool. A report that quotes one has other text too."""
    text = text.strip()
    if fenced := _FENCE.match(text):
        text = fenced[1].strip()
    if not text:
        return False
    if not _ELEMENT.sub("", text).strip():
        return True
    try:
        value = json.loads(_PREFIX.sub("", text))
    except (ValueError, RecursionError):
        return False
    calls = value if isinstance(value, list) else [value]
    return bool(calls) and all(_names_a_tool(call, tool_names) for call in calls)


def _names_a_tool(call: Any, tool_names: Collection[str]) -> bool:
    if not isinstance(call, dict):
        return False
    named = [call.get(key) for key in _NAME_KEYS]
    return any(
        name in tool_names if isinstance(name, str) else isinstance(name, dict) and name.get("name") in tool_names
        for name in named
    )
