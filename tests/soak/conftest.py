"""What the long fault tests share: a site to break, and a place for their figures."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.site import Site

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All that is here is long."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.soak)


@pytest.fixture
def figures(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints a line of figures, and appends it to the file that `GLIGABAO_SOAK_REPORT` names."""

    def write(line: str) -> None:
        line = f"{request.node.name.removeprefix('test_').replace('_', ' ')}: {line}"
        with capsys.disabled():
            print(f"\n{line}")
        if report := os.environ.get("GLIGABAO_SOAK_REPORT"):
            with Path(report).open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    return write


@pytest.fixture
def site(database_url: str, tmp_path: Path) -> Iterator[Site]:
    """A database, a simulated model and servers, once with each kind of database."""
    with Site(database_url, tmp_path) as site:
        yield site
