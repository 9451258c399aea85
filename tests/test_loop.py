"""The loop of one agent, with a scripted model: what it asks, runs, answers and ends with."""

import json

import pytest

from gligabao.agent.limits import MAX_CALLS
from gligabao.agent.loop import Agent
from gligabao.agent.tools import Tool, Toolbox, ToolInput
from gligabao.agent.turn import CUT_MARK
from gligabao.errors import Cancelled, ModelError, PromptTooLong, ToolError
from gligabao.model.conversation import LEFT_OUT, Conversation
from gligabao.model.reply import Reply
from gligabao.records import StateName, StopReason
from tests.fakes import BY_USER, FakeConnection, FakeObserver, calls, text


class LookUp(ToolInput):
    word: str


def look_up(given):
    if given.word == "missing":
        raise ToolError("no such word")
    if given.word == "bug":
        raise ZeroDivisionError
    return {"blank": "  ", "stop": ""}.get(given.word, f"about {given.word}")


TOOLBOX = Toolbox([Tool("look_up", "Looks a word up.", LookUp, StateName.SEARCHING, lambda given: given.word, look_up)])


def agent(connection, *, max_steps=5, observer=None):
    return Agent(
        connection=connection,
        model="m",
        toolbox=TOOLBOX,
        max_steps=max_steps,
        max_answer_tokens=100,
        observer=observer or FakeObserver(),
    )


def conversation(topic="Topic"):
    return Conversation(system="Be an agent.", topic=topic, tools=TOOLBOX.schemas)


def run(connection, *, topic="Topic", **more):
    return agent(connection, **more).run(conversation(topic))


def results(request):
    """The tool results in the last turn of a request."""
    return request["messages"][-1]["content"]


def test_text_without_a_tool_call_is_the_report():
    observer = FakeObserver()
    outcome = run(FakeConnection(text("The ", "report.")), observer=observer, topic="Topic?")
    assert (outcome.report, outcome.stop_reason) == ("The report.", StopReason.ANSWERED)
    assert observer.lines == ["1 thinking step 1 of 5"]


def test_the_topic_is_the_user_turn_as_given():
    connection = FakeConnection(text("Report."))
    run(connection, topic="  Topic\n? ")
    assert connection.requests[0]["messages"] == [{"role": "user", "content": "  Topic\n? "}]


def test_a_conversation_goes_on_from_any_step():
    stored = conversation()
    stored.add_assistant(calls(("look_up", {"word": "tide"})).content)
    stored.add_user([{"type": "tool_result", "tool_use_id": "toolu_x", "content": "about tide"}])
    connection, observer = FakeConnection(calls(("look_up", {"word": "ebb"})), text("Report.")), FakeObserver()
    outcome = agent(connection, max_steps=4, observer=observer).run(stored, first_step=3)
    assert (outcome.report, outcome.stop_reason) == ("Report.", StopReason.MAX_STEPS)
    assert [message["role"] for message in connection.requests[0]["messages"]] == ["user", "assistant", "user"]
    assert observer.lines == [
        "3 thinking step 3 of 4",
        "3 searching ebb",
        "4 writing_report step 4 of 4, the last: writing the report",
    ]


def test_every_call_of_an_answer_gets_one_result_in_order_in_one_message():
    connection = FakeConnection(
        calls(
            ("look_up", {"word": "tide"}),
            ("look_up", {"word": "missing"}),
            ("Look_Up", {"word": "tide"}),
            ("look_up", {"wrd": 1}),
            ("look_up", {"word": "bug"}),
            ("look_up", {"word": "blank"}),
        ),
        text("Report."),
    )
    observer = FakeObserver()
    run(connection, observer=observer)
    asked = connection.requests[1]["messages"][1]["content"]
    given = results(connection.requests[1])
    assert [block["tool_use_id"] for block in given] == [block["id"] for block in asked]
    assert [block.get("is_error", False) for block in given] == [False, True, True, True, True, False]
    contents = [block["content"] for block in given]
    assert contents[:3] == ["about tide", "no such word", 'unknown tool "Look_Up": you have look_up']
    assert contents[3] == (
        'look_up: "word" is missing; "wrd" is not a field of this tool. Its input is {"word": "..."}'
    )
    assert "an internal error of the server" in contents[4] and "ZeroDivision" not in contents[4]
    assert contents[5] == "(no output)"
    assert observer.lines[1:7] == [
        "1 searching tide",
        "1 searching missing",
        "1 using_tool Look_Up",
        "1 searching ",
        "1 searching bug",
        "1 searching blank",
    ]
    assert observer.errors == ["" if i in (0, 5) else contents[i] for i in range(6)]


