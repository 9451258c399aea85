"""What the page reader refuses to connect to. No packet leaves: names, connections and answers are the test's own."""

import os
import re
import socket
import threading
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import unquote

import pytest

from gligabao.cancel import Cancel, Watchdog
from gligabao.errors import ConfigError
from gligabao.reader.faults import Unreadable
from gligabao.reader.guard import check_url
from gligabao.reader.page import Allow, PageError, PageReader

# Successive look-ups are separated by ";", the addresses of one answer by ",".
NAMES = {
    "public.test": "93.184.215.14",
    "both.test": "93.184.215.14,2606:2800:21f:cb07:6820:80da:af6b:8b2c",
    "xn--mnchen-3ya.test": "93.184.215.14",
    "nat64.test": "64:ff9b::808:808",
    "localhost": "127.0.0.1",
    "intranet": "10.1.2.3",
    "metadata.test": "169.254.169.254",
    "loopback6.test": "::1",
    "mapped.test": "::ffff:127.0.0.1",
    "nat64-private.test": "64:ff9b::a00:1",
    "zone.test": "fe80::1%2",
    "mixed.test": "93.184.215.14,10.0.0.1",
    "rebinding.test": "93.184.215.17;127.0.0.1",
    "redirect.test": "93.184.215.15",
    "redirect-rebinding.test": "93.184.215.15;127.0.0.1",
}
REFUSED = """
    http://127.0.0.1/ http://127.8.9.10/ http://localhost/ http://LOCALHOST./ http://0.0.0.0/ http://10.0.0.1/
    http://172.16.0.1/ http://172.31.255.255/ http://192.168.1.1/ http://169.254.169.254/latest/meta-data/
    http://100.64.0.1/ http://100.100.100.200/ http://192.0.0.192/ http://168.63.129.16/ http://198.19.0.1/
    http://192.0.2.1/ http://192.88.99.1/ http://198.51.100.1/ http://203.0.113.1/ http://224.0.0.1/ http://255.255.255.255/
    http://2130706433/ http://0x7f000001/ http://017700000001/ http://0177.0.0.1/ http://127.1/ http://0/ http://0x0/
    http://127.0.0.1./ http://127.0.0.01/ http://0xa9fea9fe/ http://127。0。0。1/ http://\uff4c\uff4f\uff43\uff41lhost/
    http://127%2e0%2e0%2e1/ http://[::]/ http://[::1]/ http://[0:0:0:0:0:0:0:1]/ http://[::ffff:127.0.0.1]/
    http://[::ffff:a9fe:a9fe]/ http://[::127.0.0.1]/ http://[64:ff9b::7f00:1]/ http://[64:ff9b:1::7f00:1]/
    http://[2002:7f00:1::]/ http://[2001:0:7f00:1::1]/ http://[2001:db8::1]/ http://[3fff::1]/ http://[5f00::1]/
    http://[fe80::1]/ http://[fe80::1%25eth0]/ http://[fec0::1]/ http://[fc00::1]/ http://[fd00:ec2::254]/ http://[ff02::1]/
    http://[2606:4700::5efe:a00:1]/ http://[2606:4700::200:5efe:7f00:1]/ http://[100::1]/
    http://public.test@127.0.0.1/ http://user:secret@public.test/ http://127.0.0.1\\@public.test/ http://127.0.0.1?@public.test/
    http:///127.0.0.1/ http:127.0.0.1/ http://127.0.0.1%00.public.test/ //127.0.0.1/ 127.0.0.1 http:// http://public.test:x/
    file:///etc/passwd ftp://public.test/ gopher://127.0.0.1:6379/_x data:text/html,x javascript:alert(1)
    http://intranet/ http://metadata.test/ http://loopback6.test/ http://mapped.test/ http://nat64-private.test/
    http://zone.test/ http://mixed.test/ http://nowhere.test/ http://[::1 http://public.test:99999/
    http://redirect.test/?to=http://127.0.0.1/ http://redirect.test/?to=//10.0.0.1/ http://redirect.test/?to=http://[::1]/
    http://redirect.test/?to=http://intranet/ http://redirect.test/?to=file:///etc/passwd
    http://redirect.test/?to=http://public.test@127.0.0.1/ http://redirect.test/?to=http://2130706433/
    http://redirect.test/?to=http://redirect.test/?to=http://10.0.0.1/ http://redirect-rebinding.test/?to=/?to=/
""".split()
READ = """
    http://public.test/ http://public.test:8080/ http://both.test/ http://8.8.8.8/ http://11.0.0.1/ http://9.255.255.255/
    http://172.15.255.255/ http://172.32.0.1/ http://192.167.255.255/ http://100.63.255.255/ http://100.128.0.1/
    http://223.255.255.254/ http://[2606:4700:4700::1111]/ http://[::ffff:8.8.8.8]/ http://nat64.test/
    http://münchen.test/ http://public.test/@127.0.0.1/ http://public.test/?u=http://127.0.0.1/ http://rebinding.test/
    http://redirect.test/?to=http://public.test/ http://redirect.test/?to=/here
""".split()


