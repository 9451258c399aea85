"""The marker around text that comes from elsewhere: pages, search results, other agents, the knowledge base.

Such text is data. It stands between two lines of a marker that is drawn anew for each run, so that nothing in it
can pretend to be outside of it; the system prompt says what such a pair of lines means.
"""

import secrets


class Marker:
    """The marker of one run. `value` is that of a run that goes on; without one, a new one is drawn."""

    def __init__(self, value: str = "") -> None:
        self.value = value or secrets.token_hex(8)
        self.line = f"[untrusted {self.value}]"

    def wrap(self, text: str) -> str:
        """Return the text between two marker lines."""
        # Half a surrogate pair, from a report that was cut there: the API refuses every request that has one.
        text = text.encode("utf-8", "ignore").decode("utf-8")
        # Nobody outside can know the value, but a page may echo what a model put into an address. It is replaced, not
        # removed: the text around it must not close up to form it again.
        return f"{self.line}\n{text.replace(self.value, '(left out)')}\n{self.line}"
