"""`gligabao research`: start researches, list them, read them."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gligabao.cli.options import server_options

if TYPE_CHECKING:
    from gligabao.cli.client import Client
    from gligabao.cli.output import Printer

Run = dict[str, Any]


@click.group()
def research() -> None:
    """Start researches, list them and read them."""


@research.command()
@click.argument("topic", required=False)
@click.option("--max-steps", type=int, help="The most steps it may take.  [default: 20, at most 40]")
@click.option("--model", help="The model it runs on.  [default: the model of the server]")
@click.option(
    "--dataset", help="The dataset of the knowledge base, which this version does not have yet.  [default: main]"
)
@click.option(
    "--json", "body_text", metavar="BODY", help="The whole request body, or @FILE to read it from, instead of TOPIC."
)
@click.option("--wait", is_flag=True, help="Show the states as they happen, and print the run when it has ended.")
@click.option("--raw", is_flag=True, help="With --wait: print only the report.")
@server_options
def start(
    client: "Client", printer: "Printer", topic: str | None, body_text: str | None, wait: bool, raw: bool, **given: Any
) -> None:
    """Start a research on TOPIC; `-` reads the topic from standard input.

    The run is printed at once, and the research goes on in the server. With --wait the exit code is 1 if the
    run failed; Ctrl-C ends the waiting, not the run.
    """
    if raw and not wait:
        raise click.UsageError("--raw needs --wait: there is no report before the run has ended")
    run = client.start_research(_read_body(topic, body_text, given))
    if wait:
        finish(client, run["id"], printer, raw=raw)
    else:
        printer.print_run(run, with_states=False)


@research.command()
@click.option("--active", is_flag=True, help="Only those at work now.")
@click.option("--status", type=click.Choice(["running", "completed", "failed"]), help="Only those with this status.")
@click.option("--parent", "parent_id", type=int, metavar="ID", help="Only the sub-agents of this run.")
@click.option("--limit", type=int, metavar="N", help="At most this many.  [default: 50, at most 500]")
@server_options
def ls(client: "Client", printer: "Printer", active: bool, **filters: Any) -> None:
    """List researches, newest first."""
    printer.print_runs(client.list_researches({"active": "true" if active else None, **filters}))


@research.command()
@click.argument("run_id", type=int, metavar="ID")
@click.option("--raw", is_flag=True, help="Print only the report.")
@server_options
def get(client: "Client", printer: "Printer", run_id: int, raw: bool) -> None:
    """Print one run with its states and its report."""
    run = client.get_research(run_id)
    if raw:
        _print_raw(run)
    else:
        printer.print_run(run)


def finish(client: "Client", run_id: int, printer: "Printer", *, raw: bool) -> None:
    """Follow a run to its end and print it; exit with 1 if it failed, with 130 at Ctrl-C."""
    from gligabao.cli.follow import follow
    from gligabao.cli.progress import open_progress

    with _leaving_it_running(run_id), open_progress(sys.stderr) as progress:
        progress.show_line(f"run {run_id} works; Ctrl-C leaves it working")
        run = follow(client, run_id, progress)
    if raw:
        _print_raw(run)
        return
    # The states were shown as they came.
    printer.print_run(run, with_states=False)
    if run["status"] != "completed":
        raise click.ClickException(_say_failure(run))


@contextmanager
def _leaving_it_running(run_id: int) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"run {run_id} goes on in the server; read it with: gligabao research get {run_id}", err=True)
        raise
    except click.ClickException:
        click.echo(f"run {run_id} is followed no longer; read it with: gligabao research get {run_id}", err=True)
        raise


def _print_raw(run: Run) -> None:
    from gligabao.cli.output import print_report

    if run["status"] != "completed":
        raise click.ClickException(_say_failure(run))
    print_report(run)


def _say_failure(run: Run) -> str:
    from gligabao.cli.text import clean

    if run["status"] == "failed":
        return f"run {run['id']} failed: {clean(run.get('error', ''))}"
    return f"run {run['id']} has no report yet: it is {clean(run['status'])} ({clean(run.get('state', ''))})"


# The request body


def _read_body(topic: str | None, body_text: str | None, given: dict[str, Any]) -> dict[str, Any]:
    options = {key: value for key, value in given.items() if value is not None}
    if body_text is not None:
        if topic is not None or options:
            raise click.UsageError("--json is the whole body: give it without TOPIC, --max-steps, --model, --dataset")
        return _parse_body(body_text)
    if topic is None:
        raise click.UsageError("say what to research: TOPIC, or - to read it from standard input, or --json")
    return {"topic": _read_input() if topic == "-" else topic, **options}


def _read_input() -> str:
    try:
        # As bytes: in some locales Python would decode bytes that are not text into something that looks like text.
        return sys.stdin.buffer.read().decode("utf-8").strip()
    except UnicodeDecodeError:
        raise click.UsageError("standard input is not text in UTF-8") from None


def _parse_body(text: str) -> dict[str, Any]:
    if text.startswith("@"):
        text = _read_body_file(Path(text[1:]))
    try:
        body = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_make_object)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--json is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise click.UsageError('--json must be an object, like \'{"topic": "..."}\'')
    return body


def _read_body_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"--json: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"--json: {path} is not text in UTF-8") from None


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON value")


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key appears twice")
    return made
