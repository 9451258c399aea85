"""What is sent to the model at each call: a conversation whose parts are encoded once.

Every step sends the whole conversation again. Encoding it anew each time was the largest cost of a step in the
plain SDK (about a third of its CPU at 20 steps), so a message becomes bytes when it is added, and a request is
those bytes joined. The bytes are also less memory than the text: a page with one typographic quote takes two
bytes a character as a `str`.
"""

import json
from collections.abc import Sequence
from enum import Enum
from typing import Any

LEFT_OUT = "[left out: too long]"
"""What stands in place of a tool result that made the conversation too long."""

Block = dict[str, Any]
"""One content block, as the Messages API has it."""


class Tools(Enum):
    """What a call may do with the conversation's tools."""

    ALLOWED = "allowed"
    LISTED = "listed"
    """The tools stay in the request, so that its cached prefix holds, but may not be called."""
    ABSENT = "absent"
    """The request has no tools: for servers that let the model call a tool it may not call."""


class Conversation:
    """A system prompt, tools and messages, ready to be sent. Used by one thread."""

    def __init__(self, *, system: str, topic: str, tools: Sequence[Block] = ()) -> None:
        self._system = _encode(system)
        self._tools = _encode(list(tools)) if tools else b""
        self._messages: list[bytes] = []
        self.add_user(topic)

    def add_user(self, content: str | list[Block]) -> None:
        """Add a turn of the user: text, or blocks (tool results first)."""
        self._messages.append(_encode({"role": "user", "content": content}))

    def add_assistant(self, content: list[Block]) -> None:
        """Add what the model answered, exactly as it came."""
        self._messages.append(_encode({"role": "assistant", "content": content}))

    def body(self, *, tools: Tools, paused: list[Block], **fields: Any) -> bytes:
        """Return the JSON of a request: `fields` (model, max_tokens, ...), then the conversation.

        `paused` is what the model said before it paused a turn ([] if it did not); it stands last.
        """
        parts = [_encode(fields)[:-1], b', "system": ', self._system]
        if self._tools and tools is not Tools.ABSENT:
            parts += [b', "tools": ', self._tools]
            if tools is Tools.LISTED:
                parts.append(b', "tool_choice": {"type": "none"}')
        messages = self._messages
        if paused:
            messages = [*messages, _encode({"role": "assistant", "content": paused})]
        # One join: these are hundreds of kilobytes, copied at every step.
        separated = [b", "] * (2 * len(messages) - 1)
        separated[::2] = messages
        return b"".join([*parts, b', "messages": [', *separated, b"]}"])

    def leave_out(self, share: float) -> bool:
        """Put `LEFT_OUT` in place of the oldest tool results until `share` of the messages' bytes is gone.

        Thinking blocks after the first change go too: their signatures cover what stood before them. Returns
        False when there was nothing left to leave out.
        """
        aim = share * sum(map(len, self._messages))
        saved = 0
        first_change = None
        for index, encoded in enumerate(self._messages):
            if saved >= aim and first_change is not None:
                break
            shorter = _without_results(encoded, at_most=aim - saved)
            if shorter is not None:
                first_change = index if first_change is None else first_change
                saved += len(encoded) - len(shorter)
                self._messages[index] = shorter
        if first_change is None:
            return False
        for index in range(first_change + 1, len(self._messages)):
            self._messages[index] = _without_thinking(self._messages[index])
        return True


def _encode(value: Any) -> bytes:
    # ASCII escapes: half a surrogate pair in a tool's result is the server's to refuse, where UTF-8 would fail here.
    return json.dumps(value).encode("ascii")


def _without_results(encoded: bytes, *, at_most: float) -> bytes | None:
    """Return the message with its oldest tool results left out, about `at_most` bytes of them; None if it has none."""
    if b'"tool_result"' not in encoded:
        return None
    message = json.loads(encoded)
    if message["role"] != "user" or isinstance(message["content"], str):
        return None
    saved = 0
    for block in message["content"]:
        if block["type"] == "tool_result" and block["content"] != LEFT_OUT:
            saved += max(0, len(_encode(block["content"])) - len(LEFT_OUT))
            block["content"] = LEFT_OUT
            if saved >= at_most:
                break
    return _encode(message) if saved else None


def _without_thinking(encoded: bytes) -> bytes:
    if b'thinking"' not in encoded:
        return encoded
    message = json.loads(encoded)
    if message["role"] != "assistant":
        return encoded
    message["content"] = [b for b in message["content"] if b["type"] not in ("thinking", "redacted_thinking")]
    return _encode(message)
