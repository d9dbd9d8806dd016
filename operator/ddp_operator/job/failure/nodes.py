"""Which nodes a job's next pods avoid: for what these nodes did, and for what they report.

Only a broken device is certain: pods must not run there. All else is a guess, so pods only prefer
other nodes. Failures of the script itself never count: a rank that stays in its pod fails on one
node only, and the node need not be the cause.
"""

from collections.abc import Collection, Iterator
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import MAX_EXCLUDED, DDPJobStatus, Failure, NodeRecord
from ddp_operator.job.failure import classes, records, symptoms
from ddp_operator.job.pods.state import START_TIMEOUT, UNSTARTABLE_REASONS
from ddp_operator.ports import Nodes

MAX_RECORDS: Final = 100
_MUCH_WORSE: Final = 5
"""If another node has failed pods so much more often, the one with the broken device is worth a
try: the scheduler may go on choosing a node that refuses each pod.
"""

_NEVER_BEGAN: Final = frozenset(
    {START_TIMEOUT, "NodeLost", "Evicted", "NodeShutdown", "NodeAffinity", "NodeName", "NodePorts",
     "NodeUnschedulable", "TaintToleration", *UNSTARTABLE_REASONS, *classes.NODE_REASONS}
)  # fmt: skip
"""Reasons of pods without an exit code that their node refused, could not start, or lost. It may do
so again at once, so one of them is enough to prefer other nodes. The kubelet also gives `OutOf` and
a resource."""


def with_bad_nodes(job: DDPJob, status: DDPJobStatus, nodes: Nodes) -> DDPJobStatus:
    """Return the status with its new failures, which `job` does not have, counted for their nodes,
    and with the nodes to avoid.

    A node that reboots is a new one. Without permission to see nodes, nothing is known of reboots.
    """
    known: dict[str, NodeRecord] = {}
    for record in status.bookkeeping.nodes:
        boot_id = _boot_id(nodes, record.name) or record.boot_id
        if record.boot_id in ("", boot_id):
            known[record.name] = record.updated(boot_id=boot_id)
    for failure in _new_failures(job.status, status):
        new = NodeRecord(name=failure.node, boot_id=_boot_id(nodes, failure.node))
        record = known.pop(failure.node, new)
        known[failure.node] = _counted(record, failure)  # the newest is the last
    kept = tuple(known.values())[-MAX_RECORDS:]
    barred, others = _avoided(job, kept, nodes)
    status = status.updated(excluded_nodes=(*barred, *others)[:MAX_EXCLUDED])
    return status.noting(nodes=kept, barred_nodes=barred)


def usable_again(status: DDPJobStatus, names: Collection[str]) -> DDPJobStatus:
    """Return the status in which pods may run on these nodes, but prefer others."""
    known = {record.name: record for record in status.bookkeeping.nodes}
    for name in names:
        record = known.get(name) or NodeRecord(name=name)
        known[name] = record.updated(avoided="Dropped")
    return status.noting(nodes=tuple(known.values()))


def _avoided(
    job: DDPJob, kept: Collection[NodeRecord], nodes: Nodes
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the nodes on which pods must not run, and those that they avoid if others fit."""
    limit = job.spec.restart.node_failure_limit
    if not limit:
        return (), ()
    avoided = {record.name: record.avoided for record in kept}
    unwell = sorted(nodes.unwell.values(), key=lambda node: node.name)
    worst = max((record.failures for record in kept if record.avoided != "Required"), default=0)
    barred = [
        record.name
        for record in kept
        if record.avoided == "Required" and record.failures + _MUCH_WORSE > worst
    ]
    barred += [node.name for node in unwell if node.bad and avoided.get(node.name) != "Dropped"]
    others = [record.name for record in kept if record.avoided or record.failures >= limit]
    others += [node.name for node in unwell]
    exist = [
        name for name in dict.fromkeys([*barred, *others]) if not nodes or name in nodes.by_name
    ]
    must = set(barred)
    return (
        tuple(name for name in exist if name in must)[:MAX_EXCLUDED],
        tuple(name for name in exist if name not in must),
    )


def _new_failures(before: DDPJobStatus, after: DDPJobStatus) -> Iterator[Failure]:
    """Yield the failures of nodes that were recorded since. One that a pod's launcher reported does
    not count again when the pod itself ends.
    """
    told = {failure.pod for failure in records.latest_event(before.failures)}
    for failure in after.failures:
        is_told = bool(failure.continued) and failure.pod in told
        if _is_of_node(failure) and failure not in before.failures and not is_told:
            yield failure


def _is_of_node(failure: Failure) -> bool:
    if not failure.node or failure.action == "Ignore":
        return False
    return classes.is_of_node(failure) or _never_began(failure)


def _never_began(failure: Failure) -> bool:
    refused = failure.reason in _NEVER_BEGAN or failure.reason.startswith("OutOf")
    return failure.exit_code is None and refused


def _counted(record: NodeRecord, failure: Failure) -> NodeRecord:
    """Return a node's record with one more failure."""
    avoided = record.avoided
    if failure.class_ == "Infrastructure" and symptoms.is_of_device(failure.message):
        avoided = "Required"
    elif not avoided and (failure.reason == records.SLOW_RANK or _never_began(failure)):
        avoided = "Preferred"
    return record.updated(failures=record.failures + 1, avoided=avoided)


def _boot_id(nodes: Nodes, name: str) -> str:
    node = nodes.by_name.get(name)
    return node.boot_id if node else ""
