"""Scripts: prepared replies for the conversations about a topic."""

import threading
from collections import Counter
from typing import Any

from gligabao.simulator.prompt import first_user_text, searches_the_web
from gligabao.simulator.replies import Scripted, error


class Script:
    """Replies in order, for every conversation whose first user text contains the topic.

    Each conversation (first user text) starts at the first reply. Shared by the server's threads: one lock guards the
    counts.
    """

    def __init__(self, topic: str, replies: tuple[Scripted, ...], *, searches: bool = False) -> None:
        self.topic = topic
        self.replies = replies
        self.searches = searches
        self._lock = threading.Lock()
        self._asked: Counter[str] = Counter()
        self._reached: dict[int, threading.Event] = {}

    def matches(self, body: dict[str, Any]) -> bool:
        """Tell whether this request belongs to the script."""
        return searches_the_web(body) == self.searches and self.topic in first_user_text(body)

    def next_reply(self, body: dict[str, Any]) -> Scripted:
        """Return the next reply of the conversation; a script that is used up answers a 400 that says so."""
        conversation = first_user_text(body)
        with self._lock:
            self._asked[conversation] += 1
            number = self._asked[conversation]
            self._reach(number).set()
        if number > len(self.replies):
            return error(400, message=f'the script for "{self.topic}" has no reply {number}, only {len(self.replies)}')
        return self.replies[number - 1]

    def reached(self, number: int) -> threading.Event:
        """Return the event that is set once a conversation has asked for its reply of that number, from 1."""
        with self._lock:
            return self._reach(number)

    @property
    def asked(self) -> int:
        """How many replies were asked for, over all conversations."""
        with self._lock:
            return self._asked.total()

    def _reach(self, number: int) -> threading.Event:
        return self._reached.setdefault(number, threading.Event())


class Scripts:
    """All scripts; of several that match a request the latest wins."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scripts: list[Script] = []

    def add(self, script: Script) -> Script:
        """Add a script."""
        with self._lock:
            self._scripts.append(script)
        return script

    def find(self, body: dict[str, Any]) -> Script | None:
        """Return the script for this request, None when there is none."""
        with self._lock:
            scripts = list(self._scripts)
        return next((script for script in reversed(scripts) if script.matches(body)), None)
