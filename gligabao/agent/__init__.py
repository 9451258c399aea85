"""One agent: its loop, its prompts and its tools. No database, no threads, no Flask."""
