"""Characters to text: what a visitor of the page would read, in the order of the page.

Plain on purpose: all that is visible, menus included. Words that the page shows apart stay apart, words it shows
joined stay joined; what it hides is left out, since hidden text is a way to speak to the model behind the user's
back. Only what the page says of itself in its markup counts; style sheets are not read.
"""

import re
from collections import Counter
from urllib.parse import urljoin

from gligabao.reader.decode import Kind, decode, find_kind
from gligabao.reader.faults import Unreadable
from gligabao.reader.markup import parse, read_attributes

NEARLY_EMPTY_CHARS = 250
"""A page with less text than this is taken for one that shows its text in <noscript>, where it has one."""
MAX_TITLE_CHARS = 300

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
"""Invisible characters: controls, zero-width ones, those that change the direction, tags, and halves of a pair."""

_NONE, _SPACE, _CELL, _LINE, _PARAGRAPH = range(5)
_GAPS = ("", " ", "\t", "\n", "\n\n")

_PARAGRAPHS = frozenset("article blockquote dl figure h1 h2 h3 h4 h5 h6 hr ol p pre section table ul".split())
_LINES = frozenset(
    "address aside body br caption center dd details dialog dir div dt fieldset figcaption footer form head header"
    " hgroup html legend li main menu nav noscript optgroup option search summary tbody tfoot thead title tr".split()
)
_SPACED = frozenset("audio button canvas iframe img input label object progress select textarea video".split())
_GAP_OF = (
    dict.fromkeys(_PARAGRAPHS, _PARAGRAPH)
    | dict.fromkeys(_LINES, _LINE)
    | dict.fromkeys(_SPACED, _SPACE)
    | dict.fromkeys(("td", "th"), _CELL)
)
_VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
_NOT_SHOWN = frozenset("template svg audio video canvas datalist noscript".split())
# An element that may be left open, and what then ends it: one of these beginning.
_ENDED_BY = {
    "p": _PARAGRAPHS | frozenset("address aside div fieldset footer form header main nav".split()),
    "li": frozenset({"li"}),
    "dt": frozenset({"dt", "dd"}),
    "dd": frozenset({"dt", "dd"}),
    "td": frozenset({"td", "th", "tr", "tbody", "tfoot"}),
    "th": frozenset({"td", "th", "tr", "tbody", "tfoot"}),
    "tr": frozenset({"tr", "tbody", "tfoot"}),
    "option": frozenset({"option", "optgroup"}),
}
# ... unless one of these is open in between: the item then belongs to a list or table inside.
_INNER = {
    "li": ("ul", "ol", "menu"),
    "dt": ("dl",),
    "dd": ("dl",),
    "td": ("table",),
    "th": ("table",),
    "tr": ("table",),
}
_MAY_HIDE = re.compile("hidden|style", re.IGNORECASE)
_ZERO = r"(?:0+(?:\.0*)?|\.0+)"
_HIDING_STYLE = re.compile(
    rf"(?<![\w-])(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)|opacity\s*:\s*{_ZERO}%?\s*(?:[;!]|$)"
    rf"|font-size\s*:\s*{_ZERO}(?:[a-z]+|%)?\s*(?:[;!]|$)|(?:left|right|top|text-indent)\s*:\s*-\d{{4}})"
)
_REFRESH = re.compile(r"\burl\s*=\s*[\"']?([^\s\"']+)", re.IGNORECASE)


def read_text(body: bytes, content_type: str, url: str) -> tuple[Kind, str, str]:
    """Return what the body was read as, its title and its text. Raises `Unreadable` when there is none."""
    kind = find_kind(body, content_type)
    characters = decode(body, content_type).replace("\r\n", "\n").replace("\r", "\n")
    title, text = "", characters
    if kind is Kind.HTML:
        title, text = _read_html(characters, url)
    elif kind is Kind.XML:
        text = _read_xml(characters)
    text = _UNSEEN.sub("", text).strip("\n")
    if not text.strip():
        raise Unreadable(
            "there is no text in the page: it may need JavaScript" if body.strip() else "the page is empty"
        )
    return kind, " ".join(_UNSEEN.sub("", title).split())[:MAX_TITLE_CHARS], text


def _read_html(markup: str, url: str) -> tuple[str, str]:
    page = _Html()
    parse(markup, page)
    if page.has_noscript and len(page.out.text()) < NEARLY_EMPTY_CHARS:
        page = _Html(noscript_shown=True)
        parse(markup, page)
    text = page.out.text()
    if not text and page.refresh:
        text = f"This page only sends its visitors on to {urljoin(url, page.refresh)}"
    return page.title, text


def _read_xml(markup: str) -> str:
    document = _Xml()
    parse(markup, document, xml=True)
    return document.out.text()


