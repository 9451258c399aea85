"""What calls use, and what was billed so far: tokens by size, a prompt cache, searches."""

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from gligabao.simulator.models import ModelFacts
from gligabao.simulator.prompt import Block, Piece, Prompt, count_tokens


@dataclass(frozen=True, slots=True)
class Used:
    """What one call used."""

    input_tokens: int = 0
    """The part of the prompt that is neither written to nor read from the cache."""
    cache_creation: int = 0
    cache_creation_1h: int = 0
    """How much of `cache_creation` was written for an hour."""
    cache_read: int = 0
    output_tokens: int = 0
    thinking_tokens: int = 0
    """How much of `output_tokens` was thinking."""
    web_search_requests: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the `usage` of a message."""
        searches = {"web_search_requests": self.web_search_requests, "web_fetch_requests": 0}
        return {
            "input_tokens": self.input_tokens,
            "cache_creation_input_tokens": self.cache_creation,
            "cache_read_input_tokens": self.cache_read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": self.cache_creation - self.cache_creation_1h,
                "ephemeral_1h_input_tokens": self.cache_creation_1h,
            },
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"thinking_tokens": self.thinking_tokens},
            "server_tool_use": searches if self.web_search_requests else None,
            "service_tier": "standard",
            "inference_geo": "global",
        }


@dataclass(frozen=True, slots=True)
class Totals:
    """What a number of calls used together."""

    calls: int = 0
    input_tokens: int = 0
    cache_creation: int = 0
    cache_read: int = 0
    output_tokens: int = 0
    web_search_requests: int = 0

    @property
    def prompt_tokens(self) -> int:
        """The whole prompts: uncached, written to and read from the cache together."""
        return self.input_tokens + self.cache_creation + self.cache_read

    def plus(self, used: Used, *, times: int = 1) -> "Totals":
        """Return these totals with one more call (`times=-1`: with one call less)."""
        return Totals(
            self.calls + times,
            self.input_tokens + times * used.input_tokens,
            self.cache_creation + times * used.cache_creation,
            self.cache_read + times * used.cache_read,
            self.output_tokens + times * used.output_tokens,
            self.web_search_requests + times * used.web_search_requests,
        )


@dataclass(frozen=True, slots=True)
class Bill:
    """All calls that were answered in full, together and by the first user text of their conversation."""

    total: Totals = field(default_factory=Totals)
    by_topic: dict[str, Totals] = field(default_factory=dict)

    def topic(self, part: str) -> Totals:
        """Return the totals of all conversations whose first user text contains this."""
        found = Totals()
        for topic, totals in self.by_topic.items():
            if part in topic:
                found = _add(found, totals)
        return found


class Ledger:
    """Keeps the bill. Shared by the server's threads: one lock guards it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = Totals()
        self._by_topic: dict[str, Totals] = {}

    def charge(self, topic: str, used: Used, *, times: int = 1) -> None:
        """Put a call on the bill, or take it off again (`times=-1`)."""
        with self._lock:
            self._total = self._total.plus(used, times=times)
            self._by_topic[topic] = self._by_topic.get(topic, Totals()).plus(used, times=times)

    def bill(self) -> Bill:
        """Return the bill so far."""
        with self._lock:
            return Bill(self._total, {topic: totals for topic, totals in self._by_topic.items() if totals.calls})


class PromptCache:
    """The prefixes that were written to the cache. Shared by the server's threads: one lock guards it."""

    MAX_ENTRIES = 100_000

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written: OrderedDict[str, None] = OrderedDict()

    def meter(self, prompt: Prompt, model: ModelFacts) -> Used:
        """Return the input side of a call's use, and remember the prefix it writes."""
        end = _last_marked(prompt)
        sizes = _running_sizes(prompt.pieces[:end])
        if not sizes or sizes[-1] < model.cache_min_tokens:
            return Used(input_tokens=prompt.tokens)
        with self._lock:
            read = next((i for i in range(end, 0, -1) if prompt.pieces[i - 1].cache_key in self._written), 0)
            self._write(prompt.pieces[end - 1].cache_key)
        cache_read = sizes[read - 1] if read else 0
        created = sizes[-1] - cache_read
        return Used(
            input_tokens=prompt.tokens - sizes[-1],
            cache_creation=created,
            cache_creation_1h=created if _ttl(prompt) == "1h" else 0,
            cache_read=cache_read,
        )

    def _write(self, key: str) -> None:
        self._written[key] = None
        self._written.move_to_end(key)
        while len(self._written) > self.MAX_ENTRIES:
            self._written.popitem(last=False)


def output_tokens(content: list[Block]) -> tuple[int, int]:
    """Return how many tokens an answer is, and how many of them are thinking."""
    sizes = [(block["type"], _block_tokens(block)) for block in content]
    thinking = sum(size for kind, size in sizes if kind in ("thinking", "redacted_thinking"))
    return max(1, sum(size for _, size in sizes)), thinking


def _block_tokens(block: Block) -> int:
    match block["type"]:
        case "text":
            return count_tokens(block["text"])
        case "thinking":
            return count_tokens(block["thinking"])
        case "tool_use" | "server_tool_use":
            return 10 + count_tokens(json.dumps(block["input"], ensure_ascii=False))
        case "web_search_tool_result":
            return 0  # What a search found is input, not output.
        case _:
            return count_tokens(json.dumps(block, ensure_ascii=False))


def _last_marked(prompt: Prompt) -> int:
    """Return how many pieces the last cache breakpoint covers, 0 when there is none."""
    if prompt.body.get("cache_control"):
        return len(prompt.pieces)
    return max((i for i, piece in enumerate(prompt.pieces, start=1) if piece.marked), default=0)


def _running_sizes(pieces: list[Piece]) -> list[int]:
    sizes: list[int] = []
    for piece in pieces:
        sizes.append(piece.tokens + (sizes[-1] if sizes else 0))
    return sizes


def _ttl(prompt: Prompt) -> str:
    marks = [prompt.body.get("cache_control"), *(piece.block.get("cache_control") for piece in prompt.pieces)]
    return next((mark.get("ttl") or "5m" for mark in marks if mark), "5m")


def _add(one: Totals, other: Totals) -> Totals:
    return Totals(
        one.calls + other.calls,
        one.input_tokens + other.input_tokens,
        one.cache_creation + other.cache_creation,
        one.cache_read + other.cache_read,
        one.output_tokens + other.output_tokens,
        one.web_search_requests + other.web_search_requests,
    )
