"""Search: one module per provider, each of which turns a query into a briefing with its sources. Here one is chosen.

A new provider is a module of its own and an entry in `PROVIDERS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gligabao.cancel import Cancel, Watchdog
from gligabao.config import Config
from gligabao.model.client import CallObserver, ModelConnection
from gligabao.search.anthropic_search import AnthropicSearch
from gligabao.search.unavailable import UnavailableSearch


class Search(Protocol):
    """Searches the web for one agent. Used by that agent's thread."""

    def search(self, query: str) -> str:
        """Return a briefing and its sources as text, or raise `ToolError`."""


@dataclass(frozen=True, slots=True)
class SearchNeeds:
    """What a search may use of the agent that it works for."""

    connection: ModelConnection
    model: str
    system: str
    """The system prompt of a model call that searches."""
    observer: CallObserver
    cancel: Cancel
    watchdog: Watchdog


Open = Callable[[Config, SearchNeeds], Search]


def open_search(config: Config, needs: SearchNeeds) -> Search:
    """Return a search by the provider that the configuration names, for one agent."""
    return PROVIDERS.get(config.search_provider, _unavailable)(config, needs)


def _anthropic(config: Config, needs: SearchNeeds) -> Search:
    return AnthropicSearch(connection=needs.connection, model=needs.model, system=needs.system, observer=needs.observer)


def _unavailable(config: Config, needs: SearchNeeds) -> Search:
    return UnavailableSearch(config.search_provider)


PROVIDERS: Mapping[str, Open] = {"anthropic": _anthropic}
