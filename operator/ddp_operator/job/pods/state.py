"""Pods as far as decisions need them: identity, and a slim view of a pod's state.

Thousands of pods are held in memory and compared at every step, so nothing else of them is kept.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Self

from ddp_operator.api.constants import (
    ANNOTATION_SPEC_HASH,
    ANNOTATION_TRAINER,
    LABEL_ATTEMPT,
    LABEL_INDEX,
    LABEL_JOB_NAME,
    LABEL_REPLACEMENT,
    LABEL_SERVING,
)
from ddp_operator.api.rules import trainer_container
from ddp_operator.job.pods.address import is_the_nodes, trainer_address
from ddp_operator.ports import Key, Manifest

DISRUPTION_REASONS = frozenset(
    {"Evicted", "Preempting", "Preempted", "NodeShutdown", "Terminated", "Shutdown", "NodeLost",
     "NodeAffinity", "NodeName", "NodePorts", "NodeUnschedulable", "TaintToleration"}
)  # fmt: skip
"""`status.reason` of pods that the cluster ended, not the training: kubelet's eviction, node
shutdown (`Terminated` and `Shutdown` in different releases) and the pod garbage collector; and
kubelet's admission, which repeats the scheduler's checks and may find that they hold no longer. It
also says `OutOf` and the name of a resource."""

CRASH_LOOP = "CrashLoopBackOff"
"""Kubelet's reason for a container that keeps ending: in pods that start none again, only a side
car can, which is an init container with a restart policy of its own."""

CONTAINER_LOST = "ContainerStatusUnknown"
"""Kubelet's reason for a container that it found gone, as after a reboot of the node."""

