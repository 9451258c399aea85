"""The two web tools: `web_search` and `fetch_url`."""

from typing import Annotated, Protocol

from pydantic import Field, StringConstraints

from gligabao.agent.limits import MAX_BRIEFING_WORDS, MAX_PAGE_CHARACTERS
from gligabao.agent.marking import Marker
from gligabao.agent.tools import Tool, ToolInput
from gligabao.reader.page import Page
from gligabao.records import StateName
from gligabao.search import Search

SEARCH_DESCRIPTION = f"""\
Searches the web and returns a briefing of at most {MAX_BRIEFING_WORDS:,} words with the facts, figures and dates it \
found, followed by "Sources:" with one line per page (URL and title). Use it to find out what is known and where it \
stands; then read the pages that matter with fetch_url, because a briefing is second-hand. Ask for one aspect per \
call, in plain words: begin short and broad, get narrower. No site: filters, quotation marks or OR. When it finds \
nothing, rephrase once; if that brings nothing either, the gap belongs in your report."""

FETCH_DESCRIPTION = f"""\
Reads one public web page by a plain GET (no JavaScript, no log-in) and returns its title, URL and text: the \
first {MAX_PAGE_CHARACTERS:,} characters; a last line tells when the page is longer. Give it URLs that a search \
result, a page you read or the user gave you; never make one up. Use it for every page that a claim of your report \
rests on. On an error use another source; the same URL will fail again. A page you have read already \
is not read twice."""


class SearchInput(ToolInput):
    """Input of `web_search`."""

    query: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] = Field(
        description="What to look for, in plain words, one aspect of the topic."
    )


class FetchInput(ToolInput):
    """Input of `fetch_url`."""

    url: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] = Field(
        description="The page's full address, http:// or https://."
    )


class Reader(Protocol):
    """What reads pages for `fetch_url`."""

    def read(self, url: str) -> Page:
        """Return the page, or raise `ToolError`."""


class WebTools:
    """The web tools of one agent. It remembers which pages the agent has read."""

    def __init__(self, *, search: Search, reader: Reader, marker: Marker) -> None:
        self._search = search
        self._reader = reader
        self._marker = marker
        self._read: set[str] = set()

    def tools(self) -> list[Tool[SearchInput] | Tool[FetchInput]]:
        """Return the two tools."""
        return [
            Tool("web_search", SEARCH_DESCRIPTION, SearchInput, StateName.SEARCHING, _query_of, self._run_search),
            Tool("fetch_url", FETCH_DESCRIPTION, FetchInput, StateName.READING, self._describe_url, self._fetch),
        ]

    def _describe_url(self, given: FetchInput) -> str:
        return f"{given.url} (already read)" if given.url in self._read else given.url

    def _run_search(self, given: SearchInput) -> str:
        return self._marker.wrap(self._search.search(given.query))

    def _fetch(self, given: FetchInput) -> str:
        if given.url in self._read:
            return "You have read this page in an earlier step: its text stands in the result of that call."
        page = self._reader.read(given.url)
        self._read.add(given.url)
        return self._show(page)

    def _show(self, page: Page) -> str:
        title = f"Title: {page.title}\n" if page.title else ""
        shown = self._marker.wrap(f"{title}URL: {page.url}\n\n{page.text[:MAX_PAGE_CHARACTERS]}")
        if len(page.text) > MAX_PAGE_CHARACTERS:
            longer = "at least " if page.cut else ""
            return f"{shown}\n[cut: the first {MAX_PAGE_CHARACTERS:,} of {longer}{len(page.text):,} characters]"
        return f"{shown}\n[cut: the page is longer than what was downloaded]" if page.cut else shown


def _query_of(given: SearchInput) -> str:
    return given.query
