"""What may be read: which forms of URL, and which addresses.

Owns the table of private addresses and the setting `fetch_allow`. It opens nothing: `dial` looks names up and
asks here about every answer. The check of the URL's form is a courtesy that gives a clear message early; what
counts is the check of the address, so a URL that two parsers read differently gains nothing.

`ipaddress.is_global` is no base for this: its answers differ between patch releases, and for some of them
multicast, NAT64 and a cloud's metadata address are global.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

import requests

from gligabao.errors import ConfigError
from gligabao.reader.faults import Unreadable

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_URL_CHARS = 2048

_PRIVATE_4 = [
    IPv4Network(text)
    for text in (
        "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 168.63.129.16/32 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24"
        " 192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3"
    ).split()
]
_PUBLIC_6 = IPv6Network("2000::/3")
_PRIVATE_6 = [IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")]
# An IPv6 address in one of these is the IPv4 address in its last 32 bits: mapped, and NAT64 (which networks
# without IPv4 put in front of every public address).
_WRAPPED_4 = [IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96")]
# ISATAP puts an IPv4 address behind this interface identifier; its universal bit may be set.
_ISATAP_MASK, _ISATAP = 0xFDFFFFFF, 0x00005EFE

_ENTRY = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s\[\]:/?#@%\\]+))(?::([0-9]{1,5}))?", re.IGNORECASE)
_NAME = re.compile(r"[\w-]{1,63}(?:\.[\w-]{1,63})*", re.ASCII)

_METADATA = {
    ip_address(text)
    for text in (
        "169.254.169.254 169.254.170.2 169.254.170.23 169.254.0.23 169.254.42.42 100.100.100.200 192.0.0.192"
        " 168.63.129.16 fd00:ec2::254 fd00:ec2::23 fd20:ce::254 fd00:42::42"
    ).split()
}
"""Where clouds hand out a machine's credentials and settings: never opened by a network or a name."""


@dataclass(frozen=True, slots=True)
class Allow:
    """The private places that may be read: the setting `fetch_allow`. Public ones always may."""

    names: frozenset[tuple[str, int | None]] = frozenset()
    """Host and port, None for any port."""
    addresses: frozenset[tuple[Address, int | None]] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, entries: Iterable[str]) -> "Allow":
        """Return the places that the entries name: `host`, `host:port`, an address (with or without port), a network.

        Raises `ConfigError` naming the first entry that is none of these.
        """
        names, addresses, networks = set(), set(), []
        for entry in entries:
            try:
                if "/" in entry:
                    networks.append(ip_network(entry))
                    continue
                host, port = _split_port(entry)
                address = _as_address(host)
                if address is None:
                    names.add((_as_name(host), port))
                else:
                    addresses.add((address, port))
            except ValueError as error:
                message = f"fetch_allow: {entry!r} is not a host, host:port, address or network such as 10.0.0.0/8"
                raise ConfigError(message) from error
        return cls(frozenset(names), frozenset(addresses), tuple(networks))

    def admits(self, address: str, *, host: str, port: int) -> bool:
        """Tell whether `address`, an answer to the look-up of `host`, may be connected to."""
        ip = _as_address(address)
        if ip is None:
            return False
        if _is_public(ip) or _holds(self.addresses, ip, port):
            return True
        if ip in _METADATA:
            return False
        name = host.rstrip(".").lower()
        return _holds(self.names, name, port) or any(ip in network for network in self.networks)


def check_url(url: str) -> SplitResult:
    """Return the parts of a URL whose form is one that is read; raises `Unreadable` saying what is wrong with it."""
    if len(url) > MAX_URL_CHARS:
        raise Unreadable(f"the URL is longer than {MAX_URL_CHARS:,} characters")
    if re.search(r"[\x00-\x20\x7f-\x9f\s\\]", url):
        raise Unreadable("the URL has a blank, a control character or a backslash in it: write it percent-encoded")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise Unreadable("the URL is not valid: its host or port cannot be read") from None
    if parts.scheme not in ("http", "https") or not host:
        raise Unreadable("not an http:// or https:// URL: give the whole address of a page")
    if "@" in parts.netloc:
        raise Unreadable("the URL has a user name in it: leave that out")
    if "%" in host or _is_odd_number(host):
        raise Unreadable("the URL's host is neither a name nor an address in its usual form")
    return parts


def _is_odd_number(host: str) -> bool:
    # 2130706433, 0x7f.1 and 127.0.0.1. are addresses to the C library, names to other code.
    last = host.rstrip(".").rpartition(".")[2]
    is_number = re.fullmatch(r"[0-9]+|0x[0-9a-f]*", last, re.IGNORECASE)
    return is_number is not None and ":" not in host and not _is_dotted_quad(host)


def _is_dotted_quad(host: str) -> bool:
    try:
        return str(IPv4Address(host)) == host
    except ValueError:
        return False


def _is_public(ip: Address) -> bool:
    if isinstance(ip, IPv4Address):
        return not any(ip in network for network in _PRIVATE_4)
    if ip not in _PUBLIC_6 or (int(ip) >> 32) & _ISATAP_MASK == _ISATAP:
        return False
    return not any(ip in network for network in _PRIVATE_6)


def _as_address(text: str) -> Address | None:
    """Return the address, the IPv4 one inside where it wraps one; None for a name or an address with a zone."""
    try:
        ip = ip_address(text)
    except ValueError:
        return None
    if isinstance(ip, IPv4Address):
        return ip
    if ip.scope_id is not None:
        return None
    if any(ip in network for network in _WRAPPED_4):
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip


def _holds(places: frozenset[tuple[object, int | None]], key: object, port: int) -> bool:
    return (key, None) in places or (key, port) in places


def _split_port(entry: str) -> tuple[str, int | None]:
    if _as_address(entry) is not None:
        return entry, None
    match = _ENTRY.fullmatch(entry)
    if match is None or (match[1] and _as_address(match[1]) is None):
        raise ValueError(entry)
    port = int(match[3]) if match[3] else None
    if port is not None and not 1 <= port <= 65535:
        raise ValueError(entry)
    return match[1] or match[2], port


def _as_name(host: str) -> str:
    """Return the name as it will be dialled. Raises ValueError (requests' InvalidURL is one) if it is not a name."""
    # The way that a URL takes too, so that both come to the same spelling.
    prepared = requests.Request("GET", f"http://{host}/").prepare().url or ""
    name = str(urlsplit(prepared).hostname or "").removesuffix(".")
    if not _NAME.fullmatch(name) or _is_odd_number(name):
        raise ValueError(host)
    return name
