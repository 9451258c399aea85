"""Each operation once, whichever door asks: check the input, do it, return what is to be answered.

Inputs come as plain mappings from outside. All faults of one are named in one message (`BadInput`).
"""

import re
import shutil
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

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
from gligabao.config import Config
from gligabao.errors import BadInput, NotFound, StoreError
from gligabao.records import Run, Status
from gligabao.research.manager import Manager
from gligabao.store.database import Database, is_sqlite, sqlite_path
from gligabao.store.runs import Runs

MAX_ID = 2**63 - 1
MAX_FAULTS = 20
"""How many faults of an input are told."""
MIN_FREE_BYTES = 100 * 1024 * 1024


def _check_text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    if "\x00" in text:
        # PostgreSQL cannot store it. Halves of surrogate pairs are refused by pydantic before.
        raise ValueError("holds a NUL character")
    return text


UserId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._@:-]{1,128}$")]
Dataset = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


def _read_number(text: object) -> object:
    if isinstance(text, str) and not re.fullmatch(r"-?[0-9]{1,20}", text):
        raise ValueError("must be a whole number")
    return text


Number = Annotated[int, BeforeValidator(_read_number)]
"""A number in a query string."""
Id = Annotated[Number, Field(ge=1, le=MAX_ID)]


class RequestInput(BaseModel):
    """Base of what comes from outside: nothing is converted, nothing unknown is taken."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StartResearch(RequestInput):
    """The body of `POST /v1/gb/research`."""

    user_id: UserId
    topic: Annotated[str, StringConstraints(max_length=MAX_TOPIC_CHARACTERS), AfterValidator(_check_text)]
    max_steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] = DEFAULT_STEPS
    model: Annotated[str, StringConstraints(pattern=r"^[!-~]{0,128}$")] = ""
    dataset: Dataset = "main"


class Query(RequestInput):
    """Base of query strings, where every value is text."""

    model_config = ConfigDict(strict=False)

    user_id: UserId


class ListResearch(Query):
    """The query of `GET /v1/gb/research`."""

    active: bool = False
    status: Status | None = None
    parent_id: Id | None = None
    before: Id | None = None
    limit: Annotated[Number, Field(ge=1, le=500)] = 50

    @model_validator(mode="after")
    def _check_filters(self) -> "ListResearch":
        if self.active and self.status:
            raise ValueError("active and status cannot be used together")
        return self


class GetResearch(Query):
    """The query of `GET /v1/gb/research/{id}`."""

    states_after: Annotated[Number, Field(ge=0, le=MAX_ID)] = 0


class Handlers:
    """The operations of a server. Safe to share."""

    def __init__(self, *, config: Config, db: Database, runs: Runs, manager: Manager) -> None:
        self._config = config
        self._db = db
        self._runs = runs
        self._manager = manager

    def start_research(self, body: Mapping[str, Any]) -> Run:
        """Start a research and return its run."""
        given = check(StartResearch, body)
        return self._manager.start(
            user_id=given.user_id,
            topic=given.topic,
            max_steps=given.max_steps,
            model=given.model,
            dataset=given.dataset,
        )

    def list_research(self, query: Mapping[str, str]) -> list[Run]:
        """Return the user's runs, newest first."""
        given = check(ListResearch, query)
        return self._runs.list_runs(
            user_id=given.user_id,
            status=Status.RUNNING if given.active else given.status,
            parent_id=given.parent_id,
            before=given.before,
            limit=given.limit,
        )

    def get_research(self, run_id: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return one of the user's runs with its states, as it is answered."""
        given = check(GetResearch, query)
        number = int(run_id) if re.fullmatch(r"[1-9][0-9]{0,18}", run_id) else 0
        found = self._runs.get_run_with_states(number, user_id=given.user_id, states_after=given.states_after)
        if found is None:
            raise NotFound(f"no research {run_id}")
        run, states = found
        return run.as_json(states)

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Tell whether the server can take work, and why not."""
        reasons = []
        if self._manager.stopping:
            reasons.append("the server is stopping")
        try:
            self._db.ping()
        except StoreError as error:
            reasons.append(str(error))
        if self._disk_is_full():
            reasons.append("less than 100 MB are free where the database lies")
        has_key = self._config.anthropic_api_key is not None
        answer: dict[str, Any] = {"status": "not ready" if reasons else "ready", "model_key": has_key}
        if reasons:
            answer["error"] = "; ".join(reasons)
        return not reasons, answer

    def _disk_is_full(self) -> bool:
        url = self._config.database_url
        if not is_sqlite(url):
            return False
        try:
            return shutil.disk_usage(sqlite_path(url).parent).free < MIN_FREE_BYTES
        except OSError:
            return False  # the folder is gone: the database has told so


InputT = TypeVar("InputT", bound=RequestInput)


def check(model: type[InputT], given: Mapping[str, Any]) -> InputT:
    """Return the input as `model`, or raise `BadInput` naming every fault in it."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        found = error.errors()
        faults = [_fault(model, fault["loc"], fault["type"], fault["msg"]) for fault in found[:MAX_FAULTS]]
        if len(found) > MAX_FAULTS:
            faults.append(f"and {len(found) - MAX_FAULTS} more faults")
        raise BadInput("; ".join(faults)) from error


_PATTERNS = {
    "user_id": "must be 1 to 128 letters, digits or . _ @ : -",
    "dataset": "must be 1 to 64 of a-z 0-9 . _ -, starting with a letter or digit",
    "model": "must be at most 128 printable characters without spaces",
}


def _fault(model: type[RequestInput], where: tuple[int | str, ...], kind: str, message: str) -> str:
    field = ".".join(map(str, where))[:64]
    if kind == "extra_forbidden":
        known = ", ".join(model.model_fields)
        return f"{field}: not a field here (there are {known})"
    if kind == "missing":
        return f"{field}: is missing"
    if kind == "string_pattern_mismatch" and field in _PATTERNS:
        return f"{field}: {_PATTERNS[field]}"
    message = message.removeprefix("Value error, ")
    said = f"{message[:1].lower()}{message[1:]}"
    return f"{field}: {said}" if field else said
