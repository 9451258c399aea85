"""The loop of one agent: ask the model, run the tools it wants, until it writes its report.

The loop knows no database and no thread. Its observer follows it and may stop it.
"""

import logging
from dataclasses import dataclass
from typing import Protocol

from gligabao.agent.limits import MAX_CALLS
from gligabao.agent.tools import Toolbox
from gligabao.agent.turn import Answer, take_turn
from gligabao.errors import Cancelled, PromptTooLong, RunLost, ToolError
from gligabao.model.client import CallObserver, Request
from gligabao.model.conversation import Block, Conversation, Tools
from gligabao.model.reply import Reply, ToolCall
from gligabao.records import StateName, StopReason

log = logging.getLogger(__name__)

CUT_CALL = "this call was cut off at the output limit and was not run: call again with a shorter input"
CALL_TOO_MANY = (
    f"not run: an answer may hold at most {MAX_CALLS} calls. Call it again in your next answer if you need it"
)
WRITE_FROM_LESS = (
    "The conversation has grown too long for you to read, so its oldest tool results were left out, and no more tools "
    "can be called. Write the full report now from what is left, and say what you could not check again."
)
MAX_SHORTENINGS = 6


class Observer(CallObserver, Protocol):
    """Follows an agent. Any of these may raise `Cancelled` or `RunLost`, which ends the agent."""

    def entered(self, state: StateName, *, step: int, detail: str) -> None:
        """The agent begins a model call or a tool run."""

    def ran_tool(self, error: str) -> None:
        """The tool run has ended; `error` is "" if it worked."""


class ModelCalls(Protocol):
    """What the loop needs of a connection to the model."""

    def ask(self, request: Request, observer: CallObserver) -> Reply:
        """Return the model's answer."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an agent ended its work."""

    report: str
    stop_reason: StopReason


@dataclass(frozen=True, slots=True)
class Agent:
    """A model, a set of tools and limits."""

    connection: ModelCalls
    model: str
    toolbox: Toolbox
    max_steps: int
    max_answer_tokens: int
    observer: Observer

    def run(self, conversation: Conversation, *, first_step: int = 1) -> Outcome:
        """Go on with the conversation until the model writes its report.

        `first_step` is the step that its next answer belongs to. The last step may not call tools, so there is a
        report, or `ModelError` says why not.
        """
        for step in range(first_step, self.max_steps + 1):
            last = step == self.max_steps
            try:
                answer = self._ask(conversation, step, last=last)
            except PromptTooLong as error:
                return self._report_from_less(conversation, step, error)
            if not answer.tool_calls:
                return Outcome(answer.text, _stop_reason(answer, last=last))
            conversation.add_assistant(answer.content)
            conversation.add_user(self._run_tools(answer.tool_calls, step))
        raise AssertionError("the last step returned tool calls")

    def _ask(self, conversation: Conversation, step: int, *, last: bool) -> Answer:
        if last:
            detail = f"step {step} of {self.max_steps}, the last: writing the report"
            self.observer.entered(StateName.WRITING_REPORT, step=step, detail=detail)
        else:
            self.observer.entered(StateName.THINKING, step=step, detail=f"step {step} of {self.max_steps}")
        return self._take_turn(conversation, last=last)

    def _take_turn(self, conversation: Conversation, *, last: bool) -> Answer:
        def ask(tools: Tools) -> Reply:
            request = Request(self.model, conversation, max_tokens=self.max_answer_tokens, tools=tools)
            return self.connection.ask(request, self.observer)

        return take_turn(conversation, ask, last=last, tool_names=self.toolbox.names)

    def _report_from_less(self, conversation: Conversation, step: int, error: PromptTooLong) -> Outcome:
        """Leave out the oldest tool results until the conversation fits, and have the report written from the rest."""
        detail = f"step {step} of {self.max_steps}, the last: the prompt was too long"
        self.observer.entered(StateName.WRITING_REPORT, step=step, detail=detail)
        conversation.add_user(WRITE_FROM_LESS)
        for _ in range(MAX_SHORTENINGS):
            # A little more than the excess: the server counts tokens, we count bytes.
            share = min(0.9, 1.2 - 1 / max(1.0, error.excess)) if error.excess else 0.5
            if not conversation.leave_out(share):
                break
            try:
                answer = self._take_turn(conversation, last=True)
            except PromptTooLong as again:
                error = again
                continue
            return Outcome(answer.text, StopReason.CONTEXT)
        raise error

    def _run_tools(self, calls: list[ToolCall], step: int) -> list[Block]:
        results = [self._run_tool(call, step) for call in calls[:MAX_CALLS]]
        return results + [_failed(call, CALL_TOO_MANY) for call in calls[MAX_CALLS:]]

    def _run_tool(self, call: ToolCall, step: int) -> Block:
        """Run one call and return its result for the model: its output, or what went wrong."""
        state, detail = self.toolbox.describe(call)
        self.observer.entered(state, step=step, detail=detail)
        error = ""
        try:
            text = self._output(call)
        except (Cancelled, RunLost):
            raise
        except ToolError as failure:
            error = str(failure)
        except Exception:
            log.exception("the tool %s failed", call.name)
            error = f"{call.name} failed: an internal error of the server, not caused by your call. Try something else"
        self.observer.ran_tool(error)
        return _failed(call, error) if error else _result(call, text)

    def _output(self, call: ToolCall) -> str:
        if call.cut:
            raise ToolError(CUT_CALL)
        # The API refuses results without text.
        return self.toolbox.run(call).strip() or "(no output)"


def _result(call: ToolCall, text: str) -> Block:
    return {"type": "tool_result", "tool_use_id": call.id, "content": text}


def _failed(call: ToolCall, error: str) -> Block:
    return _result(call, error) | {"is_error": True}


def _stop_reason(answer: Answer, *, last: bool) -> StopReason:
    if answer.context_full:
        return StopReason.CONTEXT
    return StopReason.MAX_STEPS if last else StopReason.ANSWERED
