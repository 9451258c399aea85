"""The simulator's own routes, for its users on the command line: what it is, the bill, the requests, faults."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pydantic import ValidationError

from gligabao.simulator import web
from gligabao.simulator.api import MessagesApi
from gligabao.simulator.faults import FaultOrder
from gligabao.validation import find_faults, join_faults


@dataclass(frozen=True, slots=True)
class Answered:
    """What a control answers."""

    status: int
    body: bytes
    content_type: str = "application/json"


def get(api: MessagesApi, target: str) -> Answered | None:
    """Answer a GET, None when there is no such control."""
    url = urlsplit(target)
    if url.path == "/":
        return Answered(200, _about(api.url).encode(), "text/plain; charset=utf-8")
    if url.path == "/simulator/billed":
        return _json(200, dataclasses.asdict(api.billed()))
    if url.path == "/simulator/requests":
        last = parse_qs(url.query).get("last", ["20"])[0]
        if not last.isdecimal():
            return _json(400, {"error": f"last must be a number, not {last!r}"})
        kept = api.requests[-int(last) :] if int(last) else []
        return _json(200, {"received": api.received, "requests": [dataclasses.asdict(r) for r in kept]})
    return None


def post(api: MessagesApi, target: str, raw: bytes) -> Answered | None:
    """Answer a POST, None when there is no such control."""
    if urlsplit(target).path != "/simulator/faults":
        return None
    try:
        order = FaultOrder.model_validate_json(raw)
        order.place(api.faults)
    except ValidationError as error:
        faults = [f"{fault.field or 'the body'}: {fault.words}" for fault in find_faults(error)]
        return _json(400, {"error": join_faults(faults)})
    except ValueError as error:
        return _json(400, {"error": str(error)})
    return _json(200, order.model_dump(exclude_defaults=True))


def delete(api: MessagesApi, target: str) -> Answered | None:
    """Answer a DELETE, None when there is no such control."""
    if urlsplit(target).path != "/simulator/faults":
        return None
    api.faults.clear()
    return Answered(204, b"")


def _json(status: int, value: Any) -> Answered:
    return Answered(status, json.dumps(value, ensure_ascii=False, indent=1).encode())


def _about(url: str) -> str:
    pages = "\n".join(f"  {url}{page.path}  {page.title}{'' if page.html else ' (gone: a 404)'}" for page in web.PAGES)
    return f"""gligabao simulator: a simulated Messages API. There is no real model behind it.

Any key is accepted. Use {url} as the base URL (anthropic_base_url, ANTHROPIC_BASE_URL).

  POST   {url}/v1/messages               not streamed
  POST   {url}/v1/messages/count_tokens
  GET    {url}/v1/models

All it knows of the web are these bundled pages, all invented:

{pages}

A topic that they answer: {web.DEMO_TOPIC}
One in numbered parts, for a team: {web.DEMO_TEAM_TOPIC}

Controls:

  GET    {url}/simulator/billed             calls, tokens and searches so far
  GET    {url}/simulator/requests?last=20   the last requests to /v1/messages
  POST   {url}/simulator/faults             {{"status": 529, "count": 8, "retry_after": 1}}
                                            {{"kind": "hang", "count": 1, "topic": "tides"}}
                                            kinds: hang drip drop drop_midway malformed search_error
  DELETE {url}/simulator/faults             no more faults
"""