class World:
    """Stands in for the network: answers look-ups from a table, and takes every connection to a server of its own."""

    def __init__(self, names: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.dialled: list[str] = []
        self._names = {name: answers.split(";") for name, answers in names.items()}
        self._connect = socket.socket.connect
        self._server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
        self._port = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="world")
        self._thread.start()
        monkeypatch.setattr(socket, "getaddrinfo", self._resolve)
        monkeypatch.setattr(socket.socket, "connect", lambda sock, address: self._take(sock, address))

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._server.close()

    def _resolve(self, host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        # As the C library does it: old spellings of addresses included.
        try:
            addresses = [str(ip_address(host))]
        except ValueError:
            addresses = self._look_up(host.rstrip(".").lower()) or [socket.inet_ntoa(_inet_aton(host))]
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))
            if ":" in address
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in addresses
        ]

    def _look_up(self, name: str) -> list[str]:
        answers = self._names.get(name, [""])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return answer.split(",") if answer else []

    def _take(self, sock: socket.socket, address: tuple[str, int]) -> None:
        self.dialled.append(address[0])
        loopback = "::1" if sock.family is socket.AF_INET6 else "127.0.0.1"
        self._connect(sock, (loopback, self._port))

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            with sock:
                self._answer(sock)

    def _answer(self, sock: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            request += sock.recv(4096)
        path, host = re.findall(r"GET (\S+) [\s\S]*\r\nHost: (\S+)", request.decode())[0]
        target = re.search(r"\?to=(.*)", path)
        if host == "loop.test":
            head = "302 Found\r\nLocation: http://loop.test/"
        elif target and "redir" in host:
            head = f"302 Found\r\nLocation: {unquote(target[1])}"
        else:
            head = "200 OK\r\nContent-Type: text/plain"
        sock.sendall(f"HTTP/1.1 {head}\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok".encode("latin-1"))


def _inet_aton(host: str) -> bytes:
    try:
        return socket.inet_aton(host)
    except OSError:
        raise socket.gaierror(socket.EAI_NONAME, "not known") from None


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(NAMES, monkeypatch)
    yield world
    world.close()


def read(url: str, watchdog: Watchdog, *allowed: str) -> str:
    reader = PageReader(allow=Allow.parse(allowed), cancel=Cancel(), watchdog=watchdog)
    try:
        return reader.read(url).text
    finally:
        reader.close()


@pytest.mark.parametrize("url", REFUSED)
def test_what_is_not_public_is_never_dialled(url: str, world: World, watchdog: Watchdog):
    with pytest.raises(PageError) as caught:
        read(url, watchdog)
    assert all(ip_address(address).is_global for address in world.dialled)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", READ)
def test_what_is_public_is_read(url: str, world: World, watchdog: Watchdog):
    assert read(url, watchdog) == "ok"


def test_a_name_is_dialled_at_the_address_that_was_judged(world: World, watchdog: Watchdog):
    read("http://rebinding.test/", watchdog)
    assert world.dialled == ["93.184.215.17"]


def test_the_second_look_up_of_a_name_is_judged_too(world: World, watchdog: Watchdog):
    reader = PageReader(allow=Allow(), cancel=Cancel(), watchdog=watchdog)
    reader.read("http://rebinding.test/")
    with pytest.raises(PageError, match="private"):
        reader.read("http://rebinding.test/")


def test_the_message_names_the_setting_but_not_the_address(world: World, watchdog: Watchdog):
    with pytest.raises(PageError) as caught:
        read("http://intranet/wiki?key=1", watchdog)
    assert str(caught.value) == (
        "intranet/wiki: the address is private: only those that the setting fetch_allow names are read"
    )


def test_a_redirect_to_a_private_address_is_told_as_such(world: World, watchdog: Watchdog):
    with pytest.raises(PageError, match=r"^redirect\.test/: the address is private: it redirects there, and "):
        read("http://redirect.test/?to=http://intranet/", watchdog)


def _rows(path: Path) -> Iterator[list[str]]:
    signs = {"t": "\t", "r": "\r", "n": "\n"}
    for line in path.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            yield [re.sub(r"\\(.)", lambda m: signs.get(m[1], m[1]), cell) for cell in line.split("\t")]


@pytest.mark.skipif("GLIGABAO_BENCH_DATA" not in os.environ, reason="GLIGABAO_BENCH_DATA names no folder of vectors")
def test_every_vector_of_the_benchmark_data_is_as_expected(monkeypatch: pytest.MonkeyPatch, watchdog: Watchdog):
    cases = Path(os.environ["GLIGABAO_BENCH_DATA"]) / "cases"
    names = {row[0]: row[1] for row in _rows(cases / "ssrf_dns.tsv")}
    wrong = []
    for url, expected, _ in _rows(cases / "ssrf_vectors.tsv"):
        with monkeypatch.context() as patch:
            world = World(names, patch)
            try:
                # TLS is tested elsewhere; the server here has none.
                read(re.sub(r"^https:", "http:", url), watchdog)
                found = "allow"
            except PageError:
                found = "block"
            finally:
                world.close()
        if found != expected:
            wrong.append((url, expected, found, world.dialled))
    assert not wrong


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("localhost", "http://localhost:8080/"),
        ("LOCALHOST", "http://localhost/"),
        ("localhost", "http://LocalHost./"),
        ("localhost:8080", "http://localhost:8080/"),
        ("127.0.0.1", "http://127.0.0.1:1234/"),
        ("127.0.0.1", "http://localhost/"),
        ("127.0.0.1:8080", "http://localhost:8080/"),
        ("127.0.0.1", "http://mapped.test/"),
        ("10.0.0.0/8", "http://intranet/"),
        ("10.0.0.0/8", "http://nat64-private.test/"),
        ("::1", "http://loopback6.test/"),
        ("[::1]:80", "http://[::1]/"),
        ("fc00::/7", "http://[fd12::1]/"),
        ("169.254.169.254", "http://metadata.test/"),
        ("[fd00:ec2::254]:80", "http://[fd00:ec2::254]/"),
    ],
)
def test_an_entry_opens_what_it_names(entry: str, url: str, world: World, watchdog: Watchdog):
    assert read(url, watchdog, entry) == "ok"


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("localhost", "http://127.0.0.1/"),
        ("localhost:8080", "http://localhost/"),
        ("localhost", "http://intranet/"),
        ("127.0.0.1:8080", "http://127.0.0.1/"),
        ("127.0.0.1", "http://127.0.0.2/"),
        ("192.168.0.0/16", "http://intranet/"),
        ("169.254.0.0/16", "http://169.254.169.254/"),
        ("169.254.169.254/32", "http://169.254.169.254/"),
        ("0.0.0.0/0", "http://metadata.test/"),
        ("metadata.test", "http://metadata.test/"),
        ("fd00::/8", "http://[fd00:ec2::254]/"),
        ("100.64.0.0/10", "http://100.100.100.200/"),
        ("192.0.0.0/24", "http://192.0.0.192/"),
        ("168.63.129.0/24", "http://168.63.129.16/"),
        ("fe80::/10", "http://zone.test/"),
        ("mixed.test:81", "http://mixed.test/"),
    ],
)
def test_an_entry_opens_nothing_else(entry: str, url: str, world: World, watchdog: Watchdog):
    with pytest.raises(PageError, match="private"):
        read(url, watchdog, entry)
    assert world.dialled == []


