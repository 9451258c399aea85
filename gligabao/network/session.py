"""Sessions of requests whose connections a `Line` makes, with one SSL context for all of them.

The connection keeps the host name: the Host header, SNI and the check of the certificate are urllib3's own.
"""

import ssl
import threading
from functools import cache
from http.cookiejar import DefaultCookiePolicy
from socket import socket
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from requests.utils import DEFAULT_CA_BUNDLE_PATH
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util.ssl_ import create_urllib3_context

from gligabao.network.line import Line
from gligabao.network.lookup import Unreachable

_loading = threading.Lock()


def shared_tls() -> ssl.SSLContext:
    """Return the SSL context of all sessions: loading the authorities costs more than the rest of a request."""
    with _loading:
        return _load_tls()


@cache
def _load_tls() -> ssl.SSLContext:
    context = create_urllib3_context()
    context.load_verify_locations(DEFAULT_CA_BUNDLE_PATH)
    return context


class LineSession(requests.Session):
    """A session that connects through a `Line`, keeps no cookies and takes nothing from the environment."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self.trust_env = False
        self.adapters.clear()
        adapter = _LineAdapter(line)
        self.mount("http://", adapter)
        self.mount("https://", adapter)
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self.headers.clear()


class _LineAdapter(HTTPAdapter):
    def __init__(self, line: Line) -> None:
        self._line = line
        super().__init__(max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _pool_classes(self._line)

    def build_connection_pool_key_attributes(self, request: Any, verify: Any, cert: Any = None) -> Any:
        """Return the host of the request and, for TLS, the shared context."""
        host, _ = super().build_connection_pool_key_attributes(request, True)
        return host, {"ssl_context": shared_tls()} if host["scheme"] == "https" else {}

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """Leave the pool as it is: with a list of authorities, it would load that list for each connection."""

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a proxy would look the name up itself, unjudged."""
        raise Unreachable("no proxy is used")


def _pool_classes(line: Line) -> dict[str, type[HTTPConnectionPool]]:
    # _new_conn and _dns_host are private to urllib3; setup.cfg keeps to the versions in which the tests found them.
    class Plain(HTTPConnection):
        def _new_conn(self) -> socket:
            return _dial(line, self)

    class Secure(HTTPSConnection):
        def _new_conn(self) -> socket:
            return _dial(line, self)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}


def _dial(line: Line, connection: HTTPConnection) -> socket:
    # Not `host`, which drops the dot at the end of a name that is absolute.
    return line.dial(connection._dns_host.strip("[]"), connection.port)
