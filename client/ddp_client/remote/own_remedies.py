"""Reads a team's own remedies from its namespace."""

from collections.abc import Mapping
from typing import Any

from ddp_operator.kube import CONFIG_MAPS
from ddp_operator.ports import ClusterError

from ddp_client.remote.cluster import Cluster
from ddp_client.views.own_remedies import CONFIG_MAP, NONE, OwnRemedies


async def own_remedies(cluster: Cluster, namespace: str) -> OwnRemedies:
    """Return the remedies; none if there is no ConfigMap, or the user may not read it."""
    path = CONFIG_MAPS.path(namespace=namespace, name=CONFIG_MAP)
    try:
        answer: Any = await cluster.client.request("GET", path)
    except ClusterError:
        return NONE
    data = answer.get("data")
    return OwnRemedies.read(data) if isinstance(data, Mapping) else NONE
