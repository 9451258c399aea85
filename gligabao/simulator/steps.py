"""The steps of a research of one's own: search, read, look closer at what does not fit, read a little more."""

from dataclasses import dataclass, field

from gligabao.simulator.notes import FETCH, SEARCH, Notes
from gligabao.simulator.prompt import Block
from gligabao.simulator.replies import call
from gligabao.simulator.web import keywords

_FIRST_PAGES = 3
_MORE_PAGES = 2


@dataclass(frozen=True, slots=True)
class Step:
    """What is done next. Without calls nothing is left to do."""

    calls: list[Block] = field(default_factory=list)
    thought: str = ""


def first_look(notes: Notes) -> Step:
    """Return the first searches, then the first pages."""
    if SEARCH in notes.tools and not notes.queries:
        return Step([call(SEARCH, query=query) for query in _first_queries(notes)], "Two angles to begin with.")
    if FETCH in notes.tools and notes.unread and not notes.reads:
        return Step(_fetch(notes, _FIRST_PAGES))
    return Step()


def closer_look(notes: Notes) -> Step:
    """Return what follows the first look: a search for what is still open, then a few more pages."""
    if SEARCH in notes.tools and len(notes.queries) < 3:
        return Step([call(SEARCH, query=_closer_query(notes))], _doubt(notes))
    if FETCH in notes.tools and notes.unread and len(notes.reads) < _FIRST_PAGES + _MORE_PAGES:
        return Step(_fetch(notes, _MORE_PAGES))
    return Step()


def _first_queries(notes: Notes) -> tuple[str, str]:
    words = keywords(notes.topic) or notes.topic.split() or ["anything"]
    return " ".join(words[:6]), " ".join([*words[:4], "archive"])


def _closer_query(notes: Notes) -> str:
    words = keywords(notes.focus) or ["anything"]
    conflict = notes.conflict
    if conflict is not None:
        one, other = conflict.figures
        return " ".join([*words[1:5], one, "or", other, "disputed"])
    return " ".join([*words[-4:], "explained"])


def _doubt(notes: Notes) -> str:
    conflict = notes.conflict
    if conflict is None:
        return "One part of the question is still open. I will look closer."
    return f"Two pages give different figures, {' and '.join(conflict.figures)}. I will look for the reason."


def _fetch(notes: Notes, number: int) -> list[Block]:
    return [call(FETCH, url=url) for url in notes.unread[:number]]
