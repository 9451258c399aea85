"""How the reader connects: every address of a host is judged by `guard` before one of them is dialled."""

import logging

import requests
from urllib3.util.request import ACCEPT_ENCODING

from gligabao import __version__
from gligabao.network.line import Judge, Line
from gligabao.network.lookup import Addresses
from gligabao.network.session import LineSession
from gligabao.reader.faults import PrivateAddress
from gligabao.reader.guard import Allow

log = logging.getLogger(__name__)


def judge_by(allow: Allow) -> Judge:
    """Return the judge that refuses a host with `PrivateAddress` if one of its addresses may not be read."""

    def judge(host: str, port: int, addresses: Addresses) -> None:
        for *_, address in addresses:
            # One bad address refuses the name: safety must not depend on which of them is dialled.
            if not allow.admits(address[0], host=host, port=port):
                log.info("refused to connect to %s port %d: it is at %s", host, port, address[0])
                raise PrivateAddress

    return judge


class PageSession(LineSession):
    """A session that asks for pages and follows no redirects."""

    def __init__(self, line: Line) -> None:
        super().__init__(line)
        self.headers.update(
            {
                "User-Agent": f"gligabao/{__version__}",
                "Accept": "text/html,application/xhtml+xml,text/plain;q=0.9,*/*;q=0.5",
                # What urllib3 can decode here, and no more.
                "Accept-Encoding": ACCEPT_ENCODING,
                "Connection": "close",
            }
        )

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Return None: requests would read the whole body of a redirect, even of one that it does not follow."""
        return None
