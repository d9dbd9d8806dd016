"""Which nodes a job's next pods had better avoid.

A broken GPU or network card fails one pod after another, each time at the price of a restart, until
somebody cordons the node. The failures on record tell such a node apart from a training script that
fails wherever it runs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.api.overrides import kinds
from ddp_operator.api.status import DDPJobStatus, Failure
from ddp_operator.job.failure import classes
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import Manifest, Node

MAX_SHARE = 4
"""At most one in so many of the nodes that fit is avoided: a job that fails everywhere must not
run out of places."""


def with_bad_nodes(job: DDPJob, status: DDPJobStatus, nodes: Sequence[Node]) -> DDPJobStatus:
    """Return the status with the failures of each node, as far as they are on record, and the
    nodes to avoid because of them.

    A node is bad once `restart.nodeFailureLimit` failures are charged to it, if one of them was
    of the machine (class Infrastructure) or training failed on no other node. It stays so while it
    exists; when there are more than may be avoided, the oldest are given another chance.
    """
    charged = [failure for failure in status.failures if _is_charged_to_node(failure)]
    counts = Counter(failure.node for failure in charged)
    by_training = {failure.node for failure in charged if failure.class_ == "Application"}
    by_machine = {failure.node for failure in charged if failure.class_ == "Infrastructure"}
    limit = job.spec.restart.node_failure_limit
    bad = [
        node
        for node, count in counts.items()
        if 0 < limit <= count and (node in by_machine or by_training <= {node})
    ]
    status = status.model_copy(update={"node_failures": dict(counts)})
    if not nodes:
        return status  # not to be known, or not known yet
    names = {node.name for node in nodes}
    ordered = dict.fromkeys([*status.excluded_nodes, *bad])
    known = [node for node in ordered if node in names] if limit else []
    most = _fitting(job, nodes) // MAX_SHARE if known else 0
    excluded = tuple(known[max(len(known) - most, 0) :])
    return status.model_copy(update={"excluded_nodes": excluded})


def _is_charged_to_node(failure: Failure) -> bool:
    """What a rank suffered because of another one says nothing of its own node, and what a rule
    ignores is no failure.
    """
    if not failure.node or failure.action == "Ignore" or classes.is_consequence(failure):
        return False
    return failure.class_ in ("Application", "Infrastructure")


def _fitting(job: DDPJob, nodes: Sequence[Node]) -> int:
    """How many nodes some of the job's pods may run on, as far as their selectors and tolerations
    tell.
    """
    firsts = [pods[0].start for _, pods in kinds(job.spec)]
    specs = [manifests.pod(job, Identity(index, attempt=0))["spec"] for index in firsts]
    return sum(node.schedulable and any(_fits(spec, node) for spec in specs) for node in nodes)


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
