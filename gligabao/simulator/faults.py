"""Faults on demand: replies that take the place of the real ones for a while."""

import threading
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gligabao.simulator.prompt import first_user_text, searches_the_web
from gligabao.simulator.replies import Reply, Scripted, drip, drop, error, hang, malformed, search_error


class Faults:
    """The faults that are waiting for requests. Shared by the server's threads: one lock guards them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Fault] = []

    def add(self, reply: Scripted, *, count: int | None = 1, topic: str = "", searches: bool | None = None) -> None:
        """Give this reply to the next `count` requests (None: to all) whose first user text contains the topic.

        `searches`: only to requests that carry the web search server tool (True), or only to others (False).
        """
        with self._lock:
            self._waiting.append(_Fault(reply, count, topic, searches))

    def status(self, status: int, *, count: int | None = 1, topic: str = "", retry_after: float | None = None) -> None:
        """Answer the next `count` requests (None: all) with an error of this status."""
        headers = {} if retry_after is None else {"retry-after": f"{retry_after:g}"}
        self.add(error(status, headers=headers), count=count, topic=topic)

    def clear(self) -> None:
        """Forget all faults that are still waiting."""
        with self._lock:
            self._waiting.clear()

    def take(self, body: dict[str, Any]) -> Scripted | None:
        """Return the fault for this request and count it as used, None when there is none."""
        with self._lock:
            fault = next((fault for fault in self._waiting if fault.matches(body)), None)
            if fault is None:
                return None
            if fault.count is not None:
                fault.count -= 1
                if fault.count == 0:
                    self._waiting.remove(fault)
            return fault.reply


@dataclass(slots=True)
class _Fault:
    reply: Scripted
    count: int | None
    topic: str
    searches: bool | None

    def matches(self, body: dict[str, Any]) -> bool:
        if self.searches is not None and searches_the_web(body) != self.searches:
            return False
        return self.topic in first_user_text(body)


class FaultOrder(BaseModel):
    """The body of `POST /simulator/faults`: a status, or a kind of trouble, and for how many requests."""

    model_config = ConfigDict(extra="forbid")

    status: int | None = Field(None, ge=400, le=599)
    kind: Literal["hang", "drip", "drop", "drop_midway", "malformed", "search_error"] | None = None
    count: int | None = Field(1, ge=1)
    """null: all requests, until the faults are deleted."""
    topic: str = ""
    searches: bool | None = None
    """true: only requests that carry the web search server tool; false: only others. A search_error is for them."""
    message: str = ""
    retry_after: float | None = None
    """Seconds, with a status."""
    seconds: float | None = None
    """hang: how long; drip: between two bytes."""
    error_code: str = "unavailable"
    """Of a search_error."""

    def place(self, faults: Faults) -> None:
        """Add the fault that was ordered; raise `ValueError` when it is not clear which."""
        searches = True if self.kind == "search_error" else self.searches
        faults.add(self.reply(), count=self.count, topic=self.topic, searches=searches)

    def reply(self) -> Reply:
        """Return the reply that was ordered; raise `ValueError` when it is not clear which."""
        if (self.status is None) == (self.kind is None):
            raise ValueError("give either a status or a kind")
        if self.status is not None:
            headers = {} if self.retry_after is None else {"retry-after": f"{self.retry_after:g}"}
            return error(self.status, message=self.message, headers=headers)
        return self._trouble()

    def _trouble(self) -> Reply:
        match self.kind:
            case "hang":
                return hang(self.seconds)
            case "drip":
                return drip() if self.seconds is None else drip(seconds_per_byte=self.seconds)
            case "drop":
                return drop()
            case "drop_midway":
                return drop(midway=True)
            case "search_error":
                return search_error(self.error_code)
            case _:
                return malformed()
