"""The built-in researcher: what the simulated model does with a topic when no script says otherwise.

It has no memory: each step follows from the request alone. It searches, reads, looks closer and reports; when it may
call no tools, it reports at once. The system prompt makes it a sub-agent, a topic in numbered parts a parent:

    Port Sable tidal station: who runs it? (1) Output: how much does it deliver? (2) Machines: what limits them?
"""

import re
from typing import Any

from gligabao.simulator.notes import FETCH, SEARCH, Notes
from gligabao.simulator.prompt import Block, first_user_text, text_of
from gligabao.simulator.replies import MessageReply, call, thinking_blocks
from gligabao.simulator.report import GAPS, OVERVIEW, Report, asked_subjects, join, parse, report_on, write
from gligabao.simulator.web import keywords, stems_of

Turn = list[Block] | Report
"""The tools to call now, or the report."""
SPAWN, WAIT = "spawn_subagent", "wait_subagents"
LIST, SEND, READ = "list_siblings", "send_message", "read_messages"
_TELL = 'Tell "{}" what you find that bears on its part.'
_LISTEN = "Read your messages before you report"
_NUMBER = re.compile(r"(?<!\S)\((\d)\)(?!\S)")
_LABEL = re.compile(r"(?:([A-Za-z][A-Za-z0-9]{0,39}): )?(.+)")
_AT_WORK = re.compile(r"^- (\S+) \[working\]: (.*)$", re.MULTILINE)
_LETTER = re.compile(r"^From (\S+ \(run \d+\)): (.*?)(?=\n\s*From |\Z)", re.MULTILINE | re.DOTALL)
_ENDED = re.compile(r"^## (\S+) \((run \d+)\): (completed|failed)$", re.MULTILINE)


def research(body: dict[str, Any]) -> MessageReply:
    """Return the next step of the research that this conversation is about."""
    turn = _play(body)
    content = turn if isinstance(turn, list) else [{"type": "text", "text": write(turn)}]
    next_tool = content[0].get("name", "the report")
    # It reads pages without a thought, so that there are turns with thinking and turns without.
    thought = thinking_blocks(body, f"Next: {next_tool}.") if next_tool != FETCH else []
    return MessageReply([*thought, *content], "tool_use" if content is turn else "end_turn", obeys_max_tokens=True)


def _play(body: dict[str, Any]) -> Turn:
    notes = Notes(body)
    topic = first_user_text(body)
    if "you are a sub-agent" in text_of(body.get("system") or "").lower():
        return _play_subagent(topic, notes)
    own, parts = split_topic(topic)
    if parts and (notes.may_start(SPAWN) or any(not run.failed for run in notes.runs_of(SPAWN))):
        return _play_parent(own, parts, notes)
    return _look(topic, notes) or report_on(asked_subjects(topic) or OVERVIEW, notes)


def split_topic(topic: str) -> tuple[str, dict[str, str]]:
    """Return the parent's own part, and those of three sub-agents by name: none unless two or more are numbered."""
    lead, *rest = (" ".join(piece.split()) for piece in _NUMBER.split(topic))
    numbers, texts = rest[::2], [text.rstrip(" ;,") for text in rest[1::2]]
    if len(texts) < 2 or not all(texts) or numbers != [str(number) for number in range(1, len(texts) + 1)]:
        return topic, {}
    subject = f" (on {lead.partition(': ')[0].rstrip(' .?!')})" if lead else ""
    parts: dict[str, str] = {}
    for number, (label, asked) in enumerate((match[0] for match in map(_LABEL.findall, texts[:3])), 1):
        name = label.lower() if label and label.lower() not in parts else f"part-{number}"
        parts[name] = f"{asked[:1].upper()}{asked[1:]}{subject}"
    return " ".join([lead, *texts[3:]]).strip() or topic, parts


