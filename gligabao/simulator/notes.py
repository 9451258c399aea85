"""What the researcher knows: everything in the request, and nothing else."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from gligabao.simulator.prompt import blocks_of, text_of

SUBJECTS = tomllib.loads((files("gligabao.simulator") / "pages" / "claims.toml").read_text(encoding="utf-8"))
"""The claims it can recognise in a text, by the headings of a report."""
SEARCH, FETCH = "web_search", "fetch_url"
_MARKER = re.compile(r"^\[untrusted .*\]$", re.MULTILINE)
_LISTED = re.compile(r"^(https?://\S+) ?(.*)$", re.MULTILINE)
_BEFORE_PUBLISHER = re.compile(r" [-|\u2013\u2014\u00b7] | \((?=[^)]*\)$)")


class ToolRun(NamedTuple):
    """A tool that was called, and its result."""

    tool: str
    given: Mapping[str, Any]
    output: str
    failed: bool


class Finding(NamedTuple):
    """A claim, with the values that the linked pages give."""

    sentence: str
    values: tuple[str, ...]
    links: list[str]

    def __str__(self) -> str:
        return f"{self.sentence} ({', '.join(self.links)})"


class Notes:
    """The conversation so far: the tools that may be called now, and what came of earlier calls."""

    def __init__(self, body: dict[str, Any]) -> None:
        may_call = (body.get("tool_choice") or {}).get("type") != "none"
        self.tools = {str(tool["name"]) for tool in body.get("tools") or () if may_call}
        self._runs = list(_read_runs(body))
        self.searches = self.runs_of(SEARCH)
        self.reads = {str(run.given.get("url")): run for run in self.runs_of(FETCH)}
        self.titles = {url: title or url for run in self.searches for url, title in _LISTED.findall(run.output)}

    def runs_of(self, tool: str) -> list[ToolRun]:
        """Return the calls of one tool."""
        return [run for run in self._runs if run.tool == tool]

    def may_start(self, tool: str) -> bool:
        """Tell whether a tool is offered and was not called before."""
        return tool in self.tools and not self.runs_of(tool)

    def told_on(self, *subjects: str) -> list[list[Finding]]:
        """Return what the pages say claim by claim, the search briefings if no page was read.

        A claim has several findings where pages disagree, that of the most pages first.
        """
        texts = {self._link(url): run.output for url, run in self.reads.items() if not run.failed}
        texts = texts or {"from a search briefing, not read": "\n".join(run.output for run in self.searches)}
        told = (list(_find(texts, *claim)) for subject in subjects for claim in SUBJECTS[subject]["claims"])
        return [sorted(findings, key=lambda finding: -len(finding.links)) for findings in told if findings]

    def _link(self, url: str) -> str:
        """Return a link that carries the publisher's name, which titles end with."""
        publisher = _BEFORE_PUBLISHER.split(self.titles.get(url, url))[-1].rstrip(")")
        return f"[{publisher}]({url})"


def _find(texts: Mapping[str, str], sentence: str, pattern: str) -> Iterator[Finding]:
    links: dict[tuple[str, ...], dict[str, None]] = {}
    for link, text in texts.items():
        for match in re.finditer(pattern, " ".join(text.split())):
            links.setdefault(match.groups(), {})[link] = None
    return (Finding(sentence.format(*values), values, list(links[values])) for values in links)


def _read_runs(body: dict[str, Any]) -> Iterator[ToolRun]:
    blocks = [block for message in body["messages"] for block in blocks_of(message["content"])]
    calls = {block["id"]: block for block in blocks if block["type"] == "tool_use"}
    for block in (block for block in blocks if block["type"] == "tool_result"):
        call = calls[block["tool_use_id"]]
        output = _MARKER.sub("", text_of(block.get("content") or ""))
        yield ToolRun(call["name"], call["input"], output, bool(block.get("is_error")))
