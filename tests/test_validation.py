"""Faults of input: every kind in plain words, wherever it turns up, and never in pydantic's."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, create_model

from gligabao import validation
from gligabao.agent.tools import Toolbox
from gligabao.agent.tools.team import sibling_tools, subagent_tools
from gligabao.agent.tools.web import WebTools
from gligabao.config import Config, ModelPrice
from gligabao.errors import BadInput, ConfigError, ToolError
from gligabao.handlers.inputs import GetResearch, ListResearch, StartResearch, parse
from gligabao.model.reply import MalformedAnswer, RawUsage, ToolCall, parse_reply
from gligabao.records import Status
from gligabao.simulator.faults import FaultOrder
from gligabao.validation import MAX_FAULTS, FaultText, find_faults, join_faults


class Inner(BaseModel):
    a: int = 0


UserName = Annotated[str, StringConstraints(pattern="^[a-z]+$"), FaultText("must be letters")]

KINDS = [
    (str, ..., "missing", "is missing"),
    (bool, "maybe", "bool_parsing", "must be true or false"),
    (bool, [], "bool_type", "must be true or false"),
    (int, "x", "int_parsing", "must be a whole number"),
    (int, "9" * 5000, "int_parsing_size", "must be a whole number of at most 4,300 digits"),
    (int, 1.5, "int_from_float", "must be a whole number"),
    (int, None, "int_type", "must be a whole number"),
    (float, "x", "float_parsing", "must be a number"),
    (float, None, "float_type", "must be a number"),
    (Annotated[float, Field(allow_inf_nan=False)], math.inf, "finite_number", "must be a finite number"),
    (Annotated[int, Field(gt=3)], 3, "greater_than", "must be more than 3"),
    (Annotated[float, Field(ge=0)], -1, "greater_than_equal", "must be at least 0"),
    (Annotated[float, Field(lt=2.5)], 3, "less_than", "must be less than 2.5"),
    (Annotated[int, Field(le=2**63 - 1)], 2**63, "less_than_equal", "must be at most 9223372036854775807"),
    (str, 1, "string_type", "must be a string"),
    (Annotated[str, Field(max_length=9)], "half \ud800", "string_unicode", "must not contain half a surrogate pair"),
    (Annotated[str, Field(min_length=1)], "", "string_too_short", "must not be empty"),
    (Annotated[str, Field(min_length=2)], "", "string_too_short", "must have at least 2 characters"),
    (Annotated[str, Field(max_length=2000)], "x" * 2001, "string_too_long", "must have at most 2,000 characters"),
    (UserName, "7", "fault_text", "must be letters"),
    (UserName, 7, "fault_text", "must be letters"),
    (Path, 5, "path_type", "must be a string, the path of a file or folder"),
    (Literal["on", "off"], 1, "literal_error", 'must be "on" or "off"'),
    (Status, "paused", "enum", 'must be "running", "completed" or "failed"'),
    (list[int], 1, "list_type", "must be a list"),
    (dict[str, int], 1, "dict_type", "must be a JSON object"),
    (Inner, 1, "model_type", "must be a JSON object"),
    (Annotated[str, Field(pattern="^a")], "b", "string_pattern_mismatch", "is not valid"),
]


@pytest.mark.parametrize(("kind", "value", "name", "words"), KINDS, ids=[name for _, _, name, _ in KINDS])
def test_each_kind_of_fault_has_its_words(kind, value, name, words):
    model = create_model("Model", __config__=ConfigDict(extra="forbid"), field=(kind, ...))
    given = {} if value is ... else {"field": value}
    with pytest.raises(ValidationError) as caught:
        model.model_validate(given)
    faults = find_faults(caught.value)
    assert [(fault.path, fault.kind, fault.words) for fault in faults] == [(("field",), name, words)]


def test_no_words_are_kept_for_a_kind_that_is_not_tried_here():
    assert set(validation._WORDS) - {"extra_forbidden", "json_invalid"} <= {name for _, _, name, _ in KINDS}


def test_words_can_be_replaced_by_a_place():
    with pytest.raises(ValidationError) as caught:
        Inner.model_validate([])
    fault = find_faults(caught.value, own_words={"model_type": "must be a table"})[0]
    assert (fault.field, fault.words) == ("", "must be a table")


def test_a_type_with_its_own_fault_text_keeps_its_json_schema():
    schema = create_model("Model", name=(UserName, ...)).model_json_schema()
    assert schema["properties"]["name"]["pattern"] == "^[a-z]+$"


def test_faults_beyond_twenty_are_counted():
    faults = [f"fault {n}" for n in range(MAX_FAULTS + 3)]
    assert join_faults(faults[:MAX_FAULTS]) == "; ".join(faults[:MAX_FAULTS])
    assert join_faults(faults) == "; ".join([*faults[:MAX_FAULTS], "and 3 more faults"])


# Every place with every field and all sorts of values

VALUES = [
    *(None, True, 0, 1, -1, 7, 10**30, -(10**30), 1.5, -1.5, math.inf, math.nan),
    *("", " ", "x", "a b", "1_0", "-1", "9" * 30, "x" * 30_000, "nul \x00", "half \ud800", "ü/?#"),
    *([], [1], [None], ["a b"], [{}], {}, {"a": 1}, {"a": {"b": 1}}, {"input": -1, "inputs": 1}, {"": ""}),
]


def inputs_of(model: type[BaseModel]) -> list[Any]:
    """Return what a place may be given: no object, unknown fields, and each value in each field."""
    each = [{field: value} for field in model.model_fields for value in VALUES]
    return [{}, {"colour": 1}, {f"x{n}": n for n in range(40)}, *each]


def assert_plain(told: str, model: type[BaseModel], given: Any) -> None:
    """Assert that a text has none of pydantic's words for what is wrong with this."""
    try:
        model.model_validate(given)
    except ValidationError as error:
        theirs = {fault["msg"] for fault in error.errors() if fault["type"] != "fault_text"}
        assert not [words for words in theirs if words.lower() in told.lower()], told
    for words in ("Input should", "Value error", "is not valid", "Field required", "not permitted"):
        assert words.lower() not in told.lower(), told


