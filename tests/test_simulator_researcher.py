"""The built-in researcher and its web: a research from topic to report, on what the conversation holds alone."""

import html
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import anthropic
import pytest
import requests

from gligabao.simulator import DEMO_TEAM_TOPIC, DEMO_TOPIC, Simulator
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
    change: Callable[[str], str] = str
    """What is done to the text of each page on its way to the model; what begins with `! ` becomes an error."""
    thoughts: int = 0
    conversation: list[dict[str, Any]] = field(default_factory=list)


def run(
    client: anthropic.Anthropic,
    topic: str,
    *,
    max_steps: int = 20,
    tools: Any = TOOLS,
    change: Callable[[str], str] = str,
    **more: Any,
) -> Researched:
    """The plainest agent there is."""
    done = Researched(conversation=[{"role": "user", "content": topic}], change=change)
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
    text = done.change(crude_text(response.text))
    if text.startswith("! "):
        done.failed.add(call.input["url"])
        return {**result, "content": text.removeprefix("! "), "is_error": True}
    done.read.add(call.input["url"])
    return {**result, "content": text}


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


def section(report: str, heading: str) -> str:
    return report.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_the_report_says_that_it_is_simulated_and_answers(client: anthropic.Anthropic) -> None:
    report = run(client, DEMO_TOPIC).report
    assert "simulated model over bundled sample pages" in report.splitlines()[0]
    answer = report.partition("\n## ")[0]
    assert "In 2019 the station delivered 41.8 gigawatt hours of electricity" in answer
    assert ", but 57 according to [Sable Coast Guide](" in answer
    assert "Since 1997 the station has been run by the Sable Tide Cooperative" in answer


def test_each_sentence_stands_under_the_heading_that_it_belongs_to(client: anthropic.Anthropic) -> None:
    report = run(client, DEMO_TOPIC).report
    assert re.findall(r"^## (.+)$", report, re.MULTILINE) == [
        *("Output", "Who runs it", "Where the sources disagree", "What was not found", "Sources")
    ]
    assert "46.2 gigawatt hours" in section(report, "Output")
    assert "lease ends in 2036" in section(report, "Who runs it")
    details = section(report, "Output") + section(report, "Who runs it")
    assert all(re.search(r" \(\[.+\]\(http\S+\)\)\.$", line) for line in details.split("\n") if line)


def test_the_report_tells_the_contradiction_with_both_sources_and_the_page_that_failed(
    client: anthropic.Anthropic,
) -> None:
    done = run(client, DEMO_TOPIC)
    disagreement = section(done.report, "Where the sources disagree")
    assert re.search(r"delivered 57 gigawatt hours .+/coast-visitor-guide\.html\)\)\.$", disagreement, re.MULTILINE)
    assert re.search(r"delivered 41\.8 gigawatt hours .+/harbour-trust-annual-report-2019\.html\)", disagreement)
    assert "copied from the prospectus of 1960. Six of its eight turbines were built" in disagreement
    (failed,) = done.failed
    assert f"({failed}) could not be read: status 404." in section(done.report, "What was not found")


def test_figures_come_from_the_text_that_was_read(client: anthropic.Anthropic) -> None:
    report = run(client, DEMO_TOPIC, change=lambda text: text.replace("41.8", "39.5")).report
    assert "delivered 39.5 gigawatt hours" in report
    assert "41.8" not in report


def test_pages_that_agree_are_no_contradiction(client: anthropic.Anthropic) -> None:
    done = run(client, DEMO_TOPIC, change=lambda text: text.replace("delivered 57", "delivered 41.8"))
    assert "disagree" not in done.report
    assert "according to" not in done.report
    assert done.report.count("[Sable Coast Guide]") == 1


def test_a_claim_that_no_page_makes_is_not_reported(client: anthropic.Anthropic) -> None:
    done = run(client, DEMO_TOPIC, change=lambda text: re.sub("(?s)The Harbour Trust owns.+", "", text))
    assert "41.8" in done.report
    assert "owns the barrage" not in done.report
    assert "lease" not in done.report


def test_a_page_that_is_cut_is_named_and_what_was_read_of_it_is_used(client: anthropic.Anthropic) -> None:
    question = "How many eels pass the Port Sable barrage?"
    done = run(client, question, change=lambda text: text.partition("Adults leave")[0] + "\n[cut: the first 9 of 99]")
    assert "12,400 young eels" in done.report
    assert "tagged" not in done.report
    gaps = section(done.report, "What was not found")
    assert all(f"({url}) was read only in part." in gaps for url in done.read)


def test_pages_that_may_not_be_read_are_gaps_and_the_briefings_are_all_there_is(client: anthropic.Anthropic) -> None:
    done = run(client, DEMO_TOPIC, change=lambda _: "! the address is private")
    assert not done.read
    assert "41.8 gigawatt hours of electricity to the town grid (from a search briefing, not read)" in done.report
    gaps = section(done.report, "What was not found")
    private = done.failed - {url for url in done.failed if "monthly-output-tables" in url}
    assert all(f"({url}) could not be read: the address is private." in gaps for url in private)
    assert "## Sources" not in done.report


def test_a_subject_that_no_page_covers_is_a_gap(client: anthropic.Anthropic) -> None:
    question = "Port Sable: how much electricity, and how many eels?"
    report = run(client, question, change=lambda text: text.partition("The eel steps were built")[0]).report
    assert "gigawatt hours" in report
    assert "- No page that was read covers this: Eels." in section(report, "What was not found")


def test_a_topic_that_asks_for_nothing_special_gets_an_overview(client: anthropic.Anthropic) -> None:
    report = run(client, "Port Sable tidal station").report
    assert all(f"\n## {heading}\n" in report for heading in ("Output", "Who runs it", "History"))


def test_the_last_step_is_a_report_of_what_there_is(client: anthropic.Anthropic) -> None:
    done = run(client, DEMO_TOPIC, max_steps=2)
    assert done.steps == [["web_search", "web_search"], []]
    assert "41.8 gigawatt hours of electricity to the town grid (from a search briefing, not read)" in done.report
    assert cited(done.report) <= done.given
    done = run(client, DEMO_TOPIC, max_steps=1)
    assert done.steps == [[]]
    assert "found nothing" in done.report


def test_only_tools_that_are_offered_are_called(client: anthropic.Anthropic) -> None:
    assert run(client, DEMO_TOPIC, tools=TOOLS[:1]).steps == [["web_search", "web_search"], ["web_search"], []]
    assert run(client, DEMO_TOPIC, tools=TOOLS[1:]).steps == [[]]
    assert run(client, DEMO_TOPIC, tools=[]).steps == [[]]


def test_a_topic_that_its_web_does_not_know_is_reported_as_such(client: anthropic.Anthropic) -> None:
    done = run(client, FOREIGN_TOPIC)
    assert done.steps == [["web_search", "web_search"], ["web_search"], []]
    assert "simulated model" in done.report.splitlines()[0]
    assert "found nothing" in done.report
    assert f"\n* {DEMO_TOPIC}\n* {DEMO_TEAM_TOPIC}" in done.report
    assert "##" not in done.report
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
