"""The cgroups below which the pods of a node live, in every hierarchy of cgroup v1 or v2."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
PARENT = "ddp-test-cluster"


def cgroup_path(name: str) -> str:
    """Return the cgroup of the node of instance ``name``, as the kubelet wants it."""
    return f"/{PARENT}/{name}"


def hierarchies() -> list[Path]:
    """Return the roots of all cgroup hierarchies: one for v2, one per controller for v1."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return [Path(fields[1]) for fields in mounts if fields[2] in ("cgroup", "cgroup2")]


def make_cgroups(cgroup: str) -> None:
    """Create ``cgroup`` everywhere, with what its children need to inherit."""
    for root in hierarchies():
        folder = root
        for part in cgroup.strip("/").split("/"):
            parent, folder = folder, folder / part
            folder.mkdir(exist_ok=True)
            # v1: a new cpuset is empty, and takes no process until it has processors and memory.
            for setting in ("cpuset.cpus", "cpuset.mems"):
                value = folder / setting
                if root != MOUNT and value.exists() and not value.read_text().strip():
                    value.write_text((parent / setting).read_text())
            # v2: controllers reach a child only when its parent passes them on.
            controllers = parent / "cgroup.controllers"
            if controllers.exists():
                for controller in controllers.read_text().split():
                    with suppress(OSError):
                        (parent / "cgroup.subtree_control").write_text(f"+{controller}")


def remove_cgroups(cgroup: str, *, deadline_s: float = 10) -> None:
    """Remove ``cgroup`` with its children everywhere; its processes have to be gone.

    Raises OSError at the deadline.
    """
    end = time.monotonic() + deadline_s
    for root in hierarchies():
        top = root / cgroup.strip("/")
        while top.exists():
            try:
                for folder in sorted((p for p in top.rglob("*") if p.is_dir()), reverse=True):
                    folder.rmdir()
                top.rmdir()
            except OSError:  # the kernel lets go of a dead process's cgroup a little later
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        with suppress(OSError):  # other clusters may still use it
            top.parent.rmdir()
