"""Stopping: the token that tells an agent to stop, and the clock that ends waits that take too long.

A `threading.Event` alone does not wake a thread that is blocked in a socket read. So code that is about to block
gives the token a function that wakes it (`Cancel.waking`, usually a shutdown of the socket). `Watchdog` does the same
for deadlines, with one thread for the whole process, however many agents there are.
"""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gligabao.errors import Cancelled
from gligabao.records import Stop

log = logging.getLogger(__name__)

Wake = Callable[[], None]
StopBelow = Callable[[Stop], Stop]


class Cancel:
    """A request to stop one agent and everything it started. Set once: the first stop stays.

    Shared between threads: one lock guards the wakers and the children.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._wakers: dict[int, Wake] = {}
        self._keys = itertools.count()
        self._children: list[tuple[Cancel, StopBelow]] = []
        self.stop: Stop | None = None
        """Why; None until set."""

    def child(self, stop_below: StopBelow) -> "Cancel":
        """Return a token that is set whenever this one is, with the stop that `stop_below` makes of this one's."""
        child = Cancel()
        with self._lock:
            self._children.append((child, stop_below))
        if self.stop is not None:
            child.set(stop_below(self.stop))
        return child

    def forget(self, child: "Cancel") -> None:
        """Drop a child whose work has ended."""
        with self._lock:
            self._children = [(one, stop_below) for one, stop_below in self._children if one is not child]

    def set(self, stop: Stop) -> None:
        """Ask to stop: wake whatever waits under this token, and pass the stop on to the children."""
        with self._lock:
            if self.stop is not None:
                return
            self.stop = stop
            self._event.set()
            wakers = list(self._wakers.values())
            children = list(self._children)
        for wake in wakers:
            _call(wake)
        for child, stop_below in children:
            child.set(stop_below(stop))

    def is_set(self) -> bool:
        """Tell whether the stop was asked for."""
        return self.stop is not None

    def check(self) -> None:
        """Raise `Cancelled` if the stop was asked for."""
        if self.stop is not None:
            raise Cancelled(self.stop)

    def wait(self, seconds: float) -> None:
        """Wait that long, or raise `Cancelled` as soon as the stop is asked for."""
        self._event.wait(seconds)
        self.check()

    @contextmanager
    def waking(self, wake: Wake) -> Iterator[None]:
        """While the block runs, call `wake` (from another thread) when the stop is asked for.

        Raises `Cancelled` without running the block if it was asked for before.
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
    """Calls functions when they are due. One daemon thread, started by the first use and ended by `close`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Wake]] = []
        self._live: set[int] = set()
        self._keys = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextmanager
    def deadline(self, seconds: float, wake: Wake) -> Iterator[None]:
        """Call `wake` once if the block takes longer than `seconds`."""
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
                # The system has no thread left: refuse this deadline; the next one tries again.
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
        """Start the thread now, so that no later deadline fails because the system has no thread left."""
        with self._changed:
            self._ensure_thread()

    def close(self) -> None:
        """End the thread. Deadlines that are still open never fire."""
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
    # A waker shuts a socket that its owner may be closing at this moment, so an OSError is expected. No other error
    # may keep the remaining wakers from being called, or end the watchdog's thread.
    try:
        wake()
    except OSError:
        log.debug("a waker failed", exc_info=True)
    except Exception:
        log.exception("a waker failed")
