"""The job around an agent: runs that start, are followed, end, and survive the server."""
