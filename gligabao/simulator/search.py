"""The web search server tool: what the simulated API answers to a request that carries it."""

import re
from typing import Any
from urllib.parse import urlsplit

from gligabao.simulator import web
from gligabao.simulator.models import find_model
from gligabao.simulator.prompt import Block, blocks_of, text_of
from gligabao.simulator.replies import SIGN, MessageReply, text

MAX_WORDS = 300
"""How long the text about the results is at most."""
_MAX_CITED_CHARS = 150
_SENTENCES_PER_PAGE = 3
# A closing quotation mark belongs to the sentence before it.
_BETWEEN_SENTENCES = re.compile('(?<=[.!?])\\s+|(?<=[.!?]["\u201d])\\s+')


def search_reply(body: dict[str, Any], base_url: str) -> MessageReply:
    """Search the bundled pages for what the user asks, and tell in a few cited sentences what they say."""
    tool = next(tool for tool in body["tools"] if str(tool.get("type")).startswith("web_search_"))
    waiting = _waiting_search(body)
    if waiting is None and (body.get("tool_choice") or {}).get("type") == "none":
        return text("I was told not to search, and I know nothing without searching.")
    query = str(waiting["input"].get("query", "")) if waiting else _query(body)
    pages = [page for page in web.search(query) if _is_wanted(base_url, tool)]
    thought = [] if waiting else thinking_blocks(body, f"The question is about {query}. I will search for it.")
    content = [*thought, *_search_blocks(query, pages, base_url, waiting)]
    content += _briefing(query, pages, base_url)
    return MessageReply(content, web_searches=1, obeys_max_tokens=True)


def thinks(body: dict[str, Any]) -> bool:
    """Tell whether the model thinks before it answers this request."""
    if (body.get("output_config") or {}).get("effort") == "low":
        return False
    model = find_model(body["model"])
    kind = (body.get("thinking") or {}).get("type")
    return kind in ("adaptive", "enabled") or (kind is None and model is not None and model.thinks_by_default)


def thinking_blocks(body: dict[str, Any], thought: str) -> list[Block]:
    """Return a thinking block, none where there is no thought or the model does not think.

    Its text is empty where the request wants thinking left out.
    """
    if not thought or not thinks(body):
        return []
    shown = "" if (body.get("thinking") or {}).get("display") == "omitted" else thought
    return [{"type": "thinking", "thinking": shown, "signature": SIGN}]


def sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph."""
    return [part.strip() for part in _BETWEEN_SENTENCES.split(paragraph) if part.strip()]


def is_prose(sentence: str) -> bool:
    """Tell whether this is a whole sentence, not a heading, a byline or a menu."""
    return sentence[-1] in ".!?\u201d" and len(sentence.split()) >= 8


def _waiting_search(body: dict[str, Any]) -> Block | None:
    """Return the search that a paused turn has asked for and not yet got, None when there is none."""
    if body["messages"][-1]["role"] != "assistant":
        return None
    blocks = blocks_of(body["messages"][-1]["content"])
    done = {block["tool_use_id"] for block in blocks if block["type"] == "web_search_tool_result"}
    return next((b for b in blocks if b["type"] == "server_tool_use" and b["id"] not in done), None)


def _query(body: dict[str, Any]) -> str:
    asked = next(text_of(m["content"]) for m in reversed(body["messages"]) if m["role"] == "user")
    return " ".join(asked.split())[:200]


def _is_wanted(base_url: str, tool: Block) -> bool:
    host = urlsplit(base_url).hostname or ""
    if tool.get("allowed_domains"):
        return host in tool["allowed_domains"]
    return host not in (tool.get("blocked_domains") or ())


def _search_blocks(query: str, pages: list[web.Page], base_url: str, waiting: Block | None) -> list[Block]:
    found = [
        {"type": "web_search_result", "url": base_url + page.path, "title": page.title, "page_age": page.age}
        for page in pages
    ]
    if waiting is not None:
        return [{"type": "web_search_tool_result", "tool_use_id": waiting["id"], "content": found}]
    use = {"type": "server_tool_use", "name": "web_search", "input": {"query": query}}
    return [use, {"type": "web_search_tool_result", "content": found}]


def _briefing(query: str, pages: list[web.Page], base_url: str) -> list[Block]:
    """Return text blocks of at most `MAX_WORDS` words in all; each tells what one page says, with a citation."""
    if not pages:
        return [{"type": "text", "text": "Nothing useful found: no page of this small web is about that."}]
    blocks: list[Block] = [{"type": "text", "text": f"{len(pages)} pages of a small sample web are about this. "}]
    left = MAX_WORDS - 12
    for page in pages:
        said = _telling_sentences(page, query)
        words = f"{page.publisher}, {page.age}: {' '.join(said)} ".split(" ")
        if not said or len(words) > left:
            continue
        left -= len(words)
        citation = {
            "type": "web_search_result_location",
            "url": base_url + page.path,
            "title": page.title,
            "cited_text": said[0][:_MAX_CITED_CHARS],
        }
        blocks.append({"type": "text", "text": " ".join(words), "citations": [citation]})
    return blocks


def _telling_sentences(page: web.Page, query: str) -> list[str]:
    """Return the sentences of a page that share the most with the query, in the order of the page."""
    wanted = web.stems_of(query)
    found = [sentence for paragraph in page.paragraphs for sentence in sentences(paragraph) if is_prose(sentence)]
    scored = sorted(found, key=lambda sentence: -len(wanted & web.stems_of(sentence)))[:_SENTENCES_PER_PAGE]
    return [sentence for sentence in found if sentence in scored and wanted & web.stems_of(sentence)]
