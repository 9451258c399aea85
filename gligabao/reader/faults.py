"""What can go wrong with a page: the error that leaves this room, and those that stay inside it.

None of them is an OSError: urllib3 takes those for faults of the line, wraps them and loses the reason.
"""

from gligabao.errors import ToolError


class PageError(ToolError):
    """A page could not be read. The message is for the model: it holds nothing that the server wrote."""


class Unreadable(Exception):
    """Why a page cannot be read, without saying which page. `PageReader` turns it into a `PageError`."""


class PrivateAddress(Unreadable):
    """The host is at an address that may not be read."""

    def __init__(self, why: str = "") -> None:
        super().__init__(f"the address is private: {why}only those that the setting fetch_allow names are read")
