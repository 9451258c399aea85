"""The order in which a server stops: everything is told at once, and then waited for, one after the other."""

import threading
import time
from typing import Protocol

SLICE_SECONDS = 0.05
"""How soon a hurry is noticed: a signal handler sets it, and may not take the lock that would wake a waiting thread."""


class Stoppable(Protocol):
    """A part of the server that has to be stopped."""

    def begin_stop(self) -> None:
        """Start nothing more and tell what is at work to end. Returns at once; called again, it changes nothing."""

    def join(self, seconds: float) -> bool:
        """Wait up to `seconds` for the end of what was at work, and tell whether it has ended."""


class StopOrder:
    """The parts that stop, those that use others first. Threads may share it: one lock guards the start of the stop."""

    def __init__(self, *parts: Stoppable) -> None:
        self._parts = parts
        self._lock = threading.Lock()
        self._began: float | None = None

    @property
    def seconds(self) -> float:
        """How long ago the stop began; 0 before."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    def begin(self) -> None:
        """Tell all parts to stop, in order. Once it returns all have been told, also by another thread."""
        with self._lock:
            if self._began is None:
                self._began = time.monotonic()
                for part in self._parts:
                    part.begin_stop()

    def join(self, seconds: float, hurry: threading.Event | None = None) -> bool:
        """Wait for all parts, in order, and tell whether all have ended.

        The wait ends `seconds` after the stop began, or with `hurry`.
        """
        self.begin()
        return all([self._join(part, seconds, hurry) for part in self._parts])

    def _join(self, part: Stoppable, seconds: float, hurry: threading.Event | None) -> bool:
        while not part.join(max(0.0, min(SLICE_SECONDS, seconds - self.seconds))):
            if self.seconds >= seconds or (hurry is not None and hurry.is_set()):
                return False
        return True
