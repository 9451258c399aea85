"""The simulator's small web: the bundled pages, their text, and a word search over them."""

import re
from dataclasses import dataclass, field
from datetime import date
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

DEMO_TOPIC = "How much electricity does the Port Sable tidal station deliver in a year, and who runs it?"
"""A question that the bundled pages answer, and contradict each other on."""

DEMO_TEAM_TOPIC = (
    "Port Sable tidal station: who runs it, and since when? "
    "(1) Output: how much electricity does it deliver in a year? "
    "(2) Machines: which turbines does it have, and what limits their output? "
    "(3) Nature: what does the barrage do to silt and eels in the basin?"
)
"""A topic in numbered parts, which the built-in researcher gives to a team."""

NOT_FOUND = b"<!DOCTYPE html><title>404</title><h1>Not found</h1><p>There is no page at this address any more.</p>"

# A closing quotation mark belongs to the sentence before it.
_BETWEEN_SENTENCES = re.compile('(?<=[.!?])\\s+|(?<=[.!?]["\u201d])\\s+')
_STOP_WORDS = frozenset(
    """a about after all also an and any are as at be been before best between both but by can could did do does
    each find for from give had has have how i if in into is it its just like list make many may me more most much
    my no not of on one only or other our out over please report search should so some such tell than that the
    their them then there these they this those to up use was we web were what when where which who whom whose why
    will with would you your""".split()
)


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the small web."""

    name: str
    title: str
    publisher: str
    published: str
    """The day, `2020-03-18`."""
    paragraphs: tuple[str, ...] = ()
    html: bytes | None = None
    """None: the search still lists the page, but its address answers 404."""
    stems: frozenset[str] = field(default=frozenset(), repr=False)
    title_stems: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def path(self) -> str:
        """Where the simulator serves it."""
        return f"/pages/{self.name}"

    @property
    def age(self) -> str:
        """The day as search results give it, `March 18, 2020`."""
        day = date.fromisoformat(self.published)
        return f"{day:%B} {day.day}, {day.year}"

    def as_result(self, base_url: str) -> dict[str, Any]:
        """Return the page as a result of the web search tool."""
        return {"type": "web_search_result", "url": base_url + self.path, "title": self.title, "page_age": self.age}

    def excerpt(self, query: str) -> list[str]:
        """Return the three sentences that share the most words with a query, in the order of the page."""
        wanted = stems_of(query)
        found = [sentence for paragraph in self.paragraphs for sentence in _BETWEEN_SENTENCES.split(paragraph)]
        shared = {s: len(wanted & stems_of(s)) for s in found if len(s.split()) >= 8 and s[-1] in ".!?\u201d"}
        best = sorted((sentence for sentence in shared if shared[sentence]), key=lambda sentence: -shared[sentence])
        return [sentence for sentence in shared if sentence in best[:3]]


def keywords(text: str) -> list[str]:
    """Return the telling words of a text, in order, each once, in lower case."""
    words = re.findall(r"\w+(?:[.,]\d+)*", text.lower())
    return list(dict.fromkeys(word for word in words if word not in _STOP_WORDS and (len(word) > 2 or word.isdigit())))


def stems_of(text: str) -> frozenset[str]:
    """Return the starts of the telling words of a text, for comparing texts."""
    return frozenset(word[:6].rstrip("s") for word in keywords(text))


def search(query: str, *, limit: int = 4) -> list[Page]:
    """Return the pages that share enough words with the query, the best first."""
    wanted = stems_of(query)
    enough = max(min(2, len(wanted)), 0.4 * len(wanted))
    scored = [(_score(page, wanted), page) for page in PAGES if len(page.stems & wanted) >= enough]
    scored = [(score, page) for score, page in scored if score]
    return [page for _, page in sorted(scored, key=lambda pair: -pair[0])[:limit]]


def read(path: str) -> bytes | None:
    """Return the HTML at a path, None when there is none."""
    return next((page.html for page in PAGES if page.path == path), None)


def _score(page: Page, wanted: frozenset[str]) -> float:
    """Rare words count more than words that every page has, words of the title twice."""
    return sum(
        (2.0 if stem in page.title_stems else 1.0) / sum(stem in other.stems for other in PAGES)
        for stem in wanted & page.stems
    )


class _Article(HTMLParser):
    """Collects the title, the meta data and the visible paragraphs of a bundled page."""

    def __init__(self) -> None:
        super().__init__()
        self.title = ""
        self.meta: dict[str, str] = {}
        self.paragraphs: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "meta":
            self.meta[values.get("name", "")] = values.get("content", "")
        elif tag in ("title", "p"):
            hidden = "hidden" in values or "aria-hidden" in values or "display:none" in values.get("style", "")
            self._inside = "" if hidden or "hidden" in values.get("class", "") else tag
            if self._inside == "p":
                self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("title", "p"):
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "title":
            self.title += data
        elif self._inside == "p":
            self.paragraphs[-1] += data


def _load_page(name: str, html: bytes) -> Page:
    article = _Article()
    article.feed(html.decode())
    paragraphs = tuple(" ".join(text.split()) for text in article.paragraphs)
    # The last paragraph is the footer, which only says that the page is a sample.
    return _index(name, article.title, article.meta["author"], article.meta["date"], paragraphs[:-1], html)


def _index(
    name: str, title: str, publisher: str, published: str, paragraphs: tuple[str, ...], html: bytes | None
) -> Page:
    everything = stems_of(" ".join((title, publisher, *paragraphs)))
    return Page(name, title, publisher, published, paragraphs, html, everything, stems_of(title))


def _load_pages() -> tuple[Page, ...]:
    folder = files("gligabao.simulator") / "pages"
    found = sorted((entry.name, entry.read_bytes()) for entry in folder.iterdir() if entry.name.endswith(".html"))
    return (*(_load_page(name, html) for name, html in found), _GONE)


_GONE = _index(
    "monthly-output-tables.html",
    "Port Sable tidal station: official monthly figures, archive (Port Sable Harbour Trust)",
    "Port Sable Harbour Trust",
    "2020-01-15",
    ("Official tables of the electricity that the Port Sable tidal station delivered, by month, from 1990 to 2019.",),
    None,
)
"""Listed by the search, but gone, as happens on the real web."""

PAGES: tuple[Page, ...] = _load_pages()
