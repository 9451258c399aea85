"""The SQL of gligabao: queries with names, read from `sql/` in the form that the driver wants.

Owns how the files are written: `-- name: insert_run`, a comment that says what it is for, then one statement with
`:name` parameters. SQL that several queries share is a fragment: `-- fragment: run_columns`, a comment, then the SQL,
which queries include as `{run_columns}`. A query or a fragment in `sql/sqlite/` or `sql/postgres/` replaces the shared
one of the same name. Running queries is left to `transaction`.
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

_HEADING = re.compile(r"^--[ \t]*(name|fragment):(.*)$", re.MULTILINE)
_KINDS = {"name": "query", "fragment": "fragment"}
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_REMARK = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
# Texts and comments come first: nothing is looked for inside them.
_TOKEN = re.compile(
    r"""
      '(?:[^']|'')*'                        # a text
    | "(?:[^"]|"")*"                        # a quoted name
    | (?P<comment>--[^\n]*|/\*.*?\*/)
    | \$(?P<tag>\w*)\$ .*? \$(?P=tag)\$     # a dollar-quoted text of Postgres
    | ::                                    # a cast
    | :(?P<parameter>[a-zA-Z_]\w*)
    | \{(?P<fragment>[^{}]*)\}
    | %
    """,
    re.VERBOSE | re.DOTALL,
)


class QueryError(GligabaoError):
    """The SQL files contradict each other, or a call does not match its query: a bug, never the user's fault."""


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
    """Return the queries of the dialect. They are read once in a process."""
    return read_queries(data_dir("sql"), dialect)


def read_queries(folder: Traversable, dialect: Dialect) -> Queries:
    """Return the shared queries of the folder, with those that the dialect replaces or adds."""
    parts = {**_read_folder(folder), **_read_folder(folder / dialect)}
    queries = {name: part for (kind, name), part in parts.items() if kind == "query"}
    fragments = {name: part for (kind, name), part in parts.items() if kind == "fragment"}
    _check_fragments(queries, fragments, dialect)
    texts = {name: _strip_comments(part.text) for name, part in fragments.items()}
    return Queries({name: _make_query(name, _expand(part.text, texts), dialect) for name, part in queries.items()})


@dataclass(frozen=True, slots=True)
class _Part:
    """A query or a fragment, as it stands in its file."""

    file: Traversable
    text: str

    def includes(self) -> set[str]:
        """Return the names of the fragments that it includes."""
        return {token["fragment"] for token in _TOKEN.finditer(self.text) if token["fragment"] is not None}


_Key = tuple[str, str]
"""`query` or `fragment`, and its name."""


def _read_folder(folder: Traversable) -> dict[_Key, _Part]:
    parts: dict[_Key, _Part] = {}
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        for kind, name, text in _split(file):
            if (kind, name) in parts:
                raise QueryError(f'{file}: the {kind} "{name}" is already in this folder')
            parts[kind, name] = _Part(file, text)
    return parts


def _split(file: Traversable) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the name and the text of each query and fragment of a file."""
    preface, *rest = _HEADING.split(file.read_text(encoding="utf-8"))
    if not _is_blank(preface):
        raise QueryError(f"{file}: a query without a name: put a line `-- name: ...` above it")
    for keyword, heading, text in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        kind, name = _KINDS[keyword], heading.strip()
        if not _NAME.fullmatch(name):
            raise QueryError(f'{file}: "{name}" is not a name for a {kind}: use a-z, 0-9 and _')
        if _is_blank(text):
            raise QueryError(f'{file}: the {kind} "{name}" is empty')
        yield kind, name, text.strip()


def _is_blank(statement: str) -> bool:
    return not _REMARK.sub("", statement).strip()


def _check_fragments(queries: Mapping[str, _Part], fragments: Mapping[str, _Part], dialect: Dialect) -> None:
    """Raise `QueryError` for a fragment that is missing, unused, or includes another."""
    included: set[str] = set()
    for name, query in queries.items():
        for unknown in query.includes() - fragments.keys():
            raise QueryError(f'{query.file}: the query "{name}" includes "{unknown}", which is not a fragment in sql/')
        included |= query.includes()
    for name, fragment in fragments.items():
        if name not in included:
            raise QueryError(f'{fragment.file}: no {dialect} query includes the fragment "{name}"')
        if fragment.includes():
            raise QueryError(f'{fragment.file}: the fragment "{name}" includes another: only queries may')


def _strip_comments(text: str) -> str:
    return _TOKEN.sub(lambda token: "" if token["comment"] else token[0], text).strip()


def _expand(statement: str, fragments: Mapping[str, str]) -> str:
    """Return the statement with the text of each fragment in place of its name."""
    return _TOKEN.sub(lambda token: token[0] if token["fragment"] is None else fragments[token["fragment"]], statement)


def _make_query(name: str, statement: str, dialect: Dialect) -> Query:
    parameters = frozenset(token["parameter"] for token in _TOKEN.finditer(statement) if token["parameter"])
    # sqlite3 reads `:name` itself; psycopg wants `%(name)s`, and every other percent sign doubled.
    text = _TOKEN.sub(_psycopg_token, statement) if dialect == "postgres" else statement
    return Query(name, text, parameters)


def _psycopg_token(token: re.Match[str]) -> str:
    if token["parameter"]:
        return f"%({token['parameter']})s"
    return token[0].replace("%", "%%")
