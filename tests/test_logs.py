"""The log: one line an event, in both formats, and no secret in it."""

import json
import logging
import subprocess
import sys
import threading

import pytest

from gligabao.logs import configure_logs, keep_secret, redact

TIME = r"2026-11-01T10:00:00.120Z"


@pytest.fixture(autouse=True)
def put_logging_back():
    """The logging of the process, as `configure_logs` found it."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    hooks = sys.excepthook, threading.excepthook
    yield
    logging.captureWarnings(False)
    sys.excepthook, threading.excepthook = hooks
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def emit(capsys):
    """Logs one event at a fixed time and returns what was written to standard error."""

    def emit_one(message: str, *args: object, exc_info: object = None) -> str:
        record = logging.LogRecord("gligabao.test", logging.INFO, __file__, 1, message, args, exc_info)
        record.created = 1793527200.12
        logging.getLogger("gligabao.test").handle(record)
        return capsys.readouterr().err

    return emit_one


def raised(message: str):
    try:
        raise ValueError(message)
    except ValueError:
        return sys.exc_info()


# Lines


def test_a_text_line_has_time_level_logger_and_message(emit):
    configure_logs("text")
    assert emit("run %d ended", 7) == f"{TIME} INFO gligabao.test: run 7 ended\n"


def test_a_json_line_is_an_object(emit):
    configure_logs("json")
    assert json.loads(emit("run %d ended", 7)) == {
        "time": TIME,
        "level": "INFO",
        "logger": "gligabao.test",
        "thread": "MainThread",
        "message": "run 7 ended",
    }


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize("sign", ["\n", "\r\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\u2029", "\x1b[2J", "\x1e"])
def test_a_message_with_line_breaks_stays_one_line(emit, format, sign):
    configure_logs(format)
    written = emit("first%ssecond", sign)
    assert len(written.splitlines()) == 1
    assert "\x1b" not in written


def test_a_traceback_follows_on_indented_lines_in_text(emit):
    configure_logs("text")
    first, *rest = emit("it broke", exc_info=raised(f"one\n{TIME} INFO x: forged\r\x85two")).splitlines()
    assert first == f"{TIME} INFO gligabao.test: it broke"
    assert all(line.startswith("    ") for line in rest)
    assert rest[0].strip() == "Traceback (most recent call last):"


def test_a_traceback_is_a_field_in_json(emit):
    configure_logs("json")
    written = emit("it broke", exc_info=raised("one\ntwo"))
    assert len(written.splitlines()) == 1
    event = json.loads(written)
    assert event["message"] == "it broke"
    assert event["exception"].endswith("ValueError: one\ntwo")


def test_halves_of_a_surrogate_pair_can_be_logged(emit):
    configure_logs("json")
    assert json.loads(emit("x\ud800y"))["message"] == "x\ud800y"


def test_setting_it_twice_gives_each_line_once(emit):
    configure_logs("text")
    configure_logs("json")
    assert len(emit("once").splitlines()) == 1


def test_debug_lines_and_the_chatter_of_libraries_are_left_out(capsys):
    configure_logs()
    logging.getLogger("urllib3").debug("chatter")
    logging.getLogger("httpx2").info("chatter")
    logging.getLogger("gligabao").info("news")
    written = capsys.readouterr().err
    assert "chatter" not in written
    assert "news" in written


def test_the_lines_of_gunicorn_go_the_same_way(capsys):
    for name in ("gunicorn.error", "gunicorn.access"):
        logging.getLogger(name).addHandler(logging.StreamHandler(sys.stdout))
        logging.getLogger(name).propagate = False
    configure_logs("text")
    logging.getLogger("gunicorn.error").warning("from gunicorn, key sk-ant-api03-abc")
    logging.getLogger("gunicorn.access").warning("a request")
    written = capsys.readouterr()
    lines = written.err.splitlines()
    assert lines[0].endswith("WARNING gunicorn.error: from gunicorn, key sk-ant-[secret]")
    assert lines[1].endswith("WARNING gunicorn.access: a request")
    assert written.out == ""


@pytest.mark.parametrize("format", ["text", "json"])
def test_warnings_and_what_nobody_caught_are_logged_without_secrets(format):
    code = f"""