def _look(question: str, notes: Notes, *, closer: bool = True) -> list[Block]:
    """Return the next searches or page reads for a question; none when nothing is left to do."""
    words = keywords(question) or ["anything"]
    unread = [call(FETCH, url=url) for url in notes.titles if url not in notes.reads and FETCH in notes.tools]
    if notes.may_start(SEARCH):
        return [call(SEARCH, query=" ".join(words[:6])), call(SEARCH, query=" ".join([*words[:4], "archive"]))]
    if unread and not notes.reads:
        return unread[:3]
    if closer and SEARCH in notes.tools and len(notes.searches) < 3:
        disputed = [findings for findings in notes.told_on(*asked_subjects(question)) if len(findings) > 1]
        figures = [value for findings in disputed for finding in findings for value in finding.values]
        return [call(SEARCH, query=" ".join([*words[-4:], *figures, "disputed" if figures else "explained"]))]
    return unread[:2] if closer and len(notes.reads) < 5 else []


def _play_parent(own: str, parts: dict[str, str], notes: Notes) -> Turn:
    """Start all sub-agents at once, look into the own part, wait for all, then join their reports."""
    spawned = notes.runs_of(SPAWN)
    calls = _look(own, notes, closer=False) if spawned else _spawns(parts)
    if calls or notes.may_start(WAIT):
        return calls or [call(WAIT)]
    report = report_on(asked_subjects(own), notes)
    _, *pieces = _ENDED.split("\n".join(run.output for run in notes.runs_of(WAIT)))
    ended = {name: end for name, *end in zip(*(pieces[place::4] for place in range(4)), strict=True)}
    for name, spawn in zip(parts, spawned, strict=False):
        run, status, text = ended.get(name, ("", "", ""))
        if status == "completed":
            join(report, parse(text), name.capitalize())
        else:
            problem = f"did not start: {spawn.output}" if spawn.failed else "had not ended"
            problem = f"failed ({run}): {text}" if run else problem
            report[GAPS].append(f"{name.capitalize()}: its sub-agent {' '.join(problem.split())[:200]}")
    return report


def _play_subagent(task: str, notes: Notes) -> Turn:
    """Look into the question on the first line of the task, write to a sibling or listen as the task says, report."""
    question = task.strip().partition("\n")[0]
    calls = _look(question, notes) + _tell(task, question, notes)
    if calls or (_LISTEN in task and notes.may_start(READ)):
        return calls or [call(READ, wait_seconds=5)]
    report = report_on(asked_subjects(question), notes)
    letters = [letter for run in notes.runs_of(READ) for letter in _LETTER.findall(run.output)]
    return report | {"Told by siblings": [f"{sender} wrote: {' '.join(text.split())}" for sender, text in letters]}


def _spawns(parts: dict[str, str]) -> list[Block]:
    first, second, *_ = parts
    errands = {first: _TELL.format(second), second: f'{_LISTEN}: "{first}" may have something for you.'}
    tasks = {name: f"{parts[name]}\nBring back figures with their pages. {errands.get(name, '')}" for name in parts}
    reasons = {name: parts[name].partition(" (on ")[0] for name in parts}
    return [call(SPAWN, name=name, reason=reasons[name][:300], task=tasks[name].strip()[:2000]) for name in parts]


def _tell(task: str, question: str, notes: Notes) -> list[Block]:
    """Write to the sibling that the task names, if it is at work, the finding that bears most on its part."""
    told = [findings[0] for findings in notes.told_on(*asked_subjects(question))]
    to = re.search(_TELL.format("(.+)"), task)
    if to is None or not told or not notes.reads:
        return []
    if notes.may_start(LIST):
        return [call(LIST)]
    reasons = {name: reason for run in notes.runs_of(LIST) for name, reason in _AT_WORK.findall(run.output)}
    if to[1] not in reasons or not notes.may_start(SEND):
        return []
    best = max(told, key=lambda finding: len(stems_of(finding.sentence) & stems_of(reasons[to[1]])))
    return [call(SEND, to=to[1], text=f"{best}.")]
