"""The log: one line an event on standard error, as text or JSON, with secrets taken out.

Owns the format and the redaction of every line, whoever logs it: gligabao, a library or gunicorn. What is
worth a line, and at which level, is for each room to say. Loggers are the standard library's.
"""

import json
import logging
import re
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal
from urllib.parse import quote

from gligabao.records import format_time

LogFormat = Literal["text", "json"]

GONE = "[secret]"
"""What stands in the place of a secret."""

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
    # A database URL: up to its last @, since a password typed in by hand may hold any sign.
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
"""Signs that break a line, or that a terminal would obey."""


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


# Set-up


def configure_logs(format: LogFormat = "text") -> None:
    """Send every event of this process, from INFO up, to standard error in one format.

    Handlers that were there before are taken off. Warnings, and exceptions that nobody caught, become
    events too, so that none gets past the redaction.
    """
    handler = logging.StreamHandler(sys.stderr)
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
