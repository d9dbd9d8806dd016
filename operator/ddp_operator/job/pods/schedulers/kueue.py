"""Kueue: the pods of a job form one plain pod group, which it admits as a whole.

https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/ and, in keps/976-plain-pods of
https://github.com/kubernetes-sigs/kueue, "Retrying Failed Pods" (both as of August 2026).

A group lives as long as its job. Kueue keeps its quota and its place while pods that failed are
replaced by pods of the same role. It finds out the role from resources and affinity, unless the pod
names one; ours do, so that a replacement may avoid nodes. `planning/places/queue.py` says when a
group ends.

Pods that the training does not need to begin, spares and those of a larger elastic group, are
groups of their own: Kueue admits and preempts each by itself. A group is admitted only when all its
pods exist, so none that the API server may refuse for long can be part of it.

Nodes that are provisioned for a queue are requested by its admission check, once for each Workload.
How long they may run is stated on the pods
(https://kueue.sigs.k8s.io/docs/concepts/admission_check/provisioning_request/).

Fast admission is not used: it assumes that all pods equal the first one, and it saves no time here,
since the operator creates all pods of a group at once.

With `topology`, Kueue chooses a place with room for all pods, if its administrator set up a
Topology of these labels (https://kueue.sigs.k8s.io/docs/tasks/run/topology_aware_scheduling/). For
pods that differ by `overrides` it chooses one place for each kind.
"""

from typing import Any, Final, NamedTuple

from ddp_operator.api.constants import KUEUE_GROUP, KUEUE_QUEUE, LABEL_INDEX
from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.spec.overrides import accelerators, ranges, spec_of
from ddp_operator.job.membership.world import first_size, members
from ddp_operator.job.pods.schedulers.marks import marked
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import Manifest

MAX_RUN: Final = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"
"""Kueue passes the part after the prefix to the ProvisioningRequest as a parameter."""


class KueueGroup(NamedTuple):
    """A pod group of Kueue."""

    name: str
    """Also the name of its Workload."""
    size: int


def kueue_group(job: DDPJob) -> str:
    """Return the name of the group without which the job does not train. If MultiKueue has copied
    the job to this cluster, its first group is that of the Workload that came with it.
    """
    number = job.status.bookkeeping.queue_group or 0
    if job.prebuilt_workload and not number:
        return job.prebuilt_workload
    # A job that runs elsewhere has the status of its copy.
    return _numbered(job, 0 if job.spec.managed_elsewhere else number)


def _numbered(job: DDPJob, number: int) -> str:
    # An earlier job of the same name may still be ending, with its group. A label has room for 63
    # characters.
    return f"{job.name[:36]}-{job.uid[:6]}-{number}"


def group_size(job: DDPJob) -> int:
    """Return the number of pods of that group: as it began, else as it would."""
    return job.status.bookkeeping.queue_group_size or first_size(job.spec)


def is_in_group(job: DDPJob, slot: int) -> bool:
    """Return whether a queue admits a slot's pods together with those that the job needs."""
    return job.spec.kueue_queue is not None and slot < group_size(job)


def group_of(job: DDPJob, identity: Identity) -> KueueGroup:
    """Return the group of a pod."""
    if is_in_group(job, identity.slot):
        return KueueGroup(kueue_group(job), group_size(job))
    # The job continues without it, so its replacement asks for quota again.
    name = _numbered(job, job.status.bookkeeping.queue_group or 0)
    return KueueGroup(f"{name}-{identity.attempt}-{identity.slot}-{identity.replacement}", 1)


def single_groups(job: DDPJob) -> list[str]:
    """Return the names of the groups of one pod each that the training has at present."""
    attempt, replacements = job.status.attempt, job.status.bookkeeping.replacements
    return [
        group_of(job, Identity(slot, attempt, replacements.get(str(slot), 0))).name
        for slot in members(job)
        if not is_in_group(job, slot)
    ]


def role_of(spec: DDPJobSpec, index: int) -> str:
    """Return the role of a pod, which Kueue counts by itself and describes in the Workload."""
    for number, override in enumerate(spec.overrides or (), start=1):
        if any(index in pods for pods in ranges(override)):
            return f"pods-{number}"
    return "pods"


def provides_nodes(spec: DDPJobSpec) -> bool:
    """Return whether a queue also provides the nodes of some pods."""
    return any(one.provisioning == "queued" for one in accelerators(spec))


def in_queue(spec: DDPJobSpec, index: int, pod: Manifest) -> dict[str, Any]:
    """Return the pod with what Kueue needs to know about all pods of this index, if they queue."""
    if not spec.kueue_queue:
        return dict(pod)
    annotations = {"kueue.x-k8s.io/role-hash": role_of(spec, index)}
    accelerator = spec_of(spec, index).accelerator
    if accelerator and accelerator.provisioning == "queued" and accelerator.max_run_seconds:
        annotations[MAX_RUN] = str(accelerator.max_run_seconds)
    if asked := spec.topology:
        wish = "required" if asked.required else "preferred"
        annotations[f"kueue.x-k8s.io/podset-{wish}-topology"] = asked.label
    return marked(pod, labels={KUEUE_QUEUE: spec.kueue_queue}, annotations=annotations)


def grouped(job: DDPJob, identity: Identity, pod: Manifest) -> dict[str, Any]:
    """Return the queued pod as one of its group."""
    group = group_of(job, identity)
    annotations = {
        # From 0.18 on Kueue reads the group here and, without this annotation, from the label.
        KUEUE_GROUP: group.name,
        "kueue.x-k8s.io/pod-group-total-count": str(group.size),
    }
    if is_in_group(job, identity.slot):
        # Where Kueue knows the topology, it places neighbouring ranks close together.
        annotations["kueue.x-k8s.io/pod-group-pod-index-label"] = LABEL_INDEX
    return marked(pod, labels={KUEUE_GROUP: group.name}, annotations=annotations)
