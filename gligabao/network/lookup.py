"""Host name look-ups that can be given up: getaddrinfo has no time limit, and nothing wakes it."""

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from gligabao.cancel import Wake
from gligabao.errors import GligabaoError

log = logging.getLogger(__name__)

MAX_LOOKUPS = 512
"""Look-ups under way in the process, including those that nobody waits for any more."""

Addresses = Sequence[tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]]
"""What getaddrinfo gives."""

_lookups = threading.BoundedSemaphore(MAX_LOOKUPS)


class Unreachable(GligabaoError):
    """No connection could be made: the host has no address, or none of its addresses answered in time.

    Not an OSError: HTTP libraries wrap those, and the reason is lost.
    """


def look_up(host: str, port: int, *, seconds: float, waking: Callable[[Wake], None]) -> Addresses:
    """Return the addresses of a host, waiting at most `seconds`. Raises `Unreachable`.

    Before the wait begins, `waking` is given a function that ends it. If `waking` raises, nothing is looked up.
    """
    # A thread for each look-up rather than a small pool: a few names whose servers do not answer would fill the pool
    # and hold up the look-ups of all agents.
    if not _lookups.acquire(blocking=False):
        raise Unreachable("too many host names are being looked up: try again")
    found: list[Addresses] = []
    done = threading.Event()
    try:
        waking(done.set)
        threading.Thread(target=_resolve, args=(host, port, found, done), name="look-up", daemon=True).start()
    except BaseException:
        _lookups.release()
        raise
    done.wait(seconds)
    if not found or not found[0]:
        raise Unreachable("the host name could not be resolved")
    return found[0]


def _resolve(host: str, port: int, found: list[Addresses], done: threading.Event) -> None:
    try:
        found.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except Exception:
        # The top of a thread; and a name can be wrong in more ways than OSError.
        log.debug("could not resolve %s", host, exc_info=True)
    finally:
        _lookups.release()
        done.set()
