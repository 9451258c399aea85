"""The lock of a node: who works on the database now, and who did before.

The lock is a file held with flock for as long as the process lives, and the system lets go of it however the process
ends. So whoever gets it knows that the node named in it is dead, and may end that node's runs at once.
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
    """The lock file of one node: two lines, the id of the node and the process that holds it. For one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def acquire(self) -> str | None:
        """Take the lock and return the id of the node that held it last, None when there was none.

        That id stays in the file until `claim`: should this process die before it has ended the runs of its
        predecessor, the next one is told the same id. Raises `StartError` while another process holds the lock.
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
        """Put this node in the place of its predecessor."""
        self._write(node_id)

    def release(self) -> None:
        """Let go of the lock. The file stays: it names this node to the next one."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, node_id: str) -> None:
        assert self._file is not None, "the lock was not acquired"
        text = f"{node_id}\n{os.getpid()}\n".encode("ascii")
        # Longer first, cut after: at no moment is the id gone from the file.
        os.pwrite(self._file, text, 0)
        os.ftruncate(self._file, len(text))
        os.fsync(self._file)


def node_lock_path(database_url: str, data_dir: Path) -> Path:
    """Return where the lock lies: beside an SQLite file, by its name (`gligabao.db.node.lock`), else in `data_dir`."""
    if is_sqlite(database_url):
        database = sqlite_path(database_url)
        return database.with_name(database.name + _BESIDE)
    return data_dir.resolve() / "node.lock"


def _guarded(path: Path) -> str:
    database = path.name.removesuffix(_BESIDE)
    return f"data_dir {path.parent}" if database == path.name else f"database {path.with_name(database)}"


def _read(file: int) -> tuple[str, str]:
    """Return the node id and the process, each "" when the file does not hold it (it is new, or the disk was full)."""
    lines = os.pread(file, 200, 0).decode("ascii", "replace").split("\n")
    node_id = lines[0] if _NODE_ID.fullmatch(lines[0]) else ""
    process = lines[1] if len(lines) > 1 and lines[1].isdecimal() else ""
    return node_id, process
