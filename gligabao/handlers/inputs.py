"""What each operation takes: the fields, their bounds, and how a fault in them is told.

Every input names its user. The door fills that in (`gligabao/web/auth.py`).
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from gligabao.agent.limits import DEFAULT_STEPS, MAX_STEPS, MAX_TOPIC_CHARACTERS
from gligabao.errors import BadInput
from gligabao.records import Status
from gligabao.validation import Fault, FaultText, find_faults, join_faults

DEFAULT_DATASET = "main"
MAX_ID = 2**63 - 1
DEFAULT_ROWS = 50
MAX_ROWS = 500


def _check_text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    if "\x00" in text:
        # PostgreSQL cannot store it. Pydantic has refused halves of surrogate pairs before.
        raise ValueError("must not contain a NUL character")
    return text


def _read_number(text: object) -> object:
    if isinstance(text, str) and not re.fullmatch(r"-?[0-9]{1,20}", text):
        raise ValueError("must be a whole number")
    return text


UserId = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9._@:-]{1,128}$"),
    FaultText("must be 1 to 128 letters, digits or . _ @ : -"),
]
ModelName = Annotated[
    str,
    StringConstraints(pattern=r"^[!-~]{0,128}$"),
    FaultText("must be at most 128 printable ASCII characters, without spaces"),
]
DatasetName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$"),
    FaultText("must be 1 to 64 of a-z 0-9 . _ -, starting with a letter or digit"),
]
Number = Annotated[int, BeforeValidator(_read_number)]
"""A number in a query string: digits only, where pydantic would also take `1_0` and ` 1`."""
Id = Annotated[Number, Field(ge=1, le=MAX_ID)]


class RequestInput(BaseModel):
    """Base of what an operation takes: nothing is converted, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    user_id: UserId


class StartResearch(RequestInput):
    """The body of `POST /v1/gb/research`."""

    topic: Annotated[str, StringConstraints(max_length=MAX_TOPIC_CHARACTERS), AfterValidator(_check_text)]
    max_steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] = DEFAULT_STEPS
    model: ModelName = ""
    dataset: DatasetName = DEFAULT_DATASET


class QueryInput(RequestInput):
    """Base of query strings, where every value is text and is converted."""

    model_config = ConfigDict(strict=False)


class ListResearch(QueryInput):
    """The query of `GET /v1/gb/research`."""

    active: bool = False
    status: Status | None = None
    parent_id: Id | None = None
    before: Id | None = None
    limit: Annotated[Number, Field(ge=1, le=MAX_ROWS)] = DEFAULT_ROWS

    @model_validator(mode="after")
    def _check_filters(self) -> Self:
        if self.active and self.status:
            raise ValueError("active and status cannot be used together")
        return self


class GetResearch(QueryInput):
    """The query of `GET /v1/gb/research/{id}`."""

    states_after: Annotated[Number, Field(ge=0, le=MAX_ID)] = 0


InputT = TypeVar("InputT", bound=RequestInput)


def parse(model: type[InputT], given: Mapping[str, Any]) -> InputT:
    """Return the input as `model`, or raise `BadInput` with every fault in one message."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise BadInput(join_faults([_tell(model, fault) for fault in find_faults(error)])) from error


def _tell(model: type[RequestInput], fault: Fault) -> str:
    if fault.kind == "extra_forbidden":
        noun = "parameter" if issubclass(model, QueryInput) else "field"
        return f"{fault.field}: unknown {noun} (known {noun}s: {', '.join(model.model_fields)})"
    return f"{fault.field}: {fault.words}" if fault.path else fault.words
