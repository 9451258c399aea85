"""Announces what was stored to those in this process who follow it: event streams, waits, metrics.

Owns the list of listeners. What is announced, and when, is left to `runs`.
"""

import logging
import threading
from collections.abc import Callable

from gligabao.records import RunChanged

log = logging.getLogger(__name__)

Listener = Callable[[RunChanged], object]
"""Runs on the thread that wrote, which waits for it: it must be quick, such as a `put` to a queue or a `set`."""


class Announcer:
    """Calls every listener for every change. Safe to share between threads.

    `_lock` guards changes to the listeners. They are in a dict that is replaced and never changed, so announcing takes
    no lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[object, Listener] = {}

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call the listener from now on, and return the function that ends this.

        A call that another thread has already begun may still come after that function has returned.
        """
        key = object()
        with self._lock:
            self._listeners = {**self._listeners, key: listener}

        def unsubscribe() -> None:
            with self._lock:
                self._listeners = {other: one for other, one in self._listeners.items() if other is not key}

        return unsubscribe

    def announce(self, change: RunChanged) -> None:
        """Tell all listeners. One that raises is logged, and the others are told all the same."""
        for listener in self._listeners.values():
            try:
                listener(change)
            except Exception:
                # The write is committed: neither the writer nor the other listeners may suffer from this one.
                log.exception("a listener to changes of runs failed at run %d", change.run_id)
