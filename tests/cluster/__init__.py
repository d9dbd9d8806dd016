"""A real Kubernetes for tests and for play, with the means of this machine.

`control_plane()` gives an API server without nodes, `cluster()` a Kubernetes that runs pods.
ClusterUnavailableError says in one line why a machine can have none.
"""

from tests.cluster.errors import ClusterError, ClusterUnavailableError
from tests.cluster.local import ControlPlane, control_plane
from tests.cluster.provider import Cluster, cluster

__all__ = [
    "Cluster",
    "ClusterError",
    "ClusterUnavailableError",
    "ControlPlane",
    "cluster",
    "control_plane",
]
