"""MultiKueue: Kueue runs a job of this cluster in another one.

Based on keps/2349-multikueue-external-custom-job-support and
pkg/controller/admissionchecks/multikueue of https://github.com/kubernetes-sigs/kueue (0.17): here,
the operator creates a Workload for the job. MultiKueue chooses a cluster, copies Workload and job
there, and copies the job's status back. There, the operator runs the job in a pod group with the
name of the copied Workload, so Kueue admits its pods by that Workload.
"""

from collections.abc import Mapping
from typing import Any, Final

from ddp_operator.api.constants import MULTIKUEUE
from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec.overrides import kinds
from ddp_operator.job.pods.manifests import own_metadata, pod
from ddp_operator.job.pods.schedulers.kueue import first_group, group_size, role_of
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import Manifest

NEEDS: Final = (
    "spec.managedBy: kueue.x-k8s.io/multikueue needs Kueue, and an operator that may create "
    "Workloads (manifests/components/multikueue)"
)
_VERSION: Final = "kueue.x-k8s.io/v1beta2"
_PRIORITY_LABEL: Final = "kueue.x-k8s.io/priority-class"
_REQUEUED: Final = frozenset({"Preempted", "NodeFailures"})
"""Evictions after which Kueue queues a Workload at once."""
_INDEX_LABEL: Final = "kueue.x-k8s.io/pod-group-pod-index"
"""Label in which Kueue repeats a pod's index."""


def needs_workload(job: DDPJob) -> bool:
    """Return whether the operator keeps a Workload for the job."""
    return job.spec.managed_by == MULTIKUEUE and not (job.deleting or job.status.finished)


def priority_class(job: DDPJob) -> Manifest | None:
    """Return type and name of the class that a job names and Kueue reads its priority from."""
    template = job.spec.template
    labels = (template.get("metadata") or {}).get("labels") or {}
    if name := labels.get(_PRIORITY_LABEL):
        kind = {"apiVersion": _VERSION, "kind": "WorkloadPriorityClass"}
    elif name := template["spec"].get("priorityClassName"):
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    else:
        return None
    return {**kind, "metadata": {"name": name}}


def reference(job: DDPJob) -> dict[str, Any]:
    """Return type and name of a job's Workload."""
    metadata = {**own_metadata(job), "name": first_group(job)}
    return {"apiVersion": _VERSION, "kind": "Workload", "metadata": metadata}


def workload(job: DDPJob, priority: int | None) -> dict[str, Any]:
    """Return the Workload of a job that runs in another cluster; `priority` is the value of its
    class. It is inactive while the job is suspended.
    """
    spec: dict[str, Any] = {
        "active": not job.spec.suspend,
        "queueName": job.spec.kueue_queue,
        "podSets": _pod_sets(job),
    }
    if (chosen := priority_class(job)) and priority is not None:
        group, _, _ = chosen["apiVersion"].partition("/")
        name = chosen["metadata"]["name"]
        spec["priorityClassRef"] = {"group": group, "kind": chosen["kind"], "name": name}
        spec["priority"] = priority
    made = reference(job)
    # In the other cluster, Kueue then sees that a pod group belongs to the copy.
    made["metadata"]["annotations"] = {"kueue.x-k8s.io/is-group-workload": "true"}
    return {**made, "spec": spec}


def without_admission(stored: Manifest) -> dict[str, Any]:
    """Return the status with which an evicted Workload gives its quota back, empty if it need not.

    Kueue leaves this to the job's controller, since only that knows when the pods have ended. They
    are in another cluster, where MultiKueue deletes them as soon as this quota is free.
    """
    known = _conditions(stored)
    if not (_holds(known, "Evicted") and _holds(known, "QuotaReserved")):
        return {}
    evicted = known["Evicted"]
    told = {name: evicted[name] for name in ("message", "lastTransitionTime")}
    requeued = "True" if evicted["reason"] in _REQUEUED else "False"
    changes = (
        ("QuotaReserved", "False", "Pending"),
        ("Admitted", "False", "NoReservation"),
        ("Requeued", requeued, evicted["reason"]),
    )
    for type_, status, reason in changes:
        known[type_] = {"type": type_, "status": status, "reason": reason, **told}
    return {"admission": None, "conditions": [*known.values()]}


def was_withdrawn(stored: Manifest) -> bool:
    """Return whether a Workload is finished although its job is not: it was evicted, or inactive.

    MultiKueue then deletes the job in the other cluster. It takes the end of its pods for that of
    the job if it sees it first, and Kueue never admits a finished Workload again.
    """
    is_active = (stored.get("spec") or {}).get("active", True)
    is_withdrawn = not is_active or _holds(_conditions(stored), "Evicted")
    return is_withdrawn and finished(stored) is not None


def finished(stored: Manifest) -> Manifest | None:
    """Return the condition by which Kueue reports that a Workload is finished, if it does."""
    known = _conditions(stored)
    return known["Finished"] if _holds(known, "Finished") else None


def _conditions(stored: Manifest) -> dict[str, Manifest]:
    return {one["type"]: one for one in (stored.get("status") or {}).get("conditions") or ()}


def _holds(known: Mapping[str, Manifest], name: str) -> bool:
    return name in known and known[name]["status"] == "True"


def _pod_sets(job: DDPJob) -> list[dict[str, Any]]:
    """Return one set for each kind of pod, in the order in which Kueue compares them."""
    found = []
    for _, indexes in kinds(job.spec):
        first = indexes[0].start
        made = pod(job, Identity(first, 0))
        pod_set: dict[str, Any] = {
            "name": role_of(job.spec, first),
            # Without overrides, there may be spares, or another number at first.
            "count": sum(map(len, indexes)) if job.spec.overrides else group_size(job),
            "template": {"spec": made["spec"]},
        }
        if request := _topology_request(made["metadata"]["annotations"]):
            pod_set["topologyRequest"] = request
        found.append(pod_set)
    return sorted(found, key=lambda one: one["name"])


def _topology_request(annotations: Mapping[str, str]) -> dict[str, str]:
    for wish in ("required", "preferred"):
        if label := annotations.get(f"kueue.x-k8s.io/podset-{wish}-topology"):
            return {wish: label, "podIndexLabel": _INDEX_LABEL}
    return {}
