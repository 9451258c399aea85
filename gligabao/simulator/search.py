"""The web search server tool: what the simulated API answers to a request that carries it."""

from typing import Any
from urllib.parse import urlsplit

from gligabao.simulator import web
from gligabao.simulator.prompt import Block, blocks_of, text_of
from gligabao.simulator.replies import MessageReply, text, thinking_blocks

MAX_WORDS = 300


def search_reply(body: dict[str, Any], base_url: str) -> MessageReply:
    """Search the bundled pages for what the user asks, and say in a few cited sentences what they hold."""
    tool = next(tool for tool in body["tools"] if str(tool.get("type")).startswith("web_search_"))
    waiting = _waiting_search(body)
    if waiting is None and (body.get("tool_choice") or {}).get("type") == "none":
        return text("I was told not to search, and I know nothing without searching.")
    asked = next(text_of(m["content"]) for m in reversed(body["messages"]) if m["role"] == "user")
    query = str(waiting["input"].get("query", "")) if waiting else " ".join(asked.split())[:200]
    host = urlsplit(base_url).hostname
    blocked = host in (tool.get("blocked_domains") or ()) or host not in (tool.get("allowed_domains") or (host,))
    pages = [] if blocked else web.search(query)
    found = [page.as_result(base_url) for page in pages]
    use = {"type": "server_tool_use", "name": "web_search", "input": {"query": query}}
    head = [] if waiting else [*thinking_blocks(body, f"The question is about {query}. I will search for it."), use]
    result = {"type": "web_search_tool_result", "content": found} | ({"tool_use_id": waiting["id"]} if waiting else {})
    return MessageReply([*head, result, *_briefing(query, pages, base_url)], web_searches=1, obeys_max_tokens=True)


def _waiting_search(body: dict[str, Any]) -> Block | None:
    """Return the search that a paused turn asked for and did not get yet."""
    last = body["messages"][-1]
    blocks = blocks_of(last["content"]) if last["role"] == "assistant" else []
    done = {block["tool_use_id"] for block in blocks if block["type"] == "web_search_tool_result"}
    return next((b for b in blocks if b["type"] == "server_tool_use" and b["id"] not in done), None)


def _briefing(query: str, pages: list[web.Page], base_url: str) -> list[Block]:
    """Return a text block with a citation for each page, `MAX_WORDS` words in all at most."""
    if not pages:
        return [{"type": "text", "text": "Nothing useful found: no page of this small web is about that."}]
    blocks: list[Block] = [{"type": "text", "text": f"{len(pages)} pages of a small sample web are about this. "}]
    left = MAX_WORDS - 12
    for page in pages:
        said = page.excerpt(query)
        words = f"{page.publisher}, {page.age}: {' '.join(said)} ".split(" ")
        if said and len(words) <= left:
            left -= len(words)
            cited = {"url": base_url + page.path, "title": page.title, "cited_text": said[0][:150]}
            citations = [{"type": "web_search_result_location", **cited}]
            blocks.append({"type": "text", "text": " ".join(words), "citations": citations})
    return blocks
