"""The order by which launchers place copies of snapshots in memory.

Pods that can be lost together are consecutive in it; `ddp_protocol.copies` explains the rest. Node
rank 0's launcher reports which order it uses. Until it has one, it uses that of the node ranks.
"""

from collections.abc import Sequence
from typing import Final

from ddp_protocol.copies import Domain, fingerprint, order_by_domain
from ddp_protocol.world import MAX_COPY_ORDER

from ddp_operator.api.constants import GKE_TOPOLOGY_LABELS, NVLINK_DOMAIN_LABEL, ZONE_LABEL
from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership.world import first_world, format_slots, members
from ddp_operator.job.pods.observed import Observed
from ddp_operator.ports import Node

_LEVELS: Final = (
    ZONE_LABEL,
    GKE_TOPOLOGY_LABELS["block"],
    GKE_TOPOLOGY_LABELS["sub-block"],
    NVLINK_DOMAIN_LABEL,
    GKE_TOPOLOGY_LABELS["host"],
)
_MOST_ORDERS: Final = 1024
"""Most jobs whose order is kept; one of 5,000 pods has up to 24 KiB."""


def copy_order(job: DDPJob, pods: Observed) -> str:
    """Return the order for node rank 0's launcher; empty if there is none to send.

    That is so while a pod has no known node, and if the launcher does not report its order: an
    earlier release's would refuse the message.
    """
    memory, leader = job.spec.memory_checkpoint, pods.launchers.leader
    if memory is None or not memory.copies or leader is None or leader.copy_order is None:
        return ""
    # A pod never changes its node, and with other pods the incarnation is new.
    group, orders = (job.status.incarnation, len(members(job))), pods.nodes.copy_orders
    if job.uid in orders and orders[job.uid][0] == group:
        return orders[job.uid][1]
    nodes = [
        pods.nodes.by_name.get(pod.node) if (pod := pods.current.get(index)) else None
        for index in range(len(members(job)))
    ]
    known = [node for node in nodes if node is not None]
    if len(known) < len(nodes):
        return ""
    order = _order(list(map(_domain, known)))
    if len(orders) >= _MOST_ORDERS:
        orders.clear()
    orders[job.uid] = group, order
    return order


def is_order_due(job: DDPJob, pods: Observed) -> bool:
    """Return whether node rank 0's launcher places copies by another order."""
    order, leader = copy_order(job, pods), pods.launchers.leader
    if not order or leader is None:
        return False
    known = leader.copy_order or fingerprint(first_world(len(members(job))).members)
    return known != fingerprint(order)


def _domain(node: Node) -> Domain:
    return (*map(node.labels.get, _LEVELS), node.name)


def _order(domains: Sequence[Domain]) -> str:
    text = format_slots(order_by_domain(domains))
    return text if len(text) <= MAX_COPY_ORDER else ""
