"""REST: the routes under /v1/gb, and the two probes."""

from flask import Blueprint, Response, jsonify

from gligabao.handlers import Handlers
from gligabao.handlers.inputs import GetResearch, ListResearch, StartResearch
from gligabao.handlers.readiness import Readiness
from gligabao.web.failures import log_cause
from gligabao.web.requests import read_body, read_id, read_query


def make_api(handlers: Handlers) -> Blueprint:
    """Return the REST routes over these handlers."""
    api = Blueprint("api", __name__)

    @api.post("/v1/gb/research")
    def start_research() -> Response:
        run = handlers.research.start(read_body(StartResearch))
        response = jsonify(run.as_json())
        response.status_code = 202
        response.headers["Location"] = f"/v1/gb/research/{run.id}"
        return response

    @api.get("/v1/gb/research")
    def list_research() -> Response:
        runs = handlers.research.list_runs(read_query(ListResearch))
        return jsonify({"runs": [run.as_json() for run in runs]})

    @api.get("/v1/gb/research/<run_id>")
    def get_research(run_id: str) -> Response:
        given = read_query(GetResearch)
        return jsonify(handlers.research.get_run(read_id(run_id), given).as_json())

    @api.get("/healthz")
    def healthz() -> Response:
        return jsonify({"status": "ok"})

    @api.get("/readyz")
    def readyz() -> Response:
        return _answer_readiness(handlers.readiness.check())

    return api


def _answer_readiness(found: Readiness) -> Response:
    if found.is_ready:
        return jsonify({"status": "ready", "model_key": found.has_model_key})
    if found.database_error:
        log_cause(found.database_error)
    response = jsonify({"status": "not ready", "model_key": found.has_model_key, "error": "; ".join(found.obstacles)})
    response.status_code = 503
    response.headers["Retry-After"] = "5"
    return response
