"""The dialler alone: which address of a host is connected to, how long it takes, and what cuts it."""

import socket
import threading
from collections.abc import Iterator

import pytest

from gligabao.cancel import Cancel, Watchdog
from gligabao.errors import Cancelled
from gligabao.network.line import Line
from gligabao.network.lookup import Unreachable
from tests.fakes import BY_USER
from tests.lines import Address, closed_address, resolves_to, silent_address


@pytest.fixture
def listening() -> Iterator[Address]:
    """An address at which the system takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()


@pytest.fixture
def silent() -> Iterator[Address]:
    with silent_address() as address:
        yield address


def dial(line: Line) -> Address:
    """Dial, hang up, and return where it was connected to."""
    with line.dial("model.test", 443) as connection:
        peer: Address = connection.getpeername()
    line.close()
    return peer


def test_a_silent_address_leaves_time_for_the_next(
    silent: Address, listening: Address, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(socket, "getaddrinfo", resolves_to(silent, silent, listening))
    assert dial(Line(connect_seconds=3)) == listening


def test_an_address_that_refuses_is_followed_by_the_next(listening: Address, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(socket, "getaddrinfo", resolves_to(closed_address(), listening))
    assert dial(Line()) == listening


def test_an_address_of_a_family_that_the_system_lacks_is_followed_by_the_next(
    listening: Address, monkeypatch: pytest.MonkeyPatch
):
    odd = (999, socket.SOCK_STREAM, 6, "", listening)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [odd, *resolves_to(listening)()])
    assert dial(Line()) == listening


def test_addresses_that_are_all_silent_are_given_up_together(silent: Address, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(socket, "getaddrinfo", resolves_to(*[silent] * 50))
    with pytest.raises(Unreachable, match=r"^could not connect within 0\.5 s$"):
        Line(connect_seconds=0.5).dial("model.test", 443)


def test_a_host_that_refuses_is_told_as_such(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(socket, "getaddrinfo", resolves_to(closed_address()))
    with pytest.raises(Unreachable, match=r"^could not connect: Connection refused$"):
        Line().dial("model.test", 443)


def test_a_host_that_is_judged_unfit_is_not_connected_to(listening: Address, monkeypatch: pytest.MonkeyPatch):
    seen: list[object] = []

    class Unfit(Exception):
        pass

    def judge(host: str, port: int, addresses: object) -> None:
        seen.extend([host, port, addresses])
        raise Unfit

    both = resolves_to(listening, closed_address())
    monkeypatch.setattr(socket, "getaddrinfo", both)
    monkeypatch.setattr(socket, "socket", None)
    with pytest.raises(Unfit):
        Line(judge=judge).dial("model.test", 443)
    assert seen == ["model.test", 443, both()]


@pytest.mark.parametrize("cut_by", ["cancel", "clock"])
def test_a_line_that_was_cut_connects_no_more_in_that_attempt(cut_by: str, listening: Address, watchdog: Watchdog):
    line, cancel, struck = Line(), Cancel(), threading.Event()
    with line.watched(cancel, watchdog, seconds=0.001 if cut_by == "clock" else 60) as watch:
        if cut_by == "cancel":
            cancel.set(BY_USER)
        else:
            with watchdog.deadline(0.05, struck.set):
                assert struck.wait(20)
        with pytest.raises(Unreachable, match="given up"):
            line.dial(*listening)
    assert (watch.is_cut, watch.expired) == (True, cut_by == "clock")
    line.dial(*listening).close()
    line.close()


def test_an_agent_that_was_told_to_stop_makes_no_attempt(watchdog: Watchdog):
    cancel = Cancel()
    cancel.set(BY_USER)
    with pytest.raises(Cancelled), Line().watched(cancel, watchdog, seconds=60):
        pytest.fail("the attempt was made")


def test_a_clock_that_strikes_late_does_not_cut_the_next_attempt(listening: Address, watchdog: Watchdog):
    line = Line()
    with line.watched(Cancel(), watchdog, seconds=60) as first:
        pass
    with line.watched(Cancel(), watchdog, seconds=60) as second:
        line._cut(first, expired=True)
        line.dial(*listening).close()
    assert not first.expired and not second.is_cut
    line.close()


def test_a_cut_ends_what_waits_on_the_connection(watchdog: Watchdog):
    line, cancel, received = Line(), Cancel(), []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def read() -> None:
            with line.watched(cancel, watchdog, seconds=60), line.dial(*listener.getsockname()) as connection:
                received.append(connection.recv(1))

        reading = threading.Thread(target=read)
        reading.start()
        with listener.accept()[0]:
            cancel.set(BY_USER)
            reading.join(20)
    assert received == [b""]
    line.close()
