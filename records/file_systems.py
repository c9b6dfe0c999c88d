"""Which kind of file system a folder is on, and what that means for records."""

from pathlib import Path

NETWORK_FILE_SYSTEMS = (
    *("nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs"),
    *("glusterfs", "orangefs", "fuse.sshfs", "fuse.glusterfs"),
)
VOLATILE_FILE_SYSTEMS = ("tmpfs", "ramfs")


def file_system(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The type of the file system that a folder is on; `unknown` where nothing tells."""
    held = {folder.resolve(), *folder.resolve().parents}
    found = (0, "unknown")
    try:
        told = mounts.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return found[1]
    for line in told.splitlines():
        _, point, kind, *_ = line.split()
        # A later mount on the same point hides an earlier one.
        if Path(point) in held and len(point) >= found[0]:
            found = len(point), kind
    return found[1]
