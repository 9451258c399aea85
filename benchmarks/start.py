"""How soon a research is at work: from the POST to its first `thinking`, on a server that does nothing else.

Seen from outside, by the clock that all processes of the machine share: when the 202 was there, when a GET showed the
state `thinking`, and when the model's server had the whole first request. The first start of a server is shown
apart, because it may have to load what later ones find loaded.
"""

import time
from collections.abc import Sequence

from benchmarks.databases import Databases
from benchmarks.fake_model import FakeModel, Play, fake_model
from benchmarks.report import Bar, Options, Report, Table, percentile
from benchmarks.serving import Client, server

STARTS = 50
PAUSE_SECONDS = 0.1
MAX_MS = 50
COLUMNS = ("202 answered", "`thinking` seen", "first model request in")


def start_once(client: Client, model: FakeModel, user: str) -> list[float]:
    """Start a research; return after how many ms it was answered, seen thinking and asking the model."""
    known = len(model.stats()["arrivals"])
    began = time.monotonic()
    run = client.start(user, steps=2)
    answered = time.monotonic()
    while not any(state["state"] == "thinking" for state in client.get(run)["states"]):
        if time.monotonic() - began > 30:
            raise RuntimeError("the research did not begin within 30 s")
    seen = time.monotonic()
    while len(arrivals := model.stats()["arrivals"]) == known:
        time.sleep(0.01)
    while client.get(run)["status"] == "running":
        time.sleep(0.01)
    return [(moment - began) * 1000 for moment in (answered, seen, arrivals[known])]


def measure(databases: Databases, *, starts: int = STARTS) -> Report:
    """Return the times on each database, of the first start and of the others."""
    report = Report("start")
    rows = []
    for kind in databases.kinds:
        with databases.new(kind) as url, fake_model(Play(1, 0.05)) as model, server(url, model) as process:
            client = Client(process.port)
            times = []
            for number in range(starts + 1):
                times.append(start_once(client, model, f"u{number}"))
                time.sleep(PAUSE_SECONDS)
        rows += _rows(kind, times)
        worst = max(moment for row in times for moment in row)
        what = f"start to first state and first model request, the longest of {len(times)} on {kind}"
        report.bars.append(Bar(what, f"within {MAX_MS} ms", f"{worst:.1f} ms", worst <= MAX_MS))
    columns = ["database", "starts"]
    columns += [f"{column}: {share} ms" for column in COLUMNS for share in ("p50", "longest")]
    report.tables.append(Table("ms after the POST was sent", columns, rows))
    report.notes += databases.notes
    return report


def _rows(kind: str, times: list[list[float]]) -> list[list]:
    def show(chosen: Sequence[Sequence[float]]) -> list[float]:
        columns = list(zip(*chosen, strict=True))
        return [figure for column in columns for figure in (percentile(column, 0.5), max(column))]

    return [[kind, "the first", *show(times[:1])], [kind, f"{len(times) - 1} more", *show(times[1:])]]


def run(options: Options) -> Report:
    """Measure."""
    with Databases() as databases:
        return measure(databases, starts=5 if options.quick else STARTS)
