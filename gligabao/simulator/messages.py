"""The envelope of an answer: ids, signatures, usage."""

import dataclasses
import itertools
import json
from dataclasses import dataclass, field
from typing import Any

from gligabao.simulator.billing import PromptCache, Used, output_tokens
from gligabao.simulator.models import ModelFacts
from gligabao.simulator.prompt import BYTES_PER_TOKEN, Block, Prompt
from gligabao.simulator.replies import SIGN, MessageReply
from gligabao.simulator.seals import citation_seal, search_result_seal, thinking_signature


@dataclass(frozen=True, slots=True)
class Message:
    """An answer as it goes over the wire, and what it used."""

    json: dict[str, Any]
    used: Used

    def encode(self) -> bytes:
        """Return the body of the response."""
        # ASCII escapes: a script may make the model say half a surrogate pair, which UTF-8 has no bytes for.
        return json.dumps(self.json).encode("ascii")


@dataclass(slots=True)
class Envelopes:
    """Puts answers into messages. Shared by the server's threads; what it holds guards itself."""

    cache: PromptCache = field(default_factory=PromptCache)
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def seal(self, answer: MessageReply, prompt: Prompt, model: ModelFacts) -> Message:
        """Return the message that carries this answer to this prompt."""
        if answer.obeys_max_tokens:
            answer = _cut(answer, prompt.body["max_tokens"])
        number = next(self.numbers)
        content = _complete(answer.content, prompt, number)
        used = self.cache.meter(prompt, model)
        output, thinking = output_tokens(content)
        used = dataclasses.replace(
            used,
            output_tokens=output if prompt.body["max_tokens"] else 0,
            thinking_tokens=thinking,
            web_search_requests=answer.web_searches,
        )
        body = {
            "id": f"msg_sim_{number:06d}",
            "type": "message",
            "role": "assistant",
            "model": model.id,
            "content": content,
            "stop_reason": answer.stop_reason,
            "stop_sequence": None,
            "stop_details": answer.stop_details,
            "container": None,
            "usage": used.as_json(),
        }
        return Message(body, used)


def _complete(blocks: Any, prompt: Prompt, number: int) -> list[Block]:
    """Return the blocks with the ids, signatures and seals that scripts leave out."""
    content: list[Block] = []
    search_id = ""
    for place, block in enumerate(blocks):
        match block:
            case {"type": "thinking", "signature": signature} if signature == SIGN:
                signature = thinking_signature(block["thinking"], prompt.prefix_after(content))
                content.append({**block, "signature": signature})
            case {"type": "tool_use"}:
                content.append({"id": f"toolu_sim_{number:06d}_{place}", **block})
            case {"type": "server_tool_use"}:
                search_id = f"srvtoolu_sim{number:06d}x{place}"
                content.append({"id": search_id, **block})
            case {"type": "web_search_tool_result"}:
                content.append({"tool_use_id": search_id, **block, "content": _sealed(block["content"])})
            case {"type": "text", "citations": [*citations]}:
                content.append({**block, "citations": [_sealed_citation(c) for c in citations]})
            case _:
                content.append(block)
    return content


def _sealed(results: Any) -> Any:
    if not isinstance(results, list):
        return results
    return [{**result, "encrypted_content": search_result_seal(result["url"], result["title"])} for result in results]


def _sealed_citation(citation: Block) -> Block:
    return {**citation, "encrypted_index": citation_seal(citation["url"], citation["cited_text"])}


def _cut(answer: MessageReply, max_tokens: int) -> MessageReply:
    """Return as much of the answer as fits `max_tokens`, by about four bytes a token."""
    content: list[Block] = []
    left = max_tokens
    for block in answer.content:
        size, _ = output_tokens([block])
        if size > left:
            if block["type"] == "text" and left > 0:
                content.append({**block, "text": block["text"][: left * BYTES_PER_TOKEN].rstrip() or "…"})
            return MessageReply(content, "max_tokens", web_searches=answer.web_searches)
        left -= size
        content.append(block)
    return answer
