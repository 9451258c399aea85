"""What comes in: the JSON of a body and the values of a query string, read strictly."""

import json
from collections import Counter
from typing import Any, NoReturn

from flask import Request

from gligabao.errors import BadInput, UnsupportedMedia

JSON_TYPES = frozenset({"application/json", "application/x-www-form-urlencoded", ""})
"""Labels under which a body is read as JSON: the second is what `curl -d` sends, the third is none."""


def read_object(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body, or raise saying what is wrong with the body."""
    if request.mimetype not in JSON_TYPES:
        raise UnsupportedMedia(f"content type {request.mimetype}: send JSON, labelled application/json")
    raw = request.get_data(cache=False)
    if not raw.strip():
        raise BadInput("the body is empty: send a JSON object")
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise BadInput(f"the body is not UTF-8: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise BadInput(f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise BadInput("the body is nested too deeply") from error
    except ValueError as error:  # ours, and Python's own refusal of integers with thousands of digits
        raise BadInput(f"the body is not usable JSON: {str(error).split(';')[0]}") from error
    if not isinstance(value, dict):
        raise BadInput("the body must be a JSON object, {...}")
    return value


def read_query(request: Request) -> dict[str, str]:
    """Return the values of the query string; one that is given twice is an error."""
    twice = [name for name, values in request.args.lists() if len(values) > 1]
    if twice:
        raise BadInput("; ".join(f"{name}: given more than once" for name in twice))
    return request.args.to_dict()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"{twice[:64]} given more than once")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
