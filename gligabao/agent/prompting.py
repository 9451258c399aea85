"""The prompts: read from `prompts/*.md`, checked at start, joined in a fixed order.

A system prompt has the same bytes in every run of one kind with the same number of steps on one day, so that
prompt caching holds across runs: nothing in it but its last line changes. Variables of a template are written
`{{ name }}` (Jinja); one that is not known fails when the prompts are loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable

import jinja2
from jinja2 import meta

from gligabao.agent.limits import MAX_BRIEFING_WORDS
from gligabao.errors import ConfigError
from gligabao.resources import data_dir

PARTS: Mapping[str, tuple[str, ...]] = {
    "research": (),
    "spawn": (),
    "messaging": (),
    "subagent": ("name", "reason", "may_spawn"),
    "web_search": ("max_words",),
}
"""The prompt files, and the variables that each may use."""


@dataclass(frozen=True)
class Prompts:
    """The loaded prompt files."""

    templates: Mapping[str, jinja2.Template]

    @classmethod
    def load(cls, folder: Traversable | None = None) -> "Prompts":
        """Read and check all prompt files of the folder (None: those of gligabao).

        A fault in one raises `ConfigError` naming the file.
        """
        folder = folder or data_dir("prompts")
        return cls({name: _load(folder, name, variables) for name, variables in PARTS.items()})

    def system(self, *, date: str, max_steps: int, may_spawn: bool, name: str = "", reason: str = "") -> str:
        """Return the system prompt of a research agent. `date` is the day, UTC, `2026-11-01`.

        `name` and `reason` are those of a sub-agent. The part that has them comes late, so that what stands before
        it is the same for all sub-agents, and cached.
        """
        parts = ["research"]
        if may_spawn:
            parts.append("spawn")
        if name:
            parts += ["messaging", "subagent"]
        budget = f"Today is {date} (UTC). You have {max_steps} steps; in step {max_steps} you cannot use tools."
        return self._join(*parts, last_line=budget, name=name, reason=reason, may_spawn=may_spawn)

    def web_search(self, *, date: str) -> str:
        """Return the system prompt of the call that searches the web."""
        return self._join("web_search", last_line=f"Today is {date} (UTC).", max_words=f"{MAX_BRIEFING_WORDS:,}")

    def _join(self, *parts: str, last_line: str, **values: object) -> str:
        return "\n\n".join([*(self.templates[part].render(values).strip() for part in parts), last_line])


def _load(folder: Traversable, name: str, variables: tuple[str, ...]) -> jinja2.Template:
    path = folder / f"{name}.md"
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False, trim_blocks=True)
    try:
        source = path.read_text(encoding="utf-8")
        # Looked for in the text, not by rendering it once: a variable in a branch not taken would slip through.
        unknown = meta.find_undeclared_variables(environment.parse(source)) - set(variables)
        template = environment.from_string(source)
        if not unknown:
            # What else can be wrong, a filter that is not there, shows in the branch that has it.
            for value in ("something", ""):
                template.render(dict.fromkeys(variables, value))
    except (OSError, ValueError, TypeError, jinja2.TemplateError) as error:
        raise ConfigError(f"prompts/{name}.md cannot be used: {' '.join(str(error).split())}") from error
    if unknown:
        raise ConfigError(f"prompts/{name}.md uses {', '.join(sorted(unknown))}: not known there")
    if not source.strip():
        raise ConfigError(f"prompts/{name}.md is empty")
    return template
