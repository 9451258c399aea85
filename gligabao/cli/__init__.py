"""The command line. It talks HTTP to a server; only `serve`, `simulate` and `demo` start something themselves.

`main` is the console script. What a command needs beyond click is imported when it runs, so that `--help` is quick.
"""

from gligabao.cli.main import main

__all__ = ["main"]
