"""The program: its commands, its global options and its exit codes."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from gligabao import __version__
from gligabao.cli.config import config
from gligabao.cli.demo import demo
from gligabao.cli.research import research
from gligabao.cli.serve import serve
from gligabao.cli.simulate import simulate
from gligabao.errors import ConfigError, GligabaoError

INTERRUPTED = 130
"""The exit code after Ctrl-C."""


class Program(click.Group):
    """A group whose exit codes are those of docs/cli.md: click's own gives 1 after Ctrl-C."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command that the arguments name, and exit with its code."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode, **extra)
        _open_missing_streams()
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            # Here, while a full disk can still be told.
            sys.stdout.flush()
        except BrokenPipeError:
            _drop_output()
            sys.exit(1)
        except OSError as error:
            _drop_output()
            click.echo(f"Error: {error.strerror or error}", err=True)
            sys.exit(1)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except GligabaoError as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(2 if isinstance(error, ConfigError) else 1)
        sys.exit(code)


def _open_missing_streams() -> None:
    """Give the streams that the caller closed somewhere to go: Python has None in their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))


def _drop_output() -> None:
    """Forget what could not be written: Python would try once more, and complain, when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=Program, context_settings={"max_content_width": 100})
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    envvar="GLIGABAO_CONFIG",
    metavar="FILE",
    help="The settings of the server.  [default: gligabao.toml in the working directory; env: GLIGABAO_CONFIG]",
)
@click.version_option(__version__, prog_name="gligabao", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context, config_file: Path | None) -> None:
    """A self-hosted deep-research server.

    Start it with `gligabao serve`, give it a topic with `gligabao research start TOPIC --wait`, or watch
    `gligabao demo`, which needs no key.
    """
    ctx.obj = config_file


for command in (serve, research, config, simulate, demo):
    main.add_command(command)
