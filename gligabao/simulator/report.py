"""The report of the built-in researcher, put together from the sentences of the pages it has read."""

import re
from collections.abc import Sequence

from gligabao.simulator.notes import Claim, Conflict, Notes
from gligabao.simulator.web import DEMO_TOPIC, find_page, keywords, stems_of

DISCLAIMER = (
    "*This report was written by gligabao's simulated model over bundled sample pages. No real model was asked.*"
)
NOTHING_MISSING = "Nothing that was looked for is missing."
NO_SOURCES = "None."
_BEFORE_PUBLISHER = re.compile(" (?:[-|\u2013\u2014\u00b7]) ")
_ANSWER_CLAIMS = 2
_DETAIL_CLAIMS = 6


def write_report(notes: Notes) -> str:
    """Return the report in Markdown: the answer, the details, what does not agree, what is missing, the sources."""
    parts = [DISCLAIMER]
    if notes.claims:
        answer = " ".join(answer_lines(notes)) or "The pages that were read say little on this topic."
        parts += [f"**In short.** {answer}", section("Details", detail_lines(notes))]
        parts.append(section("Where the sources disagree", conflict_lines(notes)))
    else:
        parts.append(_from_briefings(notes) or _nothing(notes))
    parts += [section("What was not found", gap_lines(notes), none=NOTHING_MISSING)]
    parts += [section("Sources", source_lines(notes), none=NO_SOURCES)]
    return "\n\n".join(part for part in parts if part)


def section(title: str, lines: Sequence[str], *, none: str = "") -> str:
    """Return a heading with a list under it; without lines the text for `none`, or nothing at all."""
    listed = [f"- {line}" for line in lines or ([none] if none else [])]
    return "\n".join([f"## {title}", "", *listed]) if listed else ""


def answer_lines(notes: Notes, *, dated: bool = False) -> list[str]:
    """Return what the pages say on the topic in a few sentences; first of all, where they do not agree."""
    conflict = notes.conflict
    said = [_linked(notes, claim, dated=dated) for claim in _main_claims(notes, notes.undisputed)]
    if conflict is None:
        return said
    one, other = conflict.figures
    disputed = (
        f"The sources do not agree: {one} according to {_link(notes, conflict.one.url, dated=dated)}, {other} "
        f"according to {_link(notes, conflict.other.url, dated=dated)}; more on that below."
    )
    return [disputed, *said]


def detail_lines(notes: Notes, *, dated: bool = False) -> list[str]:
    """Return what else the pages say on the topic."""
    told = _main_claims(notes, notes.undisputed)
    chosen = _choose(notes, [claim for claim in notes.undisputed if claim not in told], _DETAIL_CLAIMS)
    return [_linked(notes, claim, dated=dated) for claim in chosen]


def briefing_lines(notes: Notes) -> list[str]:
    """Return what the searches alone say on the topic, for want of pages."""
    return [claim.text for claim in _choose(notes, notes.briefings, _DETAIL_CLAIMS)]


def conflict_lines(notes: Notes) -> list[str]:
    """Return both sides of a contradiction, and what other pages say of it; nothing when there is none."""
    conflict = notes.conflict
    if conflict is None:
        return []
    sides = zip(conflict.figures, (conflict.one, conflict.other), strict=True)
    lines = [f"{figure}: “{claim.text}” ({_link(notes, claim.url)})" for figure, claim in sides]
    others = [f"On the same figures: {_linked(notes, claim)}" for claim in _said_elsewhere(notes, conflict)]
    return [*lines, *(others or ["No page that was read says why the figures differ."])]


def gap_lines(notes: Notes) -> list[str]:
    """Return what was looked for and not found."""
    lines = [f"{read.url} could not be read: {one_line(read.text)}" for read in notes.reads if read.failed]
    if notes.claims:
        covered = frozenset[str]().union(*(claim.stems for claim in notes.claims))
        missing = [word for word in keywords(notes.focus) if not stems_of(word) <= covered]
        lines += [f"No page that was read says anything on: {', '.join(missing)}."] if missing else []
    searches = zip(notes.queries, notes.found, strict=True)
    return [*lines, *(f"A search found nothing: {query}" for query, urls in searches if not urls)]


