"""Web search through Anthropic's server tool `web_search_20250305`.

It is a model call of its own: the server tool must be called `web_search` too, and tool names are unique in a request.
At most two searches a call, $0.01 each on top of the tokens.
"""

from collections.abc import Iterator

from gligabao.errors import ModelError, ToolError
from gligabao.model.client import CallObserver, ModelConnection, Request, least_thinking
from gligabao.model.conversation import Block, Conversation
from gligabao.model.reply import Reply

TOOL: Block = {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}
FIRST_TOKENS = 1024
SECOND_TOKENS = 4096
"""When thinking used up the first limit and no text was written."""


class AnthropicSearch:
    """Searches for one agent, on its connection and its model."""

    def __init__(self, *, connection: ModelConnection, model: str, system: str, observer: CallObserver) -> None:
        self._connection = connection
        self._model = model
        self._system = system
        self._observer = observer

    def search(self, query: str) -> str:
        """Return a briefing of what was found and `Sources:` with a line per page: URL and title."""
        try:
            reply = self._ask(query, FIRST_TOKENS)
            if reply.cut and not reply.text.strip():
                reply = self._ask(query, SECOND_TOKENS)
        except ModelError as error:
            raise ToolError(f"the web search failed: {error}") from error
        _raise_search_error(reply)
        if not reply.text.strip():
            raise ToolError("the web search returned no text: ask for something narrower")
        return "\n\n".join(part for part in (reply.text.strip(), _list_sources(reply)) if part)

    def _ask(self, query: str, max_tokens: int) -> Reply:
        conversation = Conversation(system=self._system, topic=query, tools=[TOOL])
        options = least_thinking(self._model)
        request = Request(self._model, conversation, max_tokens=max_tokens, options=options)
        return self._connection.ask(request, self._observer)


def _raise_search_error(reply: Reply) -> None:
    """Raise if all searches of the call failed: that comes inside a 200."""
    results = [block.get("content") for block in reply.content if block["type"] == "web_search_tool_result"]
    errors = [str(found.get("error_code")) for found in results if isinstance(found, dict)]
    if errors and len(errors) == len(results):
        raise ToolError(f"the web search failed: {', '.join(dict.fromkeys(errors))}")


def _list_sources(reply: Reply) -> str:
    pages: dict[str, str] = {}
    for page in (*_cited(reply), *_found(reply)):
        url, title = page.get("url"), page.get("title")
        if isinstance(url, str) and url not in pages:
            pages[url] = " ".join(str(title or "").split())
    return "\n".join(["Sources:", *(f"{url} {title}".rstrip() for url, title in pages.items())]) if pages else ""


def _cited(reply: Reply) -> Iterator[Block]:
    for block in reply.content:
        if block["type"] == "text":
            yield from (citation for citation in block.get("citations") or () if isinstance(citation, dict))


def _found(reply: Reply) -> Iterator[Block]:
    for block in reply.content:
        found = block.get("content") if block["type"] == "web_search_tool_result" else None
        if isinstance(found, list):
            yield from (page for page in found if isinstance(page, dict))
