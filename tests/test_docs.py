"""The docs: what there is stands in them, their links lead somewhere, and their JSON is JSON."""

import dataclasses
import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from gligabao.agent import limits as agent_limits
from gligabao.agent.marking import Marker
from gligabao.agent.tools.team import sibling_tools, subagent_tools
from gligabao.agent.tools.web import WebTools
from gligabao.app import create_app, open_services
from gligabao.config import Config
from gligabao.errors import GligabaoError
from gligabao.handlers.inputs import GetResearch, ListResearch, StartResearch
from gligabao.reader.guard import MAX_URL_CHARS
from gligabao.reader.page import Limits
from gligabao.records import INTERRUPTED, Run, State, StateName, Status, StopReason
from gligabao.research import team
from gligabao.search.anthropic_search import FIRST_TOKENS, SECOND_TOKENS, TOOL
from gligabao.simulator import DEMO_TEAM_TOPIC
from gligabao.web.auth import Unauthorized

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """Return what stands under a heading, up to the next one of the same depth or above."""
    level = heading.partition(" ")[0]
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"there is no heading {heading!r}"
    return found[1]


def missing(words: Iterable[str], text: str) -> list[str]:
    """Return which of the words do not stand in the text as code."""
    return [str(word) for word in words if f"`{word}`" not in text]


def prose(text: str) -> str:
    """Return the text without its code blocks, in which links and headings mean nothing."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Return the names under which the headings of a page can be linked to."""
    headings = re.findall(r"^#+ (.*)", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def json_blocks(text: str) -> list[str]:
    return re.findall(r"^```json\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


# REST


def test_every_route_is_described(sqlite_url, tmp_path):
    services = open_services(Config(database_url=sqlite_url, data_dir=tmp_path))
    try:
        # Flask brings a route for static files along, though there are none.
        rules = [rule for rule in create_app(services).url_map.iter_rules() if rule.endpoint != "static"]
    finally:
        services.close()
    routes = [
        f"{method} {re.sub(r'<(?:[a-z]+:)?run_id>', '{id}', rule.rule)}"
        for rule in rules
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    ]
    assert len(routes) >= 5
    assert not missing(routes, read("docs/rest.md"))


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("## Start a research", StartResearch),
        ("## List researches", ListResearch),
        ("## Read a research", GetResearch),
    ],
)
def test_every_field_that_a_route_takes_is_described(heading, model):
    assert not missing(model.model_fields, section(read("docs/rest.md"), heading))


def test_every_field_of_a_run_and_of_a_state_is_described():
    page = read("docs/rest.md")
    assert not missing([field.name for field in dataclasses.fields(Run)], section(page, "## A run"))
    assert not missing([field.name for field in dataclasses.fields(State)], section(page, "## States"))


def test_every_state_status_and_stop_reason_is_described():
    page = read("docs/rest.md")
    assert not missing(StateName, section(page, "## States"))
    assert not missing([*Status, *StopReason], section(page, "## A run"))
    assert INTERRUPTED in page


def test_every_error_status_is_described():
    statuses = {kind.status for kind in (*_subclasses(GligabaoError), Unauthorized)} | {405, 413}
    listed = section(read("docs/rest.md"), "## Errors")
    assert not [status for status in statuses if f"\n| {status} |" not in listed]


def _subclasses(kind: type) -> list[type]:
    return [kind, *(each for direct in kind.__subclasses__() for each in _subclasses(direct))]


# Tools


def test_every_tool_of_an_agent_is_described():
    marker = Marker()
    web = WebTools(search=None, reader=None, marker=marker)
    tools = [*web.tools(), *subagent_tools(None, marker), *sibling_tools(None, marker)]
    assert len(tools) == 7
    chapter = section(read("docs/how-it-works.md"), "## The tools")
    for tool in tools:
        assert not missing(tool.input.model_fields, section(chapter, f"### {tool.name}"))


