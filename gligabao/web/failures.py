"""How errors are answered: `{"error": "<what was wrong with what>"}` with a fitting status, never a traceback."""

import logging
import secrets

from flask import Flask, Response, jsonify, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound, RequestEntityTooLarge

from gligabao.errors import GligabaoError, Unavailable

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 1024 * 1024


def answer_errors(app: Flask) -> None:
    """Turn every error of a request into JSON."""
    app.register_error_handler(GligabaoError, _answer_ours)
    app.register_error_handler(HTTPException, _answer_http)
    app.register_error_handler(Exception, _answer_fault)


def _answer(status: int, message: str) -> Response:
    response = jsonify({"error": message})
    response.status_code = status
    return response


def _answer_ours(error: GligabaoError) -> Response:
    if error.status >= 500 and not isinstance(error, Unavailable):
        return _answer_fault(error)
    response = _answer(error.status, str(error))
    if error.retry_after_seconds is not None:
        response.headers["Retry-After"] = str(error.retry_after_seconds)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _answer_http(error: HTTPException) -> Response:
    where = f"{request.method} {request.path}"
    if isinstance(error, NotFound):
        return _answer(404, f"{where}: there is no such route")
    if isinstance(error, MethodNotAllowed):
        response = _answer(405, f"{where}: this route takes {', '.join(sorted(error.valid_methods or ()))}")
        response.headers["Allow"] = ", ".join(sorted(error.valid_methods or ()))
        return response
    if isinstance(error, RequestEntityTooLarge):
        return _answer(413, f"the body is over {MAX_BODY_BYTES:,} bytes")
    if error.code is None or error.code >= 500 or error.code < 400:
        return _answer_fault(error)
    return _answer(error.code, f"{where}: {error.description or error.name}")


def _answer_fault(error: Exception) -> Response:
    fault_id = secrets.token_hex(6)
    log.error("fault %s in %s %s", fault_id, request.method, request.path, exc_info=error)
    return _answer(500, f"a fault of this server; its log has the details under request {fault_id}")
