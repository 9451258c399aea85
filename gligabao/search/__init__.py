"""Search: one module per provider. Each turns a query into a briefing with its sources."""
