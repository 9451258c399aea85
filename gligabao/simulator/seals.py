"""What the simulated API signs, so that it can tell later whether a client sent it back unchanged.

The real one encrypts; here a seal is a keyed hash of what it stands for. Nothing has to be remembered for it.
"""

import hashlib
import json
from typing import Any

_KEY = b"gligabao simulator"


def seal(*parts: str) -> str:
    """Return the seal of these texts."""
    joined = "\x1f".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(joined, key=_KEY, digest_size=20).hexdigest()


def digest(value: Any) -> str:
    """Return a short hash of a JSON value; the order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def thinking_signature(thinking: str, prefix: str) -> str:
    """Return the signature of a thinking block: one half for its text, one for the conversation before it."""
    return f"{seal('thinking', thinking)}.{seal('prefix', prefix)}"


def redacted_thinking_seal() -> str:
    """Return the `data` of a redacted thinking block."""
    return f"sim-{seal('redacted')}"


def search_result_seal(url: str, title: str) -> str:
    """Return the `encrypted_content` of a search result."""
    return f"sim-{seal('result', url, title)}"


def citation_seal(url: str, cited_text: str) -> str:
    """Return the `encrypted_index` of a citation."""
    return f"sim-{seal('citation', url, cited_text)}"


def block_seal(block_type: str) -> str:
    """Return the id that marks a block of a made-up type as one that the simulator itself gave out."""
    return f"sim-{seal('block', block_type)}"
