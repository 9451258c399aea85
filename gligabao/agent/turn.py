"""One turn of the model: its answer, whole and usable, whatever the server made of it.

A turn is one step of the loop. Usually it is one call; further calls are needed where an answer was cut at
the output limit, came back empty, or called tools that it could not call any more.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from gligabao.agent.written_call import is_written_call
from gligabao.errors import ModelError, PromptTooLong
from gligabao.model.conversation import Block, Conversation, Tools
from gligabao.model.reply import Reply, ToolCall, sendable

MAX_CONTINUATIONS = 3
CUT_MARK = "[cut: output limit reached]"

CONTINUE = (
    "Your answer was cut off at the output limit. Go on from the exact character where it stopped. Do not repeat "
    "what you wrote and do not comment on the cut; keep what is left short."
)
ANSWER_AGAIN = "Your answer was empty. Write your report now, as text, from what you have found."
CALL_OR_REPORT = (
    "Your answer was neither a report nor a tool call that could be run. Call tools in the way your interface has for "
    "it, not as text; or write your report now."
)
NO_TOOLS_NOW = "not run: this was the last step, and it has no tools"
REPORT_NOW = "There are no steps left for tools. Write the full report now, from what you have found, as text."

Ask = Callable[[Tools], Reply]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a turn came to: tool calls to run, or the text of the report."""

    text: str
    tool_calls: list[ToolCall]
    content: list[Block]
    """The last answer as it came, for the conversation."""
    context_full: bool = False
    """The answer ended because the context window was full."""


def take_turn(conversation: Conversation, ask: Ask, *, last: bool, tool_names: Collection[str] = frozenset()) -> Answer:
    """Return the model's answer to the conversation; in the `last` turn it is always text.

    Adds to the conversation what had to be said to get there. Raises `ModelError` if the model wrote no text.
    """
    tools = Tools.LISTED if last else Tools.ALLOWED
    text = fallback = ""
    asked_again = False
    continuations = 0
    while True:
        reply = _ask(ask, tools)
        if reply.tool_calls and not last:
            return Answer(reply.text, reply.tool_calls, sendable(reply.content))
        if reply.tool_calls:
            # The server let the model call a tool despite tool_choice none.
            fallback = fallback or reply.text
            if asked_again:
                text += reply.text
                break
            asked_again = True
            tools = Tools.ABSENT
            _refuse_calls(conversation, reply)
            continue
        if fault := _no_report(reply, tool_names):
            if asked_again:
                raise ModelError(fault)
            asked_again = True
            _add_again(conversation, reply, REPORT_NOW if last else CALL_OR_REPORT)
            continue
        text += reply.text
        if not text.strip():
            if asked_again:
                break
            asked_again = True
            text = ""
            conversation.add_user(ANSWER_AGAIN)
        elif reply.stop_reason == "max_tokens" and reply.text.strip() and continuations < MAX_CONTINUATIONS:
            continuations += 1
            _add_again(conversation, reply, CONTINUE)
        else:
            break
    return _report(text if text.strip() else fallback, reply)


def _ask(ask: Ask, tools: Tools) -> Reply:
    try:
        return ask(tools)
    except PromptTooLong:
        raise
    except ModelError as error:
        # A server that ignores `none` may still insist on tools in the request.
        if tools is not Tools.ABSENT or not error.is_refusal_of_request:
            raise
        return ask(Tools.LISTED)


def _no_report(reply: Reply, tool_names: Collection[str]) -> str:
    """Return why an answer without tool calls is no report; "" if it may be one."""
    if reply.stop_reason == "tool_use":
        return "the model announced a tool call and made none"
    if is_written_call(reply.text, tool_names):
        return "the model wrote a tool call as text in place of a report"
    return ""


def _add_again(conversation: Conversation, reply: Reply, words: str) -> None:
    """Add what the model said, if it said something, and what it is told about that."""
    if content := sendable(reply.content):
        conversation.add_assistant(content)
    conversation.add_user(words)


def _report(text: str, reply: Reply) -> Answer:
    if not text.strip():
        raise ModelError("the model wrote no report")
    if reply.cut:
        text = f"{text.rstrip()}\n\n{CUT_MARK}"
    return Answer(text, [], reply.content, context_full=reply.stop_reason == "model_context_window_exceeded")


def _refuse_calls(conversation: Conversation, reply: Reply) -> None:
    conversation.add_assistant(sendable(reply.content))
    results: list[Block] = [
        {"type": "tool_result", "tool_use_id": call.id, "content": NO_TOOLS_NOW, "is_error": True}
        for call in reply.tool_calls
    ]
    conversation.add_user([*results, {"type": "text", "text": REPORT_NOW}])
