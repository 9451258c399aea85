"""The built-in researcher: what the simulated model does with a topic when no script says otherwise.

A small machine without memory: the next step follows from what the request holds. Search twice, read three pages,
look closer at what does not fit, read two more, write the report. With `tool_choice: none`, or
without the tools, it writes the report at once from what it has.
"""

from typing import Any

from gligabao.simulator.notes import FETCH, SEARCH, Notes, take_notes
from gligabao.simulator.prompt import Block
from gligabao.simulator.replies import Answer, call
from gligabao.simulator.report import write_report
from gligabao.simulator.search import thinking_blocks
from gligabao.simulator.web import keywords

_FIRST_PAGES = 3
_MORE_PAGES = 2


def research(body: dict[str, Any]) -> Answer:
    """Return the next step of the research that this conversation is about."""
    notes = take_notes(body)
    calls, thought = _next_calls(notes)
    if calls:
        return Answer([*thinking_blocks(body, thought), *calls], "tool_use", obeys_max_tokens=True)
    report: Block = {"type": "text", "text": write_report(notes)}
    return Answer([*thinking_blocks(body, thought), report], obeys_max_tokens=True)


def _next_calls(notes: Notes) -> tuple[list[Block], str]:
    """Return the tool calls of the next step and the thought behind them; no calls: it is time for the report."""
    if SEARCH in notes.tools and not notes.queries:
        return [call(SEARCH, query=query) for query in _first_queries(notes)], "Two angles to begin with."
    if FETCH in notes.tools and notes.unread and not notes.reads:
        return _fetch(notes, _FIRST_PAGES), ""
    if SEARCH in notes.tools and len(notes.queries) < 3:
        return [call(SEARCH, query=_closer_query(notes))], _doubt(notes)
    if FETCH in notes.tools and notes.unread and len(notes.reads) < _FIRST_PAGES + _MORE_PAGES:
        return _fetch(notes, _MORE_PAGES), ""
    return [], "I have what there is to have. Now the report."


def _first_queries(notes: Notes) -> tuple[str, str]:
    words = keywords(notes.topic) or notes.topic.split() or ["anything"]
    return " ".join(words[:6]), " ".join([*words[:4], "archive"])


def _closer_query(notes: Notes) -> str:
    words = keywords(notes.topic) or ["anything"]
    conflict = notes.conflict()
    if conflict is not None:
        one, other = conflict.figures
        return " ".join([*words[1:5], one, "or", other, "disputed"])
    return " ".join([*words[-4:], "explained"])


def _doubt(notes: Notes) -> str:
    conflict = notes.conflict()
    if conflict is None:
        return "One part of the question is still open. I will look closer."
    return f"Two pages give different figures, {' and '.join(conflict.figures)}. I will look for the reason."


def _fetch(notes: Notes, number: int) -> list[Block]:
    return [call(FETCH, url=url) for url in notes.unread[:number]]
