"""The order by which launchers place copies of snapshots in memory.

Pods that can be lost together are consecutive in it; `ddp_protocol.copies` explains the rest. Node
rank 0's launcher reports which order it uses. Until it has one, it uses that of the node ranks.
"""

from collections.abc import Sequence
from functools import lru_cache

from ddp_protocol.copies import Domain, fingerprint, order_by_domain
from ddp_protocol.world import MAX_COPY_ORDER

from ddp_operator.api.job import DDPJob
from ddp_operator.api.values.text import in_ranges
from ddp_operator.job.membership.world import first_world, members, scope_of
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.status.failure_domains import known_domains


def copy_order(job: DDPJob, pods: Observed) -> str:
    """Return the order for node rank 0's launcher; empty if there is none to send.

    That is so while a pod has no known node, and if the launcher does not report its order: an
    earlier release's would refuse the message.
    """
    leader = pods.launchers.leader
    if not _has_copies(job) or leader is None or leader.copy_order is None:
        return ""
    domains = known_domains(job, pods)
    return _order(domains) if domains else ""


def is_order_due(job: DDPJob, pods: Observed) -> bool:
    """Return whether node rank 0's launcher places copies by another order."""
    order, leader = copy_order(job, pods), pods.launchers.leader
    if not order or leader is None:
        return False
    known = leader.copy_order or fingerprint(first_world(len(members(job))).members)
    return known != fingerprint(order)


def _has_copies(job: DDPJob) -> bool:
    """Return whether pods may hold copies of each other's snapshots.

    Ranks that form their group themselves copy theirs if the model is sharded, which is not known
    here.
    """
    memory = job.spec.memory_checkpoint
    return scope_of(job) == "Pod" or (memory is not None and memory.copies > 0)


@lru_cache(maxsize=32)
def _order(domains: Sequence[Domain]) -> str:
    text = in_ranges(order_by_domain(domains))
    return text if len(text) <= MAX_COPY_ORDER else ""
