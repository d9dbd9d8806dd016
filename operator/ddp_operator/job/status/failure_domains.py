"""The failure domains that the pods of a job are in, by the labels of their nodes."""

from typing import Final, NamedTuple

from ddp_protocol.copies import Domain

from ddp_operator.api.constants import GKE_TOPOLOGY_LABELS, NVLINK_DOMAIN_LABEL, ZONE_LABEL
from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership.world import members
from ddp_operator.job.pods.observed import Observed

_LABELS: Final = {
    "zone": ZONE_LABEL,
    "block": GKE_TOPOLOGY_LABELS["block"],
    "sub-block": GKE_TOPOLOGY_LABELS["sub-block"],
    "NVLink domain": NVLINK_DOMAIN_LABEL,
    "host": GKE_TOPOLOGY_LABELS["host"],
}
LEVELS: Final = (*_LABELS, "node")
"""Names of the levels, from the widest to the closest."""


_MOST_JOBS: Final = 1024
"""Most jobs whose domains are kept. Those of 5,000 pods are 5,000 short tuples."""


class _Group(NamedTuple):
    """The pods of a job at one time."""

    incarnation: object
    size: int
    domains: tuple[Domain, ...]
    """Of each node rank's pod."""
    are_labels_known: bool
    """The operator knows the nodes of all pods."""


def failure_domains(job: DDPJob, pods: Observed) -> tuple[Domain, ...] | None:
    """Return the domains of each node rank's pod; None while one of them has no node.

    Of a node that the operator does not know, only the name is known.
    """
    group = _group(job, pods)
    return group.domains if group else None


def known_domains(job: DDPJob, pods: Observed) -> tuple[Domain, ...] | None:
    """Return the same, or None while the operator does not know the nodes of all pods."""
    group = _group(job, pods)
    return group.domains if group and group.are_labels_known else None


def _group(job: DDPJob, pods: Observed) -> _Group | None:
    """Return the job's pods as these nodes show them; they are looked up once.

    A pod never changes its node, and with other pods the incarnation is new.
    """
    groups = pods.nodes.groups
    now = (job.status.incarnation, len(members(job)))
    kept = groups.get(job.uid)
    if isinstance(kept, _Group) and kept[:2] == now:
        return kept
    known = pods.nodes.by_name
    found: list[Domain] = []
    are_known = True
    for index in range(len(members(job))):
        pod = pods.current.get(index)
        if pod is None or not pod.node:
            return None
        node = known.get(pod.node)
        are_known = are_known and node is not None
        labels = node.labels if node else {}
        found.append((*map(labels.get, _LABELS.values()), pod.node))
    if len(groups) >= _MOST_JOBS:
        groups.clear()
    groups[job.uid] = group = _Group(*now, tuple(found), are_known)
    return group
