"""Volcano: its scheduler places a group once all of it fits, and the group's queue has room.

Based on pkg/apis/scheduling/v1beta1 of https://github.com/volcano-sh/apis and the webhooks of
https://github.com/volcano-sh/volcano, which refuse pods of a group that does not exist.
"""

from typing import Any, Final

from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods.schedulers.marks import marked
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import Manifest

_DEFAULT_QUEUE: Final = "default"
"""Volcano's own default."""


def volcanic(job: DDPJob, identity: Identity, pod: Manifest) -> dict[str, Any]:
    """Return the pod as one of its job's group. Volcano schedules it unless its template names
    another scheduler.
    """
    del identity  # one group for all attempts
    made = marked(pod, annotations={"scheduling.k8s.io/group-name": job.name})
    return {**made, "spec": {"schedulerName": "volcano", **pod["spec"]}}


def volcano_group(job: DDPJob) -> dict[str, Any]:
    """Return the PodGroup with the gang's size, queue and priority class."""
    asked = job.spec.scheduling
    spec = {
        "minMember": job.spec.replicas,
        "queue": (asked and asked.queue_name) or _DEFAULT_QUEUE,
    }
    if priority := job.spec.template["spec"].get("priorityClassName"):
        spec["priorityClassName"] = priority
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "spec": spec}
