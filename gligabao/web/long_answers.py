"""Answers that take long, streams and waits: how many there may be, and that they end when the server stops.

Each holds a request thread, so they are counted: what is left of the threads answers all other requests.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gligabao.errors import Stopping, TooMany

OTHER_THREADS = 56
"""Streams leave this many threads to other requests."""
STREAMS_OF_USER = 10


class LongAnswer:
    """One stream or wait. Whatever has news for it wakes it: a change of its run, a cut, the stop of the server."""

    def __init__(self, user: str | None, stopping: threading.Event) -> None:
        self.user = user
        """Whose stream it is; None for a wait."""
        self._stopping = stopping
        self._woken = threading.Event()

    def wake(self) -> None:
        """End the wait that is under way, or the next one."""
        self._woken.set()

    def wait(self, seconds: float) -> bool:
        """Wait to be woken, up to `seconds`. False: the server is stopping, and the answer has to end."""
        if not self._stopping.is_set():
            self._woken.wait(seconds)
        self._woken.clear()
        return not self._stopping.is_set()


class LongAnswers:
    """The streams and waits that are open. Threads share it: one lock guards which there are."""

    def __init__(self, *, threads: int) -> None:
        self.max_streams = max(1, threads - OTHER_THREADS)
        self.max_waits = max(1, threads // 4)
        self.stopping = threading.Event()
        self._changed = threading.Condition()
        self._open: set[LongAnswer] = set()

    @contextmanager
    def stream(self, user: str) -> Iterator[LongAnswer]:
        """Count a stream of this user while the block runs. Raises `TooMany`, or `Stopping`.

        The block has to last until the response is closed. A generator is the wrong place for it: one that is closed
        before its first piece never runs. Let `Response.call_on_close` end it.
        """
        with self._counted(user) as stream:
            yield stream

    @contextmanager
    def wait(self) -> Iterator[LongAnswer]:
        """Count a wait while the block runs. Raises `TooMany`, or `Stopping`."""
        with self._counted(None) as wait:
            yield wait

    def begin_stop(self) -> None:
        """Let no more begin, and wake those that are open, so that they end."""
        self.stopping.set()
        with self._changed:
            still_open = list(self._open)
        for one in still_open:
            one.wake()

    def join(self, seconds: float) -> bool:
        """Wait up to `seconds` for all to end, and tell whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._open, seconds)

    @contextmanager
    def _counted(self, user: str | None) -> Iterator[LongAnswer]:
        one = LongAnswer(user, self.stopping)
        with self._changed:
            self._check_room(user)
            self._open.add(one)
        try:
            yield one
        finally:
            with self._changed:
                self._open.remove(one)
                self._changed.notify_all()

    def _check_room(self, user: str | None) -> None:
        if self.stopping.is_set():
            raise Stopping
        users = [one.user for one in self._open]
        waits = users.count(None)
        if user is None:
            if waits >= self.max_waits:
                raise TooMany(f"the server is busy: {waits} requests wait for results (at most {self.max_waits})")
        elif users.count(user) >= STREAMS_OF_USER:
            raise TooMany(f'user "{user}" already has {STREAMS_OF_USER} streams open: close one')
        elif len(users) - waits >= self.max_streams:
            raise TooMany(f"the server is busy: {len(users) - waits} streams are open (at most {self.max_streams})")
