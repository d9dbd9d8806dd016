"""Pods as decisions see them: identity and reduced state.

Thousands of pods are kept in memory and compared at each step, so nothing else is stored.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple, Self

from ddp_operator.api.values.limits import linear
from ddp_operator.ports import Key

DISRUPTION_REASONS = frozenset(
    {"Evicted", "Preempting", "Preempted", "NodeShutdown", "Terminated", "Shutdown", "NodeLost",
     "NodeAffinity", "NodeName", "NodePorts", "NodeUnschedulable", "TaintToleration"}
)  # fmt: skip
"""`status.reason` of pods that the cluster ended: evictions, node shutdown (`Terminated` or
`Shutdown` by release), the pod garbage collector, and kubelet's admission, which repeats the
scheduler's checks. It also reports `OutOf` and a resource."""

_OWN_STORAGE = linear(
    r"Usage of EmptyDir volume .* exceeds the limit"
    r"|exceeded its local ephemeral storage limit"
    r"|ephemeral local storage usage exceeds the total limit of containers"
)
"""The kubelet's words for an eviction that the pod caused (`pkg/kubelet/eviction/helpers.go`).
Evictions for a shortage of the node begin with "The node was low on resource"."""

CRASH_LOOP = "CrashLoopBackOff"
"""Kubelet's reason for a container that keeps ending. With restartPolicy Never, only a native side
car can do that."""

GATED = "SchedulingGated"
"""Reason of the condition PodScheduled while a scheduling gate keeps a pod from the scheduler."""

CONTAINER_LOST = "ContainerStatusUnknown"
"""Kubelet's reason for a container that disappeared, as after a reboot."""

CONFIG_ERROR = "CreateContainerConfigError"
"""Kubelet's reason for a container with an incomplete environment: a Secret is missing."""

UNSTARTABLE_REASONS = frozenset(
    {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull",
     "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed",
     CONFIG_ERROR, "CreateContainerError", "RunContainerError"}
)  # fmt: skip
"""Kubelet's waiting reasons that need a user's attention; `ContainerCreating` and `PodInitializing`
do not."""


START_TIMEOUT = "StartTimeout"
"""The operator's reason for a scheduled pod in which no process has started."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which pod of a job: node rank, attempt of the gang, replacement within the attempt."""

    index: int
    """The node rank; of a pod outside the group, its slot."""
    attempt: int
    replacement: int = 0
    other_slot: int | None = None
    """The number in its name if that differs from its index: it took another pod's node rank."""

    @classmethod
    def at(cls, slot: int, attempt: int, replacement: int, *, index: int) -> Self:
        """Return the pod of a slot at this node rank."""
        return cls(index, attempt, replacement, slot if slot != index else None)

    @property
    def slot(self) -> int:
        """The number in its name, which never changes."""
        return self.index if self.other_slot is None else self.other_slot

    def host_name(self, job_name: str) -> str:
        """Return the name by which other ranks reach it and its replacements in an attempt."""
        return f"{job_name}-{self.attempt}-{self.slot}"

    def pod_name(self, job_name: str) -> str:
        """Return the pod's name; a job never uses one twice."""
        suffix = f"-r{self.replacement}" if self.replacement else ""
        return self.host_name(job_name) + suffix


