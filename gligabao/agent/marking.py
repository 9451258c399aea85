"""The marker around text that comes from elsewhere: pages, search results, other agents, the knowledge base.

Such text is data. It stands between two lines of a marker that is drawn anew for each run, so that nothing in it
can pretend to be outside of it; the system prompt says what such a pair of lines means.
"""

import secrets


class Marker:
    """The marker of one run."""

    def __init__(self) -> None:
        self.line = f"[untrusted {secrets.token_hex(8)}]"

    def wrap(self, text: str) -> str:
        """Return the text between two marker lines."""
        # Nobody outside can know the value, but a page may echo what a model put into an address.
        return f"{self.line}\n{text.replace(self.line, '')}\n{self.line}"
