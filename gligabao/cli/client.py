"""The HTTP client of the command line: one method for each route, and the ways a call can fail.

Every failure is a `click.ClickException` with its exit code. Text of the server in it is cleaned for a terminal.
"""

import ipaddress
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import click
import requests
import urllib3
from requests.auth import AuthBase

from gligabao import __version__
from gligabao.cli.text import clean
from gligabao.logs import redact

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0

Json = dict[str, Any]


class NoServer(click.ClickException):
    """Nothing answers at the address."""

    exit_code = 3


class NoAnswer(click.ClickException):
    """Something took the request and did not answer it."""

    exit_code = 1


class Refused(click.ClickException):
    """The server answered, and not with what was asked for."""

    exit_code = 1

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Speaks to one server as one user. Used by one thread; a context manager that closes its connections."""

    def __init__(self, url: str, *, user: str | None, api_key: str | None = None) -> None:
        self._url = _check_url(url)
        self._user = user
        self._session = requests.Session()
        self._session.headers["User-Agent"] = f"gligabao/{__version__}"
        # A proxy set for the web is no way to this machine.
        self._session.trust_env = not _is_this_machine(self._url)
        if api_key:
            self._session.auth = _Bearer(_check_key(api_key))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close()

    def start_research(self, body: Mapping[str, Any]) -> Json:
        """Start a research and return its run; `user_id` is filled in where the body has none."""
        whole = dict(body)
        if self._user is not None:
            whole.setdefault("user_id", self._user)
        return self._expect_run(self._call("POST", "/v1/gb/research", body=whole))

    def list_researches(self, filters: Mapping[str, Any]) -> Json:
        """Return `{"runs": [...]}`, newest first; filters that are None are left out."""
        answer = self._call("GET", "/v1/gb/research", query=filters)
        if not isinstance(answer.get("runs"), list):
            raise self._no_gligabao("a list of runs")
        return answer

    def get_research(self, run_id: int, *, states_after: int | None = None) -> Json:
        """Return a run with its states, or with those that came after a `seq`."""
        answer = self._call("GET", f"/v1/gb/research/{run_id}", query={"states_after": states_after})
        return self._expect_run(answer)

    def is_ready(self) -> bool:
        """Tell whether a server is there and can work."""
        try:
            response = self._session.get(self._url + "/readyz", timeout=CONNECT_SECONDS, allow_redirects=False)
        except requests.RequestException:
            return False
        return response.status_code == 200

    def _call(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Json | None = None
    ) -> Json:
        parameters = {key: value for key, value in (query or {}).items() if value is not None}
        if self._user is not None and body is None:
            parameters["user_id"] = self._user
        try:
            response = self._session.request(
                method,
                self._url + path,
                params=parameters,
                json=body,
                timeout=(CONNECT_SECONDS, ANSWER_SECONDS),
                allow_redirects=False,
            )
        except (
            requests.RequestException,
            urllib3.exceptions.HTTPError,
        ) as error:  # requests lets some of those through
            raise self._explain(error) from error
        return self._read(response)

    def _explain(self, error: Exception) -> click.ClickException:
        address = redact(self._url)
        if isinstance(error, requests.ReadTimeout):
            return NoAnswer(f"the server at {address} did not answer within {ANSWER_SECONDS:g} s")
        if _was_cut(error):
            return NoAnswer(f"the server at {address} ended the connection without an answer")
        if isinstance(error, requests.ConnectionError):
            return NoServer(f"no server at {address}: start one with `gligabao serve`, or name another with --url")
        return click.UsageError(f"a request to {address} cannot be sent: check --url")

    def _read(self, response: requests.Response) -> Json:
        try:
            answer = response.json()
        except (ValueError, RecursionError):
            answer = None
        if isinstance(answer, dict) and response.ok and not response.is_redirect:
            return answer
        message = answer.get("error") if isinstance(answer, dict) else None
        if isinstance(message, str) and message:
            raise Refused(clean(message), status=response.status_code)
        if response.is_redirect:
            target = clean(redact(response.headers.get("location", "")))
            raise Refused(f"the server at {redact(self._url)} points to {target}", status=response.status_code)
        raise self._no_gligabao("JSON", status=response.status_code)

    def _expect_run(self, answer: Json) -> Json:
        if not isinstance(answer.get("id"), int) or not isinstance(answer.get("status"), str):
            raise self._no_gligabao("a run")
        return answer

    def _no_gligabao(self, wanted: str, *, status: int = 200) -> Refused:
        text = f"{redact(self._url)} answered with status {status} and not with {wanted}: is it a gligabao server?"
        return Refused(text, status=status)


class _Bearer(AuthBase):
    """The API key. As an auth object, since a netrc entry would replace a plain header."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._key}"
        return request


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_good = is_good and not parts.query and not parts.fragment
    except ValueError:
        is_good = False
    if not is_good:
        raise click.UsageError(f"--url must be like http://127.0.0.1:8080, not {clean(redact(url))!r}")
    return url.rstrip("/")


def _check_key(api_key: str) -> str:
    key = api_key.strip()
    if not re.fullmatch(r"[!-~]+", key):
        raise click.UsageError("--api-key must be plain ASCII without spaces or line breaks")
    return key


def _is_this_machine(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_CUT = (urllib3.exceptions.ProtocolError, urllib3.exceptions.ReadTimeoutError)


def _was_cut(error: Exception) -> bool:
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return True
    cause = error.args[0] if error.args else None
    return isinstance(error, requests.ConnectionError) and isinstance(cause, _CUT)
