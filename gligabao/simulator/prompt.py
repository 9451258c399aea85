"""A request laid out once: its blocks in order, how many tokens each is, and hashes of every prefix.

The rules, the billing and the signatures all look at the prompt through this.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

from gligabao.simulator.seals import digest

Block = dict[str, Any]

BYTES_PER_TOKEN = 4
OVERHEAD_TOKENS = 3
"""What a prompt is more than its parts; never cached."""
_THINKING = ("thinking", "redacted_thinking")
# The bytes that begin a Chinese, Japanese or Korean character in UTF-8 (U+3000 to U+DFFF); each has two more.
_CJK_STARTS = bytes(range(0xE3, 0xEE))


def count_tokens(text: str) -> int:
    """Return about how many tokens a text is: four bytes each, or one Chinese, Japanese or Korean character."""
    encoded = text.encode("utf-8", "surrogatepass")
    cjk = len(encoded) - len(encoded.translate(None, _CJK_STARTS))
    return cjk + math.ceil((len(encoded) - 3 * cjk) / BYTES_PER_TOKEN)


def blocks_of(content: Any) -> list[Block]:
    """Return the blocks of a `content`; a bare text is one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content)


def text_of(content: Any) -> str:
    """Return the text of a `content`: of its text blocks, without separators."""
    return "".join(block["text"] for block in blocks_of(content) if block.get("type") == "text")


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of the prompt: the tools, the system prompt, or one block of a message."""

    role: str
    """`tools`, `system`, or the role of the message."""
    tokens: int
    prefix: str
    """Hash of all that stands before it, thinking left out: what a thinking block is signed with."""
    cache_key: str
    """Hash of all up to and including it: what the prompt cache knows a prefix by."""
    marked: bool
    """Whether it carries a `cache_control`."""
    block: Block


class Prompt:
    """What a request asks, as a row of pieces."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.model: str = body["model"]
        self.pieces: list[Piece] = []
        self.end = digest(self.model)
        """Hash of the whole prompt, thinking left out: the prefix of the first block of an answer."""
        self._cache_key = self.end
        if body.get("tools"):
            self._add("tools", {"tools": body["tools"]}, marked=any(t.get("cache_control") for t in body["tools"]))
        for block in blocks_of(body.get("system") or []):
            self._add("system", block)
        # Another tool_choice or another thinking mode leaves tools and system cached, but not the messages.
        self._cache_key = _chain(self._cache_key, digest([body.get("tool_choice"), body.get("thinking")]))
        for message in body["messages"]:
            for block in blocks_of(message["content"]):
                self._add(message["role"], block)
        self.tokens = sum(piece.tokens for piece in self.pieces) + OVERHEAD_TOKENS

    @property
    def topic(self) -> str:
        """The text of the first user turn."""
        return first_user_text(self.body)

    def prefix_after(self, blocks: list[Block]) -> str:
        """Return the hash of the prompt and these first blocks of its answer, thinking left out."""
        prefix = self.end
        for block in blocks:
            if block.get("type") not in _THINKING:
                prefix = _chain(prefix, _hash(_encode("assistant", block)))
        return prefix

    def _add(self, role: str, block: Block, *, marked: bool = False) -> None:
        encoded = _encode(role, block)
        content = _hash(encoded)
        self._cache_key = _chain(self._cache_key, content)
        marked = marked or bool(block.get("cache_control"))
        self.pieces.append(Piece(role, count_tokens(encoded), self.end, self._cache_key, marked, block))
        if block.get("type") not in _THINKING:
            self.end = _chain(self.end, content)


def first_user_text(body: dict[str, Any]) -> str:
    """Return the text of the first user turn: what a conversation is known by."""
    for message in body.get("messages", ()):
        if message.get("role") == "user":
            return text_of(message["content"])
    return ""


def searches_the_web(body: dict[str, Any]) -> bool:
    """Tell whether the request carries the web search server tool."""
    return any(str(tool.get("type") or "").startswith("web_search_") for tool in body.get("tools") or ())


def _encode(role: str, block: Block) -> str:
    """Return a block as text that stays the same however a client spells it: without cache marks and nulls."""
    bare = {key: value for key, value in block.items() if key != "cache_control" and value is not None}
    return role + json.dumps(bare, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _chain(prefix: str, content: str) -> str:
    return _hash(prefix + content)
