"""A fair lock: one thread at a time, in the order in which the threads asked."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from gligabao.errors import StoreError

CLOSED = "the database is closed"


class FairLock:
    """A lock that goes to its waiters in the order they came, so that nobody starves.

    `_lock` guards the queue, the holder and whether the lock is closing. The thread that releases the lock names the
    next holder, so a late-comer cannot slip in.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[_Waiter] = deque()
        self._holder: int | None = None
        self._closing = False

    def __len__(self) -> int:
        """How many threads wait."""
        return len(self._queue)

    @property
    def is_closing(self) -> bool:
        """Whether the lock is now refused to all but `hold_last`."""
        return self._closing

    @contextmanager
    def hold(self, wait_seconds: float) -> Iterator[None]:
        """Run the block with the lock held. Raise `StoreError` if the lock is not free in time, or is closing."""
        self._take(wait_seconds)
        try:
            yield
        finally:
            self._give_up()

    @contextmanager
    def hold_last(self, wait_seconds: float) -> Iterator[None]:
        """Like `hold`, but close the lock first: all other waiters are refused, now and later."""
        with self._lock:
            if not self._closing:
                self._closing = True
                self._refuse_queue(CLOSED)
        self._take(wait_seconds, is_last=True)
        try:
            yield
        finally:
            self._give_up()

    def refuse_waiting(self, reason: str) -> None:
        """Make all current waiters raise `StoreError` at once. A later `hold` waits again."""
        with self._lock:
            if not self._closing:  # those in `hold_last` are never refused
                self._refuse_queue(reason)

    def _refuse_queue(self, reason: str) -> None:
        for waiter in self._queue:
            waiter.refusal = reason
            waiter.answered.release()
        self._queue.clear()

    def _take(self, wait_seconds: float, *, is_last: bool = False) -> None:
        me = threading.get_ident()
        with self._lock:
            if self._closing and not is_last:
                raise StoreError(CLOSED)
            if self._holder == me:
                raise RuntimeError("this thread has a transaction open already")
            if self._holder is None:
                self._holder = me
                return
            waiter = _Waiter(me)
            self._queue.append(waiter)
        in_time = False
        try:
            in_time = waiter.answered.acquire(timeout=wait_seconds)
        finally:
            if not in_time:
                self._leave(waiter)
        if waiter.refusal or not in_time:
            reason = waiter.refusal or f"the database was busy for {wait_seconds:g} seconds"
            raise StoreError(reason)

    def _leave(self, waiter: "_Waiter") -> None:
        with self._lock:
            if waiter in self._queue:
                self._queue.remove(waiter)
                return
        if not waiter.refusal:
            self._give_up()  # it was named holder just as it gave up waiting

    def _give_up(self) -> None:
        with self._lock:
            if self._queue:
                waiter = self._queue.popleft()
                self._holder = waiter.thread
                waiter.answered.release()
            else:
                self._holder = None


class _Waiter:
    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.refusal = ""
        """Why it does not get the lock; "" when it is named holder."""
        self.answered = threading.Lock()
        self.answered.acquire()
