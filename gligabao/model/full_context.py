"""How servers say that a prompt does not fit into the model's context window.

There is no common status or code for it, so it is recognised by its words. Each form was read in a public report, which
docs/other-servers.md links.
"""

import re
from dataclasses import dataclass

FORMS = [
    (server, re.compile(form, re.IGNORECASE | re.DOTALL))
    for server, form in (
        ("Anthropic", r"prompt is too long(?:.{0,20}?(?P<asked>\d+) tokens > (?P<window>\d+))?"),
        (
            "Anthropic, with the limit of the answer",
            r"input length and `max_tokens` exceed context limit: (?P<asked>\d+) \+ (?P<more>\d+) > (?P<window>\d+)",
        ),
        ("Amazon Bedrock", r"input is too long for requested model"),
        (
            "llama.cpp, with sizes",
            r"\((?P<asked>\d+) tokens\) exceeds the available context size \((?P<window>\d+) tokens\)",
        ),
        ("llama.cpp", r"exceeds the available context size|exceed_context_size|context size has been exceeded"),
        ("llama-cpp-python", r"requested tokens \((?P<asked>\d+)\) exceed context window of (?P<window>\d+)"),
        (
            "vLLM and OpenAI, with sizes",
            r"maximum context length is (?P<window>\d+) tokens.{0,60}?"
            r"(?:requested|resulted in)(?: about)? (?P<asked>\d+)",
        ),
        (
            "vLLM, the decoder's prompt",
            r"prompt \(length (?P<asked>\d+)\) is longer than the maximum model length of (?P<window>\d+)",
        ),
        (
            "vLLM, older",
            r"prompt \(total length (?P<asked>\d+)\) is too long.{0,60}?context length (?P<window>\d+)",
        ),
        ("Ollama", r"input length exceeds the (?:maximum )?context length"),
        (
            "LM Studio, with sizes",
            r"greater than the context length \(n_keep: (?P<asked>\d+) ?>= ?n_ctx: (?P<window>\d+)\)",
        ),
        (
            "LM Studio, older",
            r"keep the first (?P<asked>\d+) tokens when context the overflows.{0,80}?only (?P<window>\d+) tokens",
        ),
        ("LM Studio", r"greater than the context length"),
        ("OpenAI and what imitates it", r"context_length_exceeded|maximum context length"),
        (
            "Gemini behind a gateway",
            r"input token count \(?(?P<asked>\d+)\)? exceeds the maximum number of tokens allowed \(?(?P<window>\d+)",
        ),
        ("any other", r"exceeds? .{0,40}context (?:length|size|window)|too many input tokens"),
    )
]
"""Which server, and its words. The first form that matches counts, so those with sizes come first."""


@dataclass(frozen=True, slots=True)
class FullContext:
    """A prompt that did not fit."""

    excess: float | None
    """How many times the window it would have filled, None if the server did not say."""


def find_full_context(words: str) -> FullContext | None:
    """Return what the words of an error say of a full context, None if they are about something else."""
    for _, form in FORMS:
        if found := form.search(words):
            return FullContext(_excess(found.groupdict()))
    return None


def _excess(sizes: dict[str, str | None]) -> float | None:
    asked, window = sizes.get("asked"), sizes.get("window")
    if not asked or not window:
        return None
    return (int(asked) + int(sizes.get("more") or 0)) / max(1, int(window))
