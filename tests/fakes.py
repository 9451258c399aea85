"""Small stand-ins that play scripted parts and keep what they were asked."""

import json
from collections.abc import Callable

from gligabao.errors import GligabaoError
from gligabao.model.client import Request
from gligabao.model.reply import Reply
from gligabao.records import Run, StateName, Status, Stop, StopKind, Usage, now

BY_USER = Stop(StopKind.USER, "by the user")

_ids = iter(range(1, 10**9))


def text(*words: str, stop_reason: str = "end_turn") -> Reply:
    """An answer of text blocks."""
    return Reply([{"type": "text", "text": word} for word in words], stop_reason, {})


def calls(*named: tuple[str, object], stop_reason: str = "tool_use", say: str = "") -> Reply:
    """An answer that calls tools, given as (name, input)."""
    content = [{"type": "text", "text": say}] if say else []
    content += [{"type": "tool_use", "id": f"toolu_{next(_ids)}", "name": n, "input": i} for n, i in named]
    return Reply(content, stop_reason, {})


class FakeConnection:
    """Plays replies (or raises errors) in order and keeps the requests it got, decoded."""

    def __init__(self, *replies: Reply | GligabaoError) -> None:
        self._replies = list(replies)
        self.requests: list[dict] = []

    def ask(self, request: Request, observer: object) -> Reply:
        body = request.conversation.body(tools=request.tools, paused=[], model=request.model)
        self.requests.append(json.loads(body))
        reply = self._replies.pop(0)
        if isinstance(reply, GligabaoError):
            raise reply
        return reply


class FakeObserver:
    """Keeps what an agent did, as lines."""

    def __init__(self, on_enter: Callable[[StateName], None] = lambda state: None) -> None:
        self.lines: list[str] = []
        self.errors: list[str] = []
        self.usage = Usage()
        self._on_enter = on_enter

    def entered(self, state: StateName, *, step: int, detail: str) -> None:
        self._on_enter(state)
        self.lines.append(f"{step} {state} {detail}")

    def calling(self) -> None:
        pass

    def answered(self) -> None:
        pass

    def ran_tool(self, error: str) -> None:
        self.errors.append(error)

    def spent(self, usage: Usage) -> None:
        self.usage += usage

    def retrying(self, note: str) -> None:
        self.lines.append(note)


def new_run(run_id: int, *, parent_id: int | None = None, name: str = "", reason: str = "") -> Run:
    """A run that was just recorded, in no database."""
    return Run(
        id=run_id,
        user_id="u1",
        parent_id=parent_id,
        name=name,
        reason=reason,
        topic="a topic",
        status=Status.RUNNING,
        state=StateName.STARTING,
        model="m",
        max_steps=10,
        steps=0,
        tool_calls=0,
        input_tokens=0,
        output_tokens=0,
        cost_usd=0.0,
        report="",
        error="",
        stop_reason=None,
        created_at=now(),
        finished_at=None,
    )
