"""The models that the simulator answers for, and what each of them allows."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model of the simulated API."""

    id: str
    context_tokens: int = 1_000_000
    max_output_tokens: int = 128_000
    thinking: frozenset[str] = frozenset({"adaptive"})
    """The values of `thinking.type` that it takes."""
    thinks_by_default: bool = True
    """Whether it thinks when the request says nothing about it."""
    forced_tools: bool = False
    """Whether `tool_choice` may be `any` or `tool`."""
    bound_thinking: bool = True
    """Whether a thinking block is refused once the turns before it have changed."""
    prefill: bool = False
    """Whether a conversation may end with an assistant turn that is not paused."""
    system_turns: bool = True
    """Whether `role: system` may stand among the messages."""
    cache_min_tokens: int = 512
    """The shortest prefix that is cached."""
    deprecated: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the entry of `GET /v1/models`."""
        line = self.id.split("-")[1]
        return {
            "type": "model",
            "id": self.id,
            "display_name": self.id.replace("-", " ").title() + " (simulated)",
            "created_at": "2026-01-01T00:00:00Z",
            "lifecycle": "deprecated" if self.deprecated else "active",
            "deprecated_at": "2026-06-01T00:00:00Z" if self.deprecated else None,
            "retires_at": None,
            "line": line if line in ("haiku", "sonnet", "opus", "fable", "mythos") else None,
            "max_input_tokens": self.context_tokens,
            "max_tokens": self.max_output_tokens,
            "capabilities": None,
        }


_ADAPTIVE_OR_OFF = frozenset({"adaptive", "disabled"})
_ANY = frozenset({"adaptive", "enabled", "disabled", "between_tools"})


def _older(
    model_id: str, *, thinking: frozenset[str] = _ADAPTIVE_OR_OFF, thinks: bool = False, **more: Any
) -> ModelFacts:
    """A model from before thinking was bound to its conversation and forced tools were dropped."""
    more.setdefault("cache_min_tokens", 1024)
    return ModelFacts(
        model_id, thinking=thinking, thinks_by_default=thinks, forced_tools=True, bound_thinking=False, **more
    )


def _oldest(model_id: str, **more: Any) -> ModelFacts:
    return _older(
        model_id,
        thinking=frozenset({"enabled", "disabled"}),
        context_tokens=200_000,
        max_output_tokens=64_000,
        prefill=True,
        system_turns=False,
        **more,
    )


_MANUAL = frozenset({"adaptive", "enabled", "disabled"})
_ALWAYS = frozenset({"adaptive"})

MODELS: dict[str, ModelFacts] = {
    model.id: model
    for model in (
        ModelFacts("claude-fable-5-2"),
        ModelFacts("claude-mythos-5-2"),
        ModelFacts("claude-haiku-5-5", thinking=_ADAPTIVE_OR_OFF, forced_tools=True),
        ModelFacts("claude-sonnet-5-5", thinking=frozenset({"adaptive", "between_tools"})),
        ModelFacts("claude-fable-5-1"),
        ModelFacts("claude-opus-5-5"),
        ModelFacts("claude-mythos-5-1"),
        _older("claude-sonnet-5", thinks=True),
        _older("claude-fable-5", thinking=_ALWAYS, thinks=True, cache_min_tokens=512),
        _older("claude-mythos-5", thinking=_ALWAYS, thinks=True, cache_min_tokens=512),
        _older("claude-opus-5", thinks=True, cache_min_tokens=512),
        _older("claude-opus-4-8"),
        _older("claude-opus-4-7", system_turns=False),
        _older("claude-mythos-preview", thinking=_MANUAL, system_turns=False),
        _older("claude-opus-4-6", thinking=_MANUAL, system_turns=False),
        _older("claude-sonnet-4-6", thinking=_MANUAL, system_turns=False),
        _oldest("claude-haiku-4-5", cache_min_tokens=4096),
        _oldest("claude-haiku-4-5-20251001", cache_min_tokens=4096),
        _oldest("claude-opus-4-5", deprecated=True),
        _oldest("claude-opus-4-5-20251101", deprecated=True),
        _oldest("claude-sonnet-4-5", deprecated=True),
        _oldest("claude-sonnet-4-5-20250929", deprecated=True),
    )
}


def find_model(model_id: str) -> ModelFacts | None:
    """Return the model of that id, None when there is none. Ids that start with `simulated-` are models too."""
    if model_id.startswith("simulated-"):
        return ModelFacts(model_id, thinking=_ANY, forced_tools=True)
    return MODELS.get(model_id)
