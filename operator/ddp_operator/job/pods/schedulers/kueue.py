"""Kueue: the pods of an attempt are one of its plain pod groups, which it admits all together.

https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/ and, in keps/976-plain-pods of
https://github.com/kubernetes-sigs/kueue, "Retrying Failed Pods" (both as of August 2026):

Kueue keeps a group's quota for pods that may replace those that have failed, until as many have
succeeded as the group counts. It cannot know that a job has failed, is suspended, or is given other
pods, and would keep it then, too. So a group is one attempt, and none of its pods is retriable: the
group is over once all its pods have ended, and a new attempt, a new group, asks for quota again.

Nodes that are provisioned for a queue are asked for by its admission check, once for each Workload,
and so for each attempt; how long they may run is the pods' to say
(https://kueue.sigs.k8s.io/docs/concepts/admission_check/provisioning_request/).

Fast admission is not asked for: it takes the first pod for all of them, which they need not be, and
a group waits for nothing else that its operator would not create at once.

Where pods belong near each other it chooses a place with room for all of them, if its administrator
has given it a Topology of these labels (https://kueue.sigs.k8s.io/docs/tasks/run/topology_aware_scheduling/);
for pods that `overrides` make different it chooses one for each kind.
"""

from typing import Any, Final

from ddp_operator.api.constants import LABEL_INDEX
from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec.overrides import spec_of
from ddp_operator.job.pods.schedulers.marks import marked
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import Manifest

_MAX_RUN: Final = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"
"""Kueue passes on what follows its prefix as a parameter of the ProvisioningRequest."""


def kueue_group(job: DDPJob, attempt: int) -> str:
    """The name of an attempt's group, and of the Workload that Kueue makes of it."""
    # A job of the same name may be on its way out, and its group with it.
    return f"{job.name}-{job.uid[:6]}-{attempt}"


def kueue(job: DDPJob, identity: Identity, pod: Manifest) -> dict[str, Any]:
    """Return the pod as one of its attempt's group, in the job's queue."""
    labels = {
        "kueue.x-k8s.io/queue-name": job.spec.kueue_queue or "",
        "kueue.x-k8s.io/pod-group-name": kueue_group(job, identity.attempt),
    }
    annotations = {
        "kueue.x-k8s.io/pod-group-total-count": str(job.spec.replicas),
        # Where Kueue knows the topology, neighbours by rank become neighbours there.
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
