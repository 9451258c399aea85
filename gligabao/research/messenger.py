"""The message system: inboxes by run id. It knows nothing of agents, names or siblings.

`Messenger` is the contract. Another implementation (a queue, the database, a broker between processes) can replace
`QueueMessenger` when the server is built, and no agent notices. The team decides who may write to whom.
"""

import logging
import queue
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from gligabao.agent.limits import INBOX_SIZE
from gligabao.cancel import Cancel
from gligabao.errors import GligabaoError
from gligabao.records import now

log = logging.getLogger(__name__)


class NoInbox(GligabaoError):
    """There is no such inbox: its agent has ended."""


class InboxFull(GligabaoError):
    """The inbox holds as many unread messages as it can."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message from one agent to another, by the ids of their runs."""

    from_run: int
    from_name: str
    to_run: int
    text: str
    sent_at: str = ""
    """Set by `send_message`."""


class Messenger(Protocol):
    """A message system. Safe to share between threads."""

    def open(self, run_id: int) -> None:
        """Make the inbox of an agent. Raises when it cannot be made; the sub-agent is then not started."""

    def close(self, run_id: int) -> None:
        """Remove an inbox and its messages. Does nothing when there is none."""

    def send(self, message: Message) -> None:
        """Put the message into the inbox of `to_run` without waiting. Raises `NoInbox` or `InboxFull`."""

    def receive(self, run_id: int, *, wait_seconds: float, cancel: Cancel) -> list[Message]:
        """Take out all messages, oldest first, each once.

        Waits up to `wait_seconds` for the first if there are none. Raises `Cancelled` as soon as `cancel` is set,
        `NoInbox` when there is no inbox.
        """


def send_message(messenger: Messenger, *, from_run: int, from_name: str, to_run: int, text: str) -> None:
    """Send a message. Every agent sends through here, and nothing else calls `Messenger.send`."""
    messenger.send(Message(from_run, from_name, to_run, text, sent_at=now()))


def close_inbox(messenger: Messenger, run_id: int) -> None:
    """Remove an inbox. A failure is logged only: it must not cost a report, or the end of a run."""
    try:
        messenger.close(run_id)
    except Exception:
        log.exception("the inbox of run %s could not be closed", run_id)


class QueueMessenger:
    """Messages in memory: a bounded queue for each inbox. They are gone when the server stops.

    A lock guards which inboxes there are. Readers wait without it, so nobody holds up anyone else.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inboxes: dict[int, queue.Queue[Message | None]] = {}

    def open(self, run_id: int) -> None:
        """Make the inbox of an agent."""
        with self._lock:
            self._inboxes.setdefault(run_id, queue.Queue(INBOX_SIZE))

    def close(self, run_id: int) -> None:
        """Remove an inbox and what is in it."""
        with self._lock:
            self._inboxes.pop(run_id, None)

    def send(self, message: Message) -> None:
        """Put the message into the inbox of `to_run` without waiting."""
        try:
            # Under the lock: a message is either in before the inbox closes, or refused.
            with self._lock:
                self._inbox(message.to_run).put_nowait(message)
        except queue.Full:
            raise InboxFull(f"the inbox of run {message.to_run} holds {INBOX_SIZE} unread messages") from None

    def receive(self, run_id: int, *, wait_seconds: float, cancel: Cancel) -> list[Message]:
        """Take out all messages, oldest first, waiting for the first if there are none."""
        with self._lock:
            inbox = self._inbox(run_id)
        messages = _drain(inbox)
        deadline = time.monotonic() + wait_seconds
        with cancel.waking(lambda: _wake(inbox)):
            while not messages and (left := deadline - time.monotonic()) > 0:
                cancel.check()
                try:
                    first = inbox.get(timeout=left)
                except queue.Empty:
                    break
                messages = [*([first] if first else []), *_drain(inbox)]
        return messages

    def _inbox(self, run_id: int) -> "queue.Queue[Message | None]":
        try:
            return self._inboxes[run_id]
        except KeyError:
            raise NoInbox(f"run {run_id} has no inbox: it has ended") from None


def _drain(inbox: "queue.Queue[Message | None]") -> list[Message]:
    messages: list[Message] = []
    while True:
        try:
            message = inbox.get_nowait()
        except queue.Empty:
            return messages
        if message:
            messages.append(message)


def _wake(inbox: "queue.Queue[Message | None]") -> None:
    with suppress(queue.Full):  # then nobody waits on it
        inbox.put_nowait(None)
