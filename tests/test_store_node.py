"""The node lock: one process at a time, and the next one learns who was there before."""

import subprocess
import sys
from pathlib import Path

import pytest

from gligabao.errors import ConfigError, StartError
from gligabao.store.node import NodeLock, node_lock_path

HOLD = """
import sys
from pathlib import Path
from gligabao.store.node import NodeLock
lock = NodeLock(Path(sys.argv[1]))
print(lock.acquire(), flush=True)
if len(sys.argv) > 2:
    lock.claim(sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "gligabao.db.node.lock"


@pytest.fixture
def hold():
    """Start another process that takes the lock; it is killed with the test."""
    processes = []

    def start(path, *claim):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path), *claim], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        predecessor = process.stdout.readline().strip()
        assert process.stdout.readline() == "held\n"
        return process, predecessor

    yield start
    for process in processes:
        kill(process)


def kill(process):
    process.kill()
    process.communicate()


def take(path):
    lock = NodeLock(path)
    predecessor = lock.acquire()
    lock.release()
    return predecessor


def test_a_new_lock_has_no_predecessor(path):
    assert take(path) is None


def test_the_next_one_is_told_who_was_there_before(path):
    lock = NodeLock(path)
    lock.acquire()
    lock.claim("node-1")
    lock.release()
    assert take(path) == "node-1"


def test_a_node_that_died_before_its_claim_passes_its_predecessor_on(path, hold):
    first, _ = hold(path, "a-rather-long-node-id-0001")
    kill(first)
    second, predecessor = hold(path)
    kill(second)
    assert predecessor == "a-rather-long-node-id-0001"
    assert take(path) == "a-rather-long-node-id-0001"


def test_a_second_process_is_told_which_one_holds_the_lock(path, hold):
    first, _ = hold(path, "node-1")
    with pytest.raises(StartError, match=rf"^database {path.parent}/gligabao\.db is in use by process {first.pid}$"):
        NodeLock(path).acquire()


def test_a_process_that_was_killed_holds_nothing(path, hold):
    first, _ = hold(path, "node-1")
    kill(first)
    assert take(path) == "node-1"


def test_a_child_that_outlives_its_parent_does_not_keep_the_lock(path):
    lock = NodeLock(path)
    lock.acquire()
    command = [sys.executable, "-c", "print('up', flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False) as child:
        child.stdout.readline()
        lock.release()
        assert take(path) is None
        child.communicate(b"\n")


def test_a_file_that_holds_nonsense_names_nobody(path):
    path.write_bytes(b"\xff\x00 nonsense\nabc")
    assert take(path) is None


def test_a_lock_that_cannot_be_made_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="there is no folder"):
        NodeLock(tmp_path / "missing" / "node.lock").acquire()


def test_each_sqlite_file_has_a_lock_of_its_own(tmp_path):
    one = node_lock_path(f"sqlite:///{tmp_path}/one.db", Path("/elsewhere"))
    assert one == tmp_path.resolve() / "one.db.node.lock"
    assert one != node_lock_path(f"sqlite:///{tmp_path}/two.db", Path("/elsewhere"))


def test_two_names_of_one_file_have_one_lock(tmp_path):
    (tmp_path / "link.db").symlink_to(tmp_path / "one.db")
    paths = {node_lock_path(f"sqlite:///{tmp_path}/{name}.db", tmp_path) for name in ("one", "link")}
    assert len(paths) == 1


def test_on_postgres_the_lock_is_in_the_data_folder(tmp_path, hold):
    path = node_lock_path("postgresql://ann@host/db", tmp_path)
    assert path == tmp_path.resolve() / "node.lock"
    first, _ = hold(path)
    with pytest.raises(StartError, match=rf"^data_dir {tmp_path.resolve()} is in use by process {first.pid}$"):
        NodeLock(path).acquire()
