"""The coscheduling plugin of scheduler-plugins: no pod is bound before all can be.

Based on pkg/coscheduling and apis/scheduling/v1alpha1 of
https://github.com/kubernetes-sigs/scheduler-plugins. The administrator chooses the scheduler's
name, so `schedulerName` stays the template's.
"""

from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods.schedulers.marks import marked
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import Manifest


def coscheduled(job: DDPJob, identity: Identity, pod: Manifest) -> dict[str, Any]:
    """Return the pod as one of its job's group."""
    del identity  # one group for all attempts
    return marked(pod, labels={"scheduling.x-k8s.io/pod-group": job.name})


def coscheduling_group(job: DDPJob) -> dict[str, Any]:
    """Return the PodGroup with the gang's size."""
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "spec": {"minMember": job.spec.replicas},
    }
