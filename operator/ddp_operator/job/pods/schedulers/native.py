"""Kubernetes' own scheduler, from 1.37: no pod of a group is bound before all can be.

Based on https://kubernetes.io/docs/concepts/workloads/podgroup-api/ and the API reference of 1.37
(PodGroup, v1beta1). Earlier versions are alpha, differ from each other, and are not supported.
"""

from hashlib import sha256
from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import Manifest


def native(job: DDPJob, identity: Identity, pod: Manifest) -> dict[str, Any]:
    """Return the pod as one of its job's group."""
    del identity  # one group for all attempts
    group = {"podGroupName": _name(job)}
    return {**pod, "spec": {**pod["spec"], "schedulingGroup": group}}


def native_group(job: DDPJob) -> dict[str, Any]:
    """Return the PodGroup with the gang's size and priority class, which overrides its pods' in
    preemption.
    """
    spec: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": job.spec.replicas}}}
    if priority := _priority_class(job):
        spec["priorityClassName"] = priority
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": _name(job)},
        "spec": spec,
    }


def _name(job: DDPJob) -> str:
    """Return the group's name, which includes its priority class, since a group cannot change that.
    Groups of earlier classes have no pods and are deleted with the job.
    """
    priority = _priority_class(job)
    return f"{job.name}-{sha256(priority.encode()).hexdigest()[:8]}" if priority else job.name


def _priority_class(job: DDPJob) -> str:
    return job.spec.template["spec"].get("priorityClassName") or ""
