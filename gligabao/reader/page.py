"""The page reader: the door of this room. One `PageReader` for one agent."""

import logging
from dataclasses import dataclass
from urllib.parse import SplitResult

from gligabao.cancel import Cancel, Watchdog
from gligabao.reader.decode import Kind
from gligabao.reader.dial import Dialler, GuardedSession, Watch
from gligabao.reader.faults import Interrupted, PageError, Unreadable
from gligabao.reader.fetch import DEFAULT_LIMITS, TRANSPORT_ERRORS, Download, Limits, download, explain
from gligabao.reader.guard import Allow, check_url
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
        self._dialler = Dialler(allow, connect_seconds=limits.connect_seconds, lookup_seconds=limits.total_seconds)
        self._session = GuardedSession(self._dialler)

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
        watch = self._dialler.watch = Watch()
        fault: Exception | None = None
        try:
            with self._cancel.waking(watch.cut), self._watchdog.deadline(self._limits.total_seconds, watch.expire):
                found = download(self._session, url, self._limits)
        except (Unreadable, Interrupted, *TRANSPORT_ERRORS) as error:
            fault = error
        finally:
            watch.release()
        # A socket that was shut down under it can look like the orderly end of a page, so these two come first.
        self._cancel.check()
        if watch.expired:
            raise Unreadable(f"took longer than {self._limits.total_seconds:g} s") from fault
        if isinstance(fault, Unreadable):
            raise fault
        if fault is not None:
            log.debug("a download failed", exc_info=fault)
            raise Unreadable(explain(fault, self._limits)) from fault
        return found


def _name_page(parts: SplitResult) -> str:
    # Without the query, which may hold a key.
    return f"{parts.netloc}{parts.path}"
