"""`gligabao simulate`: the simulated Messages API, in this process."""

import signal
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gligabao.simulator import Simulator

_STOPPING = {signal.SIGINT, signal.SIGTERM}


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8081,
    show_default=True,
    help="The port to listen on, on this machine; 0 takes any.",
)
def simulate(port: int) -> None:
    """Run a simulated Messages API with a few sample pages, until SIGTERM or Ctrl-C.

    To try gligabao, or to test, without a key: no real model is asked.
    """
    # Blocked before the simulator starts its threads, which inherit this, so that sigwait gets the signals.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        simulator = _start_simulator(port)
        try:
            click.echo(_say_how_to_use(simulator))
            signal.sigwait(_STOPPING)
        finally:
            simulator.stop()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_simulator(port: int) -> "Simulator":
    from gligabao.simulator import Simulator

    try:
        return Simulator(host="127.0.0.1", port=port).start()
    except OSError as error:
        raise click.ClickException(f"cannot listen on 127.0.0.1:{port}: {error.strerror}") from None


def _say_how_to_use(simulator: "Simulator") -> str:
    from gligabao.simulator import DEMO_TEAM_TOPIC, DEMO_TOPIC

    return f"""\
A simulated Messages API listens on {simulator.url} (no real model is asked).
Point a server at it with:

  ANTHROPIC_BASE_URL={simulator.url} ANTHROPIC_API_KEY=simulated \\
    GLIGABAO_FETCH_ALLOW='["{simulator.address}"]' gligabao serve

It has a few sample pages about one invented place. Topics to try:

  {DEMO_TOPIC}
  {DEMO_TEAM_TOPIC}

Press Ctrl-C to stop."""
