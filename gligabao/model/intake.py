"""How much of an answer is taken in, whatever the model's server sends, and in what text an error is read.

One hook of the HTTP client that sees every response before any of its body is read. What an answer means is left to
`reply` and `failures`.
"""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress

import httpx2

from gligabao.model.reply import MalformedAnswer

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Far beyond what any model can say in one answer. Counted after unpacking."""


def bound(response: httpx2.Response) -> None:
    """Have no more than `MAX_ANSWER_BYTES` of the response read, as a hook of the HTTP client.

    A longer answer, or one that cannot be unpacked, raises `MalformedAnswer`. Such an error ends there: its status
    says enough.
    """
    # The charset that the server names may be none that gives text (hex, zip), and JSON is UTF-8 in any case.
    response.encoding = "utf-8"
    stream = response.stream
    assert isinstance(stream, httpx2.SyncByteStream)
    parts: Iterable[bytes] = stream
    if "content-encoding" in response.headers:
        # A packed answer was not asked for. It is unpacked here, in pieces, so that what is counted is what is kept.
        packed = httpx2.Response(response.status_code, headers=response.headers, stream=stream)
        parts = packed.iter_bytes()
        del response.headers["content-encoding"]
    response.stream = _Bounded(stream, parts, cut=not response.is_success)


class _Bounded(httpx2.SyncByteStream):
    """The parts of a body, up to the limit."""

    def __init__(self, stream: httpx2.SyncByteStream, parts: Iterable[bytes], *, cut: bool) -> None:
        self._stream = stream
        self._parts = parts
        self._cut = cut

    def __iter__(self) -> Iterator[bytes]:
        with suppress(MalformedAnswer) if self._cut else nullcontext():
            yield from self._take()

    def _take(self) -> Iterator[bytes]:
        taken_bytes = 0
        try:
            for part in self._parts:
                taken_bytes += len(part)
                if taken_bytes > MAX_ANSWER_BYTES:
                    raise MalformedAnswer(f"it has more than {MAX_ANSWER_BYTES:,} bytes")
                yield part
        except httpx2.DecodingError as error:
            raise MalformedAnswer("it cannot be unpacked") from error

    def close(self) -> None:
        self._stream.close()