@pytest.mark.parametrize("model", [StartResearch, ListResearch, GetResearch])
def test_rest_tells_faults_in_plain_words(model):
    refused = 0
    for given in inputs_of(model):
        try:
            parse(model, given)
        except BadInput as error:
            refused += 1
            assert_plain(str(error), model, given)
    assert refused > len(VALUES)


def test_the_settings_tell_faults_in_plain_words():
    prices = [{"prices": {"m": given}} for given in [*VALUES, *inputs_of(ModelPrice)]]
    refused = 0
    for given in [*inputs_of(Config), *prices]:
        try:
            Config.load(environ={}, flags=given)
        except ConfigError as error:
            refused += 1
            assert len(str(error).splitlines()) == 1
            assert_plain(str(error), Config, given)
    assert refused > 10 * len(VALUES)


def test_tools_tell_faults_in_plain_words():
    nothing: Any = None
    web = WebTools(search=nothing, reader=nothing, marker=nothing).tools()
    for tool in [*web, *subagent_tools(nothing, nothing), *sibling_tools(nothing, nothing)]:
        for given in [*VALUES, *inputs_of(tool.input)]:
            try:
                tool.input.model_validate(given)
            except ValidationError:
                with pytest.raises(ToolError) as caught:
                    Toolbox([tool]).run(ToolCall("1", tool.name, given))
                assert_plain(str(caught.value), tool.input, given)
                assert ". Its input is {" in str(caught.value)


def test_a_tool_tells_twenty_faults_at_most():
    tools = subagent_tools(None, None)
    with pytest.raises(ToolError) as caught:
        Toolbox(tools).run(ToolCall("1", "wait_subagents", {f"x{n}": n for n in range(25)}))
    assert str(caught.value).count("is not a field of this tool") == MAX_FAULTS
    assert 'and 5 more faults. Its input is {"names": "..."}' in str(caught.value)


MALFORMED = [
    ([], "the body must be a JSON object"),
    ({"usage": {}}, "content is missing"),
    ({"content": [1], "usage": {}}, "content.0 must be a JSON object"),
    ({"content": 3, "usage": {}}, "content must be a list"),
]


@pytest.mark.parametrize(("body", "told"), MALFORMED, ids=[told for _, told in MALFORMED])
def test_a_malformed_answer_of_the_model_is_told_by_field(body, told):
    with pytest.raises(MalformedAnswer) as caught:
        parse_reply(body)
    assert str(caught.value) == told


def test_malformed_answers_of_the_model_are_told_in_plain_words():
    bodies = [{"content": value, "usage": {}} for value in VALUES]
    bodies += [{"content": [value], "usage": {}} for value in VALUES]
    refused = 0
    for body in bodies:
        try:
            parse_reply(body)
        except MalformedAnswer as error:
            refused += 1
            assert_plain(str(error), RawUsage, body["usage"])
    assert refused > len(VALUES)


def test_orders_to_the_simulator_are_told_in_plain_words():
    for given in inputs_of(FaultOrder):
        try:
            FaultOrder.model_validate(given)
        except ValidationError as error:
            assert_plain(" ".join(fault.words for fault in find_faults(error)), FaultOrder, given)
