"""The benchmarks run and check what they measure. What they measure is of no interest here."""

import tempfile
from contextlib import contextmanager
from itertools import pairwise

import pytest
from click.testing import CliRunner

from benchmarks import agents, lists, page, report, store
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.fake_model import Play, fake_model
from benchmarks.report import Bar, Report, Table
from gligabao.store.migrate import migrate
from gligabao.store.runs import Runs
from tests.databases import open_database


class SqliteOnly:
    """As `benchmarks.databases.Databases`, without a Postgres to start."""

    kinds = ("sqlite",)
    notes = ()

    @contextmanager
    def new(self, kind):
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/bench.db"


@pytest.fixture
def databases():
    return SqliteOnly()


def test_each_benchmark_is_named_in_the_help():
    text = CliRunner().invoke(main, ["--help"]).output
    assert all(name in text for name in BENCHMARKS)


def test_an_unknown_benchmark_is_refused():
    assert CliRunner().invoke(main, ["speed"]).exit_code == 2


def test_state_changes_are_counted_for_our_store_and_for_the_bare_driver(databases):
    found = store.measure(databases, threads=(1, 3), seconds=0.2)
    rows = found.tables[0].rows
    assert [row[:2] for row in rows] == [
        ["sqlite", 1],
        ["sqlite, bare driver", 1],
        ["sqlite", 3],
        ["sqlite, bare driver", 3],
    ]
    assert all(row[2] > 0 for row in rows)
    assert len(found.bars) == 2


def test_every_read_answers_as_many_rows_at_each_size(databases):
    found = lists.measure(databases, sizes=(1000, 2000), times=2)  # it checks the counts itself
    assert [row[0] for row in found.tables[0].rows] == list(lists.reads(1000))


def test_the_rows_of_the_lists_are_filled_in_on_postgres_too(postgres_url):
    database = open_database(postgres_url)
    try:
        migrate(database)
        lists.fill(postgres_url, 1000)
        run, states = Runs(database).get_run_with_states(1, user_id="heavy")
    finally:
        database.close()
    assert run.report == lists.REPORT
    assert [state.seq for state in states] == list(range(1, 41))


def test_agents_are_run_to_their_end_and_checked(databases):
    loads = (agents.Load(3, 0.05, steps=3), agents.Load(3, 0.05, steps=3, pages_over="https"))
    found = agents.measure(databases, loads)
    assert [row[:6] for row in found.tables[0].rows] == [
        [3, 0.05, "sqlite", 20, "http", "none"],
        [3, 0.05, "sqlite", 20, "https", "none"],
    ]
    assert [bar.met for bar in found.bars] == [True, True]


def test_pages_are_read_over_http_and_over_tls():
    found = page.measure(pages=2, rounds=1)  # it checks the counts itself
    assert [row[0] for row in found.tables[0].rows] == ["http", "https", "https, own context"]


def test_what_agents_left_out_is_told():
    found = {"completed": 2, "states": 20, "tool_errors": 1, "gaps": 0, "at_once": True}
    found["model"] = {"calls": 9, "pages": 6}
    assert agents._faults(agents.Load(3, 1, steps=3), found) == [
        "runs completed 2 instead of 3",
        "states stored 20 instead of 21",
        "tool errors 1 instead of 0",
    ]


def test_the_fake_model_says_what_was_asked_of_it():
    with fake_model(Play(2)) as model:
        assert model.stats()["calls"] == 0
        assert model.address in model.url


def test_a_table_shows_its_columns_in_line_and_a_bar_whether_it_was_met():
    table = Table("Sizes", ("what", "ms"), [["a", 0.123], ["a longer one", 1234.5], ["nothing", None]])
    found = Report("sizes", [table], [Bar("size", "at most 1", "2", False)], ["A note."])
    lines = found.show().splitlines()
    assert lines[0] == "## sizes"
    assert lines[4:9] == [
        "| what         | ms    |",
        "| ------------ | ----- |",
        "| a            | 0.12  |",
        "| a longer one | 1,234 |",
        "| nothing      | -     |",
    ]
    assert "MISSED  size: 2 (bar: at most 1)" in lines


def test_percentiles_are_values_that_were_measured():
    values = [float(number) for number in range(100)]
    shares = [report.percentile(values, share) for share in (0, 0.5, 0.99, 1)]
    assert shares == [0, 50, 99, 99]
    assert all(low <= high for low, high in pairwise(shares))
