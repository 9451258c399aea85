"""The states of scripted researches, through the whole server, on both databases."""

import pytest

from gligabao.simulator.replies import (
    call,
    cut_call,
    cut_text,
    cut_thinking,
    empty,
    error,
    pause_turn,
    refusal,
    search_error,
    searched,
    text,
    thinking,
    tool_calls,
)
from tests.checker import check_run
from tests.world import shape


@pytest.fixture
def world(database_url, new_world):
    return new_world(database_url)


def test_an_answer_at_once(world):
    run = world.run(text("The answer."))
    assert shape(run) == ["0 starting", "1 thinking step 1 of 20", "0 completed"]
    assert (run["report"], run["stop_reason"], run["steps"], run["tool_calls"]) == ("The answer.", "answered", 1, 0)
    check_run(run)


def test_tools_and_then_the_report(world):
    page = f"{world.simulator.url}/pages/coast-visitor-guide.html"
    world.simulator.play_search("tides", searched("High at noon.", (page, "Index")))
    run = world.run(
        thinking("hm", tool_calls(call("web_search", query="tides"), call("fetch_url", url=page))), text("Report.")
    )
    assert shape(run) == [
        "0 starting",
        "1 thinking step 1 of 20",
        "1 searching tides",
        f"1 reading {page}",
        "2 thinking step 2 of 20",
        "0 completed",
    ]
    assert (run["steps"], run["tool_calls"]) == (2, 2)
    check_run(run)


def test_a_failing_tool_does_not_fail_the_run(world):
    url = f"{world.simulator.url}/pages/nowhere.html?q=1"
    run = world.run(tool_calls(call("fetch_url", url=url)), text("Report."))
    told = f"{world.simulator.address}/pages/nowhere.html: status 404"
    assert shape(run) == [
        "0 starting",
        "1 thinking step 1 of 20",
        f"1 reading {url} ! {told}",
        "2 thinking step 2 of 20",
        "0 completed",
    ]
    check_run(run)


def test_five_mixed_calls_of_one_answer(world):
    page = f"{world.simulator.url}/pages/coast-visitor-guide.html"
    world.simulator.play_search("works", searched("Found.", (page, "Index")))
    world.simulator.play_search("broken", search_error("unavailable", words=""))
    run = world.run(
        tool_calls(
            call("web_search", query="works"),
            call("web_search", query="broken"),
            call("fetch_url", url=page),
            call("fetch_page", url=page),
            call("fetch_url", uri=page),
        ),
        text("Report."),
    )
    assert shape(run)[1:-2] == [
        "1 thinking step 1 of 20",
        "1 searching works",
        "1 searching broken ! the web search failed: unavailable",
        f"1 reading {page}",
        '1 using_tool fetch_page ! unknown tool "fetch_page": you have web_search, fetch_url, spawn_subagent, '
        "wait_subagents",
        f'1 reading {page} ! fetch_url: "url" is missing; "uri" is not a field of this tool. '
        'Its input is {"url": "..."}',
    ]
    assert run["tool_calls"] == 5
    check_run(run)


def test_a_page_that_was_read_is_not_read_again(world):
    page = f"{world.simulator.url}/pages/coast-visitor-guide.html"
    again = tool_calls(call("fetch_url", url=page))
    run = world.run(again, again, text("Report."))
    assert shape(run)[2:5] == [f"1 reading {page}", "2 thinking step 2 of 20", f"2 reading {page} (already read)"]
    check_run(run)


def test_the_last_step_writes_the_report(world):
    search = tool_calls(call("fetch_url", url="http://127.0.0.1:1/"))
    run = world.run(search, text("Report."), max_steps=2)
    assert shape(run)[-2:] == ["2 writing_report step 2 of 2, the last: writing the report", "0 completed"]
    assert (run["stop_reason"], run["steps"]) == ("max_steps", 2)
    check_run(run)


def test_a_single_step_only_writes(world):
    run = world.run(text("Report."), max_steps=1)
    assert shape(run) == ["0 starting", "1 writing_report step 1 of 1, the last: writing the report", "0 completed"]


def test_a_failing_model_call_fails_the_run(world):
    run = world.run(error(400, message="nothing doing"))
    told = "the model call failed: the request was refused (status 400): nothing doing"
    assert shape(run) == ["0 starting", f"1 thinking step 1 of 20 ! {told}", f"0 failed ! {told}"]
    assert (run["stop_reason"], run["steps"], run["cost_usd"]) == ("error", 0, 0.0)
    check_run(run)


