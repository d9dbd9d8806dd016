"""Pods as far as decisions need them: identity, and a slim view of a pod's state.

Thousands of pods are held in memory and compared at every step, so nothing else of them is kept.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Self

from ddp_operator.ports import Key, TokenSource

DISRUPTION_REASONS = frozenset(
    {"Evicted", "Preempting", "Preempted", "NodeShutdown", "Terminated", "Shutdown", "NodeLost",
     "NodeAffinity", "NodeName", "NodePorts", "NodeUnschedulable", "TaintToleration"}
)  # fmt: skip
"""`status.reason` of pods that the cluster ended, not the training: kubelet's eviction, node
shutdown (`Terminated` and `Shutdown` in different releases) and the pod garbage collector; and
kubelet's admission, which repeats the scheduler's checks and may find that they hold no longer. It
also says `OutOf` and the name of a resource."""

_OWN_STORAGE = re.compile(
    r"Usage of EmptyDir volume .* exceeds the limit"
    r"|exceeded its local ephemeral storage limit"
    r"|ephemeral local storage usage exceeds the total limit of containers"
)
"""The kubelet's words for an eviction by the pod's own fault (`pkg/kubelet/eviction/helpers.go`);
evictions because of a node's shortage begin with "The node was low on resource"."""

CRASH_LOOP = "CrashLoopBackOff"
"""Kubelet's reason for a container that keeps ending: in pods that start none again, only a side
car can, which is an init container with a restart policy of its own."""

GATED = "SchedulingGated"
"""Reason of the condition PodScheduled that pods have from the API server while somebody's
scheduling gate keeps them from the scheduler."""

CONTAINER_LOST = "ContainerStatusUnknown"
"""Kubelet's reason for a container that it found gone, as after a reboot of the node."""

CONFIG_ERROR = "CreateContainerConfigError"
"""Kubelet's reason for a container whose environment cannot be made: a Secret is missing."""

UNSTARTABLE_REASONS = frozenset(
    {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull",
     "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed",
     CONFIG_ERROR, "CreateContainerError", "RunContainerError"}
)  # fmt: skip
"""Waiting reasons of kubelet that a user must hear of; `ContainerCreating` and `PodInitializing`
are the normal ones.
"""


START_TIMEOUT = "StartTimeout"
"""The operator's own reason for a pod that has a node, and in which no process has started."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which pod of a job: replica index (node rank), attempt of the gang, replacement within the
    attempt.
    """

    index: int
    """Of a pod without a place in the group, its slot."""
    attempt: int
    replacement: int = 0
    other_slot: int | None = None
    """The number in its name, where that is not its index: it has taken another pod's place."""

    @classmethod
    def at(cls, slot: int, attempt: int, replacement: int, *, index: int) -> Self:
        """The pod of a slot that has this place."""
        return cls(index, attempt, replacement, slot if slot != index else None)

    @property
    def slot(self) -> int:
        """The number in its name, which stays its own."""
        return self.index if self.other_slot is None else self.other_slot

    def in_place(self, node_ranks: Mapping[int, int]) -> "Identity":
        """The same, whose index is its node rank by its slot, where it has one."""
        index = node_ranks.get(self.slot, self.slot)
        return Identity.at(self.slot, self.attempt, self.replacement, index=index)

    def host_name(self, job_name: str) -> str:
        """Name under which the other ranks know it: the same for all replacements within an
        attempt.
        """
        return f"{job_name}-{self.attempt}-{self.slot}"

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
    started: datetime | None = None
    """When the trainer was, while it runs."""
    exit: ContainerExit | None = None
    reason: str = ""
    message: str = ""
    disruption: str = ""
    """Reason of the `DisruptionTarget` condition, or of Kueue's own, where the pod has one."""
    waiting: str = ""
    """Why the pod is not ready, where that is more than the normal course."""
    waiting_message: str = ""
    stage: Literal["", "sandbox", "image"] = ""
    """What keeps a pod with a node from its first process: volumes and network, or an image."""
    avoids: tuple[str, ...] = ()
    """The nodes that its affinity keeps it off, while it has none."""
    stays_on_lost_node: bool = False
    """It tolerates a node that does not answer for ever: nobody evicts it."""
    managed: bool = False
    """Kueue has taken it in."""
    generation: int = 0
    """Of the job's group, when it was made."""
    token_source: TokenSource = TokenSource.VARIABLE
    restartable: bool = False
    """Its processes have ended, as its launcher says, but it has not: they can start anew in it."""
    silent: bool = False
    """Its launcher was told of the group in vain, or has not left what was before; or its node does
    not answer.
    """
    held_by: str = ""
    """A side car that runs on after the trainer has ended, and keeps the pod from ending: not one
    among the init containers, which the kubelet ends itself.
    """
    ignored: bool = False
    """It failed, and a rule of the job has that count as a good end; never seen in the cluster."""

    # What follows from the above, once for each state: a plan asks a dozen times for each pod.
    succeeded: bool = field(init=False, compare=False, repr=False)
    """The training in it is complete (a side car may still run). Exit code 0 does not say so after
    the pod was told to end: many scripts save and exit with 0 on SIGTERM.
    """
    failed: bool = field(init=False, compare=False, repr=False)
    """It will never train again, and did not end well."""
    disrupted: bool = field(init=False, compare=False, repr=False)
    """The cluster or a person took it away: not the training's fault."""

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
        """The cluster says that it took the pod away, or has to, whoever deletes it besides."""
        if self.over_storage_limit:
            return False
        by_kubelet = self.reason in DISRUPTION_REASONS or self.reason.startswith("OutOf")
        lost = self.exit is not None and self.exit.reason == CONTAINER_LOST
        return bool(self.disruption) or by_kubelet or lost

    @property
    def over_storage_limit(self) -> bool:
        """The kubelet evicted it because it wrote more than its own volumes or limits hold."""
        return self.reason == "Evicted" and _OWN_STORAGE.search(self.message) is not None

    @property
    def _told_to_end(self) -> bool:
        """Whether its trainer ended only after the pod was told to, as far as anybody knows."""
        if self.exit is None:
            return False
        if self.ended_by_deletion or self.over_storage_limit:
            return True
        if not self.lost_to_cluster:
            return False
        if not self.disruption:
            return True  # the kubelet ended it, and a deletion may have come long after that
        finished, told = self.exit.finished, self.disrupted_at
        return finished is None or told is None or finished >= told

    @property
    def in_dns(self) -> bool:
        """It answers to its host name: until all of it has ended, a side car that outlives the
        trainer included.
        """
        return self.serving and self.phase not in ("Succeeded", "Failed")

    @property
    def gated(self) -> bool:
        """It waits to be admitted before any scheduler looks at it."""
        return self.waiting == GATED

    @property
    def scheduled(self) -> bool:
        """It has a node."""
        return bool(self.node)
