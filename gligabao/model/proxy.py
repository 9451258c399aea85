"""Which proxy the environment names for the calls of the model."""

from contextlib import suppress
from ipaddress import ip_address, ip_network
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies


def find_proxy(url: str) -> str | None:
    """Return the URL of the proxy that the environment names for this URL, None if it is to be called directly.

    HTTP_PROXY, HTTPS_PROXY and ALL_PROXY name proxies. NO_PROXY lists what needs none: names, with all below them,
    addresses, networks, or `*`; a name may have a port.
    """
    named = getproxies()
    where = urlsplit(url)
    proxy = named.get(where.scheme) or named.get("all")
    if not proxy or any(_covers(entry.strip().lower(), where) for entry in named.get("no", "").split(",")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _covers(entry: str, where: SplitResult) -> bool:
    """Tell whether an entry of NO_PROXY means this place."""
    host = where.hostname or ""
    if entry == "*":
        return True
    with suppress(ValueError):
        return ip_address(host) in ip_network(entry.replace("[", "").replace("]", ""), strict=False)
    name = entry.rpartition("://")[2].removeprefix("*").removeprefix(".")
    return bool(name) and any(f".{place}".endswith(f".{name}") for place in (host, f"{host}:{where.port}"))
