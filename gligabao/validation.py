"""What is wrong with data from outside, in plain words: the one translation of pydantic's errors.

The settings, REST, the tools and the model's answers each name the place of a fault in their own way, and may add what
helps there. The words come from here. No reader sees pydantic's own words, nor the value, which may be a secret.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, core_schema

MAX_FAULTS = 20
"""How many faults one message names."""
MAX_FIELD_CHARACTERS = 128
"""How much of the name of a field is shown: the sender may have made it up."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a value."""

    path: tuple[int | str, ...]
    """Where: names of fields and indexes of lists; () for the value as a whole."""
    kind: str
    """Pydantic's name for it: `missing`, `extra_forbidden`, ..."""
    words: str
    """What follows the name of the field: `must be at most 40`, `is missing`."""

    @property
    def field(self) -> str:
        """The path as one name, "" for the value as a whole."""
        return ".".join(map(str, self.path))[:MAX_FIELD_CHARACTERS]


@dataclass(frozen=True)
class FaultText:
    """Annotation of a type: a value that does not fit, for whatever reason, gets these words."""

    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Replace the errors of the type inside; its JSON schema stays as it is."""
        return core_schema.custom_error_schema(
            handler(source), custom_error_type="fault_text", custom_error_message=self.words
        )


_NO_WORDS: Mapping[str, str] = MappingProxyType({})


def find_faults(error: ValidationError, *, own_words: Mapping[str, str] = _NO_WORDS) -> list[Fault]:
    """Return all faults of a value. `own_words` replaces the words for some kinds."""
    found = error.errors(include_url=False, include_input=False)
    return [
        Fault(
            path=tuple(part for part in details["loc"] if part != "[key]"),
            kind=details["type"],
            words=own_words.get(details["type"]) or _say(details),
        )
        for details in found
        # It only follows from another fault: a default that depends on other fields, one of which is wrong.
        if details["type"] != "default_factory_not_called"
    ]


def join_faults(faults: Sequence[str]) -> str:
    """Return the faults in one line, the first `MAX_FAULTS` of them in full."""
    more = len(faults) - MAX_FAULTS
    return "; ".join([*faults[:MAX_FAULTS], *([f"and {more} more faults"] if more > 0 else [])])


def _say(details: ErrorDetails) -> str:
    limits = {name: _show(limit) for name, limit in details.get("ctx", {}).items()}
    match details["type"]:
        case "value_error":  # raised by a check of our own
            return str(limits["error"])
        case "fault_text":
            return details["msg"]
        case "literal_error" | "enum":
            return f"must be {limits['expected']}".replace("'", '"')
        case "string_too_short" if limits["min_length"] == 1:
            return "must not be empty"
        case kind:
            return _WORDS.get(kind, "is not valid").format_map(limits)


def _show(limit: Any) -> Any:
    return f"{limit:g}" if isinstance(limit, float) else limit


_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is not a known field",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of at most 4,300 digits",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_type": "must be a string",
    "string_unicode": "must not contain half a surrogate pair",
    "string_too_short": "must have at least {min_length:,} characters",
    "string_too_long": "must have at most {max_length:,} characters",
    "path_type": "must be a string, the path of a file or folder",
    "list_type": "must be a list",
    "dict_type": "must be a JSON object",
    "json_invalid": "must be JSON",
    "model_type": "must be a JSON object",
}
