"""The lock of a node: which node works on the database now, and which one did before.

The lock is a file that the process holds with flock while it lives. The system releases it however the process ends.
So the process that gets the lock knows that the node named in the file is dead, and may end that node's runs at once.
"""

import fcntl
import os
import re
from pathlib import Path

from gligabao.errors import ConfigError, StartError
from gligabao.store.database import is_sqlite, sqlite_path

_NODE_ID = re.compile(r"[0-9a-zA-Z-]{1,64}")
_BESIDE = ".node.lock"


class NodeLock:
    """The lock file of one node: two lines, the id of the node and the number of its process. For one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def acquire(self) -> str | None:
        """Take the lock and return the id of the node that held it last, None when there was none.

        That id stays in the file until `claim`: if this process dies before it has ended the runs of its predecessor,
        the next process gets the same id. Raises `StartError` while another process holds the lock.
        """
        try:
            # Close-on-exec: a child that outlives this process must not keep the lock.
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError as error:
            raise ConfigError(f"there is no folder {self._path.parent}") from error
        except OSError as error:
            raise ConfigError(f"the lock file {self._path} cannot be opened: {error.strerror}") from error
        node_id, process = _read(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            raise StartError(f"{_guarded(self._path)} is in use by process {process or '(unknown)'}") from error
        self._file = file
        node_id, _ = _read(file)
        self._write(node_id)
        return node_id or None

    def claim(self, node_id: str) -> None:
        """Replace the id of the predecessor with this node's."""
        self._write(node_id)

    def release(self) -> None:
        """Release the lock. The file stays: it tells the next node the id of this one."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, node_id: str) -> None:
        assert self._file is not None, "the lock was not acquired"
        text = f"{node_id}\n{os.getpid()}\n".encode("ascii")
        # Write, then cut to length: the file is never without an id.
        os.pwrite(self._file, text, 0)
        os.ftruncate(self._file, len(text))
        os.fsync(self._file)


def node_lock_path(database_url: str, data_dir: Path) -> Path:
    """Return the path of the lock file: beside an SQLite file (`gligabao.db.node.lock`), otherwise in `data_dir`."""
    if is_sqlite(database_url):
        database = sqlite_path(database_url)
        return database.with_name(database.name + _BESIDE)
    return data_dir.resolve() / "node.lock"


def _guarded(path: Path) -> str:
    database = path.name.removesuffix(_BESIDE)
    return f"data_dir {path.parent}" if database == path.name else f"database {path.with_name(database)}"


def _read(file: int) -> tuple[str, str]:
    """Return the node id and the process, each "" when it is not in the file (it is new, or the disk was full)."""
    lines = os.pread(file, 200, 0).decode("ascii", "replace").split("\n")
    node_id = lines[0] if _NODE_ID.fullmatch(lines[0]) else ""
    process = lines[1] if len(lines) > 1 and lines[1].isdecimal() else ""
    return node_id, process
