"""A server whose SQLite file it cannot write: one line, exit code 2, and nothing left behind."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gligabao.store.migrate import migrate
from tests.databases import open_database
from tests.process import ServerProcess

NOBODY = 65534


@pytest.fixture
def folder():
    """A folder with a sound database, which other users can reach: they cannot go into that of the tests."""
    with tempfile.TemporaryDirectory(prefix="gligabao-") as place:
        os.chmod(place, 0o755)
        folder = Path(place) / "data"
        folder.mkdir()
        db = open_database(f"sqlite:///{folder}/gligabao.db")
        migrate(db)
        db.close()
        yield folder
        folder.chmod(0o755)


def refused(folder, *, prefix=()):
    """The one line with which the server refuses the database in the folder, having left nothing there."""
    before = sorted(path.name for path in folder.iterdir())
    server = ServerProcess(folder.parent, prefix=prefix, database_url=f"sqlite:///{folder}/gligabao.db")
    code = server.wait(60)
    assert code == 2, "".join(server.log)
    assert sorted(path.name for path in folder.iterdir()) == before
    (line,) = server.log
    return line


def words(path):
    reason = "is read-only, or not writable for this user: SQLite writes to the file and to its folder"
    return f"Error: database_url: {path} {reason}\n"


@pytest.fixture
def as_nobody():
    """The start of a command that runs as another user than root, whom no permission stops."""
    if os.geteuid() != 0:
        return ()
    if not shutil.which("setpriv"):
        pytest.skip("root may write everywhere, and there is no setpriv to run as another user")
    prefix = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    if subprocess.run([*prefix, sys.executable, "-c", "import gligabao"], capture_output=True).returncode != 0:
        pytest.skip("root may write everywhere, and another user cannot run this Python")
    return prefix


def give_away(folder):
    """Make the folder and what is in it the other user's."""
    if os.geteuid() == 0:
        for path in (folder, *folder.iterdir()):
            os.chown(path, NOBODY, NOBODY)


def test_a_file_without_the_right_to_write(folder, as_nobody):
    give_away(folder)
    (folder / "gligabao.db").chmod(0o444)
    assert refused(folder, prefix=as_nobody) == words(folder / "gligabao.db")


def test_a_folder_without_the_right_to_write(folder, as_nobody):
    give_away(folder)
    folder.chmod(0o555)
    assert refused(folder, prefix=as_nobody) == words(folder)


def test_an_empty_folder_without_the_right_to_write(folder, as_nobody):
    (folder / "gligabao.db").unlink()
    give_away(folder)
    folder.chmod(0o555)
    assert refused(folder, prefix=as_nobody) == words(folder)


@pytest.mark.parametrize("ending", ["-wal", "-shm"])
def test_a_log_without_the_right_to_write(folder, as_nobody, ending):
    beside = folder / f"gligabao.db{ending}"
    beside.touch()
    give_away(folder)
    beside.chmod(0o444)
    assert refused(folder, prefix=as_nobody) == words(beside)


@pytest.fixture
def read_only_mount(folder):
    """The folder, read-only for everyone, root too."""
    made = subprocess.run(["mount", "--bind", folder, folder], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {made.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_read_only_mount(read_only_mount):
    assert refused(read_only_mount) == words(read_only_mount)


@pytest.fixture
def immutable_file(folder):
    """The file, which not even root may write."""
    file = folder / "gligabao.db"
    if not shutil.which("chattr") or subprocess.run(["chattr", "+i", file], capture_output=True).returncode != 0:
        pytest.skip("no file can be made immutable here")
    yield file
    subprocess.run(["chattr", "-i", file], check=True)


def test_an_immutable_file(immutable_file):
    assert refused(immutable_file.parent) == words(immutable_file)
