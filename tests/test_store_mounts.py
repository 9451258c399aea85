"""Which file system a folder is on."""

from pathlib import Path

import pytest

from gligabao.store.mounts import file_system, is_network

TABLE = r"""21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw
22 21 0:30 / /srv rw shared:2 - tmpfs tmpfs rw
23 21 0:31 / /srv/my\040disk rw shared:3 master:1 - nfs4 host:/share rw
24 21 0:32 / /over rw - ext4 /dev/vdb rw
25 24 0:33 / /over rw - fuse.sshfs host: rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/ann", "ext4"),
        ("/srv", "tmpfs"),
        ("/srv/data", "tmpfs"),
        ("/srvdata", "ext4"),
        ("/srv/my disk/a/b", "nfs4"),
        ("/over", "fuse.sshfs"),
    ],
)
def test_the_deepest_and_latest_mount_counts(tmp_path, monkeypatch, folder, kind):
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    monkeypatch.setattr("gligabao.store.mounts.MOUNT_TABLE", table)
    assert file_system(Path(folder)) == kind


def test_a_system_without_a_mount_table_is_not_asked(tmp_path, monkeypatch):
    monkeypatch.setattr("gligabao.store.mounts.MOUNT_TABLE", tmp_path / "missing")
    assert file_system(tmp_path) == ""


def test_shared_file_systems_are_told_from_local_ones():
    assert all(map(is_network, ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "fuse.s3fs"]))
    assert not any(map(is_network, ["", "ext4", "xfs", "overlay", "tmpfs", "fuseblk", "fuse.fuse-overlayfs"]))
