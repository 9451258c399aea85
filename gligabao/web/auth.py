"""Who calls, and from where: the checks that stand before every route."""

from typing import Any
from urllib.parse import urlsplit

from flask import Flask, Request, request

from gligabao.config import Config
from gligabao.errors import BadInput, Forbidden, GligabaoError

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
PROBES = frozenset({"/healthz", "/readyz"})
"""Asked by machines under any address, and telling nothing: open to all."""


class Unauthorized(GligabaoError):
    """No API key, or one that is not known."""

    status = 401


def guard(app: Flask, config: Config) -> None:
    """Have every request checked: its host, its origin and, with `auth = keys`, its key."""
    own = f"[{config.host}]" if ":" in config.host else config.host
    hosts = LOOPBACK_NAMES | {host.lower() for host in (*config.allowed_hosts, own)}

    @app.before_request
    def check_request() -> None:
        if request.path in PROBES:
            return
        if _host_name(request) not in hosts:
            raise Forbidden(f"host {request.host}: not served here (see the setting allowed_hosts)")
        _check_origin(request)
        if config.auth == "keys":
            # There is no way to make a key in this version, so none can be right: closed rather than open.
            raise Unauthorized("API key missing or unknown: send Authorization: Bearer <key>")


def add_user(given: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
    """Return a body with the user who is named in it or in the query string, where only `user_id` may stand."""
    unknown = [name for name in query if name != "user_id"]
    if unknown:
        raise BadInput("; ".join(f"{name}: not a query parameter here" for name in unknown))
    if "user_id" in query:
        if given.get("user_id", query["user_id"]) != query["user_id"]:
            raise BadInput("user_id: the body and the query name different users")
        return given | query
    return given


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
    """Return host and port of an origin, "" of one that is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_page_link(request: Request) -> bool:
    """Tell whether this is a person following a link to a page, which other sites may have."""
    return request.method == "GET" and request.headers.get("Sec-Fetch-Mode") == "navigate"
