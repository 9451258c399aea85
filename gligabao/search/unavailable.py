"""Stands in for a search provider that this version lacks, so that nothing is searched, and billed, elsewhere."""

from gligabao.errors import ToolError


class UnavailableSearch:
    """Finds nothing and says why."""

    def __init__(self, provider: str) -> None:
        self._provider = provider

    def search(self, query: str) -> str:
        """Raise `ToolError`."""
        raise ToolError(f"this server cannot search: the provider {self._provider} is not in this version yet")
