"""Stopping: the token that tells an agent to stop, and the clock that ends waits which last too long.

A `threading.Event` alone does not wake a thread that sits in a blocking socket read. So whoever is about to
block leaves a function with the token that wakes it (`Cancel.waking`, usually a shutdown of the socket), and the
token calls it. `Watchdog` does the same for deadlines: one thread for the whole process, whatever the number
of agents.
"""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gligabao.errors import Cancelled

log = logging.getLogger(__name__)

Wake = Callable[[], None]
ReasonOf = Callable[[str], str]


class Cancel:
    """A request to stop, for one agent and all that it started. Set once; the first reason stays.

    Shared between threads: one lock guards the wakers and the children.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._wakers: dict[int, Wake] = {}
        self._keys = itertools.count()
        self._children: list[tuple[Cancel, ReasonOf]] = []
        self.reason = ""
        """Why, in the words that the run will carry; "" until set."""

    def child(self, reason_of: ReasonOf) -> "Cancel":
        """Return a token that is set whenever this one is, for the reason that `reason_of` makes of this one's."""
        child = Cancel()
        with self._lock:
            self._children.append((child, reason_of))
        if self._event.is_set():
            child.set(reason_of(self.reason))
        return child

    def forget(self, child: "Cancel") -> None:
        """Drop a child whose work has ended."""
        with self._lock:
            self._children = [(one, reason_of) for one, reason_of in self._children if one is not child]

    def set(self, reason: str) -> None:
        """Ask to stop: wake whatever sits in a wait under this token, and pass it on to the children."""
        with self._lock:
            if self._event.is_set():
                return
            self.reason = reason
            self._event.set()
            wakers = list(self._wakers.values())
            children = list(self._children)
        for wake in wakers:
            _call(wake)
        for child, reason_of in children:
            child.set(reason_of(reason))

    def is_set(self) -> bool:
        """Tell whether the stop was asked for."""
        return self._event.is_set()

    def check(self) -> None:
        """Raise `Cancelled` with the reason if the stop was asked for."""
        if self._event.is_set():
            raise Cancelled(self.reason)

    def wait(self, seconds: float) -> None:
        """Wait that long, or raise `Cancelled` as soon as the stop is asked for."""
        self._event.wait(seconds)
        self.check()

    @contextmanager
    def waking(self, wake: Wake) -> Iterator[None]:
        """While the block runs, `wake` is called (from another thread) when the stop is asked for.

        Raises `Cancelled` at once, without running the block, if it was asked for before.
        """
        key = next(self._keys)
        with self._lock:
            self.check()
            self._wakers[key] = wake
        try:
            yield
        finally:
            with self._lock:
                del self._wakers[key]


class Watchdog:
    """Calls functions when their time has come. One daemon thread, started by the first use, ended by `close`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Wake]] = []
        self._live: set[int] = set()
        self._keys = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextmanager
    def deadline(self, seconds: float, wake: Wake) -> Iterator[None]:
        """While the block runs, `wake` is called once if it lasts longer than `seconds`."""
        key = self.arm(seconds, wake)
        try:
            yield
        finally:
            self.disarm(key)

    def arm(self, seconds: float, wake: Wake) -> int:
        """Have `wake` called once, in `seconds`, and return the key by which `disarm` calls that off."""
        with self._changed:
            key = next(self._keys)
            self._live.add(key)
            heapq.heappush(self._due, (time.monotonic() + seconds, key, wake))
            try:
                self._ensure_thread()
            except RuntimeError:
                # No thread to be had now: this deadline is refused, and the next one tries again.
                self._live.discard(key)
                raise
            if self._due[0][1] == key:
                self._changed.notify()
            self._sweep()
            return key

    def disarm(self, key: int) -> None:
        """Call off what `arm` returned this key for, if it has not been called yet."""
        with self._changed:
            self._live.discard(key)

    def start(self) -> None:
        """Start the thread now, so that no later deadline can fail because the system gives no more threads."""
        with self._changed:
            self._ensure_thread()

    def close(self) -> None:
        """End the thread; deadlines that are still open no longer fire."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(5)

    def _ensure_thread(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
            thread.start()
            self._thread = thread

    def _sweep(self) -> None:
        # Most deadlines never fire. Without this a long deadline would keep its closed block's objects alive.
        if len(self._due) > 64 and len(self._due) > 2 * len(self._live):
            self._due = [entry for entry in self._due if entry[1] in self._live]
            heapq.heapify(self._due)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                expired = []
                while self._due and self._due[0][0] <= now:
                    _, key, wake = heapq.heappop(self._due)
                    if key in self._live:
                        self._live.discard(key)
                        expired.append(wake)
                if not expired:
                    self._changed.wait(self._due[0][0] - now if self._due else None)
            for wake in expired:
                _call(wake)


def _call(wake: Wake) -> None:
    # A waker shuts a socket that its owner may be closing at this moment: an OSError is no news to anyone. No other
    # error either may keep those that come after from being woken, or end the thread of the watchdog.
    try:
        wake()
    except OSError:
        log.debug("a waker failed", exc_info=True)
    except Exception:
        log.exception("a waker failed")