def test_a_name_that_is_opened_opens_no_redirect_elsewhere(world: World, watchdog: Watchdog):
    with pytest.raises(PageError, match="private"):
        read("http://redirect.test/?to=http://intranet/", watchdog, "redirect.test", "localhost")


BAD_ENTRIES = """
    10.0.0.1/8 10.0.0.0/33 10.0.0.0/8:80 http://intranet/ intranet/wiki intranet?x intranet:x intranet:70000 intranet:0
    user@intranet *.corp 127.1 2130706433 fe80::1%eth0 [::1 [::1]x [abc] a..b
""".split()


@pytest.mark.parametrize("entry", ["", " ", "a b", *BAD_ENTRIES])
def test_a_bad_entry_is_named(entry: str):
    with pytest.raises(ConfigError) as caught:
        Allow.parse(["localhost", entry])
    assert "fetch_allow" in str(caught.value)
    assert repr(entry) in str(caught.value)


def test_a_name_may_be_written_in_any_script():
    assert Allow.parse(["München.test:80"]).names == {("xn--mnchen-3ya.test", 80)}


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("http://x.test/" + "a" * 2048, "longer than 2,048"),
        ("http://x.test/a b", "a blank"),
        ("http://x.test/\ufeff\n", "a blank"),
        ("ftp://x.test/", "not an http:// or https://"),
        ("", "not an http:// or https://"),
        ("http://me:secret@x.test/", "a user name"),
        ("http://x.test:http/", "cannot be read"),
        ("http://127.1/", "neither a name nor an address"),
    ],
)
def test_the_form_of_a_url_is_checked_first(url: str, fault: str):
    with pytest.raises(Unreadable, match=fault) as caught:
        check_url(url)
    assert "secret" not in str(caught.value)
