"""Kueue: the pods of an attempt form one plain pod group, which it admits as a whole.

https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/ and, in keps/976-plain-pods of
https://github.com/kubernetes-sigs/kueue, "Retrying Failed Pods" (both as of August 2026):

Kueue keeps a group's quota for pods that may replace failed ones, until enough pods have succeeded.
It cannot know that a job has failed, is suspended, or gets other pods, and would keep the quota
then. So each attempt is a group, and none of its pods is retriable: the group is over once all its
pods have ended, and a new attempt asks for quota as a new group.

Nodes that are provisioned for a queue are requested by its admission check, once for each Workload,
so for each attempt. How long they may run is stated on the pods
(https://kueue.sigs.k8s.io/docs/concepts/admission_check/provisioning_request/).

Fast admission is not used: it assumes that all pods equal the first one, and it saves no time here,
since the operator creates all pods of a group at once.

With `topology`, Kueue chooses a place with room for all pods, if its administrator set up a
Topology of these labels (https://kueue.sigs.k8s.io/docs/tasks/run/topology_aware_scheduling/). For
pods that differ by `overrides` it chooses one place for each kind.
"""

from typing import Any, Final

from ddp_operator.api.constants import LABEL_INDEX
from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec.overrides import spec_of
from ddp_operator.job.pods.schedulers.marks import marked
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import Manifest

_MAX_RUN: Final = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"
"""Kueue passes the part after the prefix to the ProvisioningRequest as a parameter."""


def kueue_group(job: DDPJob, attempt: int) -> str:
    """Return the name of an attempt's group, which is also the name of its Workload."""
    # An earlier job of the same name may still be ending, with its group.
    return f"{job.name}-{job.uid[:6]}-{attempt}"


def kueue(job: DDPJob, identity: Identity, pod: Manifest) -> dict[str, Any]:
    """Return the pod as one of its attempt's group, in the job's queue."""
    labels = {
        "kueue.x-k8s.io/queue-name": job.spec.kueue_queue or "",
        "kueue.x-k8s.io/pod-group-name": kueue_group(job, identity.attempt),
    }
    annotations = {
        "kueue.x-k8s.io/pod-group-total-count": str(job.spec.replicas),
        # Where Kueue knows the topology, it places neighbouring ranks close together.
        "kueue.x-k8s.io/pod-group-pod-index-label": LABEL_INDEX,
        "kueue.x-k8s.io/retriable-in-group": "false",
    }
    accelerator = spec_of(job.spec, identity.index).accelerator
    if accelerator and accelerator.provisioning == "queued" and accelerator.max_run_seconds:
        annotations[_MAX_RUN] = str(accelerator.max_run_seconds)
    asked = job.spec.scheduling
    if asked and asked.topology:
        wish = "required" if asked.topology.required else "preferred"
        annotations[f"kueue.x-k8s.io/podset-{wish}-topology"] = asked.topology.label
    return marked(pod, labels=labels, annotations=annotations)
