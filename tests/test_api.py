"""REST: what it takes, what it refuses and how it says so."""

import json
import sqlite3
from contextlib import closing

import psycopg
import pytest
from flask import Blueprint, Response, jsonify

from gligabao.errors import Unavailable
from gligabao.handlers.inputs import ListResearch
from gligabao.simulator import replies
from gligabao.store.database import is_sqlite, sqlite_path
from gligabao.web.auth import current_caller
from gligabao.web.failures import answer_errors
from gligabao.web.requests import read_query
from tests.checker import read_rows
from tests.faulty import FailAt

USER = "user_id=u1"


@pytest.fixture
def world(database_url, new_world):
    world = new_world(database_url)
    yield world
    assert_nothing_recorded = getattr(world, "nothing_recorded", False)
    if assert_nothing_recorded:
        assert read_rows(database_url)[0] == []


def body(**changes):
    return {"user_id": "u1", "topic": "A topic", "max_steps": 3} | changes


BAD_BODIES = [
    (body(topic=""), "topic: must not be empty"),
    (body(topic=" \n\t"), "topic: must not be empty"),
    (body(topic="x" * 2001), "topic: must have at most 2,000 characters"),
    (body(topic=7), "topic: must be a string"),
    (body(topic="nul \x00"), "topic: must not contain a NUL character"),
    (body(topic="half \ud800"), "topic: must not contain half a surrogate pair"),
    (body(max_steps=0), "max_steps: must be at least 1"),
    (body(max_steps=41), "max_steps: must be at most 40"),
    (body(max_steps="x"), "max_steps: must be a whole number"),
    (body(max_steps="3"), "max_steps: must be a whole number"),
    (body(max_steps=True), "max_steps: must be a whole number"),
    (body(max_steps=1.5), "max_steps: must be a whole number"),
    (body(max_steps=None), "max_steps: must be a whole number"),
    (body(model=3), "model: must be at most 128 printable ASCII characters, without spaces"),
    (body(model="two words"), "model: must be at most 128 printable ASCII characters, without spaces"),
    (body(dataset=""), "dataset: must be 1 to 64 of a-z"),
    (body(dataset="Main"), "dataset: must be 1 to 64 of a-z"),
    (body(dataset="-main"), "dataset: must be 1 to 64 of a-z"),
    (body(dataset="m" * 65), "dataset: must be 1 to 64 of a-z"),
    (body(dataset="main\n"), "dataset: must be 1 to 64 of a-z"),
    (body(step=3), "step: unknown field (known fields: user_id, topic, max_steps, model, dataset)"),
    (body(user_id="a b"), "user_id: must be 1 to 128 letters"),
    (body(user_id="u\n"), "user_id: must be 1 to 128 letters"),
    (body(user_id=""), "user_id: must be 1 to 128 letters"),
    (body(user_id="u" * 129), "user_id: must be 1 to 128 letters"),
    (body(user_id=1), "user_id: must be 1 to 128 letters"),
    ({"topic": "A topic"}, "user_id: is missing"),
    ({"user_id": "u1"}, "topic: is missing"),
]


@pytest.mark.parametrize(("bad", "told"), BAD_BODIES, ids=[told for _, told in BAD_BODIES])
def test_a_bad_body_is_told_by_field(world, bad, told):
    world.nothing_recorded = True
    response = world.client.post("/v1/gb/research", data=json.dumps(bad), content_type="application/json")
    assert response.status_code == 400
    assert response.json["error"].startswith(told)


def test_all_faults_are_named_at_once(world):
    world.nothing_recorded = True
    response = world.client.post("/v1/gb/research", json={"user_id": "a b", "topic": "", "max_steps": 41, "x": 1})
    error = response.json["error"]
    assert response.status_code == 400
    assert [fault.split(":")[0] for fault in error.split("; ")] == ["user_id", "topic", "max_steps", "x"]


def test_a_flood_of_faults_gets_a_short_answer(world):
    world.nothing_recorded = True
    response = world.client.post("/v1/gb/research", json={f"field_{n}_{'x' * 500}": n for n in range(1000)})
    assert response.status_code == 400
    assert len(response.data) < 10_000
    assert response.json["error"].endswith("more faults")


