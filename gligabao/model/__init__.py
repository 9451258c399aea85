"""The model room: the only use of the Anthropic SDK, and what its calls cost."""
