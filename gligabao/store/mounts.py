"""Which file system a folder is on, from the mount table of Linux. Other systems have no such table."""

import re
from pathlib import Path

MOUNT_TABLE = Path("/proc/self/mountinfo")

# fuse-overlayfs is the local disk of rootless containers.
_NETWORK = re.compile(r"nfs\d*|cifs|smb\w*|9p|fuse\.(?!fuse-overlayfs).*")


def is_network(kind: str) -> bool:
    """Return whether several machines may share a file system of this type."""
    return bool(_NETWORK.fullmatch(kind))


def file_system(folder: Path) -> str:
    """Return the type of the file system of the folder (an absolute path), "" when it is unknown."""
    if not MOUNT_TABLE.exists():
        return ""
    lines = MOUNT_TABLE.read_text(encoding="utf-8", errors="replace").splitlines()
    covering = [(point, kind) for point, kind in map(_mount, lines) if _holds(point, folder)]
    # The deepest mount counts, and of two mounts on one folder the later one, which hides the other.
    covering.sort(key=lambda mount: len(mount[0].parts))
    return covering[-1][1] if covering else ""


def _mount(line: str) -> tuple[Path, str]:
    fields, _, rest = line.partition(" - ")
    # The table writes space, tab, line break and backslash as octal: `/my\\040disk`.
    point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields.split(" ")[4])
    return Path(point), rest.split(" ")[0]


def _holds(point: Path, folder: Path) -> bool:
    return point == folder or point in folder.parents
