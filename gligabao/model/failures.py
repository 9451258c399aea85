"""Failed model calls: what went wrong in one attempt, and whether another attempt is worth making."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import time

import anthropic

from gligabao.errors import ModelError, PromptTooLong
from gligabao.logs import redact
from gligabao.model.reply import MalformedAnswer

SPEND_LIMITS = frozenset({"contract_spend_limit_reached", "enforced_spend_limit_reached", "ramp_limit_exceeded"})
"""Values of `error_code` on a 429 that waiting does not help (read in the SDK 2.14)."""

_SPENT = re.compile(r"spend|credit balance|billing|usage limit", re.IGNORECASE)
# Anthropic, llama.cpp, vLLM and others, each in its own words.
_TOO_LONG = re.compile(
    r"prompt is too long|exceed_context_size|context (length|size|window)|input length and `max_tokens` exceed|"
    r"too many (input )?tokens",
    re.IGNORECASE,
)
_SIZES = re.compile(r"(\d+)\s*tokens?\s*>\s*(\d+)")


@dataclass(frozen=True, slots=True)
class Failure:
    """One attempt that brought no answer."""

    kind: str
    """In a word or two, for the state's detail: overloaded, rate limited, timed out, ..."""
    message: str
    """What the server or the network said."""
    status: int | None = None
    worth_retrying: bool = False
    retry_after_seconds: float | None = None
    """How long the server asked to wait, None if it did not."""

    def as_error(self, *, retries: int = 0) -> ModelError:
        """Return the error that ends the call."""
        after = f" after {retries} {'retry' if retries == 1 else 'retries'}" if retries else ""
        status = f" (status {self.status})" if self.status else ""
        # What a server answers may hold what it was sent, the key included.
        text = redact(f"the model call failed{after}: {self.kind}{status}: {self.message}")
        if self.is_too_long:
            sizes = _SIZES.search(self.message)
            return PromptTooLong(text, excess=int(sizes[1]) / max(1, int(sizes[2])) if sizes else None)
        error = ModelError(text)
        error.is_refusal_of_request = self.status in (400, 422)
        return error

    @property
    def is_too_long(self) -> bool:
        """Whether the conversation did not fit: the same request would fail again."""
        return self.status == 413 or (self.status == 400 and bool(_TOO_LONG.search(self.message)))

    def refuses(self, field: str) -> bool:
        """Tell whether the server will not have this optional field of a request."""
        return self.status in (400, 422) and field in self.message


def malformed(what: str) -> Failure:
    """Return the failure of a 200 with which this is wrong."""
    return Failure("malformed answer", f"a 200 that is no message: {what}", worth_retrying=True)


def from_sdk(error: anthropic.APIError) -> Failure:
    """Return what an error of the SDK means for us."""
    if isinstance(error, anthropic.APITimeoutError):
        return Failure("timed out", "no answer in time", worth_retrying=True)
    if isinstance(error, anthropic.APIStatusError):
        return _from_status(error)
    cause = error.__cause__ or error
    if isinstance(cause, MalformedAnswer):
        return malformed(str(cause))
    return Failure("connection failed", f"{type(cause).__name__}: {cause}"[:300], worth_retrying=True)


def _from_status(error: anthropic.APIStatusError) -> Failure:
    status = error.status_code
    message = _message(error)
    headers = error.response.headers
    spent = status == 429 and (error.error_code in SPEND_LIMITS or bool(_SPENT.search(message)))
    told_not_to = headers.get("x-should-retry") == "false"
    return Failure(
        "spend limit reached" if spent else _kind(status),
        message,
        status=status,
        worth_retrying=(status == 429 or status >= 500) and not spent and not told_not_to,
        retry_after_seconds=_retry_after(headers),
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
    return names.get(status, "server error" if status >= 500 else "the request was refused")


def _message(error: anthropic.APIStatusError) -> str:
    body = error.body
    if isinstance(body, dict):
        inner = body.get("error")
        text = inner.get("message") if isinstance(inner, dict) else inner or body.get("message")
        return str(text or json.dumps(body))[:1000]
    return str(body or error.response.text or "no message")[:300]


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