@pytest.mark.parametrize("odd", ["text", None, 3, [], ["word"]])
def test_an_input_that_is_no_object_is_told_to_the_model(odd):
    connection = FakeConnection(calls(("look_up", odd)), text("Report."))
    run(connection)
    assert results(connection.requests[1])[0]["content"].startswith("look_up: the input is not a JSON object")


def test_assistant_content_goes_back_as_it_came():
    content = [
        {"type": "thinking", "thinking": "hm \ud800", "signature": "sig=="},
        {"type": "hologram", "beams": [1.0, 1e400, {"deep": None}]},
        {"type": "tool_use", "id": "toolu_x", "name": "look_up", "input": {"word": "tide"}},
    ]
    connection = FakeConnection(Reply(content, "tool_use", {}), text("Report."))
    run(connection)
    assert connection.requests[1]["messages"][1] == {"role": "assistant", "content": content}


def test_blank_texts_which_the_api_refuses_are_not_sent_back():
    reply = calls(("look_up", {"word": "tide"}))
    reply.content.insert(0, {"type": "text", "text": " \n"})
    connection = FakeConnection(reply, text("Report."))
    run(connection)
    assert [block["type"] for block in connection.requests[1]["messages"][1]["content"]] == ["tool_use"]


def test_the_last_step_lists_the_tools_but_may_not_use_them():
    connection = FakeConnection(calls(("look_up", {"word": "tide"})), text("Report."))
    observer = FakeObserver()
    outcome = run(connection, max_steps=2, observer=observer)
    assert outcome.stop_reason == StopReason.MAX_STEPS
    assert "tool_choice" not in connection.requests[0]
    assert connection.requests[1]["tool_choice"] == {"type": "none"}
    assert connection.requests[1]["tools"] == connection.requests[0]["tools"]
    assert observer.lines[-1:] == ["2 writing_report step 2 of 2, the last: writing the report"]


def test_a_server_that_ignores_none_is_asked_once_more_without_tools():
    connection = FakeConnection(calls(("look_up", {"word": "tide"}), say="I will look."), text("Report."))
    outcome = run(connection, max_steps=1)
    assert outcome.report == "Report."
    second = connection.requests[1]
    assert "tools" not in second and "tool_choice" not in second
    assert [block["type"] for block in results(second)] == ["tool_result", "text"]
    assert results(second)[0]["is_error"]


def test_a_server_that_ignores_none_twice_ends_with_the_text_there_is():
    again = calls(("look_up", {"word": "tide"}))
    said = calls(("look_up", {"word": "tide"}), say="What I know.")
    assert run(FakeConnection(said, again), max_steps=1).report == "What I know."
    with pytest.raises(ModelError, match="the model wrote no report"):
        run(FakeConnection(again, again), max_steps=1)


@pytest.mark.parametrize(
    "empty", [text(), text("  \n"), Reply([{"type": "thinking", "thinking": "x"}], "end_turn", {})]
)
def test_an_empty_answer_is_asked_for_once_more(empty):
    connection = FakeConnection(empty, text("Report."))
    assert run(connection).report == "Report."
    assert [message["role"] for message in connection.requests[1]["messages"]] == ["user", "user"]
    with pytest.raises(ModelError, match="the model wrote no report"):
        run(FakeConnection(empty, empty))


