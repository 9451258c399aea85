"""HTML and XML, taken apart in linear time whatever the page.

Not the standard library's html.parser: up to 3.13.0 at least it is quadratic on unclosed comments, tags, quotes
and end tags (128 kB keep it busy for over 6 s), it dies of `<![<![`, and its releases differ in what they make of
scripts and comments. This one goes once from left to right. What is never closed ends the page, as in a browser:
so nothing is searched for twice.
"""

import re
from html import unescape
from typing import Protocol

_OPEN = re.compile(r"<[a-zA-Z/!?]")
_TAG_NAME = re.compile(r"[^\s/>]+")
_TAG_STOP = re.compile(r">|=\s*([\"'])")
_COMMENT_END = re.compile(r"--!?>")
_ATTRIBUTE = re.compile(r"([^\s/>=]+)(?:\s*=\s*(\"[^\"]*\"|'[^']*'|[^\s>]*))?")
# int() refuses numbers this long, and html.unescape does not expect that.
_ENDLESS_NUMBER = re.compile(r"&#0*[0-9]{8,};?")

_UNREAD = frozenset({"script", "style", "iframe", "noembed", "noframes"})
_LITERAL = frozenset({"title", "textarea", "xmp"})
_ELEMENT_END = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in _UNREAD | _LITERAL}


class Handler(Protocol):
    """What a page is told to, piece by piece."""

    def text(self, text: str) -> None:
        """Take a piece of text, its entities decoded."""

    def start(self, name: str, attributes: str) -> None:
        """Take a start tag: its name in lower case, and the rest of it, unread, for `read_attributes`."""

    def end(self, name: str) -> None:
        """Take an end tag."""


def parse(markup: str, handler: Handler, *, xml: bool = False) -> None:
    """Tell the handler what is in the page. Comments, scripts and styles are left out."""
    scanner = _Scanner(markup, handler, xml=xml)
    while scanner.step():
        pass


def read_attributes(attributes: str) -> dict[str, str]:
    """Return the attributes of a start tag; of two with the same name the first."""
    found: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(attributes):
        value = match[2] or ""
        if value[:1] in ("'", '"') and value[-1:] == value[:1]:
            value = value[1:-1]
        found.setdefault(match[1].lower(), decode_entities(value))
    return found


def decode_entities(text: str) -> str:
    """Return the text with its entities decoded, once."""
    return unescape(_ENDLESS_NUMBER.sub("\ufffd", text)) if "&" in text else text


class _Scanner:
    """Goes through a page. `_at` only grows."""

    def __init__(self, markup: str, handler: Handler, *, xml: bool) -> None:
        self._markup = markup
        self._handler = handler
        self._xml = xml
        self._at = 0
        self._never_closed: set[str] = set()

    def step(self) -> bool:
        """Go past the next piece of markup and the text before it; False at the end of the page."""
        opening = _OPEN.search(self._markup, self._at)
        begin = opening.start() if opening else len(self._markup)
        if begin > self._at:
            self._handler.text(decode_entities(self._markup[self._at : begin]))
        self._at = begin + 1
        if opening is None:
            return False
        sign = self._markup[begin + 1]
        if sign == "!":
            return self._pass_declaration(begin)
        if sign == "?" or (sign == "/" and not self._markup[begin + 2 : begin + 3].isalpha()):
            return self._pass(">", begin)
        return self._read_tag(begin, closing=sign == "/")

    def _pass_declaration(self, begin: int) -> bool:
        if self._markup.startswith("<!--", begin):
            # From the two dashes on: <!--> is a whole comment.
            end = _COMMENT_END.search(self._markup, begin + 2)
            self._at = end.end() if end else len(self._markup)
            return end is not None
        if not self._xml:
            return self._pass(">", begin)
        if self._markup.startswith("<![CDATA[", begin):
            closed = self._pass("]]>", begin)
            self._handler.text(self._markup[begin + 9 : self._at].removesuffix("]]>"))
            return closed
        closed = self._pass(">", begin)
        # The declarations inside a DOCTYPE stand in brackets.
        return self._pass("]>", self._at - 1) if "[" in self._markup[begin : self._at] else closed

    def _pass(self, mark: str, begin: int) -> bool:
        end = self._markup.find(mark, begin)
        self._at = end + len(mark) if end >= 0 else len(self._markup)
        return end >= 0

    def _read_tag(self, begin: int, *, closing: bool) -> bool:
        name_at = begin + 2 if closing else begin + 1
        match = _TAG_NAME.match(self._markup, name_at)
        name_end = match.end() if match else name_at
        end = self._find_tag_end(name_end)
        if end < 0:
            self._at = len(self._markup)
            return False
        self._at = end + 1
        name = self._markup[name_at:name_end].lower()
        if closing:
            self._handler.end(name)
            return True
        self._handler.start(name, self._markup[name_end:end])
        return self._xml or name not in _ELEMENT_END or self._read_raw(name)

    def _find_tag_end(self, at: int) -> int:
        # A > between the quotes of a value is part of it. A quote with no other after it opens no value; that can
        # be found out only once for each of the two kinds.
        while stop := _TAG_STOP.search(self._markup, at):
            if not stop[1]:
                return stop.start()
            value_end = self._markup.find(stop[1], stop.end())
            at = value_end + 1 if value_end >= 0 else stop.end()
        return -1

    def _read_raw(self, name: str) -> bool:
        """Go to the end tag of an element that holds no markup."""
        if name in self._never_closed:
            return True
        begin, end = self._at, _ELEMENT_END[name].search(self._markup, self._at)
        if end is None and name in _LITERAL:
            # A browser would take the rest of the page for the title. Asked once: else each of many would search.
            self._never_closed.add(name)
            return True
        self._at = end.start() if end else len(self._markup)
        if name in _LITERAL:
            self._handler.text(decode_entities(self._markup[begin : self._at]))
        return end is not None
