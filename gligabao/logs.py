"""The log: one line an event on standard error, as text or JSON, with secrets taken out.

Owns the format and the redaction of every line, whether gligabao, a library or gunicorn logs it. Each room decides
what is worth a line, and at which level. Loggers are the standard library's. Logging never blocks: a background thread
writes the lines.
"""

import json
import logging
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from logging.handlers import QueueHandler
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Literal, TextIO
from urllib.parse import quote

from gligabao.records import format_time

LogFormat = Literal["text", "json"]

GONE = "[secret]"
"""What stands in the place of a secret."""

MAX_WAITING_LINES = 2000
"""More than these do not wait to be written: what comes then is dropped."""
FLUSH_SECONDS = 0.25
"""How long the end of a process waits for its last lines to be written."""

_GUNICORN_LOGGERS = ("gunicorn.error", "gunicorn.access")
_QUIET_LOGGERS = {"httpx2": logging.WARNING, "urllib3.connection": logging.ERROR}
"""The first logs every model call at INFO; the second puts what a web server sent into a warning."""

_log = logging.getLogger(__name__)


# Redaction

# Messages carry text from the web: every pattern takes time linear in it, or nearly.
_PATTERNS: list[tuple[re.Pattern[str], str]] = [
    (re.compile(r"sk-ant-[\w-]+"), f"sk-ant-{GONE}"),
    # The second half keeps the names of our tables and indexes, which begin with gb_ too: a key has digits or
    # capitals, or at least no underscore for long.
    (re.compile(r"\bgb_(?=[a-z_]*[A-Z0-9-]|[a-z]{20})[\w-]{20,}"), f"gb_{GONE}"),
    # A header as it stands in a request, a mapping or a list of pairs.
    (
        re.compile(
            r"""(?ix)
            ( \b (?: (?:proxy-)?authorization | x-api-key | x-subscription-token ) \b
              (?: ['"] \s* [:,] | \s* [:=] ) \s* (?: b? ['"] )? )
            (?: (?:bearer|basic|digest|token) \s+ )?
            [^\s'",;)}\]]+
            """
        ),
        rf"\1{GONE}",
    ),
    (re.compile(r"(?i)\b(bearer\s+)[\w.~+/-]{16,}"), rf"\1{GONE}"),
    # libpq's other form, and the query of a database URL.
    (re.compile(r"(?i)(password\s*=\s*)(?:'(?:[^'\\]|\\.)*'|[^\s&'\"]+)"), rf"\1{GONE}"),
    # A database URL: up to its last @, since a password typed in by hand may contain any character.
    (re.compile(r"(?i)(\bpostgres(?:ql)?://[^\s:/@]*):\S{0,500}@"), rf"\1:{GONE}@"),
    (re.compile(r"(?<=://)([^\s:/?#@]*):[^\s/?#]*@"), rf"\1:{GONE}@"),
]


