"""MultiKueue: Kueue runs a job of this cluster in another one.

Based on keps/2349-multikueue-external-custom-job-support and
pkg/controller/admissionchecks/multikueue of https://github.com/kubernetes-sigs/kueue (0.17 and
August 2026): here, the operator creates a Workload for the job. MultiKueue chooses a cluster,
copies Workload and job there, and copies the job's status back. There, the operator runs the job in
a pod group with the name of the copied Workload, so Kueue admits its pods by that Workload. An
annotation or label of the job names the Workload, and authors of jobs can write both. So the
operator checks that the Workload is a copy and was made for a job of this name: Kueue copies its
annotations, and removes its owner.

A Workload describes the pods as they follow from the spec. Kueue refuses to change that while quota
is reserved, so the operator replaces a Workload instead, when nothing runs. Administrators and
Kueue also write `active`, so the operator writes it only when `suspend` has changed since: an
annotation has the value that it wrote last. Another annotation keeps the job's failures when it
moves: a copy begins without a status, and MultiKueue replaces the job's own by the copy's.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from ddp_operator.api.constants import (
    ANNOTATION_EARLIER_FAILURES,
    ANNOTATION_SPEC_HASH,
    ANNOTATION_SUSPEND,
    ANNOTATION_WORKLOAD_OF,
    LABEL_JOB_UID,
    LABEL_MULTIKUEUE_ORIGIN,
    MULTIKUEUE,
    PREBUILT_WORKLOAD,
)
from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec.overrides import accelerators, kinds
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.job.membership.world import first_size
from ddp_operator.job.pods.manifests import own_metadata, shape
from ddp_operator.job.pods.schedulers.kueue import MAX_RUN, kueue_group, role_of
from ddp_operator.ports import Manifest

NEEDS: Final = (
    "spec.managedBy: kueue.x-k8s.io/multikueue needs Kueue, and an operator that may create "
    "Workloads (manifests/components/multikueue)"
)
CHECK_NEEDS: Final = (
    f"{PREBUILT_WORKLOAD} in this job's metadata needs an operator that may read Workloads "
    "(manifests/components/multikueue); without MultiKueue, remove it"
)
_VERSION: Final = "kueue.x-k8s.io/v1beta2"
_PRIORITY_LABEL: Final = "kueue.x-k8s.io/priority-class"
_REQUEUED: Final = frozenset({"Preempted", "NodeFailures"})
"""Evictions after which Kueue queues a Workload at once."""
_INDEX_LABEL: Final = "kueue.x-k8s.io/pod-group-pod-index"
"""Label in which Kueue repeats a pod's index."""
_KEPT: Final = frozenset({"failures", "restarts", "disruptions"})
"""Fields of the status that a job keeps when it moves to another cluster."""


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
    metadata = {**own_metadata(job), "name": kueue_group(job)}
    return {"apiVersion": _VERSION, "kind": "Workload", "metadata": metadata}


def workload(job: DDPJob, priority: int | None, replaced: Manifest | None = None) -> dict[str, Any]:
    """Return the Workload of a job that runs in another cluster. `priority` is the value of its
    class, `replaced` an earlier Workload of the job.
    """
    spec: dict[str, Any] = {
        "active": _is_active(job, replaced),
        "queueName": job.spec.kueue_queue,
        "podSets": _pod_sets(job),
    }
    if (chosen := priority_class(job)) and priority is not None:
        group, _, _ = chosen["apiVersion"].partition("/")
        name = chosen["metadata"]["name"]
        spec["priorityClassRef"] = {"group": group, "kind": chosen["kind"], "name": name}
        spec["priority"] = priority
    made = reference(job)
    # From 0.18 on, Kueue finishes the Workload of a group without pods if it has a controller.
    owners = made["metadata"]["ownerReferences"]
    made["metadata"]["ownerReferences"] = [{**owner, "controller": False} for owner in owners]
    made["metadata"]["labels"] |= {LABEL_JOB_UID: job.uid}
    made["metadata"]["annotations"] = {
        # In the other cluster, Kueue then sees that a pod group belongs to the copy.
        "kueue.x-k8s.io/is-group-workload": "true",
        ANNOTATION_WORKLOAD_OF: job.name,
        ANNOTATION_SPEC_HASH: job.spec_hash,
        **_max_run(job),
        **_suspension(job),
        **_earlier_failures(job),
    }
    return {**made, "spec": spec}


def updated(job: DDPJob, stored: Manifest) -> dict[str, Any] | None:
    """Return a Workload with what has changed since it was stored: its job's suspension and, when
    it was evicted, its job's failures. None if nothing has.
    """
    known = _annotations(stored)
    annotations = {ANNOTATION_SPEC_HASH: job.spec_hash, **known, **_suspension(job)}
    if without_admission(stored):
        annotations |= _earlier_failures(job)
    if annotations == known:
        return None
    spec = {**stored["spec"], "active": _is_active(job, stored)}
    return {**stored, "metadata": {**stored["metadata"], "annotations": annotations}, "spec": spec}