BAD_TEXTS = [
    (b"", "the body is empty"),
    (b"  \n", "the body is empty"),
    (b"{", "the body is not JSON"),
    (b"{'a': 1}", "the body is not JSON"),
    (b"[]", "the body must be a JSON object"),
    (b'"text"', "the body must be a JSON object"),
    (b"null", "the body must be a JSON object"),
    (b"user_id=u1&topic=x", "the body is not JSON"),
    (b'{"topic": NaN}', "the body is not usable JSON: NaN"),
    (b'{"topic": "a", "topic": "b"}', "the body is not usable JSON: topic given more than once"),
    (b"\xff\xfe{}", "the body is not UTF-8"),
    (rb'{"\ud800": 1, "\ud800": 2}', "the body is not usable JSON: ? given more than once"),
    (b'{"a": 1' + b', "a": 1' * 100_000 + b"}", "the body is not usable JSON: a given more than once"),
    (b"[" * 100_000, "the body is nested too deeply"),
    (b'{"max_steps": ' + b"9" * 5000 + b"}", "the body is not usable JSON"),
]


@pytest.mark.parametrize(("raw", "told"), BAD_TEXTS, ids=[told for _, told in BAD_TEXTS])
@pytest.mark.parametrize("label", ["application/json", "application/x-www-form-urlencoded", None])
def test_a_body_that_is_no_json_object_is_told(world, raw, told, label):
    world.nothing_recorded = True
    response = world.client.post("/v1/gb/research", data=raw, content_type=label)
    assert response.status_code == 400
    assert response.json["error"].startswith(told)


@pytest.mark.parametrize("text", ["half \ud800", "\udc00\ud83d half"])
def test_half_a_surrogate_pair_stops_no_answer(world, text):
    with world.app.app_context():
        answer = jsonify({"error": text})
    assert answer.json == {"error": text.encode("utf-8", "replace").decode()}
    assert answer.content_length == len(answer.data)


@pytest.mark.parametrize("label", ["text/plain", "multipart/form-data; boundary=x", "application/xml", "text/json"])
def test_another_label_is_a_415(world, label):
    world.nothing_recorded = True
    response = world.client.post("/v1/gb/research", data=json.dumps(body()), content_type=label)
    assert response.status_code == 415
    assert label.split(";")[0] in response.json["error"]


def test_a_body_over_a_mebibyte_is_a_413(world):
    world.nothing_recorded = True
    response = world.client.post("/v1/gb/research", json=body(topic="x" * 1_100_000))
    assert response.status_code == 413
    assert "1,048,576" in response.json["error"]


BAD_QUERIES = [
    ("", "user_id: is missing"),
    ("user_id=a%20b", "user_id: must be 1 to 128 letters"),
    (f"{USER}&active=true&status=running", "active and status cannot be used together"),
    (f"{USER}&active=maybe", "active: must be true or false"),
    (f"{USER}&status=paused", 'status: must be "running", "completed" or "failed"'),
    (f"{USER}&limit=0", "limit: must be at least 1"),
    (f"{USER}&limit=501", "limit: must be at most 500"),
    (f"{USER}&limit=x", "limit: must be a whole number"),
    (f"{USER}&limit=1_0", "limit: must be a whole number"),
    (f"{USER}&limit=", "limit: must be a whole number"),
    (f"{USER}&parent_id=x", "parent_id: must be a whole number"),
    (f"{USER}&before=-1", "before: must be at least 1"),
    (f"{USER}&before=99999999999999999999", "before: must be at most 9223372036854775807"),
    (f"{USER}&limit=1&limit=2", "limit: given more than once"),
    (
        f"{USER}&offset=3",
        "offset: unknown parameter (known parameters: user_id, active, status, parent_id, before, limit)",
    ),
]


@pytest.mark.parametrize(("query", "told"), BAD_QUERIES, ids=[told for _, told in BAD_QUERIES])
def test_a_bad_list_query_is_told_by_field(world, query, told):
    response = world.client.get(f"/v1/gb/research?{query}")
    assert response.status_code == 400
    assert response.json["error"].startswith(told)


