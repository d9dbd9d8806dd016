"""Clearing away everything of an instance, from its record alone.

Written for the worst case: any component may be dead, and so may the process that started it all.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

from tests.cluster.cgroups import cgroup_path, remove_cgroups
from tests.cluster.errors import ClusterError
from tests.cluster.kind import delete_kind_cluster
from tests.cluster.processes import marked, stop
from tests.cluster.state import Instance, forget, instances, registry


def remove(instance: Instance) -> None:
    """Stop the instance's processes and delete its files; may be repeated after a failure."""
    with registry():
        if not instance.folder.exists():
            return
        # The record on disk is newer than the caller's copy when another command wrote to it.
        recorded = Instance.load(instance.folder)
        _stop_processes(recorded)
        if recorded.kind == "node":
            _clear_machine(recorded)
        if recorded.kind == "kind":
            delete_kind_cluster(recorded.name)
        forget(recorded)


def remove_named(name: str) -> bool:
    """Remove the instance called ``name``; returns whether there was one."""
    for instance in instances():
        if instance.name == name:
            remove(instance)
            return True
    return False


def sweep() -> None:
    """Remove the instances of owners that have ended without removing them."""
    for instance in instances():
        if instance.owner is not None and not instance.owner.alive():
            remove(instance)


def _stop_processes(instance: Instance) -> None:
    # A node's first process is among them: it ends only when all processes in its namespaces have.
    left = stop(instance.processes.values(), deadline_s=30)
    # Until none is left: a process may have started another one while it was being looked for.
    for _ in range(5):
        found = marked(instance.folder)
        if not found:
            break
        left |= stop(found)
    left = {process for process in left if process.alive()} | marked(instance.folder)
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise ClusterError(f"cluster {instance.name!r}: processes {pids} survived SIGKILL")


def _clear_machine(instance: Instance) -> None:
    """Remove what a node has outside its namespaces."""
    remove_cgroups(cgroup_path(instance.name))
    # The interface goes with its peer's namespace, which the kernel frees in its own time; a
    # starter that died between the two steps leaves it without an owner.
    subprocess.run(
        ["ip", "link", "delete", f"ddp-{instance.subnet}"], capture_output=True, check=False
    )
    others = [
        other for other in instances() if other.kind == "node" and other.name != instance.name
    ]
    for folder in instance.made_folders:
        if others:  # they may use it too, and the last one removes it
            others[0].made_folders.append(folder)
            others[0].save()
            continue
        with suppress(OSError):  # in use by something of this machine's own meanwhile
            Path(folder).rmdir()
