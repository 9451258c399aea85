"""The tools of an agent: what the model is told of each, and how a call reaches it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from gligabao.errors import ToolError
from gligabao.model.conversation import Block
from gligabao.model.reply import ToolCall
from gligabao.records import StateName
from gligabao.validation import Fault, find_faults, join_faults

MAX_NAME_CHARACTERS = 128
"""How much is shown of the name of a tool that the model made up."""


class ToolInput(BaseModel):
    """Base of the inputs of tools: the fields are what the model may send, and nothing else."""

    model_config = ConfigDict(extra="forbid")

    hints: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What the model is told when a field is missing or wrong, where the fault alone would not help it."""


InputT = TypeVar("InputT", bound=ToolInput)


@dataclass(frozen=True)
class Tool(Generic[InputT]):
    """One tool: its contract with the model, the state its run shows as, and the function that does it."""

    name: str
    description: str
    input: type[InputT]
    state: StateName
    """The state of a call, unless `describe` returns another."""
    describe: Callable[[InputT], str | tuple[StateName, str]]
    """The detail of the state (the query, the URL, ...), with the state itself where that depends on the call."""
    run: Callable[[InputT], str]
    """Does the work and returns text for the model; raises `ToolError` with what the model should know."""

    @property
    def schema(self) -> Block:
        """The tool as the Messages API wants it described."""
        schema = _without_titles(self.input.model_json_schema())
        return {"name": self.name, "description": self.description, "input_schema": schema}


class Toolbox:
    """The tools that one agent has, in a fixed order."""

    def __init__(self, tools: Sequence[Tool[Any]]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self.schemas = [tool.schema for tool in tools]
        self.names = frozenset(self._tools)

    def describe(self, call: ToolCall) -> tuple[StateName, str]:
        """Return the state and the detail of a call, even of one that cannot be run."""
        tool = self._tools.get(call.name)
        if tool is None:
            return StateName.USING_TOOL, call.name[:MAX_NAME_CHARACTERS]
        described: str | tuple[StateName, str]
        try:
            described = tool.describe(self._parse(tool, call))
        except ToolError:
            described = _first_text(call.input)
        return (tool.state, described) if isinstance(described, str) else described

    def run(self, call: ToolCall) -> str:
        """Run a call and return its output, or raise `ToolError`."""
        tool = self._tools.get(call.name)
        if tool is None:
            raise ToolError(
                f'unknown tool "{call.name[:MAX_NAME_CHARACTERS]}": you have {", ".join(self._tools) or "no tools"}'
            )
        output: str = tool.run(self._parse(tool, call))
        return output

    def _parse(self, tool: Tool[Any], call: ToolCall) -> Any:
        try:
            return tool.input.model_validate(call.input)
        except ValidationError as error:
            faults = [_tell(tool, fault) for fault in find_faults(error, own_words=_WORDS)]
            raise ToolError(f"{tool.name}: {join_faults(faults)}. Its input is {_example(tool)}") from error


def _tell(tool: Tool[Any], fault: Fault) -> str:
    hint: str | None = tool.input.hints.get(fault.field)
    if hint:
        return hint
    return f'"{fault.field}" {fault.words}' if fault.path else f"the input {fault.words}"


_WORDS = {"extra_forbidden": "is not a field of this tool", "model_type": "is not a JSON object"}


def _example(tool: Tool[Any]) -> str:
    return json.dumps({name: "..." for name in tool.input.model_fields})


def _first_text(value: Any) -> str:
    """Return the first string in an input that does not fit its tool, for the detail of the state."""
    values = value.values() if isinstance(value, dict) else [value]
    return next((text for text in values if isinstance(text, str)), "")


def _without_titles(schema: Any) -> Any:
    """Drop the titles that pydantic makes from field names: they tell the model nothing."""
    if isinstance(schema, dict):
        return {
            key: _without_titles(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    return schema