class _Writer:
    """Joins pieces of text, with the widest of the gaps that were asked for between two of them."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._gap = _NONE
        self.bullet = False
        """True when the next piece begins an item of a list."""

    def part(self, gap: int) -> None:
        """Put at least this gap before the next piece."""
        self._gap = max(self._gap, gap)

    def say(self, text: str) -> None:
        """Add text in which any white space is one blank."""
        words = text.split()
        if not words or text[0].isspace():
            self.part(_SPACE)
        if words:
            self.keep(" ".join(words))
            if text[-1].isspace():
                self.part(_SPACE)

    def keep(self, text: str) -> None:
        """Add text as it is."""
        if self._pieces:
            self._pieces.append(_GAPS[self._gap])
        if self.bullet:
            self._pieces.append("- ")
        self._pieces.append(text)
        self._gap, self.bullet = _NONE, False

    def text(self) -> str:
        """Return all of it."""
        return re.sub(r"\n{3,}", "\n\n", "".join(self._pieces)).strip("\n")


class _Html:
    """Takes the visible text of a page."""

    def __init__(self, *, noscript_shown: bool = False) -> None:
        self.out = _Writer()
        self.title = ""
        self.refresh = ""
        """Where the page sends its visitors by itself."""
        self.has_noscript = False
        self._noscript_shown = noscript_shown
        self._unshown = _Unshown()
        self._in_title = False
        self._pre_depth = 0

    def text(self, text: str) -> None:
        if self._in_title:
            self.title = self.title or text.strip()
        elif self._unshown:
            return
        elif self._pre_depth:
            self.out.keep(text)
        else:
            self.out.say(text)

    def start(self, name: str, attributes: str) -> None:
        if self._unshown and not self._unshown.is_ended_by_start(name):
            return
        self._in_title = name == "title"
        if name == "br" and self._pre_depth:
            self.out.keep("\n")
        else:
            self.out.part(_GAP_OF.get(name, _NONE))
        if name == "pre":
            self._pre_depth += 1
        elif name == "li":
            self.out.bullet = True
        elif name == "meta":
            self._note_refresh(attributes)
        if name not in _VOID and self._is_unshown(name, attributes):
            self._unshown.begin(name)

    def end(self, name: str) -> None:
        if self._unshown and not self._unshown.is_ended_by_end(name):
            return
        self._in_title = False
        self.out.part(_GAP_OF.get(name, _NONE))
        if name == "pre":
            self._pre_depth = max(0, self._pre_depth - 1)
        elif name == "li":
            self.out.bullet = False

    def _note_refresh(self, attributes: str) -> None:
        if "refresh" in attributes.lower():
            target = _REFRESH.search(read_attributes(attributes).get("content", ""))
            self.refresh = self.refresh or (target[1] if target else "")

    def _is_unshown(self, name: str, attributes: str) -> bool:
        if name == "noscript":
            self.has_noscript = True
            return not self._noscript_shown
        if name in _NOT_SHOWN:
            return not attributes.endswith("/")
        # Whole pages are hidden by their own markup until a script shows them.
        if name in ("html", "body") or not _MAY_HIDE.search(attributes):
            return False
        found = read_attributes(attributes)
        return "hidden" in found or bool(_HIDING_STYLE.search(found.get("style", "").lower()))


class _Unshown:
    """The elements that are open in one that is not shown, that one first. False when there is none."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._count: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._open)

    def begin(self, name: str) -> None:
        """Note the start of the element that is not shown, or of one in it."""
        self._open.append(name)
        self._count[name] += 1

    def is_ended_by_start(self, name: str) -> bool:
        """Take note of a start tag; tell whether it ends, unsaid, what is not shown."""
        root = self._open[0]
        if name in _ENDED_BY.get(root, ()) and not any(self._count[inner] for inner in _INNER.get(root, ())):
            self._clear()
        elif name not in _VOID:
            self.begin(name)
        return not self._open

    def is_ended_by_end(self, name: str) -> bool:
        """Take note of an end tag; tell whether it ends what is not shown, unsaid or said."""
        if self._count[name]:
            while self._close_last() != name:
                pass
        elif name in _GAP_OF and name != "p" and self._open[0] not in _NOT_SHOWN:
            # It ends an element around the one that is not shown, which was left open.
            self._clear()
        return not self._open

    def _close_last(self) -> str:
        name = self._open.pop()
        self._count[name] -= 1
        return name

    def _clear(self) -> None:
        self._open.clear()
        self._count.clear()


class _Xml:
    """Takes the text of an XML document, each element on a line of its own."""

    def __init__(self) -> None:
        self.out = _Writer()

    def text(self, text: str) -> None:
        # Feeds carry HTML as text.
        self.out.say(_read_html(text, "")[1] if "<" in text else text)

    def start(self, name: str, attributes: str) -> None:
        self.out.part(_LINE)

    def end(self, name: str) -> None:
        self.out.part(_LINE)