class QueueMember(NamedTuple):
    """A pod as Kueue sees it."""

    group: str
    """The pod group, whose name is also that of its Workload."""
    ends_group: bool = False
    """Marked as not retriable: the group is over once all its pods have ended."""
    held: bool = False
    """Kueue's finalizer keeps it from being removed."""


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
    """It ended after its deletion was requested."""
    disrupted_at: datetime | None = None
    """When its deletion was requested or announced."""
    ends_by: datetime | None = None
    """When the kubelet kills what is left of it; None before a deletion."""
    grace_seconds: int = 30
    """Its own grace period."""
    serving: bool = True
    node: str = ""
    address: str = ""
    """`ip:port` of its trainer's progress endpoint; empty before it has an IP."""
    has_nodes_ip: bool = False
    """Its IP is its node's own, which is asked only if the job uses hostNetwork."""
    container: str = ""
    """The container described here: the trainer, or an init container that blocks it."""
    memory_limited: bool = True
    """The container or its pod has a memory limit."""
    started: datetime | None = None
    """When the running trainer started."""
    exit: ContainerExit | None = None
    reason: str = ""
    message: str = ""
    disruption: str = ""
    """Reason of its `DisruptionTarget` condition or Kueue's."""
    waiting: str = ""
    """Why the pod is not ready, if that is unusual."""
    waiting_message: str = ""
    stage: Literal["", "sandbox", "image"] = ""
    """The obstacle to the first process of a scheduled pod: volumes and network, or an image."""
    avoids: tuple[str, ...] = ()
    """Nodes that its affinity excludes, while it has no node."""
    host: str = ""
    """Host name that its node selector asks for, while it has no node."""
    stays_on_lost_node: bool = False
    """It tolerates an unreachable node without a limit, so nobody evicts it."""
    queue: QueueMember | None = None
    """Its place in Kueue's queue; None if Kueue does not manage it."""
    placed: datetime | None = None
    """When it got its node, of a pod that Kueue manages."""
    generation: int = 0
    """Of the job's group when it was created."""
    token_key: str = ""
    """Name of the operator's key from which its token is derived."""
    restartable: bool = False
    """Its launcher reports that its processes ended. The pod still runs, and they can restart in
    it."""
    silent: bool = False
    """Its launcher does not answer or has not ended old processes, or its node does not answer."""
    held_by: str = ""
    """A side car that still runs after the trainer and keeps the pod from ending. Native side cars
    are not meant; the kubelet ends those."""
    side_car_failure: str = ""
    """Name, exit code and last words of a side car that failed, of a pod that is not deleted."""
    ignored: bool = False
    """It failed, but a rule of the job counts that as success. Not stored in the cluster."""

    # Derived once, since a plan reads each a dozen times.
    succeeded: bool = field(init=False, compare=False, repr=False)
    """The training in it is complete; a side car may still run. Exit code 0 after a deletion was
    requested does not count: many scripts save and exit with 0 on SIGTERM."""
    failed: bool = field(init=False, compare=False, repr=False)
    """It will never train again and did not complete."""
    disrupted: bool = field(init=False, compare=False, repr=False)
    """The cluster or a person removed it."""

    def __post_init__(self) -> None:
        over = self.phase in ("Succeeded", "Failed") or self.exit is not None
        well = self.phase == "Succeeded" or (self.exit is not None and self.exit.code == 0)
        succeeded = self.ignored or (well and not self._told_to_end)
        failed = over and not succeeded
        taken = self.lost_to_cluster or self.ended_by_deletion if failed else self.deleting
        object.__setattr__(self, "succeeded", succeeded)
        object.__setattr__(self, "failed", failed)
        object.__setattr__(self, "disrupted", taken and not succeeded)

    @property
    def lost_to_cluster(self) -> bool:
        """The cluster reports that it removed or must remove the pod, as a user may have too."""
        if self.over_storage_limit:
            return False
        by_kubelet = self.reason in DISRUPTION_REASONS or self.reason.startswith("OutOf")
        lost = self.exit is not None and self.exit.reason == CONTAINER_LOST
        return bool(self.disruption) or by_kubelet or lost

    @property
    def over_storage_limit(self) -> bool:
        """The kubelet evicted it because it exceeded its own storage limits."""
        return self.reason == "Evicted" and _OWN_STORAGE.search(self.message) is not None

    @property
    def _told_to_end(self) -> bool:
        """True if its trainer ended only after the pod's end was requested, as far as is known."""
        if self.exit is None:
            return False
        if self.ended_by_deletion or self.over_storage_limit:
            return True
        if not self.lost_to_cluster:
            return False
        if not self.disruption:
            return True  # the kubelet ended it; a deletion may follow much later
        finished, told = self.exit.finished, self.disrupted_at
        return finished is None or told is None or finished >= told

    @property
    def in_dns(self) -> bool:
        """It answers to its host name: until all containers have ended, including side cars."""
        return self.serving and self.phase not in ("Succeeded", "Failed")

    @property
    def gated(self) -> bool:
        """It waits for a scheduling gate to be removed."""
        return self.waiting == GATED

    @property
    def scheduled(self) -> bool:
        """It has a node."""
        return bool(self.node)

    @property
    def keeps_place(self) -> bool:
        """Kueue counts it, and admits no other pod in its place."""
        never_ran = self.deleting and not self.scheduled
        return self.queue is not None and self.phase != "Failed" and not never_ran
