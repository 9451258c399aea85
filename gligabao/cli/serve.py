"""`gligabao serve`: the server, in this process."""

import os
import signal
from pathlib import Path
from typing import Any

import click


@click.command()
@click.option("--host", help="The address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="The port to listen on.  [default: 8080]")
@click.option("--database-url", metavar="URL", help="The database.  [default: sqlite:///gligabao.db]")
@click.option("--insecure", is_flag=True, help="Allow auth = off on an address that other machines can reach.")
@click.pass_context
def serve(ctx: click.Context, /, insecure: bool, **flags: Any) -> None:
    """Run the server until SIGTERM or Ctrl-C.

    A flag wins over the environment, and the environment over the file. `gligabao config` prints the settings in force.
    """
    # From the first moment on: the server itself takes these over once it is built. Not by an exception, which the
    # import system may swallow.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    from gligabao.config import Config

    config_file: Path | None = ctx.obj
    config = Config.load(config_file, environ=os.environ, flags={**flags, "insecure": insecure or None})
    # After the settings: it takes seconds to import, and a bad setting is told at once.
    from gligabao.server import serve as serve_until_stopped

    serve_until_stopped(config)
