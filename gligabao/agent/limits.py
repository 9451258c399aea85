"""The limits of an agent, each number in one place.

What the tools check and what the model is told are built from these, so the two never differ.
"""

MAX_STEPS = 40
DEFAULT_STEPS = 20
"""Of a research that a user starts."""
DEFAULT_SUBAGENT_STEPS = 10
MAX_TOPIC_CHARACTERS = 2_000
MAX_CALLS = 32
"""Tool calls of one answer. No model needs more; one answer has room for tens of thousands, and each is a state."""

MAX_SUBAGENTS_PER_AGENT = 5
MAX_SUBAGENTS_PER_TREE = 10
MAX_DEPTH = 2
"""Generations of sub-agents: the last one spawns none."""
MAX_SUBAGENT_NAME_CHARACTERS = 40
MAX_REASON_CHARACTERS = 300
MAX_TASK_CHARACTERS = 2_000

MAX_MESSAGE_CHARACTERS = 10_000
MAX_WAIT_SECONDS = 60
"""For a message."""
INBOX_SIZE = 64
"""Unread messages that an inbox holds."""

MAX_BRIEFING_WORDS = 300
"""Of a web search."""
MAX_PAGE_CHARACTERS = 15_000
