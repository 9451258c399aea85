"""The choice of a search provider."""

import typing

import pytest

from gligabao.config import Config
from gligabao.errors import ToolError
from gligabao.search import PROVIDERS, SearchNeeds, open_search
from gligabao.search.anthropic_search import AnthropicSearch
from tests.fakes import FakeConnection, FakeObserver, text

ALL = typing.get_args(typing.get_type_hints(Config)["search_provider"])


def needs_of(connection, observer=None):
    return SearchNeeds(
        connection=connection, model="m", system="Search.", observer=observer, cancel=None, watchdog=None
    )


def test_the_provider_is_the_one_of_the_configuration():
    connection = FakeConnection(text("Found."))
    search = open_search(Config(), needs_of(connection))
    assert isinstance(search, AnthropicSearch)
    assert search.search("tides") == "Found."
    (request,) = connection.requests
    assert (request["system"], request["messages"][0]["content"]) == ("Search.", "tides")


def test_the_observer_of_a_search_is_the_one_it_was_made_with():
    observers = []

    class Connection(FakeConnection):
        def ask(self, request, observer):
            observers.append(observer)
            return super().ask(request, observer)

    observer = FakeObserver()
    open_search(Config(), needs_of(Connection(text("Found.")), observer)).search("tides")
    assert observers == [observer]


@pytest.mark.parametrize("provider", sorted(set(ALL) - PROVIDERS.keys()))
def test_a_provider_that_is_not_there_says_so(provider):
    connection = FakeConnection()
    search = open_search(
        Config(search_provider=provider, search_url="http://s/", search_api_key="k"), needs_of(connection)
    )
    with pytest.raises(ToolError, match=f"the provider {provider} is not in this version yet"):
        search.search("tides")
    assert connection.requests == []
