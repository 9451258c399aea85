"""The page reader: the door of this room. One `PageReader` for one agent."""

import logging
from dataclasses import dataclass
from urllib.parse import SplitResult

from gligabao.cancel import Cancel, Watchdog
from gligabao.network.line import Line
from gligabao.network.lookup import Unreachable
from gligabao.reader.decode import Kind
from gligabao.reader.faults import PageError, Unreadable
from gligabao.reader.fetch import DEFAULT_LIMITS, TRANSPORT_ERRORS, Download, Limits, download, explain
from gligabao.reader.guard import Allow, check_url
from gligabao.reader.session import PageSession, judge_by
from gligabao.reader.text import read_text

__all__ = ["Allow", "Limits", "Page", "PageError", "PageReader"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Page:
    """What a page says. All of it but `content_type` and `cut` comes from the server: text that nobody vouches for."""

    url: str
    """Where it was found, after redirects."""
    title: str
    """One line, "" when it has none."""
    text: str
    content_type: Kind
    """What it was read as, which is not always what the server called it."""
    cut: bool
    """True when the page is longer than what was downloaded of it."""


class PageReader:
    """Reads pages for one agent, and is used by its thread alone.

    It has a session of its own, keeps no cookies, and takes no proxy or password from the environment.
    """

    def __init__(self, *, allow: Allow, cancel: Cancel, watchdog: Watchdog, limits: Limits = DEFAULT_LIMITS) -> None:
        self._cancel = cancel
        self._watchdog = watchdog
        self._limits = limits
        self._line = Line(connect_seconds=limits.connect_seconds, judge=judge_by(allow))
        self._session = PageSession(self._line)

    def read(self, url: str) -> Page:
        """Return the page at the URL.

        Raises `PageError` (its message is for the model), or `Cancelled` as soon as the agent is told to stop.
        """
        self._cancel.check()
        try:
            where = _name_page(check_url(url))
        except Unreadable as fault:
            # The URL itself is at fault: showing it could show a password in it.
            raise PageError(str(fault)) from None
        try:
            found = self._download(url)
            kind, title, text = read_text(found.body, found.content_type, found.url)
        except Unreadable as fault:
            raise PageError(f"{where}: {fault}") from fault
        return Page(found.url, title, text, kind, found.cut)

    def close(self) -> None:
        """Let go of all connections."""
        self._session.close()

    def _download(self, url: str) -> Download:
        seconds = self._limits.total_seconds
        fault: Exception | None = None
        try:
            with self._line.watched(self._cancel, self._watchdog, seconds=seconds) as watch:
                found = download(self._session, url, self._limits)
        except (Unreachable, Unreadable, *TRANSPORT_ERRORS) as error:
            fault = error
        finally:
            self._line.close()
        # A socket that was shut down under it can look like the orderly end of a page, so these two come first.
        self._cancel.check()
        if watch.expired:
            raise Unreadable(f"took longer than {seconds:g} s") from fault
        if isinstance(fault, Unreachable):
            raise Unreadable(str(fault)) from fault
        if isinstance(fault, Unreadable):
            raise fault
        if fault is not None:
            log.debug("a download failed", exc_info=fault)
            raise Unreadable(explain(fault, self._limits)) from fault
        return found


def _name_page(parts: SplitResult) -> str:
    # Without the query, which may hold a key.
    return f"{parts.netloc}{parts.path}"
