"""What the simulated API refuses, and in which words: the order of the checks, keys, versions, seals, size.

The fields are in `rules_shape`, the settings in `rules_settings`, the conversation in `rules_turns`.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from gligabao.simulator.models import ModelFacts
from gligabao.simulator.prompt import Block, Prompt
from gligabao.simulator.refusals import Refusal, invalid
from gligabao.simulator.rules_settings import (
    check_cache_marks,
    check_model,
    check_thinking,
    check_tool_choice,
    check_tools,
)
from gligabao.simulator.rules_shape import check_shape
from gligabao.simulator.rules_turns import check_turns
from gligabao.simulator.seals import citation_seal, redacted_thinking_seal, search_result_seal, thinking_signature

VERSIONS = ("2023-01-01", "2023-06-01", "2026-10-21")
_MAX_PAUSES = 10_000


class Rules:
    """The checks of one simulator. Shared by its threads: one lock guards the paused turns it remembers.

    `lax` switches off rules that may not hold at the real API: `empty` (assistant turns without content in the middle
    of a conversation are refused), `tools` (tool blocks in a request without tools are refused, and
    other tools than those that stood before a thinking block).
    """

    LAX = frozenset({"empty", "tools"})

    def __init__(self, *, lax: frozenset[str] = frozenset(), context_tokens: int | None = None) -> None:
        if lax - self.LAX:
            raise ValueError(f"lax: no such rule: {', '.join(sorted(lax - self.LAX))}; there are empty, tools")
        self._lax = lax
        self._context_tokens = context_tokens
        self._lock = threading.Lock()
        self._paused: OrderedDict[str, None] = OrderedDict()

    def check(self, headers: Mapping[str, str], body: Any) -> Prompt:
        """Return the prompt of a request, or raise the refusal. Header names are in lower case."""
        version = _check_headers(headers)
        check_shape(body, old_version=version != VERSIONS[-1], beta="anthropic-beta" in headers)
        model = check_model(body)
        check_tools(body)
        check_tool_choice(body, model)
        check_thinking(body, model)
        check_cache_marks(body)
        prompt = Prompt(body)
        check_turns(body, model, lax=self._lax, paused=self._is_paused(prompt))
        self._check_seals(prompt, model)
        self._check_size(prompt, model)
        return prompt

    def remember_pause(self, prompt: Prompt, content: list[Block]) -> None:
        """Note that this answer paused its turn: the conversation may come back ending with it."""
        # It comes back without blank texts, which the API refuses.
        content = [block for block in content if block["type"] != "text" or block["text"].strip()]
        with self._lock:
            self._paused[prompt.prefix_after(content)] = None
            while len(self._paused) > _MAX_PAUSES:
                self._paused.popitem(last=False)

    def _is_paused(self, prompt: Prompt) -> bool:
        with self._lock:
            return prompt.end in self._paused

    def _check_seals(self, prompt: Prompt, model: ModelFacts) -> None:
        bound = model.bound_thinking and "tools" not in self._lax
        for place, piece in enumerate(prompt.pieces):
            match piece.block:
                case {"type": "thinking", "thinking": thought, "signature": signature}:
                    _check_signature(thought, signature, piece.prefix, bound=bound)
                case {"type": "redacted_thinking", "data": data} if data != redacted_thinking_seal():
                    raise invalid("Invalid `data` in `redacted_thinking` block")
                case {"type": "web_search_tool_result", "content": [*results]}:
                    for result in results:
                        if result["encrypted_content"] != search_result_seal(result["url"], result["title"]):
                            raise invalid(f"Invalid `encrypted_content` in `web_search_result` block {place}")
                case {"type": "text", "citations": [*citations]}:
                    for citation in citations:
                        _check_citation(citation)

    def _check_size(self, prompt: Prompt, model: ModelFacts) -> None:
        maximum = self._context_tokens or model.context_tokens
        if prompt.tokens > maximum:
            raise invalid(f"prompt is too long: {prompt.tokens} tokens > {maximum} maximum")


def _check_headers(headers: Mapping[str, str]) -> str:
    bearer = headers.get("authorization", "").removeprefix("Bearer ").strip()
    if not bearer and not headers.get("x-api-key", "").strip():
        raise Refusal(401, "authentication_error", "x-api-key header is required")
    version = headers.get("anthropic-version")
    if version is None:
        raise invalid("anthropic-version: header is required")
    if version not in VERSIONS:
        raise invalid(f'anthropic-version: "{version}" is not a valid version')
    return version


def _check_signature(thought: str, signature: str, prefix: str, *, bound: bool) -> None:
    text_half, _, prefix_half = thinking_signature(thought, prefix).partition(".")
    signed_text, _, signed_prefix = signature.partition(".")
    if signed_text != text_half:
        raise invalid("Invalid `signature` in `thinking` block: it must be sent back as it was received")
    if bound and signed_prefix != prefix_half:
        raise invalid(
            "Invalid `signature` in `thinking` block: the conversation before it has changed since it was given"
        )


def _check_citation(citation: Block) -> None:
    if citation.get("type") != "web_search_result_location":
        return
    expected = citation_seal(str(citation.get("url")), str(citation.get("cited_text")))
    if citation.get("encrypted_index") != expected:
        raise invalid("Invalid `encrypted_index` in `web_search_result_location` citation")
