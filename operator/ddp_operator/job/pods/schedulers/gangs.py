"""Schedulers that place all pods of a gang or none. Each reads a PodGroup, which precedes the pods.

- coscheduling: a plugin of scheduler-plugins. From pkg/coscheduling and apis/scheduling/v1alpha1 of
  https://github.com/kubernetes-sigs/scheduler-plugins. The administrator chooses the scheduler's
  name, so `schedulerName` stays the template's.
- kai: NVIDIA's KAI Scheduler, also in Run:ai, from 0.17. It takes groups that others create: from
  docs/developer/designs/external-podgroups, docs/staleness-grace-period and
  pkg/apis/scheduling/v2alpha2 of https://github.com/kai-scheduler/KAI-Scheduler.
- native: Kubernetes' own scheduler, from 1.37. From
  https://kubernetes.io/docs/concepts/workloads/podgroup-api/ and the API reference of 1.37
  (PodGroup, v1beta1). Earlier versions are alpha, differ from each other, and are not supported.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final, NamedTuple

from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods.schedulers.marks import marked
from ddp_operator.ports import Manifest


class Gang(NamedTuple):
    """One way to place pods together. All attempts of a job have one group."""

    member: Callable[[DDPJob, Manifest], dict[str, Any]]
    """Return the pod, marked as one of its job's group."""
    group: Callable[[DDPJob], dict[str, Any]]
    """Return the group's object. Its metadata holds at most a name of its own."""
    needs: str
    """The field that asks for the group and what that requires, for the message when the server
    refuses it."""


def gang_of(job: DDPJob) -> Gang | None:
    """Return the scheduler that a job asks for; None if any will do."""
    return _GANGS.get(job.spec.scheduling.gang) if job.spec.scheduling else None


def _coscheduled(job: DDPJob, pod: Manifest) -> dict[str, Any]:
    return marked(pod, labels={"scheduling.x-k8s.io/pod-group": job.name})


def _coscheduling_group(job: DDPJob) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "spec": {"minMember": job.spec.min_size},
    }


def _native(job: DDPJob, pod: Manifest) -> dict[str, Any]:
    group = {"podGroupName": _native_name(job)}
    return {**pod, "spec": {**pod["spec"], "schedulingGroup": group}}


def _native_group(job: DDPJob) -> dict[str, Any]:
    # Its priority class overrides its pods' in preemption.
    gang = {"schedulingPolicy": {"gang": {"minCount": job.spec.min_size}}}
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": _native_name(job)},
        "spec": {**gang, **_priority_class(job)},
    }


def _native_name(job: DDPJob) -> str:
    """Return the group's name, which includes its priority class, since a group cannot change that.
    Groups of earlier classes have no pods and are deleted with the job.
    """
    priority = "".join(_priority_class(job).values())
    return f"{job.name}-{sha256(priority.encode()).hexdigest()[:8]}" if priority else job.name


def _in_kai(job: DDPJob, pod: Manifest) -> dict[str, Any]:
    """Return the pod, which KAI schedules unless its template names another scheduler."""
    group = {"pod-group-name": _kai_name(job), "kai.scheduler/skip-podgrouper": "true"}
    made = marked(pod, labels={"kai.scheduler/queue": _kai_queue(job)}, annotations=group)
    return {**made, "spec": {"schedulerName": "kai-scheduler", **pod["spec"]}}


def _kai_group(job: DDPJob) -> dict[str, Any]:
    # By default KAI evicts all pods of a group that lacks one for 60 s. The operator replaces the
    # pod, and decides by itself when the job gives its nodes back.
    gang = {"minMember": job.spec.min_size, "stalenessGracePeriod": "-1s"}
    return {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": _kai_name(job)},
        "spec": {**gang, "queue": _kai_queue(job), **_priority_class(job)},
    }


def _kai_name(job: DDPJob) -> str:
    """Return the group's name, which no other namespace may have: KAI looks groups and their pods
    up by this name alone.
    """
    return f"{job.name}-{job.uid}"


def _kai_queue(job: DDPJob) -> str:
    own = job.spec.scheduling.queue_name if job.spec.scheduling else None
    return own or "default-queue"  # KAI's own default


def _priority_class(job: DDPJob) -> dict[str, str]:
    name = job.spec.template["spec"].get("priorityClassName")
    return {"priorityClassName": name} if name else {}


_NEEDS: Final = (
    "spec.scheduling.gang: {} needs {}, and an operator that may create them "
    "(manifests/components/gangs); install or enable what is missing, or remove gang"
)
_NATIVE_GROUPS: Final = (
    "the PodGroups of Kubernetes 1.37 or later, served where the feature gate GenericWorkload is on"
)
_GANGS: Final = {
    name: Gang(member, group, _NEEDS.format(name, groups))
    for name, member, group, groups in (
        ("coscheduling", _coscheduled, _coscheduling_group, "the PodGroups of scheduler-plugins"),
        ("kai", _in_kai, _kai_group, "the PodGroups of KAI Scheduler"),
        ("native", _native, _native_group, _NATIVE_GROUPS),
    )
}
