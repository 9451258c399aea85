"""What a benchmark found: tables, the bars it is held to, and where it was measured.

Only the standard library: the peers' environments import it too.
"""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("gligabao", "anthropic", "flask", "gunicorn", "psycopg", "pydantic", "requests")

Cell = str | float | int | None


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    quick: bool = False
    """Small and short: shows that it works, not what it costs."""
    with_peers: bool = False
    """Measure other frameworks too, which are installed for that in a folder of their own."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under column names."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def show(self) -> str:
        """Return it as a Markdown table whose columns are in line."""
        rows = [list(self.columns), *([show_cell(cell) for cell in row] for row in self.rows)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(self.columns))]
        rows.insert(1, ["-" * width for width in widths])
        lines = [
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
        ]
        return "\n".join([f"{self.title}\n", *lines])


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure that is to be reached, and what was measured."""

    what: str
    limit: str
    measured: str
    met: bool

    def show(self) -> str:
        """Return it as a line."""
        return f"{'met   ' if self.met else 'MISSED'}  {self.what}: {self.measured} (bar: {self.limit})"


@dataclass(slots=True)
class Report:
    """All that one benchmark found."""

    name: str
    tables: list[Table] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was not measured, and why."""

    def show(self) -> str:
        """Return it as text."""
        parts = [table.show() for table in self.tables]
        parts += ["\n".join(bar.show() for bar in self.bars)] if self.bars else []
        parts += self.notes
        return "\n\n".join([f"## {self.name}", *parts])

    def write(self, folder: Path, **circumstances: object) -> Path:
        """Write it as JSON into the folder and return the file."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{self.name}.json"
        file.write_text(json.dumps(circumstances | asdict(self), indent=1) + "\n", encoding="utf-8")
        return file


def show_cell(cell: Cell) -> str:
    """Return a figure with about three digits that count."""
    if cell is None:
        return "-"
    if isinstance(cell, str | int):
        return cell if isinstance(cell, str) else f"{cell:,}"
    return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.2f}"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of the values (0.99: 99 %) do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def describe_machine() -> dict[str, object]:
    """Return where and with what the figures are measured."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": os.cpu_count(),
        "cpu": _first_value("/proc/cpuinfo", "model name"),
        "memory": _first_value("/proc/meminfo", "MemTotal"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _first_value(file: str, name: str) -> str:
    path = Path(file)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "unknown")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
