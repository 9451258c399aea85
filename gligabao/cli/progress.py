"""How a research is shown while it works: a live line on a terminal, plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

import click

from gligabao.cli.output import say_entered, say_error
from gligabao.cli.text import one_line, say_cost, say_steps

Run = dict[str, Any]


class Progress(Protocol):
    """What following a run tells about it."""

    def show_line(self, text: str) -> None:
        """Show something that stays."""
        ...

    def show_now(self, run: Run, state: dict[str, Any]) -> None:
        """Show what the run does at this moment."""
        ...


class PlainProgress:
    """One line for each event; what changes in between is not shown."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show_line(self, text: str) -> None:
        """Write the line at once."""
        click.echo(text, file=self._stream)

    def show_now(self, run: Run, state: dict[str, Any]) -> None:
        """Nothing: the line of the state is already there."""


class LiveProgress:
    """Lines that stay, and under them a moving one with state, steps, cost and the time it takes."""

    def __init__(self, live: Any) -> None:
        self._live = live

    def show_line(self, text: str) -> None:
        """Write the line above the moving one."""
        from rich.text import Text

        self._live.console.print(Text(text), highlight=False, soft_wrap=True)

    def show_now(self, run: Run, state: dict[str, Any]) -> None:
        """Change the moving line."""
        from rich.spinner import Spinner
        from rich.text import Text

        parts = (state.get("state", ""), f"steps {say_steps(run)}", say_cost(run.get("cost_usd")))
        text = Text(" · ".join(one_line(part) for part in parts), no_wrap=True, overflow="ellipsis")
        self._live.update(Spinner("dots", text=text))


@contextmanager
def open_progress(stream: TextIO) -> Iterator[Progress]:
    """Give a display on that stream; the moving line is gone after the block, whatever ended it."""
    if not stream.isatty():
        yield PlainProgress(stream)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    if console.is_dumb_terminal:
        yield PlainProgress(stream)
        return
    # Only what is shown here goes to this stream: results keep their own way to standard output.
    with Live(console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as live:
        yield LiveProgress(live)


class StateLines:
    """Turns answers of the server into lines, each state and each error once.

    A state that has not ended is asked for again: its error is known only when it ends.
    """

    def __init__(self) -> None:
        self.ended_to = 0
        """Every state up to this `seq` has ended and been shown."""
        self._entered_to = 0
        self._told_errors: set[int] = set()

    def new_lines(self, run: Run) -> list[str]:
        """Return the lines that this answer adds."""
        return [line for _, line in self.new_events(run)]

    def new_events(self, run: Run) -> list[tuple[str, str]]:
        """Return the lines that this answer adds, each with the time of what it tells."""
        events = []
        for state in run.get("states", []):
            seq = state["seq"]
            if seq > self._entered_to:
                self._entered_to = seq
                events.append((str(state.get("started_at")), say_entered(state, run)))
            if state.get("error") and seq not in self._told_errors:
                self._told_errors.add(seq)
                events.append((str(state.get("finished_at")), say_error(state)))
            if state.get("finished_at"):
                self.ended_to = max(self.ended_to, seq)
        return events