@pytest.mark.parametrize("run_id", ["x", "0", "01", "-1", "1.0", "99999", "9" * 30, "%C2%B2", "1%20"])
def test_an_id_that_is_not_there_is_a_404(world, run_id):
    assert world.client.get(f"/v1/gb/research/{run_id}?{USER}").status_code == 404


def test_another_users_run_is_as_if_it_were_not_there(world):
    run_id = world.start(replies.text("Report."))
    world.finish(run_id)
    foreign = world.client.get(f"/v1/gb/research/{run_id}?user_id=u2")
    absent = world.client.get("/v1/gb/research/424242?user_id=u2")
    assert foreign.status_code == absent.status_code == 404
    assert foreign.json["error"].replace(str(run_id), "N") == absent.json["error"].replace("424242", "N")
    assert world.client.get("/v1/gb/research?user_id=u2").json == {"runs": []}
    assert world.client.get(f"/v1/gb/research?user_id=u2&parent_id={run_id}").json == {"runs": []}


def test_a_start_answers_202_with_the_run_and_where_it_is(world):
    response = world.client.post("/v1/gb/research", json={"user_id": "u1", "topic": "A topic"})
    assert response.status_code == 202
    run = response.json
    assert response.headers["Location"] == f"/v1/gb/research/{run['id']}"
    assert list(run) == [
        *("id", "user_id", "parent_id", "name", "reason", "topic", "status", "state", "model", "max_steps", "steps"),
        *("tool_calls", "input_tokens", "output_tokens", "cost_usd", "report", "error", "stop_reason"),
        *("created_at", "finished_at"),
    ]
    expected = {
        "user_id": "u1", "parent_id": None, "name": "", "reason": "", "topic": "A topic", "status": "running",
        "state": "starting", "model": "claude-sonnet-5-5", "max_steps": 20, "steps": 0, "tool_calls": 0,
        "input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0, "report": "", "error": "", "stop_reason": None,
        "finished_at": None,
    }  # fmt: skip
    assert {key: run[key] for key in expected} == expected
    world.finish(run["id"])


def test_what_curl_sends_is_read(world):
    raw = '{"user_id": "u1", "topic": "...", "max_steps": 20}'
    response = world.client.post("/v1/gb/research", data=raw, content_type="application/x-www-form-urlencoded")
    assert response.status_code == 202


def test_the_user_may_stand_in_the_query(world):
    assert world.client.post(f"/v1/gb/research?{USER}", json={"topic": "A topic"}).json["user_id"] == "u1"
    assert world.client.post(f"/v1/gb/research?{USER}", json=body(user_id="u2")).status_code == 400
    assert world.client.post(f"/v1/gb/research?{USER}&x=1", json=body()).status_code == 400


def test_the_list_can_be_filtered_and_paged(world):
    ids = [world.run(replies.text("Report."))["id"] for _ in range(3)]
    failed = world.run(replies.error(400))["id"]

    def listed(query=""):
        runs = world.client.get(f"/v1/gb/research?{USER}{query}").json["runs"]
        assert all("states" not in run for run in runs)
        return [run["id"] for run in runs]

    assert listed() == [failed, *reversed(ids)]
    assert listed("&status=failed") == [failed]
    assert listed("&status=completed&limit=2") == [ids[2], ids[1]]
    assert listed(f"&before={ids[1]}") == [ids[0]]
    assert listed("&active=true") == []
    assert listed("&active=false") == [failed, *reversed(ids)]
    assert listed(f"&parent_id={ids[0]}") == []


def test_states_can_be_read_from_a_place_on(world):
    run = world.run(replies.text("Report."))
    later = world.client.get(f"/v1/gb/research/{run['id']}?{USER}&states_after=2").json
    assert later["states"] == run["states"][2:]


def test_without_a_model_key_a_start_is_a_503_and_nothing_is_recorded(database_url, new_world):
    world = new_world(database_url, anthropic_api_key=None)
    response = world.post()
    assert response.status_code == 503
    assert "ANTHROPIC_API_KEY" in response.json["error"]
    assert world.client.get(f"/v1/gb/research?{USER}").json == {"runs": []}
    assert world.client.get("/readyz").json == {"status": "ready", "model_key": False}


