"""What gligabao keeps of a research, as plain frozen values: runs, states, usage, and the news of a change.

Times are text in UTC with milliseconds, `2026-11-01T10:00:00.120Z`, as REST answers them. Sorted as text, they are in
order of time.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any

INTERRUPTED = "interrupted: the server stopped while the agent worked"
"""The error of a run whose server stopped, or died, under it."""


class Status(StrEnum):
    """The life of a run. `completed` and `failed` never change again."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class StateName(StrEnum):
    """What an agent is doing."""

    STARTING = "starting"
    THINKING = "thinking"
    SEARCHING = "searching"
    READING = "reading"
    QUERYING = "querying"
    REMEMBERING = "remembering"
    SPAWNING = "spawning"
    WAITING = "waiting"
    MESSAGING = "messaging"
    USING_TOOL = "using_tool"
    WRITING_REPORT = "writing_report"
    COMPLETED = "completed"
    FAILED = "failed"


class StopReason(StrEnum):
    """Why a run ended."""

    ANSWERED = "answered"
    MAX_STEPS = "max_steps"
    CONTEXT = "context"
    ERROR = "error"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


class StopKind(Enum):
    """What stops an agent before it is done."""

    USER = "user"
    PARENT_ENDED = "parent ended"
    INTERRUPTED = "interrupted"
    """The server stops."""
    RUN_LOST = "run lost"
    """Someone else ended its run."""
    FAULT = "fault"
    LOST_START = "lost start"
    """Its run was stored, but the answer to that was lost: the agent never ran."""

    @property
    def stop_reason(self) -> StopReason:
        """What its run says."""
        return _STOP_REASONS[self]


_STOP_REASONS = {
    StopKind.USER: StopReason.CANCELLED,
    StopKind.PARENT_ENDED: StopReason.CANCELLED,
    StopKind.INTERRUPTED: StopReason.INTERRUPTED,
    StopKind.RUN_LOST: StopReason.CANCELLED,
    StopKind.FAULT: StopReason.ERROR,
    StopKind.LOST_START: StopReason.ERROR,
}


def now() -> str:
    """Return the current time as it is stored and answered."""
    return format_time(datetime.fromtimestamp(_clock(), UTC))


_clock: Callable[[], float] = time.time


@contextmanager
def other_clock(seconds: Callable[[], float]) -> Iterator[None]:
    """Make `now` read this clock (seconds since 1970) while the block runs: for tests that set the clock."""
    global _clock
    before, _clock = _clock, seconds
    try:
        yield
    finally:
        _clock = before


def format_time(moment: datetime) -> str:
    """Return a point in time as `2026-11-01T10:00:00.120Z`."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


@dataclass(frozen=True, slots=True)
class State:
    """One stage of an agent's work."""

    seq: int
    """1, 2, 3, ... in the order entered."""
    state: StateName
    step: int
    """The step it belongs to; 0 for starting, completed and failed."""
    detail: str
    started_at: str
    error: str = ""
    finished_at: str | None = None
    """None while the run is in this state."""

    def as_json(self) -> dict[str, Any]:
        """Return the state as REST answers it."""
        return {
            "seq": self.seq,
            "state": self.state,
            "step": self.step,
            "detail": self.detail,
            "error": self.error,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
        }


@dataclass(frozen=True, slots=True)
class Usage:
    """What model calls used, and what they cost."""

    input_tokens: int = 0
    """The whole prompt: uncached tokens, cache writes and cache reads."""
    output_tokens: int = 0
    cost_usd: Decimal | None = Decimal(0)
    """None when the model has no known price."""

    def __add__(self, other: "Usage") -> "Usage":
        unknown = self.cost_usd is None or other.cost_usd is None
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            None if unknown else (self.cost_usd or Decimal(0)) + (other.cost_usd or Decimal(0)),
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """The figures of a run so far."""

    steps: int = 0
    tool_calls: int = 0
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended."""

    status: Status
    stop_reason: StopReason
    report: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why an agent has to stop. The kind decides what follows; the text is for people."""

    kind: StopKind
    text: str
    """The error of its run."""

    def ending(self) -> Ending:
        """Return how the run of the agent ends."""
        return Ending(Status.FAILED, self.kind.stop_reason, error=self.text)


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run that is about to be recorded."""

    user_id: str
    topic: str
    model: str
    max_steps: int
    priced: bool
    """Whether the model has a known price. Without one, `cost_usd` is null from the start."""
    parent_id: int | None = None
    name: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of an agent on a topic. The fields are in the order REST answers them."""

    id: int
    user_id: str
    parent_id: int | None
    name: str
    reason: str
    topic: str
    status: Status
    state: StateName
    model: str
    max_steps: int
    steps: int
    tool_calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    report: str
    error: str
    stop_reason: StopReason | None
    created_at: str
    finished_at: str | None

    def as_json(self) -> dict[str, Any]:
        """Return the run as REST answers it."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


@dataclass(frozen=True, slots=True)
class RunWithStates:
    """A run and its states, both as they were at one moment."""

    run: Run
    states: list[State]

    def as_json(self) -> dict[str, Any]:
        """Return the run as REST answers it, its states last."""
        return self.run.as_json() | {"states": [state.as_json() for state in self.states]}


@dataclass(frozen=True, slots=True)
class RunChanged:
    """News of one run, announced in this process when a write to it has been committed."""

    run_id: int
    status: Status
    user_id: str | None = None
    """Known at the start and at the end of a run; None for progress."""
    stop_reason: StopReason | None = None
    """Why the run ended; None while it is at work."""
    states: tuple[State, ...] = ()
    """The states as written, oldest first; one that was saved before may be among them. An end that the agent did not
    write itself brings none: read them from the database."""
    totals: Totals | None = None
    """The figures so far; None where the write did not bring any."""

    @property
    def has_ended(self) -> bool:
        """Whether this is the end of the run."""
        return self.status is not Status.RUNNING
