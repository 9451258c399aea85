"""The SQL of gligabao: queries with names, read from `sql/` in the form that the driver wants.

Owns how the files are written: `-- name: insert_run`, a comment that says what for, then one statement with `:name`
parameters. A query in `sql/sqlite/` or `sql/postgres/` replaces the shared one of the same name. Running them is left
to `transaction`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources.abc import Traversable
from typing import Literal

from gligabao.errors import GligabaoError
from gligabao.resources import data_dir

Dialect = Literal["sqlite", "postgres"]

_HEADING = re.compile(r"^--[ \t]*name:(.*)$", re.MULTILINE)
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_REMARK = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
# What can hold a colon or a percent sign comes first, so that neither is looked for inside it.
_TOKEN = re.compile(
    r"""
      '(?:[^']|'')*'                        # a text
    | "(?:[^"]|"")*"                        # a quoted name
    | --[^\n]* | /\*.*?\*/                  # a comment
    | \$(?P<tag>\w*)\$ .*? \$(?P=tag)\$     # a text in dollars, as Postgres has it
    | ::                                    # a cast
    | :(?P<parameter>[a-zA-Z_]\w*)
    | %
    """,
    re.VERBOSE | re.DOTALL,
)


class QueryError(GligabaoError):
    """The SQL files, or a call, do not fit together: a fault of the program, never of its user."""


@dataclass(frozen=True, slots=True)
class Query:
    """One statement, ready for the driver."""

    name: str
    text: str
    parameters: frozenset[str]

    def check(self, given: Mapping[str, object]) -> None:
        """Raise `QueryError` unless exactly the parameters of the query are given."""
        if given.keys() != self.parameters:
            wanted, got = ", ".join(sorted(self.parameters)), ", ".join(sorted(given))
            raise QueryError(f'query "{self.name}" takes ({wanted}), but was given ({got})')


class Queries:
    """The queries of one dialect, by name."""

    def __init__(self, queries: Mapping[str, Query]) -> None:
        self._queries = queries

    def __getitem__(self, name: str) -> Query:
        try:
            return self._queries[name]
        except KeyError:
            raise QueryError(f'there is no query "{name}" in sql/') from None

    def __iter__(self) -> Iterator[Query]:
        return iter(self._queries.values())


@cache
def load_queries(dialect: Dialect) -> Queries:
    """Return the queries of the dialect, read once for the whole process."""
    return read_queries(data_dir("sql"), dialect)


def read_queries(folder: Traversable, dialect: Dialect) -> Queries:
    """Return the shared queries of the folder, with those that the dialect replaces or adds."""
    return Queries({**_read_folder(folder, dialect), **_read_folder(folder / dialect, dialect)})


def _read_folder(folder: Traversable, dialect: Dialect) -> dict[str, Query]:
    queries: dict[str, Query] = {}
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        for name, statement in _split(file):
            if name in queries:
                raise QueryError(f'{file}: the query "{name}" is already in this folder')
            queries[name] = _make_query(name, statement, dialect)
    return queries


def _split(file: Traversable) -> Iterator[tuple[str, str]]:
    """Yield the name and the statement of each query of a file."""
    preface, *parts = _HEADING.split(file.read_text(encoding="utf-8"))
    if _is_blank(preface):
        for heading, statement in zip(parts[::2], parts[1::2], strict=True):
            name = heading.strip()
            if not _NAME.fullmatch(name):
                raise QueryError(f'{file}: "{name}" is no name for a query: use a-z, 0-9 and _')
            if _is_blank(statement):
                raise QueryError(f'{file}: the query "{name}" is empty')
            yield name, statement.strip()
    else:
        raise QueryError(f"{file}: a query without a name: put a line `-- name: ...` above it")


def _is_blank(statement: str) -> bool:
    return not _REMARK.sub("", statement).strip()


def _make_query(name: str, statement: str, dialect: Dialect) -> Query:
    parameters = frozenset(token["parameter"] for token in _TOKEN.finditer(statement) if token["parameter"])
    # sqlite3 reads `:name` itself; psycopg wants `%(name)s`, and every other percent sign doubled.
    text = _TOKEN.sub(_psycopg_token, statement) if dialect == "postgres" else statement
    return Query(name, text, parameters)


def _psycopg_token(token: re.Match[str]) -> str:
    if token["parameter"]:
        return f"%({token['parameter']})s"
    return token[0].replace("%", "%%")
