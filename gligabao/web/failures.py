"""How a request fails: with a fitting status and a message that says what was wrong with what, never a traceback.

A door gives failures its own form. REST's, `{"error": "<message>"}`, is the form of everything that no other door
claims, such as an address without a route.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flask import Blueprint, Flask, Response, jsonify, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound, RequestEntityTooLarge

from gligabao.errors import GligabaoError
from gligabao.web.responses import request_id

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Failure:
    """What the caller is told, in whatever form."""

    status: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)


def render_json(failure: Failure) -> Response:
    """Return a failure as REST answers it."""
    return jsonify({"error": failure.message})


def answer_errors(door: Flask | Blueprint, render: Callable[[Failure], Response] = render_json) -> None:
    """Turn every error in the routes of a door into a response in the door's form.

    On the application itself this covers the routes of all doors that have no form of their own.
    """

    def answer(failure: Failure) -> Response:
        response = render(failure)
        response.status_code = failure.status
        response.headers.update(failure.headers)
        return response

    door.register_error_handler(GligabaoError, lambda error: answer(_describe_ours(error)))
    door.register_error_handler(HTTPException, lambda error: answer(_describe_http(error)))
    door.register_error_handler(Exception, lambda error: answer(_describe_fault(error)))


def _describe_ours(error: GligabaoError) -> Failure:
    if error.status == 500:
        return _describe_fault(error)
    headers = {}
    if error.status > 500:
        log_cause(error)
    if error.retry_after_seconds is not None:
        headers["Retry-After"] = str(error.retry_after_seconds)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Failure(error.status, error.client_text, headers)


def log_cause(error: Exception) -> None:
    """Log why a request cannot be served now. The caller is told less, and has the id to look it up."""
    log.warning("request %s: %s %s failed: %s", request_id(), request.method, request.path, error)


def _describe_http(error: HTTPException) -> Failure:
    where = f"{request.method} {request.path}"
    if isinstance(error, NotFound):
        return Failure(404, f"{where}: there is no such route")
    if isinstance(error, MethodNotAllowed):
        allowed = ", ".join(sorted(error.valid_methods or ()))
        return Failure(405, f"{where}: this route takes {allowed}", {"Allow": allowed})
    if isinstance(error, RequestEntityTooLarge):
        return Failure(413, f"the body is over {MAX_BODY_BYTES:,} bytes")
    if error.code is None or error.code >= 500 or error.code < 400:
        return _describe_fault(error)
    return Failure(error.code, f"{where}: {error.description or error.name}")


def _describe_fault(error: Exception) -> Failure:
    log.error("request %s: %s %s failed", request_id(), request.method, request.path, exc_info=error)
    return Failure(500, f"internal error; see the server log (request {request_id()})")
