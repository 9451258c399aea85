"""Who calls, and from where: the checks that stand before every route."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from flask import Flask, Request, g, request

from gligabao.config import Config
from gligabao.errors import BadInput, Forbidden, GligabaoError

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
PROBES = frozenset({"/healthz", "/readyz"})
"""Asked by machines under any address, and revealing nothing: open to all."""


class Unauthorized(GligabaoError):
    """There is no API key, or it is not a known one."""

    status = 401


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, for every door."""

    user_id: str | None
    """With `auth = off` the user in the query, not checked yet: it is a part of the input. None: nobody is named there;
    the body of a POST may do it."""

    def add_to(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return an input with the caller as its user. Raises `BadInput` when it names another user."""
        if self.user_id is None:
            return dict(given)
        if given.get("user_id", self.user_id) != self.user_id:
            raise BadInput("user_id: the body and the query name different users")
        return {**given, "user_id": self.user_id}


def guard(app: Flask, config: Config) -> None:
    """Check the host, the origin and, with `auth = keys`, the key of every request, and keep who sent it."""
    own = f"[{config.host}]" if ":" in config.host else config.host
    hosts = LOOPBACK_NAMES | {host.lower() for host in (*config.allowed_hosts, own)}

    @app.before_request
    def check_request() -> None:
        if request.path in PROBES:
            return
        if _host_name(request) not in hosts:
            raise Forbidden(f"host {request.host}: not served here (see the setting allowed_hosts)")
        _check_origin(request)
        g.caller = _find_caller(request, config)


def current_caller() -> Caller:
    """Return who sent the current request. Probes have no caller."""
    caller: Caller = g.caller
    return caller


def _find_caller(request: Request, config: Config) -> Caller:
    if config.auth == "keys":
        # This version cannot make a key, so none can be right: closed rather than open.
        raise Unauthorized("API key missing or unknown: send Authorization: Bearer <key>")
    return Caller(request.args.get("user_id"))


def _host_name(request: Request) -> str:
    host = request.host.lower()
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _check_origin(request: Request) -> None:
    origin = request.headers.get("Origin")
    if origin is not None and _netloc(origin) != request.host.lower():
        raise Forbidden(f"origin {origin[:200]}: requests from other sites are refused")
    if request.headers.get("Sec-Fetch-Site") == "cross-site" and not _is_page_link(request):
        raise Forbidden("requests from other sites are refused")


def _netloc(origin: str) -> str:
    """Return the host and port of an origin, "" of one that has none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_page_link(request: Request) -> bool:
    """Tell whether a person followed a link to a page: other sites may link to pages."""
    return request.method == "GET" and request.headers.get("Sec-Fetch-Mode") == "navigate"
