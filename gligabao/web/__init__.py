"""The doors: REST, and later MCP, events and pages. Each parses, calls a handler and answers."""
