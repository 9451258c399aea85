"""Starts researches, knows which are at work in this process, and stops them in order."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gligabao.errors import Stopping, StoreError, StoreFault, Unavailable
from gligabao.records import INTERRUPTED, Ending, NewRun, Run, Status, Stop, StopKind, StopReason, now
from gligabao.research.messenger import close_inbox
from gligabao.research.recorder import Recorder, store_in_the_end
from gligabao.research.researcher import Researcher, Shared
from gligabao.research.team import LOST_START, Member

log = logging.getLogger(__name__)

FULL_RETRY_SECONDS = 30
NO_INBOX = "the message system failed"
NO_THREAD = "the server could not start a thread for this research"
_SERVER_STOPS = Stop(StopKind.INTERRUPTED, INTERRUPTED)


class _Place:
    """A place among the agents at work, held while one is started; taken when the agent itself is counted."""

    is_taken = False


class Manager:
    """The researches at work in this process. One lock guards who they are and whether more may start."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._researchers: dict[int, tuple[Researcher, threading.Thread]] = {}
        self._starting: set[_Place] = set()
        self._doubtful = False
        """A start failed, and may be stored all the same."""
        self._looking = False
        self._stopping = False

    @property
    def working(self) -> int:
        """How many agents are at work here."""
        with self._lock:
            return len(self._researchers)

    @property
    def stopping(self) -> bool:
        """Whether the server is about to leave and starts nothing more."""
        return self._stopping

    def start(self, *, user_id: str, topic: str, max_steps: int, model: str, dataset: str) -> Run:
        """Record a research, start its agent on a thread of its own and return the run.

        Raises `Unavailable` (no model key, server full or stopping) before anything is recorded, and `Conflict` when
        the user has as many at work as allowed. After a `StoreError`, and after `Unavailable` because no thread could
        be started, the run may be recorded all the same: it is then ended.
        """
        shared = self._shared
        shared.model.require_key()
        new = NewRun(
            user_id=user_id,
            topic=topic,
            model=model or shared.config.model,
            max_steps=max_steps,
            priced=shared.model.prices.is_known(model or shared.config.model),
        )
        try:
            with self._place() as place:
                run = shared.runs.start_run(new, owner=shared.owner, max_working=shared.config.max_working_per_user)
                self._launch(Member(run, dataset=dataset), place)
        except StoreError:
            self._look_for_lost_starts()
            raise
        log.info("run %s started for user %s on %s", run.id, run.user_id, run.model)
        return run

    def _start_agent(self, parent: Member, *, name: str, reason: str, task: str, max_steps: int) -> Member:
        """Record and start a sub-agent; called by the parent's thread, which has checked that there may be one."""
        shared, above = self._shared, parent.run
        new = NewRun(
            user_id=above.user_id,
            topic=task,
            model=above.model,
            max_steps=max_steps,
            priced=above.cost_usd is not None,
            parent_id=above.id,
            name=name,
            reason=reason,
        )
        with self._place() as place:
            run = shared.runs.start_run(new, owner=shared.owner, max_working=0)
            member = Member(run, parent=parent)
            try:
                # First: an agent that sees it as a sibling can write to it.
                shared.messenger.open(run.id)
            except Exception:
                # Whatever a messenger raises: the run is recorded, and must not stay at work without an agent.
                log.exception("no inbox could be opened for run %s", run.id)
                parent.add(member)
                self._end_unstarted(member, NO_INBOX)
                raise Unavailable(NO_INBOX) from None
            parent.add(member)
            self._launch(member, place)
        log.info("run %s started by run %s as %s", run.id, above.id, name)
        return member

    def begin_stop(self) -> None:
        """Start nothing more, and tell every agent to stop. Returns at once."""
        with self._lock:
            self._stopping = True
            researchers = [researcher for researcher, _ in self._researchers.values()]
        for researcher in researchers:
            researcher.member.cancel.set(_SERVER_STOPS)

    def join(self, seconds: float, *run_ids: int) -> bool:
        """Wait up to `seconds` for the agents of these runs to end (none given: all), and tell whether they have."""

        def have_ended() -> bool:
            return not (self._researchers.keys() & run_ids if run_ids else self._researchers or self._starting)

        with self._lock:
            return self._idle.wait_for(have_ended, seconds)

    def interrupt_left(self) -> None:
        """End the runs of agents that did not stop in time as interrupted, and give up what waits for the database."""
        self._shared.closing.set()
        # Even when all agents have ended: the end of one may not have been stored.
        try:
            left = self._shared.runs.interrupt_runs(owner=self._shared.owner, error=INTERRUPTED, at=now())
        except StoreError as error:
            log.error("runs may be left running, and the next start ends them: %s", error)
            return
        if left:
            log.warning("ended %d runs whose agents did not stop in time", len(left))

    def stop(self, seconds: float) -> None:
        """Stop all agents within `seconds`, and end the runs of those that did not make it."""
        self.begin_stop()
        self.join(seconds)
        self.interrupt_left()

    @contextmanager
    def _place(self) -> "Iterator[_Place]":
        """Hold a place among the agents at work while one is started."""
        place = _Place()
        with self._lock:
            if self._stopping:
                raise Stopping
            limit = self._shared.config.max_working
            if len(self._researchers) + sum(not one.is_taken for one in self._starting) >= limit:
                raise Unavailable(
                    f"the server is full: {limit} agents are at work", retry_after_seconds=FULL_RETRY_SECONDS
                )
            self._starting.add(place)
        try:
            yield place
        finally:
            with self._lock:
                self._starting.remove(place)
                self._idle.notify_all()

    def _look_for_lost_starts(self) -> None:
        """Start a thread for this, one for all failed starts: there may be many while the database is away."""
        with self._lock:
            self._doubtful = True
            if self._looking:
                return
            self._looking = True
        try:
            threading.Thread(target=self._look, name="lost-starts", daemon=True).start()
        except RuntimeError:
            log.warning("no thread could be started to look for lost starts: the next one, or the stop, ends them")
            with self._lock:
                self._looking = False

    def _look(self) -> None:
        while True:
            with self._lock:
                self._looking, self._doubtful = self._doubtful, False
                if not self._looking:
                    return
            try:
                self._end_lost_starts()
            except Exception:
                log.exception("looking for lost starts failed")

    def _end_lost_starts(self) -> None:
        """End the runs that are stored as at work here but have no agent: the answer to their start was lost."""
        runs, owner = self._shared.runs, self._shared.owner
        doubtful: set[str] | None = None

        def end() -> None:
            nonlocal doubtful
            under_way = runs.list_starts(owner=owner)
            # Leave out those that began after the one that failed, or this might never end.
            doubtful = under_way if doubtful is None else doubtful & under_way
            if doubtful:
                raise StoreError("a start is still under way in the database")
            self._try_to_end_lost_starts()

        store_in_the_end(end, closing=self._shared.closing, what="the end of lost starts")

    def _try_to_end_lost_starts(self) -> None:
        shared = self._shared
        stored = [run.id for run in shared.runs.list_running(owner=shared.owner)]
        with self._lock:
            # A run that is being started right now may be among them, and gets its agent in a moment.
            starting = set(self._starting)
            while starting & self._starting:
                self._idle.wait(1)
            lost = [run_id for run_id in stored if run_id not in self._researchers]
        reason = StopKind.LOST_START.stop_reason
        for run_id in lost:
            if shared.runs.end_subtree(run_id, owner=shared.owner, error=LOST_START, stop_reason=reason, at=now()):
                log.warning("run %s was stored, but the answer to its start was lost: ended it", run_id)

    def _launch(self, member: Member, place: "_Place") -> None:
        run = member.run
        researcher = Researcher(self._shared, member, self._start_agent)
        thread = threading.Thread(target=self._run_to_end, args=(researcher,), name=f"research-{run.id}", daemon=True)
        with self._lock:
            self._researchers[run.id] = (researcher, thread)
            place.is_taken = True
            stopping = self._stopping
        if stopping:
            member.cancel.set(_SERVER_STOPS)
        try:
            thread.start()
        except RuntimeError as error:
            self._forget(run.id)
            self._end_unstarted(member, NO_THREAD)
            raise Unavailable(NO_THREAD, retry_after_seconds=FULL_RETRY_SECONDS) from error

    def _run_to_end(self, researcher: Researcher) -> None:
        try:
            researcher.work()
        finally:
            self._forget(researcher.member.run.id)

    def _forget(self, run_id: int) -> None:
        with self._lock:
            self._researchers.pop(run_id, None)
            self._idle.notify_all()

    def _end_unstarted(self, member: Member, error: str) -> None:
        shared = self._shared
        recorder = Recorder(
            runs=shared.runs, run=member.run, owner=shared.owner, cancel=member.cancel, closing=shared.closing
        )
        ending = Ending(Status.FAILED, StopReason.ERROR, error=error)
        member.at_rest.set()
        at = ""
        try:
            at = recorder.end(ending)
        except StoreFault:
            log.exception("run %s stays at work in the database until the server stops", member.run.id)
        close_inbox(shared.messenger, member.run.id)
        member.end(ending, at or now())
