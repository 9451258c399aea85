"""Text for people: what the server sent made safe to print, and figures made short."""

import re
from datetime import UTC, datetime
from typing import Any

_CONTROLS = re.compile(
    r"""(?x)
    (?: \x1b\[ | \x9b ) [0-?]* [ -/]* [@-~]?                       # CSI: colours, moves, erasing
    | (?: \x1b[\]PX^_] | [\x90\x98\x9d-\x9f] ) [^\x07\x1b\x9c]* (?: \x07 | \x1b\\ | \x9c )?  # titles, links
    | \x1b [ -/]* [0-~]?
    | [\x00-\x08\x0b-\x1f\x7f-\x9f]                                # any other control but tab and line feed
    | [\u202a-\u202e\u2066-\u2069]                                # bidi controls, which reorder what follows
    | [\ud800-\udfff]                                              # halves of a character, which cannot be printed
    """
)


def clean(text: object) -> str:
    """Return the text without what a terminal would obey; line ends and tabs stay."""
    return _CONTROLS.sub("", str(text).replace("\r\n", "\n"))


def one_line(text: object) -> str:
    """Return the text cleaned, in one line."""
    return " ".join(clean(text).split())


def say_cost(cost_usd: Any) -> str:
    """Return a cost as `$0.1300`, or `unknown` for a model without a price."""
    return f"${cost_usd:.4f}" if isinstance(cost_usd, int | float) else "unknown"


def say_steps(run: dict[str, Any]) -> str:
    """Return `3/20`."""
    return f"{run.get('steps', '?')}/{run.get('max_steps', '?')}"


def parse_time(text: Any) -> datetime | None:
    """Return a point in time as REST writes it, None for what is none."""
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def seconds_between(start: Any, end: Any) -> float | None:
    """Return the seconds between two times as REST writes them, None when one is missing."""
    first, last = parse_time(start), parse_time(end)
    return (last - first).total_seconds() if first and last else None


def say_age(created_at: Any, *, now: datetime) -> str:
    """Return how long ago something was: `12s`, `5m`, `3h`, `2d`."""
    moment = parse_time(created_at)
    if moment is None:
        return "?"
    seconds = max(0, int((now - moment).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
