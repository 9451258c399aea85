"""How a topic becomes the work of a team: its numbered parts, and the tasks that sub-agents get for them.

    Port Sable tidal station: who built it? (1) Output: how much does it deliver? (2) Machines: what limits them?

What stands before `(1)` is for the parent itself, and up to its colon the subject of all. Each of the first three
parts is for a sub-agent of its own, which is named after what stands before the part's colon.
"""

import re
from dataclasses import dataclass

from gligabao.simulator.web import keywords

MAX_PARTS = 3
_NUMBER = re.compile(r"(?<!\S)\((\d)\)(?!\S)")
_LABEL = re.compile(r"(\w[\w -]{0,39}):\s+(?=\S)")
_MAX_NAME_CHARACTERS = 40
_MAX_REASON_CHARACTERS = 300
_MAX_TASK_CHARACTERS = 2000
_SUBJECT = re.compile(r" \(on [^()]+\)$")
_TELL = re.compile('^Tell "(.+)" what you find', re.MULTILINE)
_LISTEN = re.compile("^.* read your messages before you report", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a topic."""

    name: str
    """Of the sub-agent that gets it."""
    title: str
    asked: str
    question: str
    """The same with the subject, to be understood without the rest of the topic."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A topic in parts."""

    whole: str
    """The topic without its numbers."""
    own: str
    """What the parent does itself."""
    own_asked: str
    """The same without the subject."""
    others: tuple[Part, ...]
    """What sub-agents do."""


@dataclass(frozen=True, slots=True)
class Errand:
    """What a sub-agent reads in its task."""

    question: str
    asked: str
    """The question without its subject."""
    tells: str
    """The sibling that it is to tell what bears on that one's part; "" for none."""
    listens: bool
    """Whether a sibling may have something for it."""


def split_topic(topic: str) -> Parts | None:
    """Return the parts of a topic that numbers two or more of them, None for any other."""
    lead, *rest = (" ".join(piece.split()) for piece in _NUMBER.split(topic))
    numbers, texts = rest[::2], [text.rstrip(" ;,") for text in rest[1::2]]
    if len(texts) < 2 or not all(texts) or numbers != [str(number) for number in range(1, len(texts) + 1)]:
        return None
    subject, _, asked = lead.rstrip(" .?!").partition(": ")
    whole = _join(lead, *texts)
    own = _join(lead, *texts[MAX_PARTS:]) or whole
    others: list[Part] = []
    for text in texts[:MAX_PARTS]:
        others.append(_make_part(text, subject, [part.name for part in others]))
    return Parts(whole, own, _join(asked, *texts[MAX_PARTS:]) or own, tuple(others))


def spawn_inputs(parts: Parts) -> list[dict[str, str]]:
    """Return the name, the reason and the task of each sub-agent. The first is to tell the second what it finds."""
    first, second = parts.others[0].name, parts.others[1].name
    errands = {
        first: f'Tell "{second}" what you find that bears on its part, with the page it is from.',
        second: f'"{first}" may have something for you: read your messages before you report.',
    }
    return [
        {
            "name": part.name,
            "reason": f"{part.asked[:200]} This warrants a research by itself."[:_MAX_REASON_CHARACTERS],
            "task": _write_task(parts, part, errands.get(part.name, ""))[:_MAX_TASK_CHARACTERS],
        }
        for part in parts.others
    ]


def read_task(task: str) -> Errand:
    """Return what a task asks for. The question is its first line, whoever wrote it."""
    question = task.strip().partition("\n")[0]
    tell = _TELL.search(task)
    return Errand(question, _SUBJECT.sub("", question), tell[1] if tell else "", bool(_LISTEN.search(task)))


def as_title(text: str) -> str:
    """Return a text as a heading."""
    return _capitalised(text).rstrip(".?!")


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _make_part(text: str, subject: str, taken: list[str]) -> Part:
    label = _LABEL.match(text)
    asked = _capitalised(text[label.end() :] if label else text)
    words = label[1] if label else " ".join(keywords(text)[:2])
    name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:_MAX_NAME_CHARACTERS] or "part"
    numbered = (f"{name[: _MAX_NAME_CHARACTERS - 2]}-{number}" for number in range(2, 9))
    name = next(candidate for candidate in (name, *numbered) if candidate not in taken)
    question = f"{asked} (on {subject})" if subject else asked
    return Part(name, as_title(label[1] if label else name), asked, question)


def _write_task(parts: Parts, part: Part, errand: str) -> str:
    lines = (
        part.question,
        "Bring back what the pages say of it: each figure with its date and its page, and where pages disagree.",
        f"Leave to others: {_join(*(other.asked for other in parts.others if other is not part))}",
        errand,
    )
    return "\n".join(line for line in lines if line)


def _join(*texts: str) -> str:
    return " ".join(text for text in texts if text)
