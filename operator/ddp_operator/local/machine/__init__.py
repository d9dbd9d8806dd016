"""Runs pods as processes of this machine, behind the same port as a real cluster.

Whoever has no cluster at hand still sees a job train, fail and recover, decided by the same code.
Linux only: a pod must die as a whole, and only Linux lets a process see to that without privileges.
"""

from ddp_operator.local.machine.cluster import Listener, LocalCluster
from ddp_operator.local.machine.workdir import Workdir, WorkdirInUseError

__all__ = ["Listener", "LocalCluster", "Workdir", "WorkdirInUseError"]