def test_the_server_can_be_full(database_url, new_world):
    world = new_world(database_url, max_working=1)
    world.start(replies.hang())
    response = world.post(user="u2")
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "30"
    assert "1 agents are at work" in response.json["error"]


def test_a_fourth_research_is_a_409(world):
    for _ in range(3):
        world.start(replies.hang())
    response = world.post()
    assert response.status_code == 409
    assert "already has 3 researches working" in response.json["error"]
    assert world.post(user="u2").status_code == 202


def test_unknown_routes_and_methods_are_told_as_json(world):
    assert world.client.get("/v1/gb/nothing").json["error"] == "GET /v1/gb/nothing: there is no such route"
    response = world.client.put("/v1/gb/research")
    assert response.status_code == 405
    assert response.headers["Allow"] == "GET, HEAD, POST"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.test"}, 403),
        ({"Host": "evil.test:8080"}, 403),
        ({"Host": "localhost.evil.test"}, 403),
        ({"Host": "localhost:8080"}, 200),
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "[::1]:8080"}, 200),
        ({"Host": "gb.example"}, 200),
        ({"Origin": "https://evil.test"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Origin": "http://localhost"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_requests_from_elsewhere_are_refused(sqlite_url, new_world, headers, status):
    world = new_world(sqlite_url, allowed_hosts=["gb.example"])
    assert world.client.get(f"/v1/gb/research?{USER}", headers=headers).status_code == status
    assert world.client.get("/healthz", headers=headers).status_code == 200


def test_with_keys_demanded_nobody_gets_in_without_one(sqlite_url, new_world):
    world = new_world(sqlite_url, auth="keys")
    for headers in ({}, {"Authorization": "Bearer gb_guess"}):
        response = world.client.get(f"/v1/gb/research?{USER}", headers=headers)
        assert response.status_code == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
    assert world.client.get("/healthz").status_code == 200


def test_an_internal_error_shows_no_traceback(world, caplog):
    world.app.add_url_rule("/fault", view_func=_fail)
    response = world.client.get("/fault")
    assert response.status_code == 500
    request_id = response.headers["X-Request-Id"]
    assert response.json == {"error": f"internal error; see the server log (request {request_id})"}
    assert request_id in caplog.text and "ZeroDivisionError: secret detail" in caplog.text


def _fail():
    raise ZeroDivisionError("secret detail")


def test_each_5xx_has_a_request_id_that_the_log_has_too(database_url, new_world, caplog):
    caplog.set_level("INFO")
    world = new_world(database_url, anthropic_api_key=None)
    world.app.add_url_rule("/fault", view_func=_fail)
    responses = [world.client.get("/fault"), world.post()]
    world.services.manager.begin_stop()
    responses.append(world.client.get("/readyz"))
    assert [response.status_code for response in responses] == [500, 503, 503]
    ids = [response.headers["X-Request-Id"] for response in responses]
    assert len(set(ids)) == 3
    lines = [f"GET /fault 500 (request {ids[0]})", f"POST /v1/gb/research 503 (request {ids[1]})"]
    assert not [line for line in [*lines, f"GET /readyz 503 (request {ids[2]})"] if line not in caplog.messages]
    assert "X-Request-Id" not in world.client.get("/v1/gb/research").headers


def rename_table(url, old, new):
    statement = f"ALTER TABLE {old} RENAME TO {new}"
    if is_sqlite(url):
        with closing(sqlite3.connect(sqlite_path(url))) as connection:
            connection.execute(statement)
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement)


REQUESTS = [("GET", f"/v1/gb/research?{USER}"), ("GET", f"/v1/gb/research/1?{USER}"), ("POST", "/v1/gb/research")]


def ask(world, method, path):
    return world.client.open(path, method=method, json={"user_id": "u1", "topic": "t"} if method == "POST" else None)


@pytest.mark.parametrize(("method", "path"), REQUESTS)
def test_a_fault_of_the_database_is_a_500_whose_cause_is_in_the_log_only(world, database_url, caplog, method, path):
    rename_table(database_url, "gb_agent_research_runs", "gone")
    response = ask(world, method, path)
    rename_table(database_url, "gone", "gb_agent_research_runs")
    request_id = response.headers["X-Request-Id"]
    assert response.status_code == 500
    assert response.json == {"error": f"internal error; see the server log (request {request_id})"}
    assert "Retry-After" not in response.headers
    (line,) = [record for record in caplog.records if record.levelname == "ERROR" and request_id in record.message]
    assert "gb_agent_research_runs" in line.exc_text


@pytest.mark.parametrize(("method", "path"), REQUESTS)
def test_what_may_pass_in_the_database_is_a_503_whose_cause_is_in_the_log_only(world, caplog, method, path):
    world.db.meddle = FailAt(1)
    response = ask(world, method, path)
    request_id = response.headers["X-Request-Id"]
    assert (response.status_code, response.json) == (503, {"error": "the database failed"})
    assert response.headers["Retry-After"] == "5"
    assert any(request_id in line and line.endswith("failed on purpose") for line in caplog.messages)
    assert ask(world, method, path).status_code in (200, 202, 404)


# Other doors


@pytest.fixture
def other_door(world):
    """The world with a second door, which answers in plain text."""
    door = Blueprint("other", __name__)

    @door.route("/other", methods=["GET", "POST"])
    def who():
        return {"caller": current_caller().user_id}

    @door.get("/other/list")
    def list_all():
        return str(read_query(ListResearch))

    @door.get("/other/full")
    def full():
        raise Unavailable("full", retry_after_seconds=7)

    door.add_url_rule("/other/fault", view_func=_fail)
    answer_errors(door, lambda failure: Response(f"{failure.status} {failure.message}", mimetype="text/plain"))
    world.app.register_blueprint(door)
    return world.client


def test_the_caller_is_known_to_every_door(other_door):
    assert other_door.get(f"/other?{USER}").json == {"caller": "u1"}
    assert other_door.post(f"/other?{USER}", data="not JSON").json == {"caller": "u1"}
    assert other_door.get("/other").json == {"caller": None}


@pytest.mark.parametrize(
    ("request_line", "status", "told"),
    [
        ("GET /other/list?limit=0", 400, "400 user_id: is missing; limit: must be at least 1"),
        ("GET /other/fault", 500, "500 internal error; see the server log (request "),
        ("GET /other/full", 503, "503 full"),
    ],
)
def test_a_door_gives_failures_its_own_form(other_door, request_line, status, told):
    method, target = request_line.split()
    response = other_door.open(target, method=method)
    assert (response.status_code, response.mimetype) == (status, "text/plain")
    assert response.get_data(as_text=True).startswith(told)
    assert response.headers.get("Retry-After") == ("7" if target == "/other/full" else None)


def test_the_guard_refuses_in_the_form_of_the_door_that_was_asked(other_door):
    evil = {"Host": "evil.test"}
    assert other_door.get("/other", headers=evil).get_data(as_text=True).startswith("403 host evil.test")
    assert other_door.get("/v1/gb/research", headers=evil).json["error"].startswith("host evil.test")
    assert other_door.get("/nowhere").json == {"error": "GET /nowhere: there is no such route"}


# Readiness


def test_readiness_tells_when_the_server_stops(world):
    assert world.client.get("/readyz").status_code == 200
    world.services.manager.begin_stop()
    response = world.client.get("/readyz")
    assert response.status_code == 503
    assert response.json["error"] == "the server is stopping"
    assert world.post().status_code == 503


def test_readiness_tells_that_the_database_is_gone(tmp_path, new_world, caplog):
    folder = tmp_path / "data"
    folder.mkdir()
    world = new_world(f"sqlite:///{folder}/gligabao.db")
    folder.rename(tmp_path / "elsewhere")
    response = world.client.get("/readyz")
    assert response.status_code == 503
    assert response.json["error"] == "the database failed"
    assert any(
        response.headers["X-Request-Id"] in line and "was removed or replaced" in line for line in caplog.messages
    )
    refused = world.post()
    assert refused.status_code == 503 and refused.headers["Retry-After"]
    (tmp_path / "elsewhere").rename(folder)
    assert world.client.get("/readyz").status_code == 200
