"""Runs and their states: `gb_agent_research_runs` and `gb_agent_research_states`.

Owns the two rules that keep them true whatever dies: the fence (only the owner of a run writes to it, and only while
it is at work) and the end that never changes again. Every write of a run passes here, so this is also where changes are
announced. When to write, and what to do when a write fails, is left to `research`.
"""

import json
from collections.abc import Callable, Sequence

from gligabao import records
from gligabao.errors import Conflict, RunLost
from gligabao.records import Ending, NewRun, Run, RunChanged, State, StateName, Status, StopReason, Totals
from gligabao.store.announcer import Announcer, Listener
from gligabao.store.database import Database
from gligabao.store.transaction import Row, StoreConflict, Transaction, Value

_MAX_ID = 2**63 - 1
"""The largest id that either database can hold."""


class Runs:
    """The stored runs. Safe to share between threads."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._announcer = Announcer()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call the listener after every commit that changed a run, and return the function that ends this.

        It is called on the thread that wrote: it must be quick and must not raise. It may read from the database, and
        finds at least what it was told. Changes of one run that two threads wrote may be told in either order: the
        end of a run is its end, whatever comes after it. What other processes write is not announced, nor is a write
        that failed because its answer was lost, though it may be stored: those who must know look from time to time.
        """
        return self._announcer.listen(listener)

    def start_run(self, new: NewRun, *, owner: str, max_working: int) -> Run:
        """Record a run and its first state, and return the run.

        Raises `Conflict` when the user already has `max_working` researches at work (a sub-agent is neither counted
        nor refused), or when the parent already has a sub-agent of that name; `RunLost` when the parent has ended.
        """
        try:
            with self._db.transaction() as tx:
                if new.parent_id is None:
                    tx.fetch_one("lock_start_of_user", owner=owner, user_id=new.user_id)
                    _check_limit(tx, new.user_id, max_working)
                else:
                    tx.fetch_one("lock_start", owner=owner)
                    if not tx.fetch_one("lock_parent", id=new.parent_id, owner=owner):
                        raise RunLost(_lost(new.parent_id))
                # Only now: a time from before the count would lie in the life of a run that has ended since.
                run = _insert_run(tx, new, owner, records.now())
                first = State(seq=1, state=StateName.STARTING, step=0, detail="", started_at=run.created_at)
                _save_states(tx, run.id, [first])
        except StoreConflict:
            raise Conflict(f'there is a sub-agent "{new.name}" already: choose another name') from None
        self._announcer.announce(RunChanged(run.id, run.status, run.user_id, states=(first,), totals=Totals()))
        return run

    def save_progress(self, run_id: int, *, owner: str, states: Sequence[State], totals: Totals) -> None:
        """Store the states entered or ended, and the figures of the run so far.

        Safe to call again with the same states after a failure: what is already stored stays as it is. Raises
        `RunLost` when the run has ended or has another owner.
        """
        figures = {**_figures(totals), "state": states[-1].state if states else None}
        if self._db.dialect == "postgres":
            # One statement, one round trip: what agents do most often must not hold a connection for five.
            saved = self._db.execute(
                "save_progress_and_states",
                id=run_id,
                owner=owner,
                newest=max((state.seq for state in states), default=0),
                states=[state.as_json() for state in states],
                **figures,
            )
        else:
            with self._db.transaction() as tx:
                saved = tx.execute("save_progress", id=run_id, owner=owner, **figures)
                if saved:
                    _save_states(tx, run_id, states)
        if not saved:
            raise RunLost(_lost(run_id))
        self._announcer.announce(RunChanged(run_id, Status.RUNNING, states=tuple(states), totals=totals))

    def end_run(self, run_id: int, *, owner: str, states: Sequence[State], totals: Totals, ending: Ending) -> None:
        """Store how the run ended; the last of `states` is the terminal one. Raises `RunLost` as `save_progress`."""
        last = states[-1]
        with self._db.transaction() as tx:
            row = tx.fetch_one(
                "end_run",
                id=run_id,
                owner=owner,
                status=ending.status,
                state=last.state,
                report=ending.report,
                error=ending.error,
                stop_reason=ending.stop_reason,
                finished_at=last.finished_at,
                **_figures(totals),
            )
            if not row:
                raise RunLost(_lost(run_id))
            _save_states(tx, run_id, states)
        self._announcer.announce(
            RunChanged(run_id, ending.status, row["user_id"], ending.stop_reason, tuple(states), totals)
        )

    def list_starts(self, *, owner: str) -> set[str]:
        """Return the starts of that owner that the database is working on now, even if nobody waits for the answer.

        As long as a start is among them, it may still be stored, even if its answer was an error.
        """
        return {row["start"] for row in self._db.fetch_all("list_starts", owner=owner)}

    def await_starts(self, *, owner: str) -> None:
        """Wait until no start of that owner is under way. Only for a dead owner: new starts wait meanwhile.

        Raises `StoreError` when this takes longer than a minute.
        """
        with self._db.transaction(patient=True) as tx:
            tx.fetch_one("lock_starts", owner=owner)

    def interrupt_runs(self, *, owner: str | None, error: str, at: str) -> list[int]:
        """End all runs at work of that owner (None: of all owners) as failed, and return their ids.

        They end at `at`, or later if an agent of the tree did something later by its own clock.
        """
        with self._db.transaction() as tx:
            rows = tx.fetch_all("lock_running", owner=owner)
            if rows:
                tx.execute("mark_interrupted", owner=owner, at=at)
                _end_marked(tx, error, StopReason.INTERRUPTED)
        return self._announce_failed(rows, StopReason.INTERRUPTED)

    def end_subtree(self, run_id: int, *, owner: str, error: str, stop_reason: StopReason, at: str) -> list[int]:
        """End the run and its sub-agents of all generations that are still at work, as failed; return their ids.

        Times are as in `interrupt_runs`.
        """
        with self._db.transaction() as tx:
            rows = tx.fetch_all("lock_subtree", run_id=run_id, owner=owner)
            if rows:
                tx.execute("mark_subtree", run_id=run_id, owner=owner, at=at)
                _end_marked(tx, error, stop_reason)
        return self._announce_failed(rows, stop_reason)

    def get_run(self, run_id: int, *, user_id: str) -> Run | None:
        """Return the run, None when there is none or it belongs to another user."""
        if not 0 < run_id <= _MAX_ID:
            return None
        row = self._db.fetch_one("get_run", id=run_id, user_id=user_id)
        return _run(row) if row else None

    def get_run_with_states(
        self, run_id: int, *, user_id: str, states_after: int = 0
    ) -> tuple[Run, list[State]] | None:
        """Return the run and its states after that `seq`, both as of the same moment."""
        if not 0 < run_id <= _MAX_ID:
            return None
        after = min(max(states_after, 0), _MAX_ID)
        row = self._db.fetch_one("get_run_with_states", id=run_id, user_id=user_id, after=after)
        if not row:
            return None
        states = [_state(state) for state in json.loads(row.pop("states"))]
        return _run(row), states

    def list_runs(
        self, *, user_id: str, status: Status | None, parent_id: int | None, before: int | None, limit: int
    ) -> list[Run]:
        """Return the runs of the user, newest first: at most `limit`, with ids below `before`."""
        page: dict[str, Value] = {
            "user_id": user_id,
            "before": _MAX_ID if before is None else min(max(before, 0), _MAX_ID),
            "limit": limit,
        }
        if parent_id is not None and not 0 < parent_id <= _MAX_ID:
            return []
        match parent_id, status:
            case None, None:
                rows = self._db.fetch_all("list_runs", **page)
            case None, _:
                rows = self._db.fetch_all("list_runs_by_status", status=status, **page)
            case _, None:
                rows = self._db.fetch_all("list_children", parent_id=parent_id, **page)
            case _:
                rows = self._db.fetch_all("list_children_by_status", parent_id=parent_id, status=status, **page)
        return [_run(row) for row in rows]

    def list_started(self, parent_id: int, *, owner: str) -> list[Run]:
        """Return the sub-agents of a run of that owner, oldest first.

        Raises `StoreError` at once while the database is still working on a start of one.
        """
        with self._db.transaction() as tx:
            tx.fetch_one("lock_parent_now", id=parent_id, owner=owner)  # as each start of a sub-agent holds it
            return [_run(row) for row in tx.fetch_all("list_started", parent_id=parent_id)]

    def list_running(self, *, owner: str) -> list[Run]:
        """Return the runs that the owner has at work, oldest first."""
        return [_run(row) for row in self._db.fetch_all("list_running", owner=owner)]

    def _announce_failed(self, rows: Sequence[Row], stop_reason: StopReason) -> list[int]:
        """Announce the ends of these runs, the sub-agents before their parents, and return the ids."""
        users = {row["id"]: row["user_id"] for row in rows}
        for run_id in sorted(users, reverse=True):
            self._announcer.announce(RunChanged(run_id, Status.FAILED, users[run_id], stop_reason))
        return sorted(users)


