"""Looking up host names in a way that can be given up: getaddrinfo has no time limit, and nothing wakes it."""

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from gligabao.cancel import Wake
from gligabao.errors import GligabaoError

log = logging.getLogger(__name__)

MAX_LOOKUPS = 512
"""Look-ups under way in the process, those included that nobody waits for any more."""

Addresses = Sequence[tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]]
"""What getaddrinfo gives."""

_lookups = threading.BoundedSemaphore(MAX_LOOKUPS)


class LookupFailed(GligabaoError):
    """The name has no address, or was not looked up in time."""


def look_up(host: str, port: int, *, seconds: float, waking: Callable[[Wake], None]) -> Addresses:
    """Return the addresses of a host, waiting `seconds` at most. Raises `LookupFailed`.

    `waking` is given a function that ends the wait, before it begins; it may raise, and nothing is looked up then.
    """
    # A thread for each look-up, not a small pool: there a few names whose servers do not answer would hold up the
    # look-ups of all agents.
    if not _lookups.acquire(blocking=False):
        raise LookupFailed("too many host names are being looked up: try again")
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
        raise LookupFailed("the host name could not be resolved")
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
