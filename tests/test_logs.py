"""The log: one line an event, in both formats, and no secret in it."""

import json
import logging
import re
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

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
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def written(capfd):
    """Returns what was written to standard output and standard error."""

    def read():
        for handler in logging.getLogger().handlers:
            handler.flush()
        return capfd.readouterr()

    return read


@pytest.fixture
def emit(written):
    """Logs one event at a fixed time and returns what was written to standard error."""

    def emit_one(message: str, *args: object, exc_info: object = None) -> str:
        record = logging.LogRecord("gligabao.test", logging.INFO, __file__, 1, message, args, exc_info)
        record.created = 1793527200.12
        logging.getLogger("gligabao.test").handle(record)
        return written().err

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


def test_debug_lines_and_the_chatter_of_libraries_are_left_out(written):
    configure_logs()
    logging.getLogger("urllib3").debug("chatter")
    logging.getLogger("httpx2").info("chatter")
    logging.getLogger("gligabao").info("news")
    lines = written().err
    assert "chatter" not in lines
    assert "news" in lines


def test_the_lines_of_gunicorn_go_the_same_way(written):
    for name in ("gunicorn.error", "gunicorn.access"):
        logging.getLogger(name).addHandler(logging.StreamHandler(sys.stdout))
        logging.getLogger(name).propagate = False
    configure_logs("text")
    logging.getLogger("gunicorn.error").warning("from gunicorn, key sk-ant-api03-abc")
    logging.getLogger("gunicorn.access").warning("a request")
    streams = written()
    lines = streams.err.splitlines()
    assert lines[0].endswith("WARNING gunicorn.error: from gunicorn, key sk-ant-[secret]")
    assert lines[1].endswith("WARNING gunicorn.access: a request")
    assert streams.out == ""


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


# Readers


START = """
import logging, os, sys
from gligabao.logs import configure_logs
configure_logs()
log = logging.getLogger("gligabao.test")
"""


@pytest.fixture
def start():
    """Starts a program that logs. Nobody reads its standard error but the test."""
    with ExitStack() as ends:

        def start_one(code: str) -> subprocess.Popen[str]:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            process = subprocess.Popen([sys.executable, "-c", START + code], text=True, **pipes)
            ends.enter_context(process)
            ends.callback(process.kill)
            return process

        yield start_one


def messages_of(lines):
    return [line.partition("gligabao.")[2].partition(": ")[2].rstrip("\n") for line in lines]


ENDS = {
    "normal": "",
    "fault": "raise ValueError('the end')",
    "exit": "sys.exit(3)",
    "at once": "logging.shutdown(); os._exit(0)",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_what_is_logged_right_before_the_end_is_written(start, end):
    process = start(f"for number in range(500): log.info('line %d', number)\n{end}")
    _, written = process.communicate(timeout=60)
    assert messages_of(written.splitlines())[:500] == [f"line {number}" for number in range(500)]
    assert ("ValueError: the end" in written) == ("the end" in end)


def test_what_is_logged_after_the_log_was_shut_down_is_written(start):
    process = start("logging.shutdown(); log.info('late')")
    assert messages_of(process.communicate(timeout=60)[1].splitlines()) == ["late"]


def test_a_line_is_written_while_the_process_goes_on(start):
    process = start("log.info('first'); sys.stdin.read()")
    assert messages_of([process.stderr.readline()]) == ["first"]
    assert process.poll() is None


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_log_that_nobody_reads_holds_nobody_up(start, end):
    process = start(f"for number in range(20_000): log.info('line %d', number)\nprint('logged', flush=True)\n{end}")
    assert process.stdout.readline() == "logged\n"
    process.wait(60)


def test_lines_that_were_dropped_are_counted(start):
    process = start("""
for number in range(20_000):
    log.info("line %d", number)
print("logged", flush=True)
while sys.stdin.readline():
    number += 1
    log.info("line %d", number)
""")
    assert process.stdout.readline() == "logged\n"
    messages, noticed = [], threading.Event()

    def read():
        for line in process.stderr:
            messages.extend(messages_of([line]))
            if "were dropped" in line:
                noticed.set()

    reader = threading.Thread(target=read)
    reader.start()
    more, deadline = 0, time.monotonic() + 60
    while not noticed.wait(0.01) and time.monotonic() < deadline:
        process.stdin.write("\n")
        process.stdin.flush()
        more += 1
    process.stdin.close()
    process.wait(60)
    reader.join(60)
    (notice,) = [message for message in messages if "dropped" in message]
    assert re.fullmatch(r"\d+ log lines were dropped: nothing reads standard error", notice)
    numbers = [int(message.removeprefix("line ")) for message in messages if message != notice]
    assert numbers == sorted(set(numbers))
    assert int(notice.split()[0]) + len(numbers) == 20_000 + more
    # It stands where they are missing.
    index = messages.index(notice)
    assert numbers[index] - numbers[index - 1] - 1 == int(notice.split()[0])


@pytest.mark.parametrize("count", [3, 20_000], ids=["few", "more than are read"])
def test_a_fork_writes_its_own_lines_and_no_others(start, count):
    process = start(f"""
for number in range({count}):
    log.info("line %d", number)
if os.fork() == 0:
    log.info("of the child")
    sys.exit()
print("forked", flush=True)
sys.stdin.read()
os.wait()
log.info("of the parent")
""")
    assert process.stdout.readline() == "forked\n"
    messages = messages_of(process.communicate(timeout=60)[1].splitlines())
    assert len(messages) == len(set(messages))
    assert count > 3 or messages == ["line 0", "line 1", "line 2", "of the child", "of the parent"]


def test_lines_are_whole_when_two_processes_write_them(start):
    process = start("""
child = os.fork() == 0
for number in range(1500):
    log.info("%s %d", "child" if child else "parent", number)
if not child:
    os.wait()
""")
    messages = messages_of(process.communicate(timeout=60)[1].splitlines())
    for name in ("child", "parent"):
        assert [one for one in messages if one.startswith(name)] == [f"{name} {number}" for number in range(1500)]
    assert len(messages) == 3000


def test_a_log_that_was_closed_under_us_harms_nothing(start):
    process = start("sys.stdin.readline()\nfor _ in range(5): log.info('x'); logging.root.handlers[0].flush()")
    process.stderr.close()
    process.stdin.write("\n")
    process.stdin.close()
    assert process.wait(60) == 0


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


HOSTILE = ["a.", "a", "://", "://a:", "gb_", "password", "postgres://a:", "authorization: ", "sk-ant-", "bearer "]
REDACT_HOSTILE = """
import resource, sys
from gligabao.logs import redact
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
for piece in sys.argv[1:]:
    print(piece, flush=True)
    redact(piece * 100_000)
"""


def test_no_text_makes_a_pattern_backtrack():
    """A second for all of these; with a pattern that backtracked, minutes or hours for one."""
    done = subprocess.run([sys.executable, "-c", REDACT_HOSTILE, *HOSTILE], capture_output=True, text=True)
    assert done.returncode == 0, f"killed while it redacted: {done.stdout.splitlines()[-1]}"