def must_be_replaced(job: DDPJob, stored: Manifest) -> bool:
    """Return whether Kueue can run the job only by another Workload: this one is finished although
    the job is not, or describes other pods. One that is admitted describes pods that run.
    """
    known = _conditions(stored)
    if over := finished(stored):
        # Kueue reports the end of a copy's pods as success, also if they were deleted: because it
        # evicted them, or because they gave up their place in the queue.
        is_active, is_evicted = stored["spec"].get("active", True), _holds(known, "Evicted")
        is_doubtful = over.get("reason") == "Succeeded" and job.status.phase != "Running"
        return not is_active or is_evicted or is_doubtful
    written = _annotations(stored).get(ANNOTATION_SPEC_HASH, job.spec_hash)
    pods = sum(each["count"] for each in stored["spec"]["podSets"])
    is_same = (written, pods) == (job.spec_hash, first_size(job.spec))
    return not (is_same or _holds(known, "Admitted"))


def _is_active(job: DDPJob, stored: Manifest | None) -> bool:
    """Return whether Kueue may admit a Workload: as `suspend` says if it has changed, else as Kueue
    or an administrator decided.
    """
    if stored and _suspension(job).items() <= _annotations(stored).items():
        return bool(stored["spec"].get("active", True))
    return not job.spec.suspend


def _suspension(job: DDPJob) -> dict[str, str]:
    return {ANNOTATION_SUSPEND: "true" if job.spec.suspend else "false"}


def _max_run(job: DDPJob) -> dict[str, str]:
    """Return the annotation that Kueue passes to the request for the job's nodes."""
    queued = [one for one in accelerators(job.spec) if one.provisioning == "queued"]
    longest = max((one.max_run_seconds or 0 for one in queued), default=0)
    return {MAX_RUN: str(longest)} if longest else {}


def _earlier_failures(job: DDPJob) -> dict[str, str]:
    if not job.status.failures:
        return {}
    text = job.status.model_dump_json(by_alias=True, exclude_none=True, include=set(_KEPT))
    return {ANNOTATION_EARLIER_FAILURES: text}


def first_status(job: DDPJob, stored: Manifest) -> DDPJobStatus | None:
    """Return the status with which a job's copy begins, given its Workload: the failures of other
    clusters. None if there were none.
    """
    if not is_copy_for(job, stored):
        return None
    try:
        earlier = DDPJobStatus.model_validate_json(
            _annotations(stored)[ANNOTATION_EARLIER_FAILURES]
        )
    except (KeyError, ValidationError):
        return None
    return job.status.updated(**{name: getattr(earlier, name) for name in _KEPT})


def copied_workload(job: DDPJob) -> dict[str, Any] | None:
    """Return type and name of the Workload that the job's metadata claims as its first, if it does
    and the job still needs it.
    """
    if job.spec.kueue_queue is None or kueue_group(job) != job.prebuilt_workload:
        return None
    metadata = {"namespace": job.namespace, "name": job.prebuilt_workload}
    return {"apiVersion": _VERSION, "kind": "Workload", "metadata": metadata}


def is_copy_for(job: DDPJob, stored: Manifest) -> bool:
    """Return whether MultiKueue copied this Workload together with the job."""
    labels = stored["metadata"].get("labels") or {}
    made_for = _annotations(stored).get(ANNOTATION_WORKLOAD_OF)
    return LABEL_MULTIKUEUE_ORIGIN in labels and made_for == job.name


def not_a_copy(job: DDPJob) -> str:
    """Return why a job may not enter the group of the Workload that its metadata names."""
    return (
        f"metadata: {PREBUILT_WORKLOAD} (annotation or label) names the Workload "
        f"{job.prebuilt_workload}, which MultiKueue did not copy for this job; remove it, because "
        "only MultiKueue sets it"
    )


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


def finished(stored: Manifest) -> Manifest | None:
    """Return the condition by which Kueue reports that a Workload is finished, if it does."""
    known = _conditions(stored)
    return known["Finished"] if _holds(known, "Finished") else None


def _conditions(stored: Manifest) -> dict[str, Manifest]:
    return {one["type"]: one for one in (stored.get("status") or {}).get("conditions") or ()}


def _annotations(stored: Manifest) -> Mapping[str, str]:
    return stored["metadata"].get("annotations") or {}


def _holds(known: Mapping[str, Manifest], name: str) -> bool:
    return name in known and known[name]["status"] == "True"


def _pod_sets(job: DDPJob) -> list[dict[str, Any]]:
    """Return one set for each kind of pod, in the order in which Kueue compares them."""
    found = []
    for _, indexes in kinds(job.spec):
        first = indexes[0].start
        made = shape(job.name, job.spec, first)
        pod_set: dict[str, Any] = {
            "name": role_of(job.spec, first),
            # Without overrides, the group may begin with another number.
            "count": sum(map(len, indexes)) if job.spec.overrides else first_size(job.spec),
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
