"""Access to a Kubernetes API server: a thin client and a live view of the pods.

This package does not know the purpose of the objects. Its callers pass paths, selectors and
projections.
"""

from ddp_operator.kube.client import ApiClient
from ddp_operator.kube.cluster import ALL_NODES, KubeCluster
from ddp_operator.kube.credentials import (
    Connection,
    Credentials,
    CredentialsError,
    load_credentials,
)
from ddp_operator.kube.election.leadership import Leadership
from ddp_operator.kube.election.lease import LeaseLostError
from ddp_operator.kube.own_secret import own_secret
from ddp_operator.kube.preflight import Permission, check_access, check_served
from ddp_operator.kube.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    Resource,
)
from ddp_operator.kube.reviews import AccessReviews, BusyError, TokenStatus
from ddp_operator.kube.view.listing import (
    MAX_PAGE_BYTES,
    METADATA_ONLY,
    PAGE_SIZE,
    list_pages,
    list_uids,
)
from ddp_operator.kube.view.reflector import Reflector

__all__ = [
    "ALL_NODES",
    "CONFIG_MAPS",
    "CUSTOM_RESOURCE_DEFINITIONS",
    "EVENTS",
    "LEASES",
    "MAX_PAGE_BYTES",
    "METADATA_ONLY",
    "NAMESPACES",
    "NETWORK_POLICIES",
    "NODES",
    "PAGE_SIZE",
    "PODS",
    "SECRETS",
    "SERVICES",
    "SUBJECT_ACCESS_REVIEWS",
    "TOKEN_REVIEWS",
    "AccessReviews",
    "ApiClient",
    "BusyError",
    "Connection",
    "Credentials",
    "CredentialsError",
    "KubeCluster",
    "Leadership",
    "LeaseLostError",
    "Permission",
    "Reflector",
    "Resource",
    "TokenStatus",
    "check_access",
    "check_served",
    "list_pages",
    "list_uids",
    "load_credentials",
    "own_secret",
]
