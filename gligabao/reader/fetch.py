"""The download of one page: redirects followed by hand, sizes and times bounded, faults of the line named.

Knows HTTP, not what is in a page. Nothing that a server wrote gets into a fault: no reason phrase, no header.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from ssl import SSLCertVerificationError, SSLError
from urllib.parse import urljoin

import requests
from requests.utils import requote_uri
from urllib3 import HTTPResponse
from urllib3.exceptions import DecodeError, HTTPError
from urllib3.exceptions import SSLError as TLSError
from urllib3.exceptions import TimeoutError as LineTimeout

from gligabao.network.line import CONNECT_SECONDS
from gligabao.reader.faults import PrivateAddress, Unreadable
from gligabao.reader.guard import check_url
from gligabao.reader.session import PageSession

TRANSPORT_ERRORS = (HTTPError, HTTPException, OSError, ValueError)
"""What requests, urllib3 and http.client raise for a line or an answer that is broken (requests' own are OSErrors)."""

CHUNK_BYTES = 64 * 1024

_REDIRECTS = {
    HTTPStatus.MOVED_PERMANENTLY,
    HTTPStatus.FOUND,
    HTTPStatus.SEE_OTHER,
    HTTPStatus.TEMPORARY_REDIRECT,
    HTTPStatus.PERMANENT_REDIRECT,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a page is taken, and how long it may need."""

    max_bytes: int = 1024 * 1024
    """Of the body, decoded."""
    max_redirects: int = 5
    connect_seconds: float = CONNECT_SECONDS
    """For the look-up of the name and all its addresses together."""
    read_seconds: float = 10
    """The longest silence of the server."""
    total_seconds: float = 20
    """From the look-up of the name to the last byte, redirects included."""


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Download:
    """What a server sent."""

    url: str
    """Where it was found, after redirects."""
    content_type: str
    """As the server says; "" when it does not."""
    body: bytes
    cut: bool
    """True when there was more than `body`."""


def download(session: PageSession, url: str, limits: Limits) -> Download:
    """Return what is at the URL. Raises `Unreadable`, or one of `TRANSPORT_ERRORS`."""
    for hop in range(limits.max_redirects + 1):
        try:
            found = _request(session, url, limits)
        except PrivateAddress as fault:
            raise PrivateAddress("it redirects there, and " if hop else "") from fault
        if isinstance(found, Download):
            return found
        url = found
    raise Unreadable(f"too many redirects: it still redirects after {limits.max_redirects}")


def explain(error: Exception, limits: Limits) -> str:
    """Return in plain words what one of `TRANSPORT_ERRORS` means; what the server wrote stays out."""
    causes = list(_causes(error))

    def is_due_to(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if is_due_to(SSLCertVerificationError):
        return "the TLS certificate of the server is not valid for it"
    if is_due_to(SSLError, TLSError, requests.exceptions.SSLError):
        return "the TLS connection failed"
    if is_due_to(TimeoutError, LineTimeout, requests.Timeout):
        return f"the server sent nothing for {limits.read_seconds:g} s"
    if is_due_to(DecodeError):
        return "the body is not compressed the way the server says"
    if isinstance(error, ValueError):
        return "the URL is not valid"
    return "the connection broke, or the server does not speak HTTP"


def _request(session: PageSession, url: str, limits: Limits) -> Download | str:
    """Return what is at the URL, or the URL that it redirects to."""
    timeout = (limits.connect_seconds, limits.read_seconds)
    try:
        with session.get(url, stream=True, allow_redirects=False, timeout=timeout) as response:
            return _redirect_target(response) or _take(response, limits)
    finally:
        # This empties the pools, no more. So each request dials: each is judged, and each has its socket watched.
        session.close()


def _redirect_target(response: requests.Response) -> str | None:
    location = response.headers.get("location")
    if response.status_code not in _REDIRECTS or not location:
        return None
    # http.client reads headers as Latin-1; what servers mean is UTF-8.
    location = location.encode("latin-1").decode("utf-8", "replace")
    try:
        target = urljoin(response.url, requote_uri(location))
        check_url(target)
    except (Unreadable, ValueError):
        raise Unreadable("it redirects to something that is not a plain http:// or https:// URL") from None
    return target


def _take(response: requests.Response, limits: Limits) -> Download:
    if response.status_code != HTTPStatus.OK:
        raise Unreadable(f"status {response.status_code:d}")
    encodings = response.headers.get("content-encoding", "").lower().split(",")
    if not {encoding.strip() for encoding in encodings} <= {"", "identity", *HTTPResponse.CONTENT_DECODERS}:
        raise Unreadable("the body is compressed in a way that is not read here")
    body, cut = _read_body(response.raw, limits.max_bytes)
    return Download(response.url, response.headers.get("content-type", ""), body, cut)


def _read_body(raw: HTTPResponse, max_bytes: int) -> tuple[bytes, bool]:
    body = bytearray()
    try:
        while len(body) <= max_bytes:
            chunk = raw.read1(min(CHUNK_BYTES, max_bytes + 1 - len(body)), decode_content=True)
            if not chunk:
                return bytes(body), False
            body += chunk
    except TRANSPORT_ERRORS:
        # The start of a page that ends early is worth reading.
        if not body:
            raise
    return bytes(body[:max_bytes]), True


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
