"""Writes down what one agent does: its states, its usage, its end.

The recorder is the agent's observer and lives on its thread. It numbers the states itself, so what it failed to
write is written with the next state: a database that is away for a while costs no state. A run that was
ended by someone else refuses its writes (`RunLost`), which ends the agent.
"""

import logging
import threading
from dataclasses import replace

from gligabao.cancel import Cancel
from gligabao.errors import RunLost, StoreError
from gligabao.records import Ending, Run, State, StateName, Status, Totals, Usage, now
from gligabao.store.runs import Runs

log = logging.getLogger(__name__)

END_RETRY_SECONDS = 300.0
_LONGEST_WAIT_SECONDS = 5.0


class Recorder:
    """The observer of one agent that stores everything. Used by the agent's thread only."""

    def __init__(self, *, runs: Runs, run: Run, owner: str, cancel: Cancel, closing: threading.Event) -> None:
        self._runs = runs
        self._run_id = run.id
        self._owner = owner
        self._cancel = cancel
        self._closing = closing
        self._current = State(1, run.state, 0, "", run.created_at)
        self._error = ""
        self._base_detail = ""
        self._unsaved: dict[int, State] = {}
        self._has_unsaved_usage = False
        self._totals = Totals(usage=Usage(cost_usd=None) if run.cost_usd is None else Usage())

    def entered(self, state: StateName, *, step: int, detail: str) -> None:
        """Enter the next state, unless the agent was told to stop."""
        self._cancel.check()
        self._base_detail = detail
        self._move_to(state, step, detail)
        self._save()

    def retrying(self, note: str) -> None:
        """Enter the same state once more, saying what is being waited for."""
        detail = f"{self._base_detail}: {note}"
        self._move_to(self._current.state, self._current.step, detail)
        self._save()

    def calling(self) -> None:
        """Store what calls of this state used before another one is made, so that a crash loses one call at most."""
        if self._has_unsaved_usage:
            self._save()

    def spent(self, usage: Usage) -> None:
        """Count what an answered call used."""
        self._has_unsaved_usage = True
        self._totals = replace(self._totals, usage=self._totals.usage + usage)

    def answered(self, step: int) -> None:
        """Count a step."""
        self._totals = replace(self._totals, steps=step)

    def ran_tool(self, error: str) -> None:
        """Count a tool run and keep its error for its state."""
        self._error = error
        self._totals = replace(self._totals, tool_calls=self._totals.tool_calls + 1)

    def end(self, ending: Ending) -> None:
        """Store the end of the run, trying for minutes if need be. A run that someone else ended stays as it is."""
        terminal = StateName.COMPLETED if ending.status is Status.COMPLETED else StateName.FAILED
        self._error = self._error or ending.error
        self._move_to(terminal, 0, "")
        last = replace(self._current, error=ending.error, finished_at=self._current.started_at)
        self._unsaved[last.seq] = last
        try:
            self._store_end(ending)
        except RunLost:
            log.warning("run %s had been ended before its agent did", self._run_id)

    def _store_end(self, ending: Ending) -> None:
        waited = 0.0
        wait_seconds = 0.1
        while True:
            try:
                states = list(self._unsaved.values())
                self._runs.end_run(self._run_id, owner=self._owner, states=states, totals=self._totals, ending=ending)
                return
            except StoreError as error:
                if self._closing.is_set() or waited > END_RETRY_SECONDS:
                    log.error("the end of run %s could not be stored: %s", self._run_id, error)
                    return
                log.warning("the end of run %s is not stored yet: %s", self._run_id, error)
            self._closing.wait(wait_seconds)
            waited += wait_seconds
            wait_seconds = min(2 * wait_seconds, _LONGEST_WAIT_SECONDS)

    def _move_to(self, state: StateName, step: int, detail: str) -> None:
        # The clock may be set back; the times of a run never go back.
        moment = max(now(), self._current.started_at)
        self._unsaved[self._current.seq] = replace(self._current, error=self._error, finished_at=moment)
        self._error = ""
        self._current = State(self._current.seq + 1, state, step, detail, moment)
        self._unsaved[self._current.seq] = self._current

    def _save(self) -> None:
        states = list(self._unsaved.values())
        try:
            self._runs.save_progress(self._run_id, owner=self._owner, states=states, totals=self._totals)
        except RunLost:
            raise
        except Exception:
            # Progress that cannot be written must not cost the user the research: it is written with the next.
            log.exception("progress of run %s could not be stored", self._run_id)
        else:
            self._unsaved.clear()
            self._has_unsaved_usage = False
