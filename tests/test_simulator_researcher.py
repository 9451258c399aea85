"""The built-in researcher and its web: a research from topic to report, on what the conversation holds alone."""

import html
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import anthropic
import pytest
import requests

from gligabao.simulator import DEMO_TOPIC, Simulator
from gligabao.simulator.web import PAGES, search

MODEL = "claude-sonnet-5-5"
QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
URL = {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]}
TOOLS = [{"name": "web_search", "input_schema": QUERY}, {"name": "fetch_url", "input_schema": URL}]
SEARCH_TOOL = {"type": "web_search_20250305", "name": "web_search"}
FOREIGN_TOPIC = "How do solid-state batteries compare with lithium-ion?"


@dataclass
class Researched:
    """What came of a research."""

    report: str = ""
    steps: list[list[str]] = field(default_factory=list)
    """The tools called in each step."""
    given: set[str] = field(default_factory=set)
    """The URLs that the tools gave."""
    read: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    thoughts: int = 0
    conversation: list[dict[str, Any]] = field(default_factory=list)


def run(client: anthropic.Anthropic, topic: str, *, max_steps: int = 20, tools: Any = TOOLS, **more: Any) -> Researched:
    """The plainest agent there is."""
    done = Researched(conversation=[{"role": "user", "content": topic}])
    for step in range(1, max_steps + 1):
        last = {"tool_choice": {"type": "none"}} if step == max_steps and tools else {}
        answer = ask(client, messages=done.conversation, tools=tools, system="Research.", **last, **more)
        done.conversation.append({"role": "assistant", "content": answer.content})
        done.thoughts += sum(block.type == "thinking" for block in answer.content)
        calls = [block for block in answer.content if block.type == "tool_use"]
        done.steps.append([call.name for call in calls])
        if not calls:
            done.report = "".join(block.text for block in answer.content if block.type == "text")
            return done
        done.conversation.append({"role": "user", "content": [result_of(client, call, done) for call in calls]})
    raise AssertionError("no report")


def ask(client: anthropic.Anthropic, **fields: Any) -> Any:
    tools = fields.pop("tools")
    return client.messages.create(
        **{"model": MODEL, "max_tokens": 16_000, **({"tools": tools} if tools else {}), **fields}
    )


def result_of(client: anthropic.Anthropic, call: Any, done: Researched) -> dict[str, Any]:
    result = {"type": "tool_result", "tool_use_id": call.id}
    if call.name == "web_search":
        return {**result, "content": search_text(client, call.input["query"], done)}
    response = requests.get(call.input["url"], timeout=10)
    if response.status_code != 200:
        done.failed.add(call.input["url"])
        return {**result, "content": f"status {response.status_code}", "is_error": True}
    done.read.add(call.input["url"])
    return {**result, "content": crude_text(response.text)}


def search_text(client: anthropic.Anthropic, query: str, done: Researched) -> str:
    found = ask(client, max_tokens=1024, tools=[SEARCH_TOOL], messages=[{"role": "user", "content": query}])
    briefing = "".join(block.text for block in found.content if block.type == "text")
    results = [page for block in found.content if block.type == "web_search_tool_result" for page in block.content]
    done.given.update(page.url for page in results)
    return "\n".join([briefing, "Sources:", *(f"{page.url} {page.title}" for page in results)])


def crude_text(page: str) -> str:
    page = re.sub(r"(?s)<(script|style).*?</\1>", " ", page)
    return html.unescape(re.sub(r"<[^>]+>", "\n", page))


def cited(report: str) -> set[str]:
    return set(re.findall(r"https?://[^\s)\]]+", report))


def test_a_research_searches_reads_looks_closer_and_reports(client: anthropic.Anthropic) -> None:
    done = run(client, DEMO_TOPIC)
    assert done.steps == [
        ["web_search", "web_search"],
        ["fetch_url", "fetch_url", "fetch_url"],
        ["web_search"],
        ["fetch_url", "fetch_url"],
        [],
    ]
    assert len(done.read) == 4
    assert len(done.failed) == 1


def test_the_report_cites_only_urls_it_was_given_and_links_those_it_read(client: anthropic.Anthropic) -> None:
    done = run(client, DEMO_TOPIC)
    assert cited(done.report) <= done.given
    assert set(re.findall(r"\]\((http[^)]+)\)", done.report)) <= done.read
    sources = done.report.rpartition("## Sources")[2]
    assert cited(sources) == done.read


def test_the_report_says_that_it_is_simulated_and_answers(client: anthropic.Anthropic) -> None:
    report = run(client, DEMO_TOPIC).report
    assert "simulated model over bundled sample pages" in report.splitlines()[0]
    answer = report.split("##")[0]
    assert "57 gigawatt hours" in answer
    assert "41.8 gigawatt hours" in answer
    assert "run by the Sable Tide Cooperative" in answer


def test_the_report_tells_the_contradiction_with_both_sources_and_the_page_that_failed(
    client: anthropic.Anthropic,
) -> None:
    done = run(client, DEMO_TOPIC)
    disagreement, _, rest = done.report.partition("## Where the sources disagree")[2].partition("## What was not found")
    assert "coast-visitor-guide.html" in disagreement
    assert "harbour-trust-annual-report-2019.html" in disagreement
    (failed,) = done.failed
    assert f"{failed} could not be read: status 404" in rest


def test_the_last_step_is_a_report_of_what_there_is(client: anthropic.Anthropic) -> None:
    done = run(client, DEMO_TOPIC, max_steps=2)
    assert done.steps == [["web_search", "web_search"], []]
    assert "from search briefings alone" in done.report
    assert cited(done.report) <= done.given
    assert run(client, DEMO_TOPIC, max_steps=1).steps == [[]]