import threading, warnings
from gligabao.logs import configure_logs
configure_logs({format!r})
warnings.warn("old\\nuse")
def fail(): raise ValueError("sk-ant-canary in a thread")
thread = threading.Thread(target=fail, name="research-7")
thread.start()
thread.join()
raise ValueError("sk-ant-canary")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "the thread research-7 ends: nothing caught this" in ended.stderr
    assert "the process ends: nothing caught this" in ended.stderr
    assert ended.stderr.count("sk-ant-[secret]") >= 2
    assert "sk-ant-canary" not in ended.stderr
    assert "py.warnings" in ended.stderr.splitlines()[0]


# Redaction


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("key sk-ant-api03-Ab_c-9 used", "key sk-ant-[secret] used"),
        ("key gb_Zk3v9QpLr7wXy2mNc8bD4fGh6jT0sA1eUiOxVqWzRtY used", "key gb_[secret] used"),
        (f"key gb_{'a' * 43}.", "key gb_[secret]."),
        ("Authorization: Bearer abc.def", "Authorization: [secret]"),
        ("authorization=Basic dXNlcjpwYXNz, next", "authorization=[secret], next"),
        ("{'Authorization': 'Bearer abc', 'Accept': '*/*'}", "{'Authorization': '[secret]', 'Accept': '*/*'}"),
        ('{"x-api-key":"abc"}', '{"x-api-key":"[secret]"}'),
        ("X-Api-Key: abc\nHost: h", "X-Api-Key: [secret]\nHost: h"),
        ("[(b'x-api-key', b'abc'), (b'host', b'h')]", "[(b'x-api-key', b'[secret]'), (b'host', b'h')]"),
        ("X-Subscription-Token: abc", "X-Subscription-Token: [secret]"),
        ("sent Bearer abcdefghijklmnop1234", "sent Bearer [secret]"),
        ("postgresql://ann:p@ss/w?rd@db:5432/x failed", "postgresql://ann:[secret]@db:5432/x failed"),
        ("http://ann:pass@h/path@x", "http://ann:[secret]@h/path@x"),
        ("host=db user=ann password=pa$s dbname=x", "host=db user=ann password=[secret] dbname=x"),
        (r"password = 'it\'s a secret' dbname=x", "password = [secret] dbname=x"),
        ("postgresql://db/x?sslpassword=abc&a=b", "postgresql://db/x?sslpassword=[secret]&a=b"),
    ],
)
def test_secrets_are_taken_out(text, shown):
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "no such table: gb_agent_research_runs",
        "index gb_agent_research_runs_user_id_created_at_index used",
        "GET http://127.0.0.1:8080/v1/gb/research?user_id=me@example.com",
        "https://example.com:8443/@someone read",
        "postgresql://ann@db:5432/x failed",
        "the header x-api-key is missing",
        "run 7 ended: answered, 5 steps",
    ],
)
def test_other_text_stays_as_it_is(text):
    assert redact(text) == text


@pytest.mark.parametrize("format", ["text", "json"])
def test_secrets_are_taken_out_of_message_arguments_and_traceback(emit, format):
    configure_logs(format)
    secret = "sk-ant-canary"
    written = emit(f"{secret} %s %r", secret, {"x-api-key": "canary"}, exc_info=raised(f"{secret} canary-not"))
    assert "sk-ant-canary" not in written
    assert written.count("[secret]") >= 4


def test_a_value_kept_secret_is_taken_out_in_every_spelling():
    keep_secret('vault "key"/7')
    for text in ('vault "key"/7', repr({"k": 'vault "key"/7'}), json.dumps('vault "key"/7'), "vault%20%22key%22%2F7"):
        assert "vault" not in redact(f"got {text} here")


def test_a_short_secret_counts_as_a_whole_word():
    keep_secret("q7")
    assert redact("key q7, not seq72") == "key [secret], not seq72"


def test_nothing_is_no_secret():
    keep_secret(None)
    keep_secret("")
    keep_secret("  ")
    assert redact("a  b") == "a  b"


@pytest.mark.parametrize(
    "piece", ["a.", "a", "://", "://a:", "gb_", "password", "postgres://a:", "authorization: ", "sk-ant-", "bearer "]
)
def test_long_text_is_redacted_at_once(piece):
    # Not timed: a pattern that backtracked would not end within the time of a test run.
    redact(piece * 100_000)
