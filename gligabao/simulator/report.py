"""The report: the answer, details under headings, where sources disagree, what was not found, the sources."""

import re
from collections.abc import Iterator, Sequence

from gligabao.simulator.notes import SUBJECTS, Notes
from gligabao.simulator.web import DEMO_TEAM_TOPIC, DEMO_TOPIC, stems_of

Report = dict[str, list[str]]
"""The lines of a report by heading."""
ANSWER, REASONS = "", "Why the sources disagree"
ENDS = DISAGREE, GAPS, SOURCES = "Where the sources disagree", "What was not found", "Sources"
OVERVIEW = [name for name in SUBJECTS if name != REASONS]
"""What a topic that names no subject is about."""
DISCLAIMER = "*Written by gligabao's simulated model over bundled sample pages. No real model was asked.*"
NOTHING = f"""\
The simulated model found nothing on this: all it has are a few sample pages about one invented place. Topics to try:

* {DEMO_TOPIC}
* {DEMO_TEAM_TOPIC}"""


def asked_subjects(question: str) -> list[str]:
    """Return the headings that a question asks for."""
    return [name for name, subject in SUBJECTS.items() if stems_of(subject["asked_by"]) & stems_of(question)]


def report_on(subjects: Sequence[str], notes: Notes) -> Report:
    """Return what the notes say on some subjects."""
    report: Report = {ANSWER: [], DISAGREE: [], GAPS: [*_gaps(notes)], SOURCES: []}
    for subject in subjects:
        report[subject] = []
        for first, *others in notes.told_on(subject):
            but = (f", but {' and '.join(other.values)} according to {', '.join(other.links)}" for other in others)
            report[subject].append(f"{first}{''.join(but)}.")
            reasons = [reason for findings in notes.told_on(REASONS) for reason in findings]
            report[DISAGREE] += [f"{finding}." for finding in (first, *others, *reasons) if others]
        report[ANSWER] += report[subject][:1]
        del report[subject][:1]
    silent = [subject for subject in subjects if report[ANSWER] and not notes.told_on(subject)]
    report[GAPS] += [f"No page that was read covers this: {subject}." for subject in silent]
    linked = write(report)
    report[SOURCES] = [f"{title}: {url}" for url, title in notes.titles.items() if f"]({url})" in linked]
    return report


def join(report: Report, part: Report, heading: str) -> None:
    """Add the report on a part of the topic, its details under one heading."""
    report[heading] = []
    report[GAPS] += [] if part[ANSWER] else [f"{heading}: nothing was found."]
    for name, lines in part.items():
        report[name if name in (ANSWER, *ENDS) else heading] += lines


def write(report: Report) -> str:
    """Return a report in Markdown, each line once, the headings that all reports share at its end."""
    headings = sorted(filter(None, report), key=ENDS.count)
    lists = {heading: "\n".join(f"- {line}" for line in dict.fromkeys(report[heading])) for heading in headings}
    sections = [f"## {heading}\n\n{lines}" for heading, lines in lists.items() if lines]
    return "\n\n".join([DISCLAIMER, " ".join(report[ANSWER]) or NOTHING, *sections])


def parse(text: str) -> Report:
    """Return the report that `write` wrote."""
    head, *rest = re.split(r"^## (.+)$", text.split(DISCLAIMER)[-1], flags=re.MULTILINE)
    lists = [re.findall(r"^- (.+)$", body, re.MULTILINE) for body in rest[1::2]]
    return {ANSWER: [] if NOTHING in head else [head.strip()], **dict(zip(rest[::2], lists, strict=True))}


def _gaps(notes: Notes) -> Iterator[str]:
    for url, run in notes.reads.items():
        name = f"“{notes.titles.get(url, url)}” ({url})"
        if run.failed:
            reason = " ".join(run.output.split()).removeprefix(url.partition("://")[2] + ": ")
            yield f"{name} could not be read: {reason[:200]}."
        elif "\n[cut: " in run.output:
            yield f"{name} was read only in part."