def test_a_cut_report_is_continued_and_joined():
    observer = FakeObserver()
    connection = FakeConnection(text("The rep", stop_reason="max_tokens"), text("ort."))
    outcome = run(connection, observer=observer)
    assert outcome.report == "The report."
    assert [message["role"] for message in connection.requests[1]["messages"]] == ["user", "assistant", "user"]
    assert observer.lines == ["1 thinking step 1 of 5"]


def test_a_report_that_stays_cut_says_so():
    cut = text("more ", stop_reason="max_tokens")
    outcome = run(FakeConnection(cut, cut, cut, cut))
    assert outcome.report == f"more more more more\n\n{CUT_MARK}"


def test_a_cut_text_may_go_on_to_call_tools():
    connection = FakeConnection(
        text("First I ", stop_reason="max_tokens"), calls(("look_up", {"word": "tide"})), text("Report.")
    )
    assert run(connection).report == "Report."
    assert results(connection.requests[2])[0]["content"] == "about tide"


def test_a_cut_call_is_not_run_but_answered():
    connection = FakeConnection(
        calls(("look_up", {"word": "tide"}), ("look_up", {"word": "bu"}), stop_reason="max_tokens"), text("Report.")
    )
    run(connection)
    whole, cut = results(connection.requests[1])
    assert whole["content"] == "about tide"
    assert cut["is_error"] and "was not run" in cut["content"]


def test_calls_beyond_what_an_answer_may_hold_are_answered_but_not_run():
    wanted = [("look_up", {"word": f"w{number}"}) for number in range(MAX_CALLS + 3)]
    connection = FakeConnection(calls(*wanted), text("Report."))
    observer = FakeObserver()
    run(connection, observer=observer)
    asked = connection.requests[1]["messages"][1]["content"]
    given = results(connection.requests[1])
    assert [block["tool_use_id"] for block in given] == [block["id"] for block in asked]
    assert [block["content"] for block in given[:MAX_CALLS]] == [f"about w{number}" for number in range(MAX_CALLS)]
    for block in given[MAX_CALLS:]:
        assert block["is_error"] and block["content"].startswith("not run: an answer may hold at most 32 calls")
    assert len(observer.errors) == MAX_CALLS
    assert sum("searching" in line for line in observer.lines) == MAX_CALLS


def test_an_answer_that_filled_the_context_window_ends_the_run():
    outcome = run(FakeConnection(text("Half", stop_reason="model_context_window_exceeded")))
    assert (outcome.report, outcome.stop_reason) == (f"Half\n\n{CUT_MARK}", StopReason.CONTEXT)


def test_a_prompt_that_is_too_long_is_shortened_and_the_next_call_is_the_last():
    thinking = {"type": "thinking", "thinking": "x", "signature": "s"}
    replies = [calls(("look_up", {"word": letter * 1000})) for letter in "abc"]
    for reply in replies:
        reply.content.insert(0, thinking)
    observer = FakeObserver()
    connection = FakeConnection(*replies, PromptTooLong("too long", excess=1.05), text("Report."))
    outcome = run(connection, observer=observer)
    assert (outcome.report, outcome.stop_reason) == ("Report.", StopReason.CONTEXT)
    messages = connection.requests[-1]["messages"]
    shown = [m["content"][0]["content"][:9] for m in messages[2:-1:2]]
    assert shown[0] == LEFT_OUT[:9] and shown[-1] == "about ccc"
    kinds = [[block["type"] for block in m["content"]] for m in messages if m["role"] == "assistant"]
    assert kinds == [["thinking", "tool_use"], ["tool_use"], ["tool_use"]]
    assert connection.requests[-1]["tool_choice"] == {"type": "none"}
    assert observer.lines[-1:] == ["4 writing_report step 4 of 5, the last: the prompt was too long"]


