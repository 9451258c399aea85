"""Prints all that a model is told of its limits, for each set of limits in the argument: a process of its own.

Everything built from the limits is imported anew for each set.
"""

import json
import sys
from collections.abc import Callable
from typing import Any


def collect(limits: dict[str, int]) -> dict[str, str]:
    """Return the texts, by what they are, as they are with these limits in place of those of the code."""
    _change(limits)
    from gligabao.agent import loop
    from gligabao.agent.marking import Marker
    from gligabao.agent.prompting import Prompts
    from gligabao.agent.tools.team import sibling_tools, subagent_tools
    from gligabao.agent.tools.web import WebTools

    marker: Any = Marker()
    nobody: Any = None
    web: Any = WebTools(search=nobody, reader=_LongPage(), marker=marker).tools()
    texts = {"too many calls": loop.CALL_TOO_MANY, "end of a page": _end_of_page(web[1])}
    for tool in [*web, *subagent_tools(nobody, marker), *sibling_tools(nobody, marker)]:
        texts[f"schema of {tool.name}"] = json.dumps(tool.schema)
        texts |= {f"hint of {tool.name}: {field}": hint for field, hint in tool.input.hints.items()}
    prompts: Any = Prompts.load()
    place = {"date": "DAY", "max_steps": "STEPS"}
    texts["prompt of a root"] = prompts.system(may_spawn=True, **place)
    texts["prompt of a sub-agent"] = prompts.system(may_spawn=True, name="a", reason="r", **place)
    texts["prompt of the last generation"] = prompts.system(may_spawn=False, name="a", reason="r", **place)
    texts["prompt of a search"] = prompts.web_search(date="DAY")
    return texts | _refusals()


def _change(limits: dict[str, int]) -> None:
    for name in list(sys.modules):
        if name.startswith(("gligabao.agent", "gligabao.research")):
            del sys.modules[name]
    import gligabao.agent.limits

    for name, value in limits.items():
        assert hasattr(gligabao.agent.limits, name), name
        setattr(gligabao.agent.limits, name, value)


def _end_of_page(fetch: Any) -> str:
    text: str = fetch.run(fetch.input(url="http://a/"))
    return text.splitlines()[-1]


class _LongPage:
    def read(self, url: str) -> Any:
        from gligabao.reader.page import Page

        return Page(url, "", "a" * 100_000, "text/plain", cut=False)  # type: ignore[arg-type]


def _refusals() -> dict[str, str]:
    """Spawn and send until it is refused."""
    from gligabao.research.messenger import QueueMessenger
    from gligabao.research.team import Member, Siblings, Subagents
    from tests.fakes import new_run

    numbers = iter(range(1, 1000))

    def start(parent: Any, *, name: str, **given: Any) -> Any:
        parent.add(child := Member(new_run(next(numbers), name=name), parent=parent))
        return child

    def spawn_all(member: Any) -> str:
        nothing: Any = None
        team = Subagents(member, start=start, end_runs=nothing, find_lost=nothing)
        return _refusal(lambda n: team.spawn(name=f"s{n}", reason="r", task="t", max_steps=1))

    root = Member(new_run(0))
    texts = {"too many sub-agents": spawn_all(root)}
    alpha, beta, *_ = root.children.values()
    texts["too large a tree"] = [spawn_all(child) for child in (alpha, beta)][-1]
    messenger = QueueMessenger()
    messenger.open(beta.run.id)
    texts["full inbox"] = _refusal(lambda n: Siblings(alpha, messenger).send(beta.run.name, "a word"))
    return texts


def _refusal(act: Callable[[int], object]) -> str:
    from gligabao.errors import ToolError

    for number in range(1000):
        try:
            act(number)
        except ToolError as error:
            return str(error)
    raise AssertionError("never refused")


if __name__ == "__main__":
    print(json.dumps([collect(limits) for limits in json.loads(sys.argv[1])]))