class _Secrets:
    """Exact values that must not be logged. Added to while the process starts, read by every thread.

    A whole new pattern is put in place at once, so readers need no lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forms: set[str] = set()
        self._pattern: re.Pattern[str] | None = None

    def add(self, value: str) -> None:
        with self._lock:
            # A secret is also logged as part of a repr, of JSON or of a URL.
            self._forms |= {value, repr(value)[1:-1], json.dumps(value)[1:-1], quote(value, safe="")}
            longest_first = sorted(self._forms, key=len, reverse=True)
            self._pattern = re.compile("|".join(_form_pattern(form) for form in longest_first))

    def remove_from(self, text: str) -> str:
        return self._pattern.sub(GONE, text) if self._pattern else text


def _form_pattern(form: str) -> str:
    # A short one (a local model server takes "x" for a key) counts as a whole word only: else no line could be read.
    return re.escape(form) if len(form) >= 8 else rf"(?<!\w){re.escape(form)}(?!\w)"


_secrets = _Secrets()


def keep_secret(value: str | None) -> None:
    """From now on this value appears in no log line. None and blank text are no secrets."""
    if value and value.strip():
        _secrets.add(value)


def redact(text: str) -> str:
    """Return the text without keys, passwords in URLs, credentials in headers, and the values kept secret."""
    text = _secrets.remove_from(text)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


# Formats

_ESCAPES = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))},
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}
"""Characters that break a line, or that a terminal would obey."""


class _Formatter(logging.Formatter):
    """One event in one line; subclasses say how it looks."""

    def format(self, record: logging.LogRecord) -> str:
        message = redact(record.getMessage())
        return self.line(record, _time_of(record), message, redact(self._trace(record)))

    def line(self, record: logging.LogRecord, time: str, message: str, trace: str) -> str:
        raise NotImplementedError

    def _trace(self, record: logging.LogRecord) -> str:
        parts = []
        if record.exc_info and record.exc_info[0] is not None:
            parts.append(self.formatException(record.exc_info))
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        return "\n".join(parts)


class TextFormatter(_Formatter):
    """`2026-11-01T10:00:00.120Z INFO gligabao.server: message`; a traceback follows on indented lines."""

    def line(self, record: logging.LogRecord, time: str, message: str, trace: str) -> str:
        head = f"{time} {record.levelname} {record.name}: {message.translate(_ESCAPES)}"
        return "\n    ".join([head, *(row.translate(_ESCAPES) for row in trace.split("\n") if row)])


class JsonFormatter(_Formatter):
    """An object with `time`, `level`, `logger`, `thread`, `message` and, after a fault, `exception`."""

    def line(self, record: logging.LogRecord, time: str, message: str, trace: str) -> str:
        event = {
            "time": time,
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            "message": message,
        }
        if trace:
            event["exception"] = trace
        return json.dumps(event)


def _time_of(record: logging.LogRecord) -> str:
    return format_time(datetime.fromtimestamp(record.created, UTC))


# Writing


class _LineHandler(QueueHandler):
    """Hands each line to a thread that writes it.

    A write waits as long as nobody reads standard error (Ctrl-S in a terminal, a collector behind a pipe that hangs):
    were it done here, every thread of a server would soon wait with it. The lock of the handler, which `handle` takes,
    guards what is below. An event in the queue is set when the lines before it are written; None ends the thread.
    """

    queue: "SimpleQueue[bytes | threading.Event | None]"  # its put is safe in a signal handler

    def __init__(self, stream: TextIO) -> None:
        super().__init__(SimpleQueue())
        # Not through the stream: a write that waits would hold its lock, also in a fork and when the process ends.
        self._descriptor = stream.fileno()
        self._encoding = stream.encoding
        self._thread: threading.Thread | None = None
        self._dropped = 0
        self._closed = False

    def prepare(self, record: logging.LogRecord) -> bytes:
        """Return the line, made at once: a record would keep alive what its traceback refers to."""
        return f"{self.format(record)}\n".encode(self._encoding, "backslashreplace")

    def enqueue(self, record: Any) -> None:
        """Pass a line on, or write it here when there is no thread for it.

        It is dropped when too many wait already; the next one that is not says how many were.
        """
        line: bytes = record
        if self._closed or not self._has_thread():
            _write(self._descriptor, [line])
        elif self.queue.qsize() >= MAX_WAITING_LINES:
            self._dropped += 1
        else:
            if self._dropped:
                self.queue.put(self._notice())
                self._dropped = 0
            self.queue.put(line)

    def flush(self) -> None:
        """Wait for what was logged to be written, but not for long."""
        if not self._closed and self._thread is not None and self._thread.is_alive():
            written = threading.Event()
            self.queue.put(written)
            written.wait(FLUSH_SECONDS)

    def close(self) -> None:
        """End the thread once it has written what waits. A line that still comes is written by who logs it."""
        self._closed = True
        self.queue.put(None)
        super().close()

    def _has_thread(self) -> bool:
        if self._thread is not None and self._thread.is_alive():
            return True
        # A fork does not copy threads, but it does copy the lines, which the parent writes.
        self.queue = SimpleQueue()
        self._dropped = 0
        thread = threading.Thread(target=_write_queue, args=(self.queue, self._descriptor), name="log", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads
            return False
        self._thread = thread
        return True

    def _notice(self) -> bytes:
        message = "%d log lines were dropped: nothing reads standard error"
        return self.prepare(logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, (self._dropped,), None))


def _write_queue(queue: "SimpleQueue[bytes | threading.Event | None]", descriptor: int) -> None:
    # A signal must go to the main thread, or wait while that one holds it back.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    items: list[bytes | threading.Event | None] = []
    while None not in items:
        # All that waits, in one go: among busy threads, each write costs this one its turn.
        items = [queue.get()]
        items += [queue.get() for _ in range(queue.qsize())]
        _write(descriptor, [item for item in items if isinstance(item, bytes)])
        for item in items:
            if isinstance(item, threading.Event):
                item.set()


def _write(descriptor: int, lines: Iterable[bytes]) -> None:
    for pack in _packs(lines):
        left = pack
        while left:
            try:
                left = left[os.write(descriptor, left) :]
            except BlockingIOError:
                # Another program that shares the terminal made it so.
                poll = select.poll()
                poll.register(descriptor, select.POLLOUT)
                poll.poll()
            except OSError:
                break  # closed, or its disk is full: there is nowhere to tell


def _packs(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Put lines together up to the size at which a pipe takes them whole, even if other processes write to it."""
    pack = b""
    for line in lines:
        if pack and len(pack) + len(line) > select.PIPE_BUF:
            yield pack
            pack = b""
        pack += line
    if pack:
        yield pack


# Set-up


def configure_logs(format: LogFormat = "text") -> None:
    """Send every event of this process, from INFO up, to standard error in one format.

    Handlers that were there before are taken off. Warnings, and exceptions that nobody caught, become
    events too, so that none gets past the redaction.
    """
    # A process that was started without standard error may have a file of another kind under its number.
    handler = logging.NullHandler() if sys.stderr is None else _LineHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for name in _GUNICORN_LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    for name, level in _QUIET_LOGGERS.items():
        logging.getLogger(name).setLevel(level)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        _log.critical("the process ends: nothing caught this", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not issubclass(args.exc_type, SystemExit):
        name = args.thread.name if args.thread else "unknown"
        fault = (args.exc_type, args.exc_value, args.exc_traceback)
        _log.critical("the thread %s ends: nothing caught this", name, exc_info=fault)
