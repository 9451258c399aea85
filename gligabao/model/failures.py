"""Failed model calls: what went wrong in one attempt, and whether another attempt is worth making."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

import anthropic

from gligabao.errors import ModelError, PromptTooLong
from gligabao.logs import redact
from gligabao.model.full_context import FullContext, find_full_context
from gligabao.model.reply import MalformedAnswer

SPEND_LIMITS = frozenset({"contract_spend_limit_reached", "enforced_spend_limit_reached", "ramp_limit_exceeded"})
"""Values of `error_code` on a 429 that waiting does not help (read in the SDK 2.14)."""

RETRIED = frozenset({408, 409, 425, 429})
"""Statuses under 500 that may pass: the SDK retries the same, but for 425 (RFC 8470, section 5.2)."""
MAY_BE_FULL = frozenset({400, 413, 422, 500})
"""Statuses under which servers say that the context is full; llama.cpp does so under a 500 too."""
QUOTED_CHARACTERS = 200
"""How much is shown of an answer that is not an answer of the Messages API at all."""

_SPENT = re.compile(r"spend|credit balance|billing|usage limit", re.IGNORECASE)
_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "exceed_context_size_error": 400,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The status that goes with an error's type, for an error inside a 200 (Anthropic's page on errors, llama.cpp)."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One attempt that brought no answer."""

    kind: str
    """In a word or two, for the state's detail: overloaded, rate limited, timed out, ..."""
    message: str
    """What the server or the network said."""
    status: int | None = None
    """The HTTP status; None when there was none, or when the error came inside a 200."""
    worth_retrying: bool = False
    max_retries: int | None = None
    """How often at most a failure of this kind is worth another attempt; None: as often as any."""
    retry_after_seconds: float | None = None
    """How long the server asked to wait, None if it did not."""
    refused_request: bool = False
    """The server will not have this request: another form of it may do."""
    full_context: FullContext | None = None
    """The conversation did not fit: the same request would fail again."""

    def as_error(self, *, retries: int = 0) -> ModelError:
        """Return the error that ends the call."""
        after = f" after {retries} {'retry' if retries == 1 else 'retries'}" if retries else ""
        status = f" (status {self.status})" if self.status else ""
        # What a server answers may hold what it was sent, the key included.
        text = redact(f"the model call failed{after}: {self.kind}{status}: {self.message}")
        if self.full_context:
            return PromptTooLong(text, excess=self.full_context.excess)
        error = ModelError(text)
        error.is_refusal_of_request = self.refused_request
        return error

    def refuses(self, field: str) -> bool:
        """Tell whether the server will not have this optional field of a request."""
        return self.refused_request and field in self.message


def timed_out(seconds: float) -> Failure:
    """Return the failure of an attempt that was given up. It is tried once more: each may have been billed."""
    return Failure("timed out", f"no answer within {seconds:g} s", worth_retrying=True, max_retries=1)


def malformed(what: str) -> Failure:
    """Return the failure of a 200 with which this is wrong."""
    return Failure("malformed answer", f"a 200 that is not a message: {what}", worth_retrying=True)


def not_the_api(content: bytes, url: str) -> Failure:
    """Return the failure of a 200 that another kind of server sent: a web page, or a stream of events."""
    text = content[: 4 * QUOTED_CHARACTERS].decode("utf-8", "replace")
    quoted = "".join(c if c.isprintable() else " " for c in text)[:QUOTED_CHARACTERS].strip()
    message = f"{url} does not answer as the Messages API does. Its answer begins: {quoted}"
    return Failure("malformed answer", message, worth_retrying=True, max_retries=1)


def from_sdk(error: anthropic.APIError) -> Failure:
    """Return what an error of the SDK means for us."""
    if isinstance(error, anthropic.APITimeoutError):
        return Failure("timed out", "no answer in time", worth_retrying=True, max_retries=1)
    if isinstance(error, anthropic.APIStatusError):
        return _from_status(error)
    cause = error.__cause__ or error
    if isinstance(cause, MalformedAnswer):
        return malformed(str(cause))
    return Failure("connection failed", f"{type(cause).__name__}: {cause}"[:300], worth_retrying=True)


def from_error_body(body: Any) -> Failure | None:
    """Return the failure that a 200 describes: an error object in place of an answer. None if it describes none."""
    if not isinstance(body, dict) or not body.get("error") or body.get("content"):
        return None
    inner = body["error"]
    code = inner.get("code") if isinstance(inner, dict) else None
    status = code if isinstance(code, int) and 400 <= code <= 599 else _STATUS_OF_TYPE.get(_type(inner), 500)
    return _failure(status, _message(body), inner, shown_status=None)


def _from_status(error: anthropic.APIStatusError) -> Failure:
    status, headers = error.status_code, error.response.headers
    message = _message(error.body) or str(error.response.text or "no message")[:300]
    if status == 404:
        message = f"{message} (called {error.request.url})"
    inner = error.body.get("error") if isinstance(error.body, dict) else None
    return _failure(
        status,
        message,
        inner,
        shown_status=status,
        spent=error.error_code in SPEND_LIMITS,
        told_not_to=headers.get("x-should-retry") == "false",
        retry_after_seconds=_retry_after(headers),
    )


def _failure(
    status: int,
    message: str,
    inner: Any,
    *,
    shown_status: int | None,
    spent: bool = False,
    told_not_to: bool = False,
    retry_after_seconds: float | None = None,
) -> Failure:
    """Return the failure that a status and the words beside it stand for."""
    full_context = None
    if status in MAY_BE_FULL:
        full_context = find_full_context(f"{message} {_type(inner)} {_code(inner)}")
    if status == 413:
        full_context = full_context or FullContext(None)
    spent = status == 429 and (spent or bool(_SPENT.search(message)))
    may_pass = status in RETRIED or status >= 500
    return Failure(
        "spend limit reached" if spent else _kind(status),
        message,
        status=shown_status,
        worth_retrying=may_pass and not spent and not told_not_to and not full_context,
        retry_after_seconds=retry_after_seconds,
        refused_request=status in (400, 422),
        full_context=full_context,
    )


def _kind(status: int) -> str:
    if status in (301, 302, 303, 307, 308):
        return "redirected to another address, which is not followed"
    names = {
        304: "not modified, which is no answer to a call",
        401: "the API key was refused",
        403: "not allowed",
        404: "not found",
        429: "rate limited",
        529: "overloaded",
    }
    may_pass = status in RETRIED or status >= 500
    return names.get(status, "server error" if may_pass else "the request was refused")


def _message(body: Any) -> str:
    """Return what an error says: Anthropic's form, or one of those that other servers use."""
    if isinstance(body, dict):
        inner = body.get("error")
        text = inner.get("message") if isinstance(inner, dict) else inner or body.get("message")
        return str(text or json.dumps(body))[:1000]
    return str(body or "")[:300]


def _type(inner: Any) -> str:
    return str(inner.get("type") or "") if isinstance(inner, dict) else ""


def _code(inner: Any) -> str:
    return str(inner.get("code") or "") if isinstance(inner, dict) else ""


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of `retry-after-ms` or `retry-after` (seconds or an HTTP date, RFC 9110 section 10.2.3)."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        value = headers.get("retry-after", "")
        if value.replace(".", "", 1).isdigit():
            return float(value)
        return max(0.0, parsedate_to_datetime(value).timestamp() - time()) if value else None
    except (ValueError, OverflowError):  # the second from a day or a zone that is a huge number
        return None
