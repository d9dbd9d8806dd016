"""A real Kubernetes for tests and for play, on whatever this machine offers.

`control_plane()` gives an API server without nodes; `python -m tests.cluster up` a cluster with
pods. ClusterUnavailableError says in one line why a machine can have none.
"""

from tests.cluster.errors import ClusterError, ClusterUnavailableError
from tests.cluster.local import ControlPlane, control_plane

__all__ = ["ClusterError", "ClusterUnavailableError", "ControlPlane", "control_plane"]
