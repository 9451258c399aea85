"""gligabao: a self-hosted deep-research server."""

__version__ = "0.1.0"
