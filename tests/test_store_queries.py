"""The loader of the SQL files: names, parameters, dialects, and what it refuses."""

import pytest

from gligabao.store.queries import QueryError, load_queries, read_queries


@pytest.fixture
def folder(tmp_path):
    """An empty folder laid out as `sql/`."""
    for dialect in ("sqlite", "postgres"):
        (tmp_path / dialect).mkdir()
    return tmp_path


def write(folder, *queries, file="queries.sql"):
    (folder / file).write_text("\n".join(queries), encoding="utf-8")


def read_one(folder, statement, dialect="postgres"):
    write(folder, "-- name: q", statement)
    return read_queries(folder, dialect)["q"]


def test_a_query_of_the_dialect_replaces_the_shared_one(folder):
    write(folder, "-- name: a", "SELECT 'shared a';", "-- name: b", "SELECT 'shared b';")
    write(folder / "sqlite", "-- name: b", "SELECT 'own b';", "-- name: c", "SELECT 'own c';")
    queries = read_queries(folder, "sqlite")
    assert [query.text for query in queries] == ["SELECT 'shared a';", "SELECT 'own b';", "SELECT 'own c';"]
    assert read_queries(folder, "postgres")["b"].text == "SELECT 'shared b';"


def test_sqlite_gets_the_text_as_it_stands(folder):
    query = read_one(folder, "SELECT :a, '50%' LIKE :b", "sqlite")
    assert query.text == "SELECT :a, '50%' LIKE :b"
    assert query.parameters == {"a", "b"}


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("SELECT :a, :b_2;", "SELECT %(a)s, %(b_2)s;"),
        ("SELECT :a::TEXT, x::INT", "SELECT %(a)s::TEXT, x::INT"),
        ("SELECT 10 % :a", "SELECT 10 %% %(a)s"),
        ("SELECT ':no', '50%', 'it''s :no'", "SELECT ':no', '50%%', 'it''s :no'"),
        ('SELECT ":no%" FROM t', 'SELECT ":no%%" FROM t'),
        ("SELECT 1 -- it's :no, 5%\n, :a", "SELECT 1 -- it's :no, 5%%\n, %(a)s"),
        ("SELECT /* ':no */ :a", "SELECT /* ':no */ %(a)s"),
        ("SELECT $$ :no % ' $$, $x$ :no $$ $x$, :a", "SELECT $$ :no %% ' $$, $x$ :no $$ $x$, %(a)s"),
        ("SELECT '10:30', x[1:2]", "SELECT '10:30', x[1:2]"),
        ("SELECT 'Grüße', :a", "SELECT 'Grüße', %(a)s"),
    ],
)
def test_only_parameters_become_parameters_of_psycopg(folder, statement, text):
    query = read_one(folder, statement)
    assert query.text == text
    assert "no" not in query.parameters


def test_a_name_given_twice_in_a_folder_is_refused(folder):
    write(folder, "-- name: a", "SELECT 1;", file="one.sql")
    write(folder, "-- name: a", "SELECT 2;", file="two.sql")
    with pytest.raises(QueryError, match=r'two\.sql: the query "a" is already in this folder'):
        read_queries(folder, "sqlite")


def test_a_query_without_a_name_is_refused(folder):
    write(folder, "-- the answer", "SELECT 42;", "-- name: a", "SELECT 1;")
    with pytest.raises(QueryError, match=r"queries\.sql: a query without a name"):
        read_queries(folder, "sqlite")


def test_a_remark_may_stand_above_the_first_query(folder):
    write(folder, "-- All about a.", "/* More. */", "", "-- name: a", "SELECT 1;")
    assert read_queries(folder, "sqlite")["a"].text == "SELECT 1;"


@pytest.mark.parametrize("name", ["", "Two Words", "a-b", "1a"])
def test_what_is_no_name_is_refused(folder, name):
    write(folder, f"-- name: {name}", "SELECT 1;")
    with pytest.raises(QueryError, match=f'"{name}" is not a name for a query'):
        read_queries(folder, "sqlite")


def test_a_name_without_a_query_is_refused(folder):
    write(folder, "-- name: a", "-- to be written", "-- name: b", "SELECT 1;")
    with pytest.raises(QueryError, match='the query "a" is empty'):
        read_queries(folder, "sqlite")


# Fragments


FRAGMENT = """
-- fragment: columns
-- It's what {no} query must :miss; 5%.
id, /* inside */ ':no' AS text,
name
"""


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_a_fragment_stands_where_a_query_names_it(folder, dialect):
    write(
        folder, "-- name: one", "SELECT {columns} FROM t;", "-- name: two", "-- All.", "SELECT 1, {columns}", FRAGMENT
    )
    queries = read_queries(folder, dialect)
    columns = "id,  ':no' AS text,\nname"
    assert [query.text for query in queries] == [f"SELECT {columns} FROM t;", f"-- All.\nSELECT 1, {columns}"]
    assert [query.parameters for query in queries] == [frozenset(), frozenset()]