def test_a_prompt_that_stays_too_long_is_never_sent_again_unchanged():
    long = calls(("look_up", {"word": "a" * 9000}), ("look_up", {"word": "b" * 9000}))
    too_long = [PromptTooLong("too long") for _ in range(9)]
    connection = FakeConnection(long, *too_long)
    with pytest.raises(PromptTooLong):
        run(connection)
    bodies = [json.dumps(request) for request in connection.requests]
    assert len(bodies) > 2 and len(set(bodies)) == len(bodies)


def test_a_topic_that_does_not_fit_fails():
    with pytest.raises(PromptTooLong):
        run(FakeConnection(PromptTooLong("too long")))


def test_a_failing_model_call_fails_the_run():
    with pytest.raises(ModelError, match="broken"):
        run(FakeConnection(ModelError("broken")))


def test_a_stop_between_two_tools_runs_no_further_tool():
    def stop(state):
        if state is StateName.SEARCHING:
            raise Cancelled(BY_USER)

    observer = FakeObserver(stop)
    connection = FakeConnection(calls(("look_up", {"word": "tide"})))
    with pytest.raises(Cancelled):
        run(connection, observer=observer)
    assert observer.errors == []


WRITTEN = [
    '<tool_call>\n{"name": "look_up", "arguments": {"word": "tide"}}\n</tool_call>',
    '<function_calls>\n<invoke name="look_up">\n<parameter name="word">tide</parameter>\n</invoke>\n</function_calls>',
    '<tool_call>{"name": "look_up"}</tool_call>\n<tool_call>{"name": "look_up", "argum',
    '<|tool_call|>{"name": "look_up"}<|/tool_call|>',
    '[TOOL_CALLS] [{"name": "look_up", "arguments": {"word": "tide"}}]',
    '{"name": "look_up", "parameters": {"word": "tide"}}',
    '{"type": "function", "function": {"name": "look_up", "arguments": "{}"}}',
    '```json\n{"tool": "look_up", "word": "tide"}\n```',
]
REPORTS = [
    "A model may write `<tool_call>` and so on: <tool_call>{}</tool_call>. That is all.",
    '{"name": "other", "value": 3}',
    "[1, 2]",
    "[]",
    '```json\n{"tides": ["high", "low"]}\n```',
    'The call was:\n\n{"name": "look_up"}',
]


@pytest.mark.parametrize("written", WRITTEN)
def test_a_tool_call_written_as_text_is_asked_for_again(written):
    connection = FakeConnection(text(written), calls(("look_up", {"word": "tide"})), text("Report."))
    assert run(connection).report == "Report."
    assert connection.requests[1]["messages"][-2]["content"] == [{"type": "text", "text": written}]
    assert "neither a report nor a tool call" in connection.requests[1]["messages"][-1]["content"]


@pytest.mark.parametrize("written", WRITTEN)
def test_a_tool_call_written_as_text_twice_is_no_report(written):
    with pytest.raises(ModelError, match=r"^the model wrote a tool call as text in place of a report$"):
        run(FakeConnection(text(written), text(written)))


def test_a_tool_call_written_as_text_in_the_last_step_is_asked_for_again_too():
    connection = FakeConnection(text(WRITTEN[0]), text("Report."))
    assert run(connection, max_steps=1).report == "Report."
    assert "no steps left for tools" in connection.requests[1]["messages"][-1]["content"]


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_that_quotes_a_call_or_is_other_json_is_a_report(report):
    assert run(FakeConnection(text(report))).report == report


@pytest.mark.parametrize("said", ["", "Let me look that up."])
def test_an_announced_call_that_does_not_come_is_asked_for_again_and_then_an_error(said):
    announced = text(said, stop_reason="tool_use") if said else Reply([], "tool_use", {})
    assert run(FakeConnection(announced, text("Report."))).report == "Report."
    with pytest.raises(ModelError, match=r"^the model announced a tool call and made none$"):
        run(FakeConnection(announced, announced))
