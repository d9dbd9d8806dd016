"""Which nodes a job's next pods avoid, by failures on record and by what nodes report."""

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
"""At most one in so many of the nodes that fit is avoided: a job that fails everywhere must not
run out of places."""


def with_bad_nodes(job: DDPJob, status: DDPJobStatus, nodes: Nodes) -> DDPJobStatus:
    """Return the status with the failures of each node, as far as they are on record, and the
    nodes to avoid because of them.

    A node is bad once `restart.nodeFailureLimit` failures are charged to it, if one of them was
    of the machine (class Infrastructure) or training failed on no other node; and at once when a
    rank's last words are of a GPU that is broken or lost, which the node's own state may take half
    an hour to show. It stays so until it is started anew, which its boot ID tells; when there are
    more than may be avoided, the oldest are given another chance.
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
    by_machine = {failure.node for failure in charged if failure.class_ == "Infrastructure"}
    lost_a_gpu = {
        failure.node
        for failure in charged
        if failure.class_ == "Infrastructure" and symptoms.is_of_device(failure.message)
    }
    limit = job.spec.restart.node_failure_limit
    bad = [
        node
        for node, count in counts.items()
        if (limit <= count and (node in by_machine or by_training <= {node})) or node in lost_a_gpu
    ]
    status = status.model_copy(update={"node_failures": dict(counts)})
    if not nodes:
        return status  # not to be known, or not known yet
    since = status.bookkeeping.excluded_boot_ids
    earlier = [
        node for node in _by_failures(status) if _is_same(since.get(node), boot_ids.get(node))
    ]
    known = [node for node in dict.fromkeys([*earlier, *bad]) if node in boot_ids] if limit else []
    most = _most(job, nodes) if known else 0
    kept = known[max(len(known) - most, 0) :]
    status = status.model_copy(update={"excluded_nodes": tuple(kept)})
    status = status.noting(
        signalled_nodes=(),
        excluded_boot_ids={node: boot_ids[node] for node in kept if boot_ids[node]},
    )
    return avoiding_signalled(job, status, nodes)


def avoiding_signalled(job: DDPJob, status: DDPJobStatus, nodes: Nodes) -> DDPJobStatus:
    """Return the status with what signals say of nodes that the job's pods could run on: silent
    ones are avoided, and broken ones and those that are about to go as far as failures leave room.
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
        # On what does not answer nothing runs, which takes no place from the job.
        room = max(room, min(sum(node.unready for node in chosen), MAX_EXCLUDED - len(failing)))
    names = tuple(node.name for node in chosen[:room])
    status = status.model_copy(update={"excluded_nodes": (*failing, *names)})
    return status.noting(signalled_nodes=names)


def _by_failures(status: DDPJobStatus) -> list[str]:
    signalled = set(status.bookkeeping.signalled_nodes)
    return [node for node in status.excluded_nodes if node not in signalled]


def _with_boot_ids(status: DDPJobStatus, boot_ids: Mapping[str, str]) -> DDPJobStatus:
    """Say of failures of nodes which start of the machine they belong to."""
    failures = tuple(
        failure.model_copy(update={"boot_id": boot_ids[failure.node]})
        if not failure.boot_id and boot_ids.get(failure.node) and _is_charged_to_node(failure)
        else failure
        for failure in status.failures
    )
    return status.model_copy(update={"failures": failures})


def _is_same(then: str | None, now: str | None) -> bool:
    """Whether a node was not started anew meanwhile, as far as is known."""
    return not then or not now or then == now


def _each_once(failures: Iterable[Failure]) -> Iterator[Failure]:
    """Leave out what is told once more of a pod: by its launcher, and by the pod's own end."""
    told: set[str] = set()
    for failure in failures:
        if not failure.continued:
            told.clear()
        if failure.pod not in told:
            yield failure
        told.add(failure.pod)


def _is_charged_to_node(failure: Failure) -> bool:
    """What a rank suffered because of another one says nothing of its own node, and what a rule
    ignores is no failure.
    """
    if not failure.node or failure.action == "Ignore" or classes.is_consequence(failure):
        return False
    return failure.class_ in ("Application", "Infrastructure")


def _most(job: DDPJob, nodes: Nodes) -> int:
    """How many nodes may be avoided at most."""
    return min(sum(map(fitting(job), nodes)) // MAX_SHARE, MAX_EXCLUDED)


def fitting(job: DDPJob, indices: Collection[int] | None = None) -> Callable[[Node], bool]:
    """Return what says whether some of the job's pods, or of those of these indices, may run on a
    node, as far as their selectors and tolerations tell.
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
    """Kubernetes' rule: what a toleration leaves empty, it does not ask about."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    same_value = (toleration.get("value") or "") == (taint.get("value") or "")
    return bool(toleration.get("key")) and same_value
