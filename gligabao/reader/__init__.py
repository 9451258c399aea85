"""Reading pages: a URL to text, guarded. `page` is the door; nothing here knows of agents or tools.

A page goes `fetch` (over `dial`, which asks `guard`) → `decode` → `text` (over `markup`).
"""