UNSTARTABLE_REASONS = frozenset(
    {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull",
     "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed",
     "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)  # fmt: skip
"""Waiting reasons of kubelet that a user must hear of; `ContainerCreating` and `PodInitializing`
are the normal ones.
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which pod of a job: replica index (node rank), attempt of the gang, replacement within the
    attempt.
    """

    index: int
    attempt: int
    replacement: int = 0

    def host_name(self, job_name: str) -> str:
        """Name under which the other ranks know it: the same for all replacements within an
        attempt.
        """
        return f"{job_name}-{self.attempt}-{self.index}"

    def pod_name(self, job_name: str) -> str:
        """Name of the pod object; no two pods that a job ever has share one."""
        suffix = f"-r{self.replacement}" if self.replacement else ""
        return self.host_name(job_name) + suffix


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """How a container ended."""

    code: int
    signal: int
    reason: str
    message: str
    finished: datetime | None


@dataclass(frozen=True, slots=True)
class PodState:
    """One pod of a job."""

    key: Key
    owner_uid: str
    identity: Identity
    spec_hash: str
    phase: str
    ready: bool = False
    deleting: bool = False
    ended_by_deletion: bool = False
    """It was told to end before it ended."""
    disrupted_at: datetime | None = None
    """When it was told to end, or that it would have to."""
    ends_by: datetime | None = None
    """When the kubelet kills what is left of it; None before it was told to end."""
    grace_seconds: int = 30
    """What its own spec gives it to end, after it was told to."""
    serving: bool = True
    node: str = ""
    address: str = ""
    """`ip:port` at which its trainer may be asked for its progress; empty before it has an IP."""
    has_nodes_ip: bool = False
    """That IP is its node's own: it is asked there only if its job wants it there."""
    container: str = ""
    """The container that is spoken of here: the trainer, or an init container that keeps it from
    starting.
    """
    memory_limited: bool = True
    """That container has a memory limit of its own, or its pod has one."""
    exit: ContainerExit | None = None
    reason: str = ""
    message: str = ""
    disruption: str = ""
    """Reason of the `DisruptionTarget` condition, where the pod has one."""
    waiting: str = ""
    """Why the pod is not ready, where that is more than the normal course."""
    waiting_message: str = ""
    held_by: str = ""
    """A side car that runs on after the trainer has ended, and keeps the pod from ending: not one
    among the init containers, which the kubelet ends itself.
    """
    ignored: bool = False
    """It failed, and a rule of the job has that count as a good end; never seen in the cluster."""

    # What follows from the above, once for each state: a plan asks a dozen times for each pod.
    succeeded: bool = field(init=False, compare=False, repr=False)
    """The training in it has ended well (a side car may still run)."""
    failed: bool = field(init=False, compare=False, repr=False)
    """It will never train again, and did not end well."""
    disrupted: bool = field(init=False, compare=False, repr=False)
    """The cluster or a person took it away: not the training's fault."""

    def __post_init__(self) -> None:
        done = self.phase == "Succeeded" or (self.exit is not None and self.exit.code == 0)
        succeeded = done or self.ignored
        failed = not succeeded and (self.phase == "Failed" or self.exit is not None)
        taken = self.lost_to_cluster or self.ended_by_deletion if failed else self.deleting
        object.__setattr__(self, "succeeded", succeeded)
        object.__setattr__(self, "failed", failed)
        object.__setattr__(self, "disrupted", taken and not succeeded)

    @property
    def lost_to_cluster(self) -> bool:
        """The cluster says that it took the pod away, or has to, whoever deletes it besides."""
        by_kubelet = self.reason in DISRUPTION_REASONS or self.reason.startswith("OutOf")
        lost = self.exit is not None and self.exit.reason == CONTAINER_LOST
        return bool(self.disruption) or by_kubelet or lost

    @property
    def in_dns(self) -> bool:
        """It answers to its host name: until all of it has ended, a side car that outlives the
        trainer included.
        """
        return self.serving and self.phase not in ("Succeeded", "Failed")

    @property
    def scheduled(self) -> bool:
        """It has a node."""
        return bool(self.node)

    @classmethod
    def project(cls, manifest: Manifest) -> Self:
        """Take what decisions need from a pod as the API server has it.

        Raises:
            KeyError, ValueError: the pod lacks this operator's labels, or they are not its own.
        """
        metadata: Manifest = manifest["metadata"]
        labels: Manifest = metadata["labels"]
        spec: Manifest = manifest["spec"]
        status: Manifest = manifest.get("status") or {}
        annotations: Manifest = metadata.get("annotations") or {}
        owner: Manifest = next(
            (o for o in metadata.get("ownerReferences") or () if o.get("controller")), {}
        )
        conditions = {c["type"]: c for c in status.get("conditions") or ()}
        name = annotations.get(ANNOTATION_TRAINER) or trainer_container(manifest).get("name") or ""
        container, state = _decisive_state(name, status)
        ended = _exit(state.get("terminated"))
        deleted_at = _deletion_asked_for(metadata)
        waiting, waiting_message = _waiting(state.get("waiting"), conditions)
        ready = _is_ready(spec, status, conditions, name)
        if not (waiting or ready):
            waiting, waiting_message = _crash_loop(status)
        disruption = conditions.get("DisruptionTarget") or {}
        return cls(
            key=Key(metadata["namespace"], metadata["name"]),
            owner_uid=owner.get("uid", ""),
            identity=Identity(
                index=int(labels[LABEL_INDEX]),
                attempt=int(labels[LABEL_ATTEMPT]),
                replacement=int(labels.get(LABEL_REPLACEMENT, 0)),
            ),
            spec_hash=annotations.get(ANNOTATION_SPEC_HASH, ""),
            phase=status.get("phase", "Pending"),
            ready=ready,
            deleting="deletionTimestamp" in metadata,
            serving=labels.get(LABEL_SERVING) == "true",
            grace_seconds=spec.get("terminationGracePeriodSeconds", 30),
            node=spec.get("nodeName", ""),
            ends_by=_time(metadata.get("deletionTimestamp")),
            address=trainer_address(name, spec, status),
            has_nodes_ip=is_the_nodes(spec, status),
            ended_by_deletion=_ended_by_deletion(deleted_at, ended),
            disrupted_at=_earliest(deleted_at, _time_of(disruption)),
            container=container,
            memory_limited=_has_memory_limit(spec, container),
            exit=ended,
            reason=status.get("reason", ""),
            message=status.get("message", ""),
            disruption=disruption.get("reason", "") if _is_true(disruption) else "",
            waiting=waiting,
            waiting_message=waiting_message,
            held_by=_running_on(status) if ended else "",
        )


def job_of(manifest: Manifest) -> Key | None:
    """Return the job that a pod's labels name, None for a pod of nobody."""
    metadata = manifest["metadata"]
    name = (metadata.get("labels") or {}).get(LABEL_JOB_NAME)
    return Key(metadata["namespace"], name) if name else None


def _is_true(condition: Manifest | None) -> bool:
    return bool(condition) and condition.get("status") == "True"  # type: ignore[union-attr]


def _decisive_state(name: str, status: Manifest) -> tuple[str, Manifest]:
    """Return name and state of the container that trains, of this name, or of the one that it
    waits for.
    """
    statuses = status.get("containerStatuses") or ()
    trainer: Manifest = next((s for s in statuses if s.get("name") == name), {})
    state: Manifest = trainer.get("state") or {}
    if not ("running" in state or "terminated" in state):
        for init in status.get("initContainerStatuses") or ():
            before: Manifest = init.get("state") or {}
            ended: Manifest = before.get("terminated") or {}
            failed = ended.get("exitCode", 0) != 0 and status.get("phase") == "Failed"
            waiting: Manifest = before.get("waiting") or {}
            if failed or waiting.get("reason") in UNSTARTABLE_REASONS:
                return init["name"], before
    return name, state


def _is_ready(
    spec: Manifest, status: Manifest, conditions: dict[str, Manifest], trainer: str
) -> bool:
    """Whether the trainer is at work and all side cars are, or have ended.

    Kubelets take a pod for unready once any of its containers has ended, whatever it was there for.
    """
    if _is_true(conditions.get("Ready")):
        return True
    if spec.get("readinessGates") or status.get("phase") != "Running":
        return False

    def is_at_work(each: Manifest) -> bool:
        has_ended = each["name"] != trainer and "terminated" in (each.get("state") or {})
        return has_ended or bool(each.get("ready"))

    containers = status.get("containerStatuses") or ()
    init_containers = status.get("initContainerStatuses") or ()
    return (
        any(each["name"] == trainer for each in containers)
        and all(map(is_at_work, containers))
        and all(each.get("ready") for each in init_containers)
    )


def _running_on(status: Manifest) -> str:
    """Return the name of an ordinary container that runs, empty when none does."""
    statuses = status.get("containerStatuses") or ()
    running = (s["name"] for s in statuses if "running" in (s.get("state") or {}))
    return next(running, "")


def _crash_loop(status: Manifest) -> tuple[str, str]:
    """Return reason and message for a side car that keeps ending, empty ones when none does."""
    for each in status.get("initContainerStatuses") or ():
        waiting: Manifest = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") == CRASH_LOOP and status.get("phase") in ("Pending", "Running"):
            last: Manifest = (each.get("lastState") or {}).get("terminated") or {}
            code = f", last with code {last['exitCode']}" if "exitCode" in last else ""
            said = f": {last['message']}" if last.get("message") else ""
            return CRASH_LOOP, f"side car {each['name']} keeps ending{code}{said}"
    return "", ""


def _has_memory_limit(spec: Manifest, container: str) -> bool:
    containers = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    holders = [spec, *(c for c in containers if c.get("name") == container)]
    limits = ((holder.get("resources") or {}).get("limits") or {} for holder in holders)
    return any("memory" in limit for limit in limits)


def _deletion_asked_for(metadata: Manifest) -> datetime | None:
    """The API server sets deletionTimestamp to the moment of the request plus the grace period."""
    if "deletionTimestamp" not in metadata:
        return None
    due = datetime.fromisoformat(metadata["deletionTimestamp"])
    return due - timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)


def _ended_by_deletion(deleted_at: datetime | None, ended: ContainerExit | None) -> bool:
    """Whether the trainer ended only after somebody had asked for the pod's deletion.

    Of a container that it kept from starting the kubelet reports no end at all, only that the pod
    has failed.
    """
    if deleted_at is None or ended is None:
        return deleted_at is not None
    return ended.finished is not None and ended.finished >= deleted_at


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _time_of(condition: Manifest) -> datetime | None:
    return _time(condition.get("lastTransitionTime")) if _is_true(condition) else None


def _earliest(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment), default=None)


def _exit(terminated: Manifest | None) -> ContainerExit | None:
    if not terminated:
        return None
    return ContainerExit(
        code=int(terminated.get("exitCode", 0)),
        signal=int(terminated.get("signal") or 0),
        reason=terminated.get("reason", ""),
        message=terminated.get("message", ""),
        finished=_time(terminated.get("finishedAt")),
    )


def _waiting(waiting: Manifest | None, conditions: dict[str, Manifest]) -> tuple[str, str]:
    if waiting and waiting.get("reason") in UNSTARTABLE_REASONS:
        return waiting["reason"], waiting.get("message", "")
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        return scheduled.get("reason", ""), scheduled.get("message", "")
    return "", ""
