"""The model: one shared object, and a connection of its own for each agent.

`ModelServer` holds what all share: the key, one SSL context (a client with its own costs 22 ms and 1 MB), the prices
and what the server was found to refuse. `ModelConnection` makes the calls of one agent, on its thread: it retries what
is worth retrying, continues what the model paused, counts what every answered call used, and is woken
by cancelling even when the server never answers.
"""

import json
import logging
import random
import re
import ssl
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import anthropic
import httpx2

from gligabao.cancel import Cancel, Watchdog
from gligabao.errors import ModelError, ModelRefused, StartError, Unavailable
from gligabao.logs import redact
from gligabao.model.conversation import Block, Conversation, Tools
from gligabao.model.failures import Failure, from_error_body, from_sdk, malformed, not_the_api, timed_out
from gligabao.model.intake import bound
from gligabao.model.prices import Prices
from gligabao.model.proxy import find_proxy
from gligabao.model.reply import (
    Counted,
    MalformedAnswer,
    Reply,
    decode,
    parse_reply,
    parse_usage,
    sendable,
    with_good_ids,
)
from gligabao.model.transport import LineTransport, Probe
from gligabao.network.line import CONNECT_SECONDS, Line
from gligabao.records import Usage

log = logging.getLogger(__name__)

MAX_PAUSES = 10
"""A turn that the provider pauses more often than this is an error."""


@dataclass(frozen=True, slots=True)
class Retrying:
    """How failed calls are tried again: waits of 3, 6, 12, ... seconds, about three minutes in all."""

    retries: int = 6
    first_wait_seconds: float = 3.0
    total_seconds: float = 180.0
    """From the first failure to the last attempt. A server that asks for a longer wait fails the call at once."""

    def wait_seconds(self, retry: int) -> float:
        """Return how long to wait before this retry (1, 2, ...), with jitter: agents must not come back as one."""
        return self.first_wait_seconds * 2.0 ** (retry - 1) * random.uniform(0.75, 1)


class CallObserver(Protocol):
    """Who wants to know what happens during a call."""

    def calling(self) -> None:
        """A call is about to be made."""

    def answered(self) -> None:
        """The model answered a call, whatever becomes of the answer."""

    def spent(self, usage: Usage) -> None:
        """A call was answered and this is what it used, whatever becomes of the answer."""

    def retrying(self, note: str) -> None:
        """The call failed and is tried again after a wait; `note` says `overloaded, retry 2 of 6`."""


@dataclass(frozen=True, slots=True)
class Request:
    """One call: of which model, with what limit, in which conversation."""

    model: str
    conversation: Conversation
    max_tokens: int
    tools: Tools = Tools.ALLOWED
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further fields that a server may refuse: they are then left out (thinking, output_config)."""


class ModelServer:
    """A server that speaks the Messages API. Shared by all agents and safe to share."""

    def __init__(
        self,
        *,
        api_key: str | None,
        base_url: str | None,
        prices: Prices,
        watchdog: Watchdog,
        timeout_seconds: float = 300.0,
        prompt_cache: str = "auto",
        retrying: Retrying | None = None,
    ) -> None:
        self.prices = prices
        self.timeout_seconds = timeout_seconds
        self.prompt_cache = prompt_cache
        self.retrying = retrying or Retrying()
        self.watchdog = watchdog
        self.refused_fields: set[tuple[str, str, str]] = set()
        """Optional fields that this server will not have, by model and value; they are not sent again."""
        self._api_key = api_key
        self._base_url = _without_version(base_url or "https://api.anthropic.com")
        self._proxy = find_proxy(self._base_url)
        self._ssl = ssl.create_default_context()

    def require_key(self) -> None:
        """Raise `Unavailable` when there is no API key to call the model with."""
        if not self._api_key:
            raise Unavailable(
                "no model key: set ANTHROPIC_API_KEY, or anthropic_api_key in gligabao.toml, and restart the server"
            )

    def load(self, model: str) -> None:
        """Load what the first call would have to wait for (half of the HTTP library, and the prices).

        Raises `StartError` when the HTTP library cannot be used as it is installed or as the environment sets it up.
        """
        self._require_line()
        self.prices.is_known(model)

    def connect(self, cancel: Cancel) -> "ModelConnection":
        """Return a connection for one agent; close it when the agent ends."""
        self.require_key()
        return ModelConnection(self, cancel)

    def open_client(self, http_client: httpx2.Client) -> anthropic.Anthropic:
        """Return the SDK's client over this HTTP client. Its own retries are off: they cannot be interrupted."""
        return anthropic.Anthropic(
            api_key=self._api_key,
            base_url=self._base_url,
            max_retries=0,
            http_client=http_client,
        )

    def open_http(self, line: Line) -> httpx2.Client:
        """Return an HTTP client whose connections the line makes, with the shared SSL context."""
        return anthropic.DefaultHttpxClient(
            transport=LineTransport(line, tls=self._ssl, proxy=self._proxy),
            timeout=httpx2.Timeout(self.timeout_seconds, connect=CONNECT_SECONDS),
            # A conversation goes to the server that was set up, and nowhere else.
            follow_redirects=False,
            headers={"accept-encoding": "identity"},
            event_hooks={"response": [bound]},
        )

    def _require_line(self) -> None:
        probe = Probe()
        try:
            with self.open_http(probe) as http, suppress(httpx2.HTTPError):
                http.get(self._base_url, timeout=1)
        except (ValueError, ImportError, httpx2.InvalidURL) as error:
            what = "proxy that the environment names for the model" if self._proxy else "address of the model"
            raise StartError(f"the {what} cannot be used: {error}") from error
        if not probe.was_asked:
            raise StartError(
                "model calls could not be stopped: the installed httpx2 or httpcore2 makes connections in its own way; "
                "install the versions in requirements.txt"
            )


