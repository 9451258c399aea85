"""The doors: REST and the probes. Each parses, calls a handler and answers."""
