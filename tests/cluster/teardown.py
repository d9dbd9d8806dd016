"""Clearing away everything of an instance, from its record alone.

Written for the worst case: any component may be dead, and so may the process that started it all.
"""

from __future__ import annotations

from tests.cluster.errors import ClusterError
from tests.cluster.processes import marked, stop
from tests.cluster.state import Instance, forget, instances, registry


def remove(instance: Instance) -> None:
    """Stop the instance's processes and delete its files; may be repeated after a failure."""
    with registry():
        if not instance.folder.exists():
            return
        # The record on disk is newer than the caller's copy when another command wrote to it.
        _stop_processes(Instance.load(instance.folder))
        forget(instance)


def remove_named(name: str) -> bool:
    """Remove the instance called ``name``; returns whether there was one."""
    for instance in instances():
        if instance.name == name:
            remove(instance)
            return True
    return False


def sweep() -> None:
    """Remove the instances whose owners have ended without doing so themselves."""
    for instance in instances():
        if instance.owner is not None and not instance.owner.alive():
            remove(instance)


def _stop_processes(instance: Instance) -> None:
    left = stop(instance.processes.values())
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