class ModelConnection:
    """The calls of one agent. Used by its thread only; `Cancel` and the watchdog wake it from theirs."""

    def __init__(self, model: ModelServer, cancel: Cancel) -> None:
        self._model = model
        self._cancel = cancel
        self._line = Line()
        self._http = model.open_http(self._line)
        self._client = model.open_client(self._http)
        self._tool_ids: set[str] = set()
        """Ids of all tool calls so far."""

    def close(self) -> None:
        """Give the connection back to the system."""
        self._http.close()
        self._line.close()

    def ask(self, request: Request, observer: CallObserver) -> Reply:
        """Return the model's answer, whole: a turn that the provider paused is continued.

        Raises `Cancelled`, `PromptTooLong`, `ModelRefused`, or `ModelError` when the call failed for good.
        """
        content: list[Block] = []
        for _ in range(MAX_PAUSES + 1):
            reply = self._attempt_until_answered(request, sendable(content), observer)
            content += with_good_ids(reply.content, self._tool_ids)
            if reply.stop_reason == "refusal":
                raise ModelRefused(_refusal(reply))
            if reply.stop_reason != "pause_turn":
                return Reply(content, reply.stop_reason, reply.details)
        raise ModelError(f"the model paused its turn more than {MAX_PAUSES} times without ending it")

    def _attempt_until_answered(self, request: Request, paused: list[Block], observer: CallObserver) -> Reply:
        policy = self._model.retrying
        give_up_at = None
        failed: Counter[str] = Counter()
        while True:
            self._cancel.check()
            observer.calling()
            outcome = self._attempt(request, paused, observer)
            if isinstance(outcome, Reply):
                observer.answered()
                return outcome
            self._cancel.check()
            if self._leave_out_refused(request, outcome):
                continue
            now = time.monotonic()
            give_up_at = give_up_at or now + policy.total_seconds
            left_seconds = give_up_at - now
            failed[outcome.kind] += 1
            retry = failed.total()
            wait_seconds = outcome.retry_after_seconds
            if wait_seconds is None:
                # Attempts take time too: the last one is made earlier rather than not at all.
                wait_seconds = min(policy.wait_seconds(retry), max(0.0, left_seconds))
            too_late = left_seconds <= 0 or wait_seconds > left_seconds
            of_kind = policy.retries if outcome.max_retries is None else outcome.max_retries
            too_often = retry > policy.retries or failed[outcome.kind] > of_kind
            if not outcome.worth_retrying or too_often or too_late:
                raise outcome.as_error(retries=retry - 1)
            observer.retrying(f"{outcome.kind}, retry {retry} of {policy.retries}")
            self._cancel.wait(wait_seconds)

    def _leave_out_refused(self, request: Request, failure: Failure) -> bool:
        """Note an optional field that the server named as refused; True if the call is worth making without it."""
        refused = {use for use in self._optional_uses(request) if failure.refuses(use[1])}
        if refused:
            log.warning("the model's server refuses %s: going on without", ", ".join(sorted(use[1] for use in refused)))
        self._model.refused_fields |= refused
        return bool(refused)

    def _optional_uses(self, request: Request) -> set[tuple[str, str, str]]:
        """Return the fields that are sent although the server may not take them."""
        uses = {_use(request, name) for name in request.options}
        if self._model.prompt_cache == "auto":
            uses.add(_CACHING)
        return uses - self._model.refused_fields

    def _attempt(self, request: Request, paused: list[Block], observer: CallObserver) -> Reply | Failure:
        body = request.conversation.body(tools=request.tools, paused=paused, **self._fields(request))
        seconds = self._model.timeout_seconds
        with self._line.watched(self._cancel, self._model.watchdog, seconds=seconds) as watch:
            try:
                response = self._client.post("/v1/messages", content=body, cast_to=httpx2.Response)
            except anthropic.APIError as error:
                return timed_out(seconds) if watch.expired else from_sdk(error)
        return self._read_answer(request, response, observer)

    def _fields(self, request: Request) -> dict[str, Any]:
        refused = self._model.refused_fields
        fields: dict[str, Any] = {"model": request.model, "max_tokens": request.max_tokens}
        if self._model.prompt_cache != "off" and _CACHING not in refused:
            fields["cache_control"] = {"type": "ephemeral"}
        return fields | {n: value for n, value in request.options.items() if _use(request, n) not in refused}

    def _read_answer(self, request: Request, response: httpx2.Response, observer: CallObserver) -> Reply | Failure:
        content = response.content
        try:
            body = decode(content)
        except (ValueError, RecursionError):
            if _is_other_kind(content):
                return not_the_api(content, str(response.request.url))
            return malformed("it is not JSON that can be read")
        counted = parse_usage(body)
        try:
            reply = parse_reply(body)
        except MalformedAnswer as error:
            if counted.is_whole:
                self._count(request, counted, observer)
            return from_error_body(body) or malformed(str(error))
        self._count(request, counted, observer)
        return reply

    def _count(self, request: Request, counted: Counted, observer: CallObserver) -> None:
        used = self._model.prices.price(request.model, counted.usage)
        observer.spent(used if counted.is_whole else replace(used, cost_usd=None))


