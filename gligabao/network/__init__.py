"""Connections that another thread can end, for model calls, pages and searches."""
