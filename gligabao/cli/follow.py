"""Following a research until it ends, through failed polls and a server that restarts."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from gligabao.cli.client import Client, NoAnswer, NoServer, Refused
from gligabao.cli.progress import Progress, StateLines

Run = dict[str, Any]

_PASSING = frozenset({429, 500, 502, 503, 504})
"""Refusals that may be over at the next poll."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often to ask, and how long a server may be away."""

    first_seconds: float = 0.5
    growth: float = 1.2
    longest_seconds: float = 2.0
    away_seconds: float = 60.0


def follow(client: Client, run_id: int, progress: Progress, *, pace: Pace = Pace()) -> Run:
    """Show the states of a run as they come, and return it, with all its states, once it has ended.

    A poll that fails is tried again, until the server has been away for too long: then its failure is raised.
    """
    lines = StateLines()
    absence = _Absence(progress, pace.away_seconds)
    pause_seconds = pace.first_seconds
    while True:
        with absence.forgiven():
            run = client.get_research(run_id, states_after=lines.ended_to)
            _show(run, lines, progress)
            if run["status"] != "running":
                return client.get_research(run_id)
        # An Event that nobody sets: the wait ends at Ctrl-C all the same.
        threading.Event().wait(pause_seconds)
        pause_seconds = min(pause_seconds * pace.growth, pace.longest_seconds)


def _show(run: Run, lines: StateLines, progress: Progress) -> None:
    for line in lines.new_lines(run):
        progress.show_line(line)
    if run.get("states"):
        progress.show_now(run, run["states"][-1])


class _Absence:
    """Forgives failed polls for a while, and tells of them once."""

    def __init__(self, progress: Progress, away_seconds: float) -> None:
        self._progress = progress
        self._away_seconds = away_seconds
        self._since: float | None = None

    @contextmanager
    def forgiven(self) -> Iterator[None]:
        """Take a failure that may pass, unless the first of the kind is too long ago."""
        try:
            yield
        except (NoServer, NoAnswer, Refused) as failure:
            if isinstance(failure, Refused) and failure.status not in _PASSING:
                raise
            self._note(failure)
        else:
            self._end()

    def _note(self, failure: click.ClickException) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = now
            self._progress.show_line(f"{failure.message}; asking again for up to {self._away_seconds:g} s")
        elif now - self._since >= self._away_seconds:
            raise failure

    def _end(self) -> None:
        if self._since is not None:
            self._since = None
            self._progress.show_line("the server answers again")