def _check_limit(tx: Transaction, user_id: str, max_working: int) -> None:
    row = tx.fetch_one("count_working", user_id=user_id)
    working = row["working"] if row else 0
    if working >= max_working:
        what = "research" if working == 1 else "researches"
        raise Conflict(f'user "{user_id}" already has {working} {what} working: wait for one to end')


def _end_marked(tx: Transaction, error: str, stop_reason: StopReason) -> None:
    tx.execute("align_interrupted")
    tx.execute("end_interrupted_states", error=error)
    tx.execute("insert_interrupted_states", error=error)
    tx.execute("end_interrupted", error=error, stop_reason=stop_reason)


def _insert_run(tx: Transaction, new: NewRun, owner: str, created_at: str) -> Run:
    row = tx.fetch_one(
        "insert_run",
        user_id=new.user_id,
        parent_id=new.parent_id,
        name=new.name,
        reason=new.reason,
        topic=new.topic,
        model=new.model,
        max_steps=new.max_steps,
        cost_usd=0.0 if new.priced else None,
        owner=owner,
        created_at=created_at,
    )
    assert row is not None  # RETURNING gives the row that was inserted
    return _run(row)


def _save_states(tx: Transaction, run_id: int, states: Sequence[State]) -> None:
    for state in states:
        tx.execute("save_state", run_id=run_id, **state.as_json())


def _figures(totals: Totals) -> dict[str, Value]:
    cost = totals.usage.cost_usd
    return {
        "steps": totals.steps,
        "tool_calls": totals.tool_calls,
        "input_tokens": totals.usage.input_tokens,
        "output_tokens": totals.usage.output_tokens,
        "cost_usd": None if cost is None else float(round(cost, 6)),
    }


def _run(row: Row) -> Run:
    stop_reason = row["stop_reason"]
    cost = row["cost_usd"]
    typed = {
        "cost_usd": None if cost is None else float(cost),
        "status": Status(row["status"]),
        "state": StateName(row["state"]),
        "stop_reason": StopReason(stop_reason) if stop_reason else None,
    }
    return Run(**{**row, **typed})


def _state(row: Row) -> State:
    return State(**{**row, "state": StateName(row["state"])})


def _lost(run_id: int) -> str:
    return f"run {run_id} has ended, or belongs to another node"