def test_the_limits_of_the_tools_are_those_of_the_code():
    chapter = section(read("docs/how-it-works.md"), "## The tools")
    searching = " ".join(section(chapter, "### web_search").split())
    for limit in (TOOL["type"], f"at most {TOOL['max_uses']} searches", f"{FIRST_TOKENS:,} tokens"):
        assert limit in searching
    assert f"at most {SECOND_TOKENS:,}." in searching
    reading = section(chapter, "### fetch_url")
    limits = Limits()
    for limit in (
        f"the first {agent_limits.MAX_PAGE_CHARACTERS:,} characters",
        f"at most {MAX_URL_CHARS:,} characters",
        f"| {limits.max_bytes // 1024**2} MiB",
        f"| {limits.total_seconds} seconds; {limits.connect_seconds} to connect, {limits.read_seconds} of silence |",
        f"| redirects | {limits.max_redirects},",
    ):
        assert limit in reading


def test_the_limits_of_teams_are_those_of_the_code():
    page = read("docs/teams.md")
    for limit in (
        f"| sub-agents of one agent | {agent_limits.MAX_SUBAGENTS_PER_AGENT} |",
        f"| sub-agents in a whole tree | {agent_limits.MAX_SUBAGENTS_PER_TREE} |",
        f"| generations of sub-agents | {agent_limits.MAX_DEPTH} |",
        f"| {agent_limits.DEFAULT_SUBAGENT_STEPS} unless its parent says otherwise",
        f"{agent_limits.INBOX_SIZE} unread messages",
        f"`{team.PARENT_ENDED}`",
    ):
        assert limit in page
    described = " ".join(section(read("docs/how-it-works.md"), "### send_message").split())
    assert f"{agent_limits.INBOX_SIZE} unread messages" in described


def test_the_demo_of_a_team_is_shown_with_its_topic():
    assert f"\nTopic: {DEMO_TEAM_TOPIC}\n" in read("docs/teams.md")
    assert DEMO_TEAM_TOPIC in " ".join(section(read("docs/testing.md"), "### A team").split())


# The rest


def test_every_make_target_is_described():
    phony = re.search(r"^\.PHONY:(.*)", read("Makefile"), re.MULTILINE)
    assert phony
    assert not missing([f"make {target}" for target in phony[1].split()], read("docs/testing.md"))


def test_the_readme_names_the_two_commands():
    commands = re.findall(r"^    (make \w+)$", read("README.md"), re.MULTILINE)
    assert commands == ["make demo", "make test"]


@each_page
def test_variables_that_are_named_exist(page):
    settings = {f"GLIGABAO_{key.upper()}" for key in Config.model_fields}
    others = {
        *("GLIGABAO_CONFIG", "GLIGABAO_URL", "GLIGABAO_USER", "GLIGABAO_API_KEY"),
        *("GLIGABAO_TEST_DSN", "GLIGABAO_TEST_REQUIRE_POSTGRES", "GLIGABAO_BENCH_DATA", "GLIGABAO_SOAK_REPORT"),
    }
    named = set(re.findall(r"GLIGABAO_[A-Z_]*[A-Z]", page.read_text(encoding="utf-8")))
    assert named <= settings | others


@each_page
def test_links_lead_somewhere(page):
    text = prose(page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


def test_every_page_of_the_docs_is_linked_from_the_readme():
    assert not [page.name for page in (ROOT / "docs").glob("*.md") if f"](docs/{page.name})" not in read("README.md")]


@each_page
def test_json_examples_are_json(page):
    for block in json_blocks(page.read_text(encoding="utf-8")):
        json.loads(block)


def test_runs_and_states_in_examples_have_all_their_fields():
    run_fields = [field.name for field in dataclasses.fields(Run)]
    state_fields = ["seq", "state", "step", "detail", "error", "started_at", "finished_at"]
    runs = [value for block in json_blocks(read("docs/rest.md")) if "topic" in (value := json.loads(block))]
    assert len(runs) == 2
    for run in runs:
        states = run.pop("states", [])
        assert list(run) == run_fields
        assert all(list(state) == state_fields for state in states)
