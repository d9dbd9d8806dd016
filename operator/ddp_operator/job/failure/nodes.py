"""Which nodes a job's next pods avoid, because of recorded failures and what nodes report."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec.overrides import kinds
from ddp_operator.api.status import MAX_EXCLUDED, DDPJobStatus, Failure
from ddp_operator.job.failure import classes, symptoms
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import Manifest, Node, Nodes

MAX_SHARE = 4
"""At most one in this many fitting nodes is avoided, so that a job that fails everywhere still
finds nodes."""


def with_bad_nodes(job: DDPJob, status: DDPJobStatus, nodes: Nodes) -> DDPJobStatus:
    """Return the status with the failures of each node and the nodes to avoid because of them.

    A node is bad after `restart.nodeFailureLimit` charged failures, if one was of class
    Infrastructure or the training failed on no other node. It is bad at once if a rank's last words
    report a broken or lost GPU, which the node's own state may show only half an hour later. It
    stays bad until its boot ID changes. If too many are bad, the oldest are used again.
    """
    boot_ids = {node.name: node.boot_id for node in nodes}
    status = _with_boot_ids(status, boot_ids)
    charged = [
        failure
        for failure in _each_once(status.failures)
        if _is_charged_to_node(failure)
        and _is_same(failure.boot_id, boot_ids.get(failure.node, ""))
    ]
    counts = Counter(failure.node for failure in charged)
    by_training = {failure.node for failure in charged if failure.class_ == "Application"}
    of_machines = [failure for failure in charged if failure.class_ == "Infrastructure"]
    by_machine = {failure.node for failure in of_machines}
    lost_a_gpu = {f.node for f in of_machines if symptoms.is_of_device(f.message)}
    limit = job.spec.restart.node_failure_limit
    bad = [
        node
        for node, count in counts.items()
        if (limit <= count and (node in by_machine or by_training <= {node})) or node in lost_a_gpu
    ]
    status = status.updated(node_failures=dict(counts))
    if not nodes:
        return status  # no permission to see nodes, or none seen yet
    since = status.bookkeeping.excluded_boot_ids
    earlier = [
        node for node in _by_failures(status) if _is_same(since.get(node), boot_ids.get(node))
    ]
    known = [node for node in dict.fromkeys([*earlier, *bad]) if node in boot_ids] if limit else []
    most = _most(job, nodes) if known else 0
    kept = known[max(len(known) - most, 0) :]
    status = status.updated(excluded_nodes=tuple(kept))
    status = status.noting(
        signalled_nodes=(),
        excluded_boot_ids={node: boot_ids[node] for node in kept if boot_ids[node]},
    )
    return avoiding_signalled(job, status, nodes)


def avoiding_signalled(job: DDPJob, status: DDPJobStatus, nodes: Nodes) -> DDPJobStatus:
    """Return the status with the nodes to avoid because of their own signals.

    Nodes that do not answer are avoided. Broken and leaving ones are avoided as far as bad nodes
    leave room.
    """
    if not nodes or not (nodes.unwell or status.bookkeeping.signalled_nodes):
        return status
    failing = _by_failures(status)
    room, chosen = 0, []
    if nodes.unwell and job.spec.restart.node_failure_limit:
        fits = fitting(job)
        room = max(_most(job, nodes) - len(failing), 0)
        chosen = [node for node in nodes.unwell.values() if node.name not in failing and fits(node)]
        chosen.sort(key=lambda node: (not node.unready, not node.bad, node.name))
        # Nothing runs on silent nodes, so avoiding them costs the job nothing.
        room = max(room, min(sum(node.unready for node in chosen), MAX_EXCLUDED - len(failing)))
    names = tuple(node.name for node in chosen[:room])
    status = status.updated(excluded_nodes=(*failing, *names))
    return status.noting(signalled_nodes=names)


def _by_failures(status: DDPJobStatus) -> list[str]:
    signalled = set(status.bookkeeping.signalled_nodes)
    return [node for node in status.excluded_nodes if node not in signalled]


def _with_boot_ids(status: DDPJobStatus, boot_ids: Mapping[str, str]) -> DDPJobStatus:
    """Return the status with the node's boot ID in each node failure."""
    failures = tuple(
        failure.updated(boot_id=boot_ids[failure.node])
        if not failure.boot_id and boot_ids.get(failure.node) and _is_charged_to_node(failure)
        else failure
        for failure in status.failures
    )
    return status.updated(failures=failures)


def _is_same(then: str | None, now: str | None) -> bool:
    """Return whether the node did not reboot meanwhile, as far as is known."""
    return not then or not now or then == now


def _each_once(failures: Iterable[Failure]) -> Iterator[Failure]:
    """Skip failures reported twice for a pod: by its launcher, and by the pod's own end."""
    told: set[str] = set()
    for failure in failures:
        if not failure.continued:
            told.clear()
        if failure.pod not in told:
            yield failure
        told.add(failure.pod)


def _is_charged_to_node(failure: Failure) -> bool:
    """Return whether a failure counts for its node. Consequences and ignored failures do not."""
    if not failure.node or failure.action == "Ignore" or classes.is_consequence(failure):
        return False
    return failure.class_ in ("Application", "Infrastructure")


def _most(job: DDPJob, nodes: Nodes) -> int:
    """Return how many nodes may be avoided."""
    return min(sum(map(fitting(job), nodes)) // MAX_SHARE, MAX_EXCLUDED)


def fitting(job: DDPJob, indices: Collection[int] | None = None) -> Callable[[Node], bool]:
    """Return a predicate for nodes on which some of the job's pods, or of those with these indexes,
    may run by their selectors and tolerations.
    """
    firsts = [
        pods[0].start
        for _, pods in kinds(job.spec)
        if indices is None or any(index in some for index in indices for some in pods)
    ]
    specs = [manifests.pod(job, Identity(index, attempt=0))["spec"] for index in firsts]
    return lambda node: node.schedulable and any(_fits(spec, node) for spec in specs)


def _fits(pod_spec: Manifest, node: Node) -> bool:
    selector: Mapping[str, str] = pod_spec.get("nodeSelector") or {}
    tolerations: Sequence[Mapping[str, Any]] = pod_spec.get("tolerations") or ()
    return all(node.labels.get(key) == value for key, value in selector.items()) and all(
        any(_tolerates(t, taint) for t in tolerations) for taint in node.taints
    )


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, str]) -> bool:
    """Return whether a toleration matches a taint. An empty field matches anything."""
    if any(toleration.get(f) and toleration[f] != taint.get(f) for f in ("effect", "key")):
        return False
    same_value = (toleration.get("value") or "") == (taint.get("value") or "")
    exists = toleration.get("operator", "Equal") == "Exists"
    return exists or (bool(toleration.get("key")) and same_value)
