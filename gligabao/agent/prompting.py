"""The prompts: read from `prompts/*.md`, checked at start, joined in a fixed order.

A system prompt has the same bytes in every run of one kind with the same number of steps on one day, so that
prompt caching holds across runs: nothing in it but its last line changes. Variables of a template are written
`{{ name }}` (Jinja); one that is not known fails when the prompts are loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import jinja2

from gligabao.errors import ConfigError
from gligabao.resources import data_dir

PARTS: Mapping[str, tuple[str, ...]] = {
    "research": (),
    "web_search": (),
}
"""The prompt files, and the variables that each may use."""


@dataclass(frozen=True)
class Prompts:
    """The loaded prompt files."""

    templates: Mapping[str, jinja2.Template]

    @classmethod
    def load(cls) -> "Prompts":
        """Read and check all prompt files; a fault in one raises `ConfigError` naming the file."""
        return cls({name: _load(name, variables) for name, variables in PARTS.items()})

    def system(self, *, date: str, max_steps: int) -> str:
        """Return the system prompt of a research agent. `date` is the day, UTC, `2026-11-01`."""
        budget = f"Today is {date} (UTC). You have {max_steps} steps; in step {max_steps} you cannot use tools."
        return self._join("research", last_line=budget)

    def web_search(self, *, date: str) -> str:
        """Return the system prompt of the call that searches the web."""
        return self._join("web_search", last_line=f"Today is {date} (UTC).")

    def _join(self, *names: str, last_line: str) -> str:
        return "\n\n".join([*(self.templates[name].render().strip() for name in names), last_line])


def _load(name: str, variables: tuple[str, ...]) -> jinja2.Template:
    path = data_dir("prompts") / f"{name}.md"
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    try:
        template = environment.from_string(path.read_text(encoding="utf-8"))
        text = template.render({variable: variable for variable in variables})
    except (OSError, jinja2.TemplateError) as error:
        raise ConfigError(f"prompts/{name}.md cannot be used: {error}") from error
    if not text.strip():
        raise ConfigError(f"prompts/{name}.md is empty")
    return template
