"""Texts of plans: lists of names, what a job waits for, and warnings."""

from collections.abc import Sequence

from ddp_operator.api.gpus import GPUS
from ddp_operator.api.job import DDPJob
from ddp_operator.api.rules import warnings
from ddp_operator.api.spec.overrides import accelerators
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.schedulers.kueue import kueue_group, provides_nodes
from ddp_operator.job.pods.state import CRASH_LOOP
from ddp_operator.job.status.conditions import NAME_TAKEN, PODS_STARTING, QUEUED
from ddp_operator.ports import Event


def some(names: Sequence[str]) -> str:
    """Return the first three names, and how many more there are."""
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def train_on(pods: int, of: int) -> str:
    """Return the headline of a group that continues without some of its pods."""
    return f"training continues with {pods} of {of} pods"


def unknown_accelerators(job: DDPJob) -> list[Event]:
    """Warn about accelerator types that this release does not know. A misspelt one fits no node."""
    types = dict.fromkeys(one.type for one in accelerators(job.spec))
    return [
        Event(
            "UnknownAccelerator",
            f"accelerator type {type_} is unknown to this release and goes unchecked into the "
            f"node selector. Known: {', '.join(GPUS)}",
            warning=True,
        )
        for type_ in types
        if type_ and type_ not in GPUS
    ]


def doubtful_command(job: DDPJob) -> list[Event]:
    """Warn, at the first attempt, about words of the trainer's command that may not fit the job."""
    texts = () if job.status.attempt else warnings(job.spec)
    return [Event("DoubtfulCommand", text, warning=True) for text in texts]


def not_queued(job: DDPJob, pods: Observed) -> list[Event]:
    """Warn about pods that run without Kueue's gate. Kueue does not know that they use quota."""
    queue = job.spec.kueue_queue
    loose = sum(pod.queue is None for pod in pods.current.values())
    if queue is None or not loose:
        return []
    message = (
        f"spec.scheduling.queueName ({queue}): {loose} of {job.spec.replicas} pods run outside "
        "the queue; Kueue is not installed or does not manage pods of this namespace (integration "
        "pod, managedJobsNamespaceSelector)"
    )
    return [Event("NotQueued", message, warning=True)]


def waiting_for(job: DDPJob, pods: Observed, counted: str) -> tuple[str, str, bool]:
    """Return reason, message and whether it is a warning: what the job waits for."""
    if pods.blocking:
        names = ", ".join(sorted(pod.key.name for pod in pods.blocking))
        return (
            NAME_TAKEN,
            f"waiting for another owner's pods with the same names to be deleted: {names}",
            True,
        )
    stuck = [pod for pod in pods.current.values() if pod.waiting and not pod.gated]
    if stuck:
        pod = min(stuck, key=lambda pod: not pod.scheduled)
        what = "is not ready" if pod.waiting == CRASH_LOOP else "cannot start"
        text = f"pod {pod.key.name} {what}: {pod.waiting}"
        text += f": {pod.waiting_message}"
        holders = [spare for spare in pods.spares if spare.scheduled and spare.waiting]
        if holders and not pod.scheduled:  # its node would help, or it could take over
            spare = holders[0]
            text += f"; spare {spare.key.name} has a node but cannot start: {spare.waiting}"
            text += f": {spare.waiting_message}"
        return pod.waiting, text[:1024], True
    gated = sum(pod.gated for pod in pods.current.values())
    # A queue admits all of the group: it already has when some have nodes.
    if gated and not (job.spec.kueue_queue and any(pod.scheduled for pod in pods.current.values())):
        why = "for their scheduling gates to be removed"
        if job.spec.kueue_queue:
            what = "quota and nodes" if provides_nodes(job.spec) else "quota"
            why = (
                f"in spec.scheduling.queueName ({job.spec.kueue_queue}) for {what}; see kubectl "
                # Kubernetes has a kind Workload, too.
                f"ddp why, or kubectl describe workloads.kueue.x-k8s.io {kueue_group(job)}"
            )
        return QUEUED, f"{gated} of {job.spec.replicas} pods wait {why}", False
    return PODS_STARTING, counted, False
