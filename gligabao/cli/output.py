"""Results on standard output: a run, a list of runs, settings; as text for people or as the JSON that REST answered."""

import json
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

import click

from gligabao.cli.text import clean, one_line, say_age, say_cost, say_steps, seconds_between

Run = dict[str, Any]


class Printer:
    """Prints results in the form that was asked for: text on a terminal and JSON elsewhere when none was."""

    def __init__(self, form: str | None = None) -> None:
        self.is_json = (form or ("text" if sys.stdout.isatty() else "json")) == "json"

    def print_run(self, run: Run, *, with_states: bool = True) -> None:
        """Print a run, with its report when there is one."""
        if self.is_json:
            print_json(run)
        else:
            click.echo("\n".join(_describe_run(run, with_states=with_states)))

    def print_runs(self, answer: dict[str, Any]) -> None:
        """Print a table of runs."""
        if self.is_json:
            print_json(answer)
        elif answer["runs"]:
            now = datetime.now(UTC)
            rows = [_row(run, now=now) for run in answer["runs"]]
            show = _print_fitted if sys.stdout.isatty() else print_table
            show(("id", "status", "state", "steps", "cost", "age", "topic"), rows)
        else:
            click.echo("no researches", err=True)

    def print_settings(self, settings: Sequence[dict[str, Any]]) -> None:
        """Print settings: key, value and source of each."""
        if self.is_json:
            print_json({"settings": settings})
        else:
            rows = [(s["key"], _say_value(s["value"]), s["source"]) for s in settings]
            print_table(("key", "value", "source"), rows)


def print_report(run: Run) -> None:
    """Print the report and nothing else: to the letter into a pipe or a file, made safe on a terminal."""
    report = clean(run["report"]) if sys.stdout.isatty() else str(run["report"])
    _write(sys.stdout, report if report.endswith("\n") else report + "\n")


def print_json(value: object) -> None:
    """Print a value as JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    # The same JSON, without characters that a terminal would obey or that cannot be written as UTF-8.
    text = re.sub(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2)
    click.echo(text)


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a head in columns, as wide as they are."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head) - 1)]
    for row in (head, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        _write(sys.stdout, "  ".join([*cells, row[-1]]).rstrip() + "\n")


def _print_fitted(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in the width of the terminal: what does not fit of the last column is cut."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, expand=True)
    for column, title in enumerate(head[:-1]):
        table.add_column(title, no_wrap=True, width=max(len(row[column]) for row in (head, *rows)))
    table.add_column(head[-1], no_wrap=True, overflow="ellipsis", ratio=1)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(file=sys.stdout, highlight=False).print(table)


def _write(stream: TextIO, text: str) -> None:
    """Write text unchanged, with escapes for characters that the stream's encoding lacks."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _row(run: Run, *, now: datetime) -> tuple[str, ...]:
    return (
        one_line(run.get("id", "?")),
        one_line(run.get("status", "?")),
        one_line(run.get("state", "?")),
        say_steps(run),
        say_cost(run.get("cost_usd")),
        say_age(run.get("created_at"), now=now),
        one_line(run.get("topic", "")),
    )


def _describe_run(run: Run, *, with_states: bool) -> list[str]:
    reason = f" ({run['stop_reason']})" if run.get("stop_reason") else ""
    lines = [f"run {run['id']}: {run['status']}{reason}"]
    lines += [f"{name:<9} {clean(value)}" for name, value in _facts(run) if value]
    if with_states:
        lines += ["", *(line for state in run.get("states", []) for line in say_state(state, run))]
    if run.get("report"):
        lines += ["", clean(run["report"])]
    return lines


def _facts(run: Run) -> list[tuple[str, Any]]:
    seconds = seconds_between(run.get("created_at"), run.get("finished_at"))
    ended = f"{run.get('finished_at')}, after {seconds:.1f} s" if seconds is not None else ""
    return [
        ("topic", run.get("topic")),
        ("name", run.get("name")),
        ("reason", run.get("reason")),
        ("parent", run.get("parent_id")),
        ("model", run.get("model")),
        ("steps", f"{say_steps(run)}, {run.get('tool_calls', 0)} tool calls"),
        ("tokens", f"{run.get('input_tokens', 0):,} in, {run.get('output_tokens', 0):,} out"),
        ("cost", say_cost(run.get("cost_usd"))),
        ("started", run.get("created_at")),
        ("ended", ended),
        ("error", run.get("error")),
    ]


def say_state(state: dict[str, Any], run: Run) -> list[str]:
    """Return a state as a line, `  3.2 s  reading  https://...`, and its error as another."""
    lines = [say_entered(state, run)]
    if state.get("error"):
        lines.append(say_error(state))
    return lines


def say_entered(state: dict[str, Any], run: Run) -> str:
    """Return when, in seconds since the start, which state was entered, and its detail."""
    at_seconds = seconds_between(run.get("created_at"), state.get("started_at"))
    at = "?" if at_seconds is None else f"{at_seconds:.1f}"
    return f"{at:>7} s  {one_line(state.get('state', '?'))}  {one_line(state.get('detail', ''))}".rstrip()


def say_error(state: dict[str, Any]) -> str:
    """Return the error of a state as a line that belongs under it."""
    return f"{'':>11}{one_line(state['error'])}"


def _say_value(value: Any) -> str:
    if value is None:
        return "(not set)"
    return value if isinstance(value, str) else json.dumps(value)
