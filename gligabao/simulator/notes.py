"""What the scripted researcher knows: all that stands in the request, and nothing else.

It keeps no memory of its own, so any number of conversations can go on at once.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gligabao.simulator.prompt import Block, blocks_of, text_of
from gligabao.simulator.search import is_prose, sentences
from gligabao.simulator.web import find_page, stems_of

SEARCH = "web_search"
FETCH = "fetch_url"
_URL = re.compile(r"https?://[^\s<>\"'\])|]+")
_FIGURE = re.compile(r"\d[\d,]*(?:\.\d+)?")
_AROUND_TITLES = " \t-\u2013\u2014:*[]|"
_LONG_LINE = 80
_MAX_CLAIMS = 60
_LEANING = ("It ", "Its ", "That ", "This ", "These ", "Those ", "They ", "Their ", "Such ", "But ", "Without that ")
_FOOTER = "gligabao simulator"
"""Stands in the last line of every bundled page, which says only that the page is one."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence that a page says."""

    text: str
    url: str
    stems: frozenset[str]
    figures: frozenset[str]

    @property
    def leans(self) -> bool:
        """Whether it leans on the sentence before it and says little alone."""
        return self.text.startswith(_LEANING)


@dataclass(frozen=True, slots=True)
class Read:
    """An attempt to read a page."""

    url: str
    failed: bool
    text: str
    """What came back: the page, or what went wrong."""

    def claims(self) -> list[Claim]:
        """Return the sentences of the page."""
        return [] if self.failed else list(_claims(self.text, self.url))[:_MAX_CLAIMS]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two pages that give different figures for the same thing."""

    one: Claim
    other: Claim

    @property
    def disputed(self) -> frozenset[str]:
        """The figures that only one of the two has."""
        return self.one.figures ^ self.other.figures

    @property
    def figures(self) -> tuple[str, str]:
        """The two figures, each with what is counted."""
        return _differing(self.one, self.other), _differing(self.other, self.one)


@dataclass
class Notes:
    """What the conversation holds so far. Once it is taken it does not change."""

    topic: str
    focus: str
    """What is asked of the topic: less than all of it where its subject is named beside."""
    tools: frozenset[str]
    """The tools that may be called now."""
    queries: list[str] = field(default_factory=list)
    found: list[list[str]] = field(default_factory=list)
    """The URLs that each search found, in order."""
    titles: dict[str, str] = field(default_factory=dict)
    briefings: list[Claim] = field(default_factory=list)
    """Sentences of the search results."""
    reads: list[Read] = field(default_factory=list)

    @property
    def unread(self) -> list[str]:
        """The URLs that were found and not yet tried: the first two of a search, then the first of the next, ..."""
        tried = {read.url for read in self.reads}
        heads = [url for urls in self.found for url in urls[:2]]
        tails = [url for urls in self.found for url in urls[2:]]
        return [url for url in dict.fromkeys([*heads, *tails]) if url not in tried]

    @cached_property
    def claims(self) -> list[Claim]:
        """All that the pages read say."""
        return [claim for read in self.reads for claim in read.claims()]

    def title(self, url: str) -> str:
        """Return the title of a page, as the search gave it."""
        return self.titles.get(url) or (page.title if (page := find_page(url)) else url)

    @cached_property
    def conflict(self) -> Conflict | None:
        """The clearest contradiction between two pages on what is asked, None when there is none."""
        asked = stems_of(self.focus)
        counted = [claim for claim in self.claims if claim.figures and claim.stems & asked]
        best: Conflict | None = None
        best_likeness = 0.6
        for index, one in enumerate(counted):
            for other in counted[index + 1 :]:
                if one.url == other.url or not (one.figures - other.figures and other.figures - one.figures):
                    continue
                likeness = _likeness(one, other)
                if likeness > best_likeness:
                    best, best_likeness = Conflict(one, other), likeness
        return best

    @cached_property
    def undisputed(self) -> list[Claim]:
        """The claims without a figure that the pages disagree on."""
        if self.conflict is None:
            return self.claims
        disputed = self.conflict.disputed
        return [claim for claim in self.claims if not claim.figures & disputed]


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A tool that was called, and what came of it."""

    tool: str
    given: dict[str, Any]
    output: str
    failed: bool


def take_notes(body: dict[str, Any], topic: str, *, focus: str = "") -> Notes:
    """Return what a request tells a researcher who looks into this topic; the focus is all of it unless given."""
    notes = Notes(topic, focus or topic, offered_tools(body))
    for run in tool_runs(body):
        if run.tool == SEARCH:
            notes.queries.append(str(run.given.get("query", "")))
            _note_search(notes, "" if run.failed else run.output)
        elif run.tool == FETCH:
            notes.reads.append(Read(str(run.given.get("url", "")), run.failed, run.output))
    return notes


def offered_tools(body: dict[str, Any]) -> frozenset[str]:
    """Return the names of the tools that may be called now."""
    if (body.get("tool_choice") or {}).get("type") == "none":
        return frozenset()
    return frozenset(str(tool["name"]) for tool in body.get("tools") or ())


def tool_runs(body: dict[str, Any]) -> list[ToolRun]:
    """Return the tools that were called in the conversation so far, in the order of their results."""
    calls: dict[str, Block] = {}
    runs: list[ToolRun] = []
    for message in body["messages"]:
        for block in blocks_of(message["content"]):
            if block["type"] == "tool_use":
                calls[block["id"]] = block
            elif block["type"] == "tool_result":
                call = calls[block["tool_use_id"]]
                output = text_of(block.get("content") or "")
                runs.append(ToolRun(call["name"], call["input"], output, bool(block.get("is_error"))))
    return runs


def _note_search(notes: Notes, said: str) -> None:
    briefing, sources, listing = said.rpartition("Sources:")
    urls: list[str] = []
    for line in (listing if sources else said).splitlines():
        for match in _URL.finditer(line):
            url = match.group().rstrip(".,;:")
            urls.append(url)
            title = line.replace(f"({url})", "").replace(url, "").strip(_AROUND_TITLES)
            notes.titles.setdefault(url, title if sources else "")
    notes.found.append(list(dict.fromkeys(urls)))
    notes.briefings.extend(_claims(briefing if sources else said, ""))


def _claims(text: str, url: str) -> Iterator[Claim]:
    for paragraph in _paragraphs(text):
        for sentence in () if _FOOTER in paragraph else sentences(paragraph):
            if is_prose(sentence) and not _URL.search(sentence):
                yield Claim(sentence, url, stems_of(_FIGURE.sub(" ", sentence)), frozenset(_FIGURE.findall(sentence)))


def _paragraphs(text: str) -> Iterator[str]:
    """Join the lines of wrapped paragraphs, and leave headings and menu entries on their own."""
    paragraph = ""
    for line in map(str.strip, text.splitlines()):
        paragraph = f"{paragraph} {line}".strip()
        if len(line) < _LONG_LINE or line[-1] in ".!?":
            yield paragraph
            paragraph = ""
    yield paragraph


def _likeness(one: Claim, other: Claim) -> float:
    together = one.stems | other.stems
    return len(one.stems & other.stems) / len(together) if len(together) >= 4 else 0.0


def _differing(claim: Claim, other: Claim) -> str:
    """Return the figure of this claim that the other does not have, with the two words after it."""
    figure = next(figure for figure in _FIGURE.findall(claim.text) if figure not in other.figures)
    match = re.search(re.escape(figure) + r"(?:\s+[A-Za-z]+){0,2}", claim.text)
    return match.group() if match else figure
