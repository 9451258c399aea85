"""Stores what one agent does: its states, its usage, its end.

The recorder is the agent's observer and lives on its thread. It numbers the states itself, and what it could not
store is stored with the next state, so a database that is away for a while costs no state. A run that someone else
ended refuses its writes (`RunLost`), which ends the agent.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from gligabao.cancel import Cancel
from gligabao.errors import RunLost, StoreError, StoreFault
from gligabao.records import Ending, Run, State, StateName, Status, Totals, Usage, now
from gligabao.store.runs import Runs

log = logging.getLogger(__name__)

MAX_DETAIL_CHARACTERS = 2000
"""Of a state's detail and error: both may hold what a model wrote, of whatever length."""
_LONGEST_WAIT_SECONDS = 5.0


class Recorder:
    """The observer of one agent that stores everything. Used by the agent's thread only.

    `state` and `totals` are those that a run goes on from; without them it has just been recorded.
    """

    def __init__(
        self,
        *,
        runs: Runs,
        run: Run,
        owner: str,
        cancel: Cancel,
        closing: threading.Event,
        state: State | None = None,
        totals: Totals | None = None,
    ) -> None:
        self._runs = runs
        self._run_id = run.id
        self._owner = owner
        self._cancel = cancel
        self._closing = closing
        self._current = state or State(1, run.state, 0, "", run.created_at)
        self._error = ""
        self._base_detail = ""
        self._unsaved: dict[int, State] = {}
        self._has_unsaved_usage = False
        self._totals = totals or Totals(usage=Usage(cost_usd=None) if run.cost_usd is None else Usage())

    def entered(self, state: StateName, *, step: int, detail: str) -> None:
        """Enter the next state, unless the agent was told to stop."""
        self._cancel.check()
        self._base_detail = _shorten(detail)
        self._move_to(state, step, self._base_detail)
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
        was_known = self._totals.usage.cost_usd is not None
        self._totals = replace(self._totals, usage=self._totals.usage + usage)
        if was_known and usage.cost_usd is None:
            log.warning("run %s: an answer does not say what it used: its cost is unknown from now on", self._run_id)

    def answered(self) -> None:
        """Count the step that the agent is in, once its first model call was answered."""
        self._totals = replace(self._totals, steps=self._current.step)

    def ran_tool(self, error: str) -> None:
        """Count a tool run and keep its error for its state."""
        self._error = _shorten(error)
        self._totals = replace(self._totals, tool_calls=self._totals.tool_calls + 1)

    def end(self, ending: Ending, *, not_before: str = "") -> str:
        """Store the end of the run and return its time, which is not before that given.

        Tries until it is stored. A run that someone else ended stays as it is. Raises `StoreFault`.
        """
        ending = replace(ending, error=_shorten(ending.error))
        terminal = StateName.COMPLETED if ending.status is Status.COMPLETED else StateName.FAILED
        self._error = self._error or ending.error
        self._move_to(terminal, 0, "", not_before)
        last = replace(self._current, error=ending.error, finished_at=self._current.started_at)
        self._unsaved[last.seq] = last
        states = list(self._unsaved.values())

        def store() -> None:
            self._runs.end_run(self._run_id, owner=self._owner, states=states, totals=self._totals, ending=ending)

        try:
            store_in_the_end(store, closing=self._closing, what=f"the end of run {self._run_id}")
        except RunLost:
            log.warning("run %s had been ended before its agent did", self._run_id)
        return last.started_at

    def _move_to(self, state: StateName, step: int, detail: str, not_before: str = "") -> None:
        # The clock may be set back; the times of a run never go back.
        moment = max(now(), self._current.started_at, not_before)
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


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_DETAIL_CHARACTERS else f"{text[: MAX_DETAIL_CHARACTERS - 1]}…"


def store_in_the_end(store: Callable[[], object], *, closing: threading.Event, what: str) -> None:
    """Do a write that must not be lost: again and again for as long as the database is away.

    A server that is `closing` does not wait: its last transaction, or the next start, ends what it leaves behind.
    Raises `StoreFault` at once: that does not pass.
    """
    wait_seconds = 0.1
    while True:
        try:
            store()
            return
        except StoreFault:
            raise
        except StoreError as error:
            if closing.is_set():
                log.error("%s could not be stored: %s", what, error)
                return
            log.warning("%s is not stored yet: %s", what, error)
        closing.wait(wait_seconds)
        wait_seconds = min(2 * wait_seconds, _LONGEST_WAIT_SECONDS)