def source_lines(notes: Notes) -> list[str]:
    """Return the pages that were read, or those that were found when none was."""
    read = dict.fromkeys(read.url for read in notes.reads if not read.failed)
    if read:
        return [f"{notes.title(url)}: {url}" for url in read]
    listed = dict.fromkeys(url for urls in notes.found for url in urls)
    return [f"{notes.title(url)}: {url} (found, not read)" for url in listed]


def one_line(text: str) -> str:
    """Return the beginning of a text in one line, for an error."""
    return " ".join(text.split())[:200] or "no reason was given"


def _main_claims(notes: Notes, claims: list[Claim]) -> list[Claim]:
    return _choose(notes, claims, _ANSWER_CLAIMS, at_least=2) or _choose(notes, claims, _ANSWER_CLAIMS)


def _said_elsewhere(notes: Notes, conflict: Conflict) -> list[Claim]:
    """Return what other pages say of the disputed figures: up to two sentences each."""
    found: dict[str, list[Claim]] = {}
    for claim in notes.claims:
        if claim.url not in (conflict.one.url, conflict.other.url) and claim.figures & conflict.disputed:
            found.setdefault(claim.url, [])
            if not claim.text.endswith("?") and claim not in found[claim.url]:
                found[claim.url].append(claim)
    return [claim for claims in found.values() for claim in claims[:2]]


def _from_briefings(notes: Notes) -> str:
    said = [f"- {line}" for line in briefing_lines(notes)]
    head = "**In short**, from search briefings alone, as no page could be read:"
    return "\n".join([head, "", *said]) if said else ""


def _nothing(notes: Notes) -> str:
    words = ", ".join(keywords(notes.topic)[:6]) or notes.topic
    return (
        f"**In short.** The small web of the simulator holds nothing on this topic ({words}). The topic that it was "
        f"made for is: {DEMO_TOPIC}"
    )


def _choose(notes: Notes, claims: list[Claim], number: int, *, at_least: int = 1) -> list[Claim]:
    """Return claims that together cover the topic: each next one is the one that adds the most to it.

    Words that few claims have count more, and a short sentence more than a long one. A claim with fewer than
    `at_least` words of the topic is none on it.
    """
    topic = stems_of(notes.focus)
    alone = [claim for claim in claims if not claim.leans]
    left = list({claim.text: claim for claim in alone if len(claim.stems & topic) >= at_least}.values())
    weights = {stem: 1 / (1 + sum(stem in claim.stems for claim in left)) for stem in topic}
    chosen: list[Claim] = []
    covered: frozenset[str] = frozenset()
    while left and len(chosen) < number:
        best = max(left, key=lambda claim: _worth(claim, topic, covered, weights))
        chosen.append(best)
        covered |= best.stems
        left.remove(best)
    return chosen


def _worth(
    claim: Claim, topic: frozenset[str], covered: frozenset[str], weights: dict[str, float]
) -> tuple[float, float]:
    def per_word(stems: frozenset[str]) -> float:
        return sum(weights[stem] for stem in stems) / (10 + len(claim.text.split()))

    return per_word(claim.stems & topic - covered), per_word(claim.stems & topic)


def _linked(notes: Notes, claim: Claim, *, dated: bool = False) -> str:
    return f"{claim.text} ({_link(notes, claim.url, dated=dated)})" if claim.url else claim.text


def _link(notes: Notes, url: str, *, dated: bool = False) -> str:
    """Return a link named after the publisher, where the title ends with one, and the day of the page if wanted."""
    name = _BEFORE_PUBLISHER.split(notes.title(url))[-1].replace("[", "(").replace("]", ")")
    page = find_page(url) if dated else None
    return f"[{name}, {page.published}]({url})" if page else f"[{name}]({url})"
