"""CPU of one page, over HTTP and over HTTPS: looked up, judged, connected to, downloaded and made text of.

One reader reads page after page from a server in another process, over each way in turn, so that all meet the same
machine. `https, own context` loads the authorities for each connection, as requests does by itself.
"""

import time
from statistics import median

from benchmarks.child import answer, arguments, run_child
from benchmarks.fake_model import Play, fake_model
from benchmarks.report import Bar, Cell, Options, Report, Table
from gligabao.cancel import Cancel, Watchdog
from gligabao.network import session
from gligabao.reader.page import Allow, PageReader
from tests.lines import CERTIFICATE

PAGES = 100
ROUNDS = 5
HTTP = "http"
HTTPS = "https"
OWN = "https, own context"
MAX_RATIO = 2.0


def trust_test_pages() -> None:
    """Have all readers of this process take the certificate of the test pages too."""
    session.shared_tls().load_verify_locations(CERTIFICATE)


def read_pages(urls: dict[str, str], pages: int) -> dict[str, float]:
    """Return the CPU milliseconds of a page over each way, in this process."""
    trust_test_pages()
    costs: dict[str, list[float]] = {way: [] for way in urls}
    watchdog = Watchdog()
    reader = PageReader(allow=Allow.parse(["127.0.0.1", "::1"]), cancel=Cancel(), watchdog=watchdog)
    for number in range(pages + 1):
        for way, url in urls.items():
            before = time.process_time()
            if way == OWN:
                session._load_tls.cache_clear()
                trust_test_pages()
            reader.read(f"{url}/pages/{number}")
            costs[way].append((time.process_time() - before) * 1000)
    reader.close()
    watchdog.close()
    # The first of each loads what the others find loaded.
    return {way: median(found[1:]) for way, found in costs.items()}


def measure(*, pages: int = PAGES, rounds: int = ROUNDS) -> Report:
    """Return what a page costs over each way; each round is a process of its own."""
    found = [_measure(pages) for _ in range(rounds)]
    ratios = {way: median(costs[way] / costs[HTTP] for costs in found) for way in found[0]}
    rows: list[list[Cell]] = [[way, median(costs[way] for costs in found), ratio] for way, ratio in ratios.items()]
    title = f"CPU of a page of 20 KB, {pages} pages over each way in turn; medians of {rounds} rounds"
    ratio = ratios[HTTPS]
    bar = Bar("CPU of an https page against an http one", f"at most {MAX_RATIO:g}", f"{ratio:.2f}", ratio <= MAX_RATIO)
    return Report("page", [Table(title, ("over", "CPU ms", f"ratio to {HTTP}"), rows)], [bar])


def _measure(pages: int) -> dict[str, float]:
    with fake_model(Play(1)) as model:
        urls = {HTTP: model.url, HTTPS: model.tls_url, OWN: model.tls_url}
        costs: dict[str, float] = run_child("page", urls, pages)
        read = model.stats()["pages"]
    if read != (pages + 1) * len(urls):
        raise RuntimeError(f"{read} pages were read instead of {(pages + 1) * len(urls)}")
    return costs


def run(options: Options) -> Report:
    """Measure."""
    return measure(pages=5, rounds=1) if options.quick else measure()


if __name__ == "__main__":
    answer(read_pages(*arguments()))
