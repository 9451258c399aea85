"""The reports of a team: what a sub-agent hands up, and what its parent makes of all of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gligabao.simulator.notes import Notes
from gligabao.simulator.report import (
    DISCLAIMER,
    NO_SOURCES,
    NOTHING_MISSING,
    answer_lines,
    briefing_lines,
    conflict_lines,
    detail_lines,
    gap_lines,
    one_line,
    section,
    source_lines,
)
from gligabao.simulator.tasks import Part, Parts, as_title

_FINDINGS = "Findings"
_LETTERS = "Told by siblings"
_CONFLICTS = "Where the sources disagree"
_GAPS = "What was not found"
_SOURCES = "Sources"
_NO_FINDINGS = "None: no page on this could be read."
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_LINE = re.compile(r"^- (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that a sub-agent got."""

    sender: str
    run_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Handed:
    """What a parent has of one sub-agent: its report, or why there is none."""

    report: str = ""
    error: str = ""

    def lines(self, title: str) -> list[str]:
        """Return what is listed in one section of the report."""
        _, *pieces = _SECTION.split(self.report)
        listed = dict(zip(pieces[::2], pieces[1::2], strict=True)).get(title, "")
        return [line for line in _LINE.findall(listed) if line not in (NOTHING_MISSING, NO_SOURCES, _NO_FINDINGS)]


def write_findings(notes: Notes, letters: list[Letter]) -> str:
    """Return the report of a sub-agent: dense, each finding with its page and day."""
    told = [f"{letter.sender} (run {letter.run_id}) wrote: {' '.join(letter.text.split())}" for letter in letters]
    found = [*answer_lines(notes, dated=True), *detail_lines(notes, dated=True)] or _briefed(notes)
    parts = [
        DISCLAIMER,
        section(_FINDINGS, found, none=_NO_FINDINGS),
        section(_LETTERS, told),
        section(_CONFLICTS, conflict_lines(notes)),
        section(_GAPS, gap_lines(notes), none=NOTHING_MISSING),
        section(_SOURCES, source_lines(notes), none=NO_SOURCES),
    ]
    return "\n\n".join(part for part in parts if part)


def join_reports(notes: Notes, parts: Parts, handed: Mapping[str, Handed]) -> str:
    """Return the report of a parent: its own part and those of its sub-agents, what contradicts, what is missing."""
    of_parts = [(part, handed.get(part.name, Handed(error="it has no sub-agent"))) for part in parts.others]
    reports = [each for _, each in of_parts]
    short = [
        *(answer_lines(notes) or _briefed(notes)),
        *(line for each in reports for line in each.lines(_FINDINGS)[:1]),
    ]
    gaps = [*gap_lines(notes), *(gap for part, each in of_parts for gap in _gaps_of(part, each))]
    joined = [
        DISCLAIMER,
        f"**In short.** {' '.join(short) or 'The small web of the simulator holds nothing on this topic.'}",
        section(as_title(parts.own_asked), detail_lines(notes)),
        *(section(part.title, _body_of(each)) for part, each in of_parts),
        section(_CONFLICTS, _unique(conflict_lines(notes), *(each.lines(_CONFLICTS) for each in reports))),
        section(_GAPS, _unique(gaps), none=NOTHING_MISSING),
        section(_SOURCES, _unique(source_lines(notes), *(each.lines(_SOURCES) for each in reports)), none=NO_SOURCES),
    ]
    return "\n\n".join(part for part in joined if part)


def _briefed(notes: Notes) -> list[str]:
    return [f"{line} (from a search briefing, not read)" for line in briefing_lines(notes)]


def _body_of(handed: Handed) -> list[str]:
    return [*handed.lines(_FINDINGS)[1:], *handed.lines(_LETTERS)]


def _gaps_of(part: Part, handed: Handed) -> list[str]:
    if handed.error:
        return [f"{part.title}: {one_line(handed.error)}. Nothing is known of this part."]
    return handed.lines(_GAPS)


def _unique(*lists: list[str]) -> list[str]:
    return list(dict.fromkeys(line for each in lists for line in each))
