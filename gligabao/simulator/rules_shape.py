"""Which fields a request may have, and of what type: no field is taken that the API does not know."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from gligabao.simulator.refusals import invalid
from gligabao.simulator.seals import block_seal

SAMPLING_FIELDS = frozenset({"temperature", "top_p", "top_k"})
"""Gone since API version 2026-10-21."""
BETA_FIELDS = frozenset({"context_management", "mcp_servers", "compaction", "output_format"})
"""Taken with an `anthropic-beta` header, and not played."""
_TOOL_NAME = r"^[a-zA-Z0-9_-]{1,128}$"
_SERVER_TOOLS = ("web_search_20250305", "web_search_20260209", "web_search_20260318")


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _CacheControl(_Shape):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class _Cacheable(_Shape):
    cache_control: _CacheControl | None = None


class _Text(_Cacheable):
    type: Literal["text"]
    text: str
    citations: list[dict[str, Any]] | None = None


class _Image(_Cacheable):
    type: Literal["image"]
    source: dict[str, Any]
    transformations: dict[str, Any] | None = None


class _Document(_Cacheable):
    type: Literal["document"]
    source: dict[str, Any]
    citations: dict[str, Any] | None = None
    context: str | None = None
    title: str | None = None


class _SearchResult(_Cacheable):
    type: Literal["search_result"]
    content: list[_Text]
    source: str
    title: str
    citations: dict[str, Any] | None = None


class _Thinking(_Shape):
    type: Literal["thinking"]
    thinking: str
    signature: str


class _RedactedThinking(_Shape):
    type: Literal["redacted_thinking"]
    data: str


class _ToolUse(_Cacheable):
    type: Literal["tool_use"]
    id: str = Field(pattern=r"^[a-zA-Z0-9_-]+$")
    name: str = Field(min_length=1, max_length=200)
    input: dict[str, Any]
    caller: dict[str, Any] | None = None
    toolset_name: str | None = None


class _ServerToolUse(_Cacheable):
    type: Literal["server_tool_use"]
    id: str = Field(pattern=r"^srvtoolu_[a-zA-Z0-9_]+$")
    name: Literal["web_search"]
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


class _FoundPage(_Shape):
    type: Literal["web_search_result"]
    url: str
    title: str
    encrypted_content: str
    page_age: str | None = None


class _SearchError(_Shape):
    type: Literal["web_search_tool_result_error"]
    error_code: str


def _list_or_error(value: Any) -> str:
    return "list" if isinstance(value, list) else "error"


class _SearchResults(_Cacheable):
    type: Literal["web_search_tool_result"]
    tool_use_id: str
    content: Annotated[
        Annotated[list[_FoundPage], Tag("list")] | Annotated[_SearchError, Tag("error")],
        Discriminator(_list_or_error),
    ]
    caller: dict[str, Any] | None = None


class _Simulated(_Shape):
    """A block of a made-up type that the simulator gave out itself: it knows it again by its id."""

    model_config = ConfigDict(extra="allow", strict=True)
    type: str
    id: str


def _block_type(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and value.get("id") == block_seal(kind):
        return "simulated"
    return kind if isinstance(kind, str) else None


def _text_or_blocks(value: Any) -> str:
    return "str" if isinstance(value, str) else "blocks"


_Inner = Annotated[
    Annotated[_Text, Tag("text")]
    | Annotated[_Image, Tag("image")]
    | Annotated[_Document, Tag("document")]
    | Annotated[_SearchResult, Tag("search_result")],
    Discriminator(_block_type),
]


class _ToolResult(_Cacheable):
    type: Literal["tool_result"]
    tool_use_id: str
    content: (
        Annotated[Annotated[str, Tag("str")] | Annotated[list[_Inner], Tag("blocks")], Discriminator(_text_or_blocks)]
        | None
    ) = None
    is_error: bool | None = None
    toolset_name: str | None = None


_Block = Annotated[
    Annotated[_Text, Tag("text")]
    | Annotated[_Image, Tag("image")]
    | Annotated[_Document, Tag("document")]
    | Annotated[_SearchResult, Tag("search_result")]
    | Annotated[_Thinking, Tag("thinking")]
    | Annotated[_RedactedThinking, Tag("redacted_thinking")]
    | Annotated[_ToolUse, Tag("tool_use")]
    | Annotated[_ToolResult, Tag("tool_result")]
    | Annotated[_ServerToolUse, Tag("server_tool_use")]
    | Annotated[_SearchResults, Tag("web_search_tool_result")]
    | Annotated[_Simulated, Tag("simulated")],
    Discriminator(_block_type),
]


class _Message(_Shape):
    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Annotated[str, Tag("str")] | Annotated[list[_Block], Tag("blocks")], Discriminator(_text_or_blocks)
    ]


class _InputSchema(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    type: Literal["object"]
    properties: dict[str, Any] | None = None
    required: list[str] | None = None


class _ToolBase(_Cacheable):
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    strict: bool | None = None


class _CustomTool(_ToolBase):
    type: Literal["custom"] | None = None
    name: str = Field(pattern=_TOOL_NAME)
    description: str | None = None
    input_schema: _InputSchema
    eager_input_streaming: bool | None = None
    input_examples: list[dict[str, Any]] | None = None


class _UserLocation(_Shape):
    type: Literal["approximate"]
    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class _WebSearchTool(_ToolBase):
    type: Literal["web_search_20250305", "web_search_20260209", "web_search_20260318"]
    name: Literal["web_search"]
    max_uses: int | None = Field(None, ge=1)
    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None
    user_location: _UserLocation | None = None
    response_inclusion: str | None = None


def _tool_type(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    return "web_search" if kind in _SERVER_TOOLS else kind or "custom"


_Tool = Annotated[
    Annotated[_CustomTool, Tag("custom")] | Annotated[_WebSearchTool, Tag("web_search")],
    Discriminator(_tool_type),
]


class _ChoiceBase(_Shape):
    disable_parallel_tool_use: bool | None = None


class _ChoiceAuto(_ChoiceBase):
    type: Literal["auto"]


class _ChoiceAny(_ChoiceBase):
    type: Literal["any"]


class _ChoiceTool(_ChoiceBase):
    type: Literal["tool"]
    name: str


class _ChoiceNone(_Shape):
    type: Literal["none"]


class _ThinkingAdaptive(_Shape):
    type: Literal["adaptive"]
    display: Literal["summarized", "omitted"] | None = None


class _ThinkingEnabled(_Shape):
    type: Literal["enabled"]
    budget_tokens: int = Field(ge=1024)
    display: Literal["summarized", "omitted"] | None = None


class _ThinkingOff(_Shape):
    type: Literal["disabled", "between_tools"]


class _OutputConfig(_Shape):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: dict[str, Any] | None = None


class _Metadata(_Shape):
    user_id: str | None = Field(None, max_length=256)


class _Request(_Cacheable):
    model: str = Field(min_length=1, max_length=256)
    max_tokens: int = Field(ge=0)
    messages: list[_Message] = Field(max_length=100_000)
    system: Annotated[
        Annotated[str, Tag("str")] | Annotated[list[_Text], Tag("blocks")], Discriminator(_text_or_blocks)
    ] = ""
    tools: list[_Tool] | None = None
    tool_choice: Annotated[_ChoiceAuto | _ChoiceAny | _ChoiceTool | _ChoiceNone, Field(discriminator="type")] | None = (
        None
    )
    thinking: Annotated[_ThinkingAdaptive | _ThinkingEnabled | _ThinkingOff, Field(discriminator="type")] | None = None
    output_config: _OutputConfig | None = None
    metadata: _Metadata | None = None
    stop_sequences: list[str] | None = None
    stream: Literal[False] | None = None
    container: Any = None
    diagnostics: dict[str, Any] | None = None
    inference_geo: str | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    speed: Literal["standard", "fast"] | None = None
    user_profile_id: str | None = None


def check_shape(body: Any, *, old_version: bool, beta: bool) -> None:
    """Raise the refusal of a field that is missing, of the wrong type, or not known."""
    if not isinstance(body, dict):
        raise invalid("The request body must be a JSON object")
    if body.get("stream"):
        raise invalid("stream: this simulated API does not stream; leave `stream` out")
    ignored = (SAMPLING_FIELDS if old_version else frozenset()) | (BETA_FIELDS if beta else frozenset())
    try:
        _Request.model_validate({name: value for name, value in body.items() if name not in ignored})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        path = ".".join(str(part) for part in first["loc"] if part not in ("str", "blocks"))
        raise invalid(f"{path}: {_in_their_words(first['msg'])}") from None


def _in_their_words(message: str) -> str:
    return message.replace("using _block_type()", "using 'type'").replace("using _tool_type()", "using 'type'")
