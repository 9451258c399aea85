"""Turns at something that only one thread may use at a time, given in the order in which they were asked for."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from gligabao.errors import StoreError
from gligabao.store.transaction import RETRY_AFTER_SECONDS


class Turns:
    """A lock that is given to those who wait in the order they came, so that nobody starves.

    `_lock` guards the queue and the holder. Who lets go names the next holder, so a late-comer cannot slip in.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[_Waiter] = deque()
        self._holder: int | None = None

    def __len__(self) -> int:
        """How many wait."""
        return len(self._queue)

    @contextmanager
    def turn(self, wait_seconds: float) -> Iterator[None]:
        """Run the block alone, or raise `StoreError` when the turn does not come in time."""
        self._take(wait_seconds)
        try:
            yield
        finally:
            self._give_up()

    def _take(self, wait_seconds: float) -> None:
        me = threading.get_ident()
        with self._lock:
            if self._holder == me:
                raise RuntimeError("this thread has a transaction open already")
            if self._holder is None:
                self._holder = me
                return
            waiter = _Waiter(me)
            self._queue.append(waiter)
        in_time = False
        try:
            in_time = waiter.named.acquire(timeout=wait_seconds)
        finally:
            if not in_time:
                self._leave(waiter)
        if not in_time:
            raise StoreError(
                f"the database was busy for {wait_seconds:g} seconds", retry_after_seconds=RETRY_AFTER_SECONDS
            )

    def _leave(self, waiter: "_Waiter") -> None:
        with self._lock:
            if waiter in self._queue:
                self._queue.remove(waiter)
                return
        self._give_up()  # named as holder at the very moment that it gave up waiting

    def _give_up(self) -> None:
        with self._lock:
            if self._queue:
                waiter = self._queue.popleft()
                self._holder = waiter.thread
                waiter.named.release()
            else:
                self._holder = None


class _Waiter:
    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.named = threading.Lock()
        self.named.acquire()
