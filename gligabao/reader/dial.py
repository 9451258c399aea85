"""Connections: the only place of the reader that looks names up and opens sockets.

A name is looked up once, every answer is judged by `guard`, and the socket goes to the judged address itself, so
no second look-up can answer otherwise. The connection keeps the name: Host, SNI and the check of the certificate
are urllib3's own. `Watch` is how another thread ends a read that sits in a look-up or on a socket.
"""

import logging
import socket
import threading
from collections.abc import Callable
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util.request import ACCEPT_ENCODING

from gligabao import __version__
from gligabao.lookup import Addresses, LookupFailed, look_up
from gligabao.reader.faults import Interrupted, PrivateAddress, Unreadable
from gligabao.reader.guard import Allow

log = logging.getLogger(__name__)


class Watch:
    """One read under way, and the way to end it from other threads. One lock guards all of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cut = False
        self._wake: Callable[[], None] | None = None
        self._twin: socket.socket | None = None
        self.expired = False
        """True when the read was ended because its time was up."""

    def cut(self) -> None:
        """End the read: whatever it sits in returns now, and it begins nothing more."""
        with self._lock:
            self._cut = True
            if self._wake:
                self._wake()

    def expire(self) -> None:
        """End the read because its time is up."""
        self.expired = True
        self.cut()

    def on_cut(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when the read is ended. Raises `Interrupted` if it has been already."""
        with self._lock:
            if self._cut:
                raise Interrupted
            self._wake = wake

    def hold(self, sock: socket.socket) -> None:
        """Have the connection of `sock` shut down when the read is ended, until `release`."""
        self.release()
        # A twin, since TLS takes the descriptor away from `sock` for the time of the handshake, and since a
        # descriptor that its owner has closed may be another agent's by the time it is shut down.
        twin = self._twin = sock.dup()
        self.on_cut(lambda: _shut_down(twin))

    def release(self) -> None:
        """Let go of the connection."""
        with self._lock:
            self._wake = None
            if self._twin is not None:
                self._twin.close()
                self._twin = None


class Dialler:
    """Opens the connections of one reader, used by its thread alone. `watch` is the read under way."""

    def __init__(self, allow: Allow, *, connect_seconds: float, lookup_seconds: float) -> None:
        self._allow = allow
        self._connect_seconds = connect_seconds
        self._lookup_seconds = lookup_seconds
        self.watch = Watch()

    def dial(self, host: str, port: int) -> socket.socket:
        """Return a socket that is connected to an address of `host` which may be read."""
        answers = self._look_up(host.strip("[]"), port)
        for *_, address in answers:
            # One bad answer refuses the name: which of them is dialled must not decide what is safe.
            if not self._allow.admits(address[0], host=host, port=port):
                log.info("refused to connect to %s port %d: it is at %s", host, port, address[0])
                raise PrivateAddress
        return self._connect(answers)

    def _look_up(self, host: str, port: int) -> Addresses:
        try:
            return look_up(host, port, seconds=self._lookup_seconds, waking=self.watch.on_cut)
        except LookupFailed as error:
            raise Unreadable(str(error)) from error
        finally:
            self.watch.on_cut(lambda: None)

    def _connect(self, answers: Addresses) -> socket.socket:
        reason = "could not connect"
        for family, kind, proto, _, address in answers:
            try:
                return self._connect_to(socket.socket(family, kind, proto), address)
            except TimeoutError:
                reason = f"could not connect within {self._connect_seconds:g} s"
            except OSError:
                log.debug("could not connect to %s", address[0], exc_info=True)
        raise Unreadable(reason)

    def _connect_to(self, sock: socket.socket, address: Any) -> socket.socket:
        try:
            self.watch.hold(sock)
            sock.settimeout(self._connect_seconds)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect(address)
        except BaseException:
            sock.close()
            raise
        return sock


class GuardedSession(requests.Session):
    """A session whose every connection is dialled by a `Dialler`. No cookies, proxies, passwords or redirects."""

    def __init__(self, dialler: Dialler) -> None:
        super().__init__()
        self.trust_env = False
        self.adapters.clear()
        adapter = _GuardedAdapter(dialler)
        self.mount("http://", adapter)
        self.mount("https://", adapter)
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self.headers.clear()
        self.headers.update(
            {
                "User-Agent": f"gligabao/{__version__}",
                "Accept": "text/html,application/xhtml+xml,text/plain;q=0.9,*/*;q=0.5",
                # What urllib3 can decode here, and no more.
                "Accept-Encoding": ACCEPT_ENCODING,
                "Connection": "close",
            }
        )

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Return None: requests would read the whole body of a redirect, even of one that it does not follow."""
        return None


class _GuardedAdapter(HTTPAdapter):
    def __init__(self, dialler: Dialler) -> None:
        self._dialler = dialler
        super().__init__(max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _pool_classes(self._dialler)

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        # A proxy would look the name up itself, unjudged.
        raise Unreadable("the reader uses no proxy")


def _pool_classes(dialler: Dialler) -> dict[str, type[HTTPConnectionPool]]:
    # _new_conn is urllib3's own; setup.cfg keeps to the versions in which the tests found it called.
    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return dialler.dial(self._dns_host, self.port)

    class Secure(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return dialler.dial(self._dns_host, self.port)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}


def _shut_down(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        log.debug("the connection was gone before it was shut down", exc_info=True)
