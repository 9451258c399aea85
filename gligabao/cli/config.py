"""`gligabao config`: the settings in force and where each came from."""

import os
from pathlib import Path

import click

from gligabao.cli.options import output_option


@click.command()
@output_option
@click.pass_obj
def config(config_file: Path | None, output: str | None) -> None:
    """Print the settings in force and where each came from, without secrets."""
    from gligabao.cli.output import Printer
    from gligabao.config import Config

    settings = Config.load(config_file, environ=os.environ).describe()
    Printer(output).print_settings([{"key": s.key, "value": s.shown_value, "source": s.source} for s in settings])