def _without_version(base_url: str) -> str:
    """Return the base address without the `/v1` that the SDK adds itself."""
    corrected = re.sub(r"/v1(/messages)?/*$", "", base_url)
    if corrected != base_url:
        log.warning("anthropic_base_url: left out %s, which is added to each call", base_url[len(corrected) :])
    return corrected


def _is_other_kind(content: bytes) -> bool:
    """Tell whether this is a web page, or a stream of events (whatever its label says)."""
    start = content.lstrip().lower()
    return start.startswith((b"<", b"event:", b"data:", b"id:", b":"))


_CACHING = ("", "cache_control", "")
"""A server takes it for all models or for none."""


def _use(request: Request, name: str) -> tuple[str, str, str]:
    """Return what a refusal of an optional field is about: this model, and this value of it."""
    return request.model, name, json.dumps(request.options[name], sort_keys=True)


def _refusal(reply: Reply) -> str:
    category = reply.details.get("category")
    explanation = reply.details.get("explanation")
    said = ": ".join(str(part) for part in (category, explanation) if part)
    return redact(f"the model refused to answer{': ' + said if said else ''}")


def least_thinking(model: str) -> dict[str, Any]:
    """Return the request options that make this model think as little as it can be told to.

    Which models know which setting: Anthropic's pages on thinking and effort, read in autumn 2026. A server that
    refuses a field is asked again without it.
    """
    if "haiku" in model or not model.startswith("claude-"):
        return {}
    options: dict[str, Any] = {"output_config": {"effort": "low"}}
    if model.startswith("claude-sonnet-5-5"):
        options["thinking"] = {"type": "between_tools"}
    elif model == "claude-sonnet-5":
        options["thinking"] = {"type": "disabled"}
    return options
