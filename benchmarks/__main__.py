"""`python -m benchmarks`: runs benchmarks one after the other, prints what they found and writes it as JSON."""

import os
import time
from collections.abc import Callable

import click

from benchmarks import agents, latency, lists, page, start, step, stop, store
from benchmarks.report import RESULTS, Options, Report, describe_machine

BENCHMARKS: dict[str, Callable[[Options], Report]] = {
    "step": step.run,
    "store": store.run,
    "lists": lists.run,
    "page": page.run,
    "agents": agents.run,
    "latency": latency.run,
    "start": start.run,
    "stop": stop.run,
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)), metavar="[NAME]...")
@click.option("--quick", is_flag=True, help="Small and short, to see that they work. The figures mean little.")
@click.option("--with-peers", is_flag=True, help="Install other frameworks in the cache folder and measure them too.")
def main(names: tuple[str, ...], quick: bool, with_peers: bool) -> None:
    """Run the named benchmarks (all without a name): step, store, lists, page, agents, latency, start, stop."""
    options = Options(quick=quick, with_peers=with_peers)
    click.echo("\n".join(f"{key}: {value}" for key, value in describe_machine().items()))
    for name in names or BENCHMARKS:
        began, load_before = time.monotonic(), os.getloadavg()
        report = BENCHMARKS[name](options)
        load = {"load_before": load_before, "load_after": os.getloadavg()}
        report.notes.append(
            f"{name} took {time.monotonic() - began:.0f} s; load average {load_before[0]:.2f} before, "
            f"{load['load_after'][0]:.2f} after."
        )
        click.echo(f"\n{report.show()}")
        report.write(RESULTS, machine=describe_machine(), quick=quick, **load)


if __name__ == "__main__":
    main()
