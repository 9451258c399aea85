"""REST: the routes under /v1/gb, and the two probes."""

from flask import Blueprint, Response, jsonify, request

from gligabao.handlers import Handlers
from gligabao.web.auth import add_user
from gligabao.web.requests import read_object, read_query


def make_api(handlers: Handlers) -> Blueprint:
    """Return the REST routes over these handlers."""
    api = Blueprint("api", __name__)

    @api.post("/v1/gb/research")
    def start_research() -> Response:
        run = handlers.start_research(add_user(read_object(request), read_query(request)))
        response = jsonify(run.as_json())
        response.status_code = 202
        response.headers["Location"] = f"/v1/gb/research/{run.id}"
        return response

    @api.get("/v1/gb/research")
    def list_research() -> Response:
        return jsonify({"runs": [run.as_json() for run in handlers.list_research(read_query(request))]})

    @api.get("/v1/gb/research/<run_id>")
    def get_research(run_id: str) -> Response:
        return jsonify(handlers.get_research(run_id, read_query(request)))

    @api.get("/healthz")
    def healthz() -> Response:
        return jsonify({"status": "ok"})

    @api.get("/readyz")
    def readyz() -> Response:
        is_ready, answer = handlers.readiness()
        response = jsonify(answer)
        if not is_ready:
            response.status_code = 503
            response.headers["Retry-After"] = "5"
        return response

    return api
