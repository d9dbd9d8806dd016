"""Runs pods as processes of this machine, behind the same port as a real cluster.

So a job can train, fail and recover without a cluster, with the same decisions by the same code.
Linux only: a pod must die as a whole, and only Linux lets a process ensure that without privileges.
"""

from ddp_client.local.machine.cluster import Listener, LocalCluster
from ddp_client.local.machine.workdir import Workdir, WorkdirInUseError

__all__ = ["Listener", "LocalCluster", "Workdir", "WorkdirInUseError"]
