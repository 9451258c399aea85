"""The options that all commands share which talk to a server, and what they become: a client and a printer."""

import functools
import getpass
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from gligabao.cli.client import Client
    from gligabao.cli.output import Printer

Command = Callable[..., None]
Decorated = TypeVar("Decorated", bound=Callable[..., Any])

DEFAULT_URL = "http://127.0.0.1:8080"

_OPTIONS = (
    click.option(
        "--url", envvar="GLIGABAO_URL", default=DEFAULT_URL, show_default=True, help="The server.  [env: GLIGABAO_URL]"
    ),
    click.option(
        "--user",
        envvar="GLIGABAO_USER",
        help="The owner of the researches.  [default: the login name, or the user of the API key; env: GLIGABAO_USER]",
    ),
    click.option(
        "--api-key",
        envvar="GLIGABAO_API_KEY",
        help="The API key, if the server asks for one.  [env: GLIGABAO_API_KEY]",
    ),
)


def output_option(command: Decorated) -> Decorated:
    """Add `-o text|json` to a command."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "json"]),
        help="Output format.  [default: text on a terminal, otherwise json]",
    )(command)


def server_options(command: Command) -> Command:
    """Add the shared options; the command gets `client` and `printer` in their place."""

    @functools.wraps(command)
    def run(*, url: str, user: str | None, api_key: str | None, output: str | None, **others: Any) -> None:
        with _open_client(url, user=user, api_key=api_key) as client:
            command(client=client, printer=_open_printer(output), **others)

    decorated: Command = output_option(run)
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def _open_client(url: str, *, user: str | None, api_key: str | None) -> "Client":
    from gligabao.cli.client import Client

    # The key says whose it is. Naming the login name beside it would be refused where the two differ.
    if user is None and not api_key:
        user = login_name()
    return Client(url, user=user, api_key=api_key)


def _open_printer(output: str | None) -> "Printer":
    from gligabao.cli.output import Printer

    return Printer(output)


def login_name() -> str:
    """Return the login name as a user id, with underscores for characters that an id cannot contain."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):  # what an account without a name raises differs between Pythons
        name = ""
    user_id = re.sub(r"[^A-Za-z0-9._@:-]", "_", name)[:128]
    if not re.search(r"[A-Za-z0-9]", user_id):
        raise click.UsageError("the login name cannot be used as a user id: name one with --user (or GLIGABAO_USER)")
    return user_id
