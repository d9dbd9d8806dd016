"""How plans speak: of many things, of what a job waits for, of what people should look at."""

from collections.abc import Sequence

from ddp_operator.api.gpus import GPUS
from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec.overrides import kinds
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.schedulers import kueue_group
from ddp_operator.job.pods.state import CRASH_LOOP
from ddp_operator.job.status.conditions import NAME_TAKEN, PODS_STARTING, QUEUED
from ddp_operator.ports import Event

UNKNOWN_ACCELERATOR = "UnknownAccelerator"
NOT_QUEUED = "NotQueued"


def some(names: Sequence[str]) -> str:
    """The first three names, and how many more there are."""
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def train_on(pods: int) -> str:
    """What so many pods do."""
    return "1 pod trains on" if pods == 1 else f"{pods} pods train on"


def unknown_accelerators(job: DDPJob) -> list[Event]:
    """A type may be newer than this release, or misspelt: then its pods will find no node."""
    accelerators = [kind.accelerator for kind, _ in kinds(job.spec)]
    types = dict.fromkeys(one.type for one in accelerators if one and one.type)
    return [
        Event(
            UNKNOWN_ACCELERATOR,
            f"{type_} is no accelerator that this release knows, and was not checked: it stands in "
            f"the node selector as it is. Known: {', '.join(GPUS)}",
            warning=True,
        )
        for type_ in types
        if type_ not in GPUS
    ]


def not_queued(job: DDPJob, pods: Observed) -> list[Event]:
    """Where nobody gates the pods of a queue, they start, and nobody knows that they take quota."""
    queue = job.spec.kueue_queue
    loose = sum(not pod.managed for pod in pods.current.values())
    if queue is None or not loose:
        return []
    message = (
        f"spec.scheduling.queueName ({queue}): {loose} of {job.spec.replicas} pods run without "
        "having been queued; Kueue is not there, or does not manage pods of this namespace (its "
        "integration pod, its managedJobsNamespaceSelector)"
    )
    return [Event(NOT_QUEUED, message, warning=True)]


def waiting_for(job: DDPJob, pods: Observed, counted: str) -> tuple[str, str, bool]:
    """Reason, message and whether a person should look: what the job is waiting for."""
    if pods.blocking:
        names = ", ".join(sorted(pod.key.name for pod in pods.blocking))
        return (
            NAME_TAKEN,
            f"waiting for pods of another owner to go, to use their names: {names}",
            True,
        )
    stuck = [pod for pod in pods.current.values() if pod.waiting and not pod.gated]
    if stuck:
        pod = min(stuck, key=lambda pod: (not pod.scheduled, pod.identity.index))
        what = "is not ready" if pod.waiting == CRASH_LOOP else "cannot start"
        text = f"pod {pod.key.name} {what}: {pod.waiting}"
        return pod.waiting, f"{text}: {pod.waiting_message}"[:1024], True
    if gated := sum(pod.gated for pod in pods.current.values()):
        return QUEUED, f"{gated} of {job.spec.replicas} pods wait {_for_whom(job)}", False
    return PODS_STARTING, counted, False


def _for_whom(job: DDPJob) -> str:
    if job.spec.kueue_queue:
        workload = kueue_group(job, job.status.attempt)
        accelerators = (kind.accelerator for kind, _ in kinds(job.spec))
        nodes = any(one and one.provisioning == "queued" for one in accelerators)
        what = "quota and nodes" if nodes else "quota"
        return (
            f"in spec.scheduling.queueName ({job.spec.kueue_queue}) for {what}; "
            f"kubectl describe workload {workload} says what for"
        )
    return "for somebody to remove their scheduling gates"
