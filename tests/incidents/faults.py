"""Faults that only the machine below a pod can have: its processes, network, volume and CPU."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.cluster import ClusterError
from tests.cluster.node import Node

RANK = "ddp-rank-"
"""The name of a process that trains begins with it."""
_SHIM = "containerd-shim"


def pids(pod: Any, name: str) -> list[int]:
    """Return the processes of a pod, on this machine, with this beginning of their names."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if (folder / "comm").read_text().startswith(name) and (
                pod["metadata"]["uid"] in (folder / "cgroup").read_text()
            ):
                found.append(int(folder.name))
    return found


def signal_rank(pod: Any, number: signal.Signals) -> None:
    """Send a signal to the one training process of a pod, without the API server's help."""
    [pid] = pids(pod, RANK)
    os.kill(pid, number)


def shim(pod: Any) -> int:
    """Return the process through which containerd starts and ends a pod's containers."""
    pid = min(pids(pod, RANK))
    while pid > 1:
        if Path(f"/proc/{pid}/comm").read_text().startswith(_SHIM):
            return pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    raise ClusterError(f"{pod['metadata']['name']} has no {_SHIM}")


class Link:
    """The network of a pod, as a cable that can be pulled."""

    def __init__(self, node: Node, pod: Any) -> None:
        self._node = node
        net = f"--net=/proc/{min(pids(pod, RANK))}/ns/net"
        inside = subprocess.run(
            ["nsenter", net, "ip", "-o", "link", "show", "eth0"],
            capture_output=True,
            text=True,
            check=True,
        )
        number = inside.stdout.split()[1].partition("@if")[2].rstrip(":")
        links = node.run("ip", "-o", "link").splitlines()
        [line] = [line for line in links if line.startswith(f"{number}:")]
        self._name = line.split()[1].partition("@")[0]

    def pull(self) -> None:
        """Lose all packets, silently."""
        self._node.run("ip", "link", "set", self._name, "down")

    def plug(self) -> None:
        """Let packets through again."""
        self._node.run("ip", "link", "set", self._name, "up")


@contextmanager
def throttled(pod: Any, *, percent: int) -> Iterator[None]:
    """Give the rank of a pod, and all else in its container, so little of a core. The pod may go
    meanwhile.
    """
    [pid] = pids(pod, RANK)
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    [path] = [line.split(":", 2)[2] for line in lines if line.split(":")[1] == "cpu"]
    quota = Path(f"/sys/fs/cgroup/cpu{path}/cpu.cfs_quota_us")
    quota.write_text(str(percent * 1000))
    try:
        yield
    finally:
        with suppress(OSError):  # its cgroup goes with the container
            quota.write_text("-1")