def test_a_retry_is_a_row_of_the_same_state(world):
    run = world.run(error(529, headers={"retry-after-ms": "10"}), text("Report."))
    assert shape(run)[1:3] == ["1 thinking step 1 of 20", "1 thinking step 1 of 20: overloaded, retry 1 of 6"]
    assert run["steps"] == 1
    check_run(run)


def test_a_retry_inside_a_search_is_a_row_of_the_search(world):
    world.simulator.play_search("tides", error(529, headers={"retry-after-ms": "10"}), searched("Found."))
    run = world.run(tool_calls(call("web_search", query="tides")), text("Report."))
    assert shape(run)[2:4] == ["1 searching tides", "1 searching tides: overloaded, retry 1 of 6"]
    check_run(run)


def test_a_paused_turn_is_one_step(world):
    run = world.run(pause_turn("One, "), text("two."))
    assert shape(run) == ["0 starting", "1 thinking step 1 of 20", "0 completed"]
    assert (run["report"], run["steps"]) == ("One, two.", 1)


def test_a_refusal_fails_the_run_with_its_reason(world):
    run = world.run(refusal("bio", explanation="not this"))
    told = "the model refused to answer: bio: not this"
    assert shape(run)[1:] == [f"1 thinking step 1 of 20 ! {told}", f"0 failed ! {told}"]
    assert run["input_tokens"] > 0 and run["cost_usd"] > 0
    check_run(run)


def test_a_cut_call_is_not_run(world):
    run = world.run(cut_call("fetch_url", url="http://exa"), text("Report."))
    assert shape(run)[2].startswith("1 reading http://exa ! this call was cut off")
    assert world.get(run["id"])["status"] == "completed"
    check_run(run)


def test_a_cut_report_is_continued_in_its_step(world):
    run = world.run(cut_text("The rep"), text("ort."))
    assert shape(run) == ["0 starting", "1 thinking step 1 of 20", "0 completed"]
    assert (run["report"], run["steps"]) == ("The report.", 1)


def test_an_empty_answer_is_asked_for_again_in_its_step(world):
    run = world.run(empty(), text("Report."))
    assert shape(run) == ["0 starting", "1 thinking step 1 of 20", "0 completed"]
    run = world.run(cut_thinking(), empty())
    assert run["error"] == "the model wrote no report"
    check_run(run)


def test_a_prompt_too_long_makes_the_next_call_the_last(world):
    page = f"{world.simulator.url}/pages/coast-visitor-guide.html"
    too_long = error(400, message="prompt is too long: 210000 tokens > 200000 maximum")
    run = world.run(tool_calls(call("fetch_url", url=page)), too_long, text("Report."))
    assert shape(run) == [
        "0 starting",
        "1 thinking step 1 of 20",
        f"1 reading {page}",
        "2 thinking step 2 of 20",
        "2 writing_report step 2 of 20, the last: the prompt was too long",
        "0 completed",
    ]
    assert (run["status"], run["stop_reason"], run["steps"]) == ("completed", "context", 2)
    check_run(run)


def test_a_search_without_room_for_text_is_asked_once_more(world):
    world.simulator.play_search("tides", cut_thinking(), searched("Found.", ("https://a.test/", "A  page")))
    world.run(tool_calls(call("web_search", query="tides")), text("Report."))
    limits = [r.body["max_tokens"] for r in world.simulator.requests if r.body["messages"][0]["content"] == "tides"]
    assert limits == [1024, 4096]
    result = world.simulator.requests[-1].body["messages"][-1]["content"][0]["content"].splitlines()
    assert result[0] == result[-1] and result[0].startswith("[untrusted ")
    assert result[1:-1] == ["Found.", "", "Sources:", "https://a.test/ A page"]


def test_a_search_that_stays_without_text_is_a_tool_error_and_billed(world):
    world.simulator.play_search("tides", cut_thinking(), cut_thinking())
    run = world.run(tool_calls(call("web_search", query="tides")), text("Report."))
    assert "returned no text" in shape(run)[2]
    bill = world.simulator.billed().total
    assert bill.calls == 4
    assert run["output_tokens"] == bill.output_tokens


def test_a_model_without_a_price_has_no_cost_from_the_start(world):
    response = world.post(model="simulated-1")
    assert response.json["cost_usd"] is None
    run = world.finish(response.json["id"])
    assert run["cost_usd"] is None and run["input_tokens"] > 0


def test_the_built_in_researcher_ends_with_a_report(world):
    run = world.run()
    assert run["status"] == "completed"
    check_run(run)
