"""A PgBouncer in front of the test Postgres, in transaction mode, with fewer connections than its clients have."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

from psycopg import conninfo

from tests.process import free_port

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
START_SECONDS = 20
SERVER_CONNECTIONS = 6

# Round robin: each transaction of a client runs on another connection than the one before.
SETTINGS = """
[databases]
* = {server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
server_round_robin = 1
max_client_conn = 1000
logfile = {folder}/log
"""


@contextmanager
def pooled(postgres_url: str) -> Iterator[str]:
    """Run a PgBouncer for the block, and yield the address of the database behind it."""
    assert PROGRAM
    parts = {key: str(value) for key, value in conninfo.conninfo_to_dict(postgres_url).items()}
    name, port = parts.pop("dbname"), free_port()
    folder = Path(tempfile.mkdtemp(prefix="gligabao-pgbouncer-"))
    settings = folder / "pgbouncer.ini"
    server = " ".join(f"{key}={value}" for key, value in parts.items())
    settings.write_text(SETTINGS.format(server=server, port=port, size=SERVER_CONNECTIONS, folder=folder))
    user = _user(parts.get("host", ""))
    for path in (folder, settings):
        os.chown(path, user, -1)
    program = subprocess.Popen([PROGRAM, "-q", settings], user=user, stderr=subprocess.DEVNULL)
    try:
        _wait_until_ready(program, port, folder / "log")
        yield f"postgresql:///{quote(name)}?{urlencode({'host': '127.0.0.1', 'port': port, 'user': 'anyone'})}"
    finally:
        program.kill()
        program.wait()
        shutil.rmtree(folder)


def _user(host: str) -> int:
    """Return whom to run it as: whoever owns the socket of the server, as PgBouncer refuses to run as root."""
    if os.geteuid() != 0:
        return os.geteuid()
    return Path(host).stat().st_uid if host.startswith("/") else 65534


def _wait_until_ready(program: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            assert program.poll() is None and time.monotonic() < deadline, log.read_text() if log.exists() else "no log"
            time.sleep(0.02)
