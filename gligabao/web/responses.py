"""What goes out: responses whose text can always be encoded, with the headers and the log line that all of them get."""

import logging
import secrets

from flask import Response, g, request

log = logging.getLogger(__name__)


class Utf8Response(Response):
    """A response, of JSON or a page. Half a surrogate pair in its text, which UTF-8 has no bytes for, becomes "?"."""

    def set_data(self, value: bytes | str) -> None:
        """Set the whole body."""
        super().set_data(value.encode("utf-8", "replace") if isinstance(value, str) else value)


def request_id() -> str:
    """Return the id of the current request, under which the log has what went wrong in it."""
    if "request_id" not in g:
        g.request_id = secrets.token_hex(6)
    found: str = g.request_id
    return found


def finish(response: Response) -> Response:
    """Log a response and set the headers that every response has."""
    # The path only: a query string names users.
    line = f"{request.method} {request.path} {response.status_code}"
    if response.status_code >= 500:
        response.headers["X-Request-Id"] = request_id()
        log.info("%s (request %s)", line, request_id())
    else:
        log.info("%s", line)
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    return response
