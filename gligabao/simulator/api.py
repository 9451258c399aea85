"""The simulated API without its HTTP: which reply a request gets, what was asked, and what it cost."""

import dataclasses
import itertools
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gligabao.simulator.billing import Bill, Ledger
from gligabao.simulator.faults import Faults
from gligabao.simulator.messages import Envelopes, Message
from gligabao.simulator.models import find_model
from gligabao.simulator.prompt import Prompt, first_user_text, searches_the_web
from gligabao.simulator.replies import MessageReply, Reply, Scripted
from gligabao.simulator.researcher import research
from gligabao.simulator.rules import Rules
from gligabao.simulator.scripts import Script, Scripts
from gligabao.simulator.search import search_reply

_SECRET_HEADERS = ("authorization", "x-api-key")


@dataclass(slots=True)
class Recorded:
    """A request to `/v1/messages` that was received."""

    time: float
    """Seconds since the epoch."""
    headers: dict[str, str]
    """In lower case, without the key."""
    body: Any
    """The parsed JSON; None if the body was not JSON."""
    status: int | None = None
    """The status of the answer; None while there is none, and if there never was one."""

    @property
    def topic(self) -> str:
        """The text of the first user turn, "" when there is none."""
        try:
            return first_user_text(self.body)
        except (AttributeError, KeyError, TypeError):
            return ""


class MessagesApi:
    """The simulated Messages API. Shared by the threads of its connections.

    One condition guards the requests; scripts, faults, ledger and cache guard themselves.
    """

    url = ""
    """Its base URL, once it listens; the pages are under `<url>/pages/`."""

    def __init__(
        self,
        *,
        latency_seconds: float = 0.0,
        lax: frozenset[str] = frozenset(),
        context_tokens: int | None = None,
        keep_requests: int = 2000,
    ) -> None:
        """`lax` may hold `empty` and `tools` (see `Rules`); `context_tokens` makes every model's window that small."""
        self.latency_seconds = latency_seconds
        self.faults = Faults()
        self._rules = Rules(lax=lax, context_tokens=context_tokens)
        self._scripts = Scripts()
        self._ledger = Ledger()
        self._envelopes = Envelopes()
        self._changed = threading.Condition()
        self._requests: deque[Recorded] = deque(maxlen=keep_requests)
        self._received = 0
        self._answers = itertools.count(1)

    def play(self, topic: str, *replies: Scripted) -> Script:
        """Answer conversations whose first user text contains `topic` with these replies, in order."""
        return self._scripts.add(Script(topic, replies))

    def play_search(self, query: str, *replies: Scripted) -> Script:
        """Answer requests that carry the web search server tool and ask for `query` with these replies, in order."""
        return self._scripts.add(Script(query, replies, searches=True))

    @property
    def requests(self) -> list[Recorded]:
        """A copy of the last `keep_requests` requests to `/v1/messages`, oldest first."""
        with self._changed:
            return [dataclasses.replace(recorded) for recorded in self._requests]

    @property
    def received(self) -> int:
        """How many requests to `/v1/messages` there were."""
        with self._changed:
            return self._received

    def wait_for_requests(self, number: int, timeout: float = 10.0) -> bool:
        """Wait until that many requests to `/v1/messages` have come in; False if the time was up first."""
        with self._changed:
            return self._changed.wait_for(lambda: self._received >= number, timeout)

    def billed(self) -> Bill:
        """Return what was billed so far: calls answered with a 200, written out in full."""
        return self._ledger.bill()

    def record(self, headers: Mapping[str, str], body: Any) -> Recorded:
        """Note a request that came in; its header names are in lower case."""
        kept = {name: value for name, value in headers.items() if name not in _SECRET_HEADERS}
        recorded = Recorded(time.time(), kept, body)
        with self._changed:
            self._requests.append(recorded)
            self._received += 1
            self._changed.notify_all()
        return recorded

    def answer(self, headers: Mapping[str, str], body: Any) -> tuple[Reply, Prompt]:
        """Return the reply to a request, or raise the `Refusal` that the rules demand."""
        prompt = self._rules.check(headers, body)
        reply: Scripted = self._choose(prompt)
        while not isinstance(reply, Reply):
            reply = reply(prompt.body)
        return reply, prompt

    def _choose(self, prompt: Prompt) -> Scripted:
        fault = self.faults.take(prompt.body)
        if fault is not None:
            return fault
        script = self._scripts.find(prompt.body)
        if script is not None:
            return script.next_reply(prompt.body)
        if searches_the_web(prompt.body):
            return search_reply(prompt.body, self.url)
        return research(prompt.body)

    def seal(self, answer: MessageReply, prompt: Prompt) -> Message:
        """Return the message that carries an answer."""
        model = find_model(prompt.model)
        assert model is not None  # The rules checked it.
        message = self._envelopes.seal(answer, prompt, model)
        if answer.stop_reason == "pause_turn":
            self._rules.remember_pause(prompt, message.json["content"])
        return message

    def charge(self, prompt: Prompt, message: Message, *, times: int = 1) -> None:
        """Put a call on the bill, or take it off again."""
        self._ledger.charge(prompt.topic, message.used, times=times)

    def count_tokens(self, headers: Mapping[str, str], body: Any) -> int:
        """Return the size of a prompt, for `/v1/messages/count_tokens`."""
        return self._rules.check(headers, {"max_tokens": 1, **body} if isinstance(body, dict) else body).tokens

    def next_request_id(self) -> str:
        """Return the id of one more answer."""
        return f"req_sim_{next(self._answers):06d}"
