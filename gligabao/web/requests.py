"""What comes in: bodies and query strings, read strictly and turned into the inputs of handlers."""

import json
import re
from collections import Counter
from typing import Any, NoReturn

from flask import request

from gligabao.errors import BadInput, NotFound, UnsupportedMedia
from gligabao.handlers.inputs import InputT, parse
from gligabao.web.auth import current_caller

JSON_TYPES = frozenset({"application/json", "application/x-www-form-urlencoded", ""})
"""Labels under which a body is read as JSON: `curl -d` sends the second; the third is no label."""


def read_query(model: type[InputT]) -> InputT:
    """Return the query string of the current request as an input of its caller. Raises `BadInput`."""
    return parse(model, current_caller().add_to(_read_parameters()))


def read_body(model: type[InputT]) -> InputT:
    """Return the body of the current request as an input of its caller. Raises `BadInput` or `UnsupportedMedia`.

    Its query string may only name the user.
    """
    given = _read_object()
    unknown = [name for name in _read_parameters() if name != "user_id"]
    if unknown:
        raise BadInput("; ".join(f"{name}: unknown parameter (known parameters: user_id)" for name in unknown))
    return parse(model, current_caller().add_to(given))


def read_id(text: str) -> int:
    """Return the id of a research in a path. One that cannot be an id is as absent as any other: `NotFound`."""
    if not re.fullmatch(r"[1-9][0-9]{0,18}", text):
        raise NotFound(f"no research {text}")
    return int(text)


def _read_parameters() -> dict[str, str]:
    twice = [name for name, values in request.args.lists() if len(values) > 1]
    if twice:
        raise BadInput("; ".join(f"{name}: given more than once" for name in twice))
    return request.args.to_dict()


def _read_object() -> dict[str, Any]:
    if request.mimetype not in JSON_TYPES:
        raise UnsupportedMedia(f"content type {request.mimetype}: send JSON, labelled application/json")
    raw = request.get_data(cache=False)
    if not raw.strip():
        raise BadInput("the body is empty: send a JSON object")
    value = _decode(raw)
    if not isinstance(value, dict):
        raise BadInput("the body must be a JSON object, {...}")
    return value


def _decode(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise BadInput(f"the body is not UTF-8: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise BadInput(f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise BadInput("the body is nested too deeply") from error
    except ValueError as error:  # ours, and Python's refusal of integers with thousands of digits
        raise BadInput(f"the body is not usable JSON: {str(error).split(';')[0]}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"{twice[:64]} given more than once")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
