"""The operator's hands on a Kubernetes API server: a thin client and a live view of the pods.

Nothing here knows what the objects are for; that is decided by whoever passes the paths, the
selectors and the projections in.
"""

from ddp_operator.kube.client import ApiClient
from ddp_operator.kube.cluster import KubeCluster
from ddp_operator.kube.credentials import (
    Connection,
    Credentials,
    CredentialsError,
    load_credentials,
)
from ddp_operator.kube.lease import LeaderLease, LeaseLostError, new_identity
from ddp_operator.kube.listing import list_names, list_pages
from ddp_operator.kube.nodes import ALL_NODES, node_of
from ddp_operator.kube.own_secret import own_secret
from ddp_operator.kube.preflight import Permission, check_access, check_served
from ddp_operator.kube.reflector import Reflector
from ddp_operator.kube.resources import (
    EVENTS,
    LEASES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)

__all__ = [
    "ALL_NODES",
    "EVENTS",
    "LEASES",
    "NETWORK_POLICIES",
    "NODES",
    "PODS",
    "SECRETS",
    "SERVICES",
    "ApiClient",
    "Connection",
    "Credentials",
    "CredentialsError",
    "KubeCluster",
    "LeaderLease",
    "LeaseLostError",
    "Permission",
    "Reflector",
    "Resource",
    "check_access",
    "check_served",
    "list_names",
    "list_pages",
    "load_credentials",
    "new_identity",
    "node_of",
    "own_secret",
]