def test_a_parameter_of_a_fragment_is_one_of_the_query(folder):
    write(folder, "-- fragment: mine", "owner = :owner AND id % 2 = 0", "-- name: q", "SELECT :a WHERE {mine}")
    assert read_queries(folder, "sqlite")["q"].text == "SELECT :a WHERE owner = :owner AND id % 2 = 0"
    query = read_queries(folder, "postgres")["q"]
    assert query.text == "SELECT %(a)s WHERE owner = %(owner)s AND id %% 2 = 0"
    assert query.parameters == {"a", "owner"}


def test_nothing_is_put_into_texts_and_comments(folder):
    statement = """SELECT '{a}', "{a}", $$ {a} $$, /* {a} */ 1 -- {a}"""
    assert read_one(folder, statement).text == statement


def test_a_fragment_of_the_dialect_replaces_the_shared_one(folder):
    write(folder, "-- fragment: clock", "now()", "-- name: time", "SELECT {clock};")
    write(folder / "sqlite", "-- fragment: clock", "datetime()")
    assert read_queries(folder, "sqlite")["time"].text == "SELECT datetime();"
    assert read_queries(folder, "postgres")["time"].text == "SELECT now();"


def test_a_shared_query_may_include_what_each_dialect_says_in_its_own_words(folder):
    write(folder, "-- name: time", "SELECT {clock};")
    write(folder / "sqlite", "-- fragment: clock", "datetime()")
    assert read_queries(folder, "sqlite")["time"].text == "SELECT datetime();"
    with pytest.raises(QueryError, match='the query "time" includes "clock", which is not a fragment in sql/'):
        read_queries(folder, "postgres")


def test_a_fragment_is_not_a_query_and_may_have_the_name_of_one(folder):
    write(folder, "-- fragment: a", "1", "-- fragment: b", "2", "-- name: a", "SELECT {a}, {b};")
    queries = read_queries(folder, "sqlite")
    assert [query.name for query in queries] == ["a"]
    with pytest.raises(QueryError, match='there is no query "b"'):
        queries["b"]


@pytest.mark.parametrize("name", ["", "columns", "Columns", " a", "a b"])
def test_a_fragment_that_is_not_there_is_named(folder, name):
    write(folder, "-- name: q", f"SELECT {{{name}}}, {{a}}", "-- fragment: a", "1")
    with pytest.raises(QueryError, match=rf'queries\.sql: the query "q" includes "{name}", which is not a fragment'):
        read_queries(folder, "sqlite")


def test_a_fragment_that_no_query_includes_is_refused(folder):
    write(folder, "-- fragment: a", "1", "-- name: q", "SELECT {a}")
    write(folder / "sqlite", "-- name: q", "SELECT 1")
    assert read_queries(folder, "postgres")
    with pytest.raises(QueryError, match=r'queries\.sql: no sqlite query includes the fragment "a"'):
        read_queries(folder, "sqlite")


def test_a_fragment_inside_a_fragment_is_refused(folder):
    write(folder, "-- fragment: a", "1", "-- fragment: b", "{a}, 2", "-- name: q", "SELECT {a}, {b}")
    with pytest.raises(QueryError, match=r'queries\.sql: the fragment "b" includes another: only queries may'):
        read_queries(folder, "sqlite")


def test_a_fragment_is_named_and_said_once_like_a_query(folder):
    for text, fault in [
        ("-- fragment: A\n1", '"A" is not a name for a fragment'),
        ("-- fragment: a\n-- later", 'the fragment "a" is empty'),
        ("-- fragment: a\n1\n-- fragment: a\n2", 'the fragment "a" is already in this folder'),
    ]:
        write(folder, "-- name: q", "SELECT {a}", text)
        with pytest.raises(QueryError, match=fault):
            read_queries(folder, "sqlite")


# Calls


def test_a_query_that_is_not_there_is_named(db):
    with pytest.raises(QueryError, match='there is no query "list_cats" in sql/'):
        db.fetch_all("list_cats")


@pytest.mark.parametrize(
    ("params", "given"), [({"id": 7}, "id"), ({"id": 7, "user_id": "u1", "limit": 1}, "id, limit, user_id")]
)
def test_a_parameter_too_few_or_too_many_is_named(db, params, given):
    with pytest.raises(QueryError, match=rf'query "get_run" takes \(id, user_id\), but was given \({given}\)'):
        db.fetch_one("get_run", **params)


def test_the_queries_are_read_once(db):
    assert load_queries(db.dialect) is load_queries(db.dialect)


def test_both_dialects_have_the_same_queries_but_for_one_that_sqlite_cannot_say_at_once():
    names = [{query.name for query in load_queries(dialect)} for dialect in ("sqlite", "postgres")]
    assert names[0] - names[1] == {"save_progress"}
    assert names[1] - names[0] == {"save_progress_and_states"}