def test_only_tools_that_are_offered_are_called(client: anthropic.Anthropic) -> None:
    assert run(client, DEMO_TOPIC, tools=TOOLS[:1]).steps == [["web_search", "web_search"], ["web_search"], []]
    assert run(client, DEMO_TOPIC, tools=TOOLS[1:]).steps == [[]]
    assert run(client, DEMO_TOPIC, tools=[]).steps == [[]]


def test_a_topic_that_its_web_does_not_know_is_reported_as_such(client: anthropic.Anthropic) -> None:
    done = run(client, FOREIGN_TOPIC)
    assert done.steps == [["web_search", "web_search"], ["web_search"], []]
    assert "holds nothing on this topic" in done.report
    assert "solid" in done.report
    assert done.given == set()


def test_reports_differ_with_the_topic(client: anthropic.Anthropic) -> None:
    report = run(client, "How many eels pass the Port Sable barrage?").report
    assert "12,400 young eels" in report
    assert report != run(client, DEMO_TOPIC).report


def test_thoughts_are_signed_and_follow_the_request(client: anthropic.Anthropic) -> None:
    assert run(client, DEMO_TOPIC).thoughts == 3
    assert run(client, DEMO_TOPIC, thinking={"type": "between_tools"}).thoughts == 0
    assert run(client, DEMO_TOPIC, model="claude-opus-4-8").thoughts == 0


def test_the_same_topic_gives_the_same_report(client: anthropic.Anthropic) -> None:
    assert run(client, DEMO_TOPIC).report == run(client, DEMO_TOPIC).report


def test_fifty_conversations_go_on_at_once(simulator: Simulator, client: anthropic.Anthropic) -> None:
    topics = [f"{DEMO_TOPIC} Ask {number}." for number in range(50)]
    with ThreadPoolExecutor(50) as pool:
        done = list(pool.map(lambda topic: run(client, topic), topics))
    assert all(len(research.steps) == 5 for research in done)
    bill = simulator.billed()
    assert bill.total.calls == 50 * (5 + 3)
    assert bill.total.web_search_requests == 50 * 3
    # The topic may also be found in the query of a search, which is a conversation of its own.
    assert all(bill.by_topic[topic].calls == 5 for topic in topics)


def test_a_report_that_is_longer_than_max_tokens_is_cut(client: anthropic.Anthropic) -> None:
    done = run(client, DEMO_TOPIC)
    answer = ask(client, messages=done.conversation[:-1], tools=TOOLS, system="Research.", max_tokens=50)
    assert answer.stop_reason == "max_tokens"
    assert answer.usage.output_tokens <= 50


# The search tool


def search_reply(client: anthropic.Anthropic, query: str, **fields: Any) -> Any:
    tool = {**SEARCH_TOOL, **fields}
    return ask(client, max_tokens=1024, tools=[tool], messages=[{"role": "user", "content": query}])


def test_the_search_tool_answers_with_results_and_cited_text(simulator: Simulator, client: anthropic.Anthropic) -> None:
    found = search_reply(client, "Port Sable tidal station electricity")
    types = [block.type for block in found.content]
    assert types[:3] == ["thinking", "server_tool_use", "web_search_tool_result"]
    results = found.content[2].content
    assert all(page.url.startswith(f"{simulator.url}/pages/") and page.page_age for page in results)
    texts = [block for block in found.content if block.type == "text"]
    assert len("".join(block.text for block in texts).split()) <= 300
    citations = [citation for block in texts for citation in block.citations or ()]
    assert citations
    assert {citation.url for citation in citations} <= {page.url for page in results}
    assert all(len(citation.cited_text) <= 150 for citation in citations)
    assert found.usage.server_tool_use.web_search_requests == 1


def test_a_search_that_finds_nothing_has_an_empty_list(client: anthropic.Anthropic) -> None:
    found = search_reply(client, FOREIGN_TOPIC)
    assert next(block for block in found.content if block.type == "web_search_tool_result").content == []


@pytest.mark.parametrize(
    ("domains", "found"), [({"blocked_domains": ["127.0.0.1"]}, False), ({"allowed_domains": ["127.0.0.1"]}, True)]
)
def test_domains_are_respected(client: anthropic.Anthropic, domains: dict[str, list[str]], found: bool) -> None:
    answer = search_reply(client, "Port Sable tidal station electricity", **domains)
    results = next(block for block in answer.content if block.type == "web_search_tool_result").content
    assert bool(results) == found


def test_the_search_tool_obeys_tool_choice_none(client: anthropic.Anthropic) -> None:
    answer = ask(
        client, tools=[SEARCH_TOOL], tool_choice={"type": "none"}, messages=[{"role": "user", "content": "tides"}]
    )
    assert [block.type for block in answer.content] == ["text"]
    assert answer.usage.server_tool_use is None


# The pages


def test_the_pages_are_whole_and_say_that_they_are_samples() -> None:
    served = [page for page in PAGES if page.html is not None]
    assert len(served) >= 5
    for page in served:
        assert page.html is not None
        text = page.html.decode()
        assert 300 <= len(crude_text(text).split()) <= 900
        assert "undled sample" in text.rpartition("<footer>")[2]
        assert all(part in text for part in ("<article>", "<nav", "<header", "<table", "&", "<style"))
        assert any(hidden in text for hidden in ("hidden", "display:none"))
        assert page.title
        assert page.publisher
        assert page.age


def test_the_demo_topic_is_answered_by_the_pages_that_contradict_each_other() -> None:
    names = [page.name for page in search(DEMO_TOPIC)]
    assert {"coast-visitor-guide.html", "harbour-trust-annual-report-2019.html"} <= set(names)
