"""The job's pod group in a queue of Kueue: when pods can be replaced in it, and when it ends.

Kueue keeps a group's place and quota as long as some pod of it may be replaced. From
pkg/controller/jobs/pod of https://github.com/kubernetes-sigs/kueue (0.17):

- A pod counts until its phase is Failed, or until it is deleted without ever having had a node. If
  more pods count than the group has, Kueue deletes the newest.
- A pod that succeeded counts for good, also if it was told to end.
- A deleted pod keeps Kueue's finalizer until another pod has its place, or the group is over.
- A group is over when all its pods have succeeded, or when all have ended and one of them is marked
  as not retriable.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Failure
from ddp_operator.job.membership.world import members, outside_slots
from ddp_operator.job.planning.decisions import fail, finish, in_new_group, next_attempt, restarting
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.places.old_pods import awaited_until
from ddp_operator.job.planning.words import some
from ddp_operator.job.pods.avoided_nodes import HOSTNAME
from ddp_operator.job.pods.observed import Observed, identity_at
from ddp_operator.job.pods.schedulers.kueue import is_in_group, kueue_group, provides_nodes
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status.preemption import EVICTED
from ddp_operator.ports import Key, Manifest, Node

PLACE_LOST: Final = "PlaceInQueueLost"
_KUEUES_WORDS: Final = 120
"""How many characters of Kueue's message a status repeats."""
_STOPS: Final = (EVICTED, "NotAdmitted", "WorkloadDeleted", "NoMatchingWorkload")
"""How Kueue's reasons for deleting all pods of a group begin."""


class Upkeep(NamedTuple):
    """What pods in a queue need, whatever else their job needs."""

    end: tuple[Key, ...] = ()
    """Pods to mark as not retriable, so that their group can be over."""
    release: tuple[Key, ...] = ()
    """Pods that nothing will run again, which Kueue's finalizer alone keeps."""
    force: tuple[Key, ...] = ()
    """Pods to delete at once and to release: the kubelet does not report their end."""


def upkeep(job: DDPJob | None, pods: Sequence[PodState], now: datetime) -> Upkeep:
    """Return what pods in a queue need; `job`: None if it does not exist any more."""
    queued = [pod for pod in pods if pod.queue]
    if not queued:
        return Upkeep()
    ending = _ending(job, queued)
    return Upkeep(
        end=tuple(_marks(ending)),
        # Kueue releases the others once they are replaced. The Workload goes with its last pod.
        release=tuple(
            pod.key
            for pod in ending
            if pod.queue and pod.queue.held and pod.deleting and not pod.scheduled
        ),
        force=tuple(pod.key for pod in queued if job and _is_lost(job, pod, now)),
    )


def begin_new_group(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide that the job queues again, since a pod that must be replaced gave its place back, or
    Kueue keeps a pod on a node that it may not use.
    """
    own = kueue_group(job)
    present = [*pods.current.values(), *pods.spares]
    if stuck := [pod for pod in present if _is_on_avoided_node(pod, pods.nodes)]:
        why = f"may run only on {stuck[0].host}, which the job avoids"
        return _queue_again(job, stuck, why, now)
    wanted = {
        gone.slot for gone in (*pods.missing, *pods.spares_missing) if is_in_group(job, gone.slot)
    }
    if not wanted:
        return None
    former = [pod for pod in pods.old if pod.queue and pod.queue.group == own]
    spent = [pod for pod in former if pod.phase == "Succeeded" and pod.identity.slot in wanted]
    over = [pod for pod in former if pod.queue and pod.queue.ends_group]
    # Also those in another group than the job's.
    over += [
        pod
        for pod in present
        if is_in_group(job, pod.identity.slot)
        and pod.queue
        and (pod.queue.ends_group or pod.queue.group != own)
    ]
    if not (spent or over):
        return None
    if not present:
        return Plan(in_new_group(job, job.status), decided=True)
    why = "exited with 0, so its place is gone" if spent else "can have no replacement there"
    return _queue_again(job, spent or over, why, now)


def _queue_again(job: DDPJob, pods: Sequence[PodState], why: str, now: datetime) -> Plan:
    """Decide that all pods restart in a new group, because of these pods."""
    status = next_attempt(job, job.status, new_group=True)
    names = some([pod.key.name for pod in pods])
    message = (
        f"restarting all {job.spec.replicas} pods, which queue again (not charged): {names} {why}"
    )
    return restarting(status, PLACE_LOST, message, now)


def leaves_cluster(job: DDPJob) -> bool:
    """Return whether a job that MultiKueue has copied to this cluster would need a second group. It
    has only the Workload that came with it. Once its pods have ended, that is finished, and the
    operator of the first cluster queues the job again.
    """
    return bool(job.prebuilt_workload and job.status.bookkeeping.queue_group)


def end_with_workload(job: DDPJob, finished: Manifest, now: datetime) -> Plan:
    """Decide that a job has ended in another cluster, since its Workload is finished.

    MultiKueue copies the job's status, then finishes the Workload, and copies no more. If the
    operator of the other cluster was away when the pods ended, the status does not say so.
    """
    pods = " ".join(str(finished.get("message", "")).split())[:_KUEUES_WORDS]
    message = f"Kueue finished the Workload, the job's last status is missing: {pods}"
    if finished.get("reason") == "Succeeded":
        return finish(job.status, "Succeeded", "Completed", message, now)
    return fail(job, "WorkloadFailed", message, now)


def takes_all(job: DDPJob, pods: Observed) -> bool:
    """Return whether Kueue has taken the quota away without which the job does not train. It may
    have taken that of further elastic pods before, which then seems to be the cause.
    """
    return any(
        pod.disruption.startswith(_STOPS) and is_in_group(job, pod.identity.slot)
        for pod in pods.current.values()
    )


def has_lost_nodes(
    job: DDPJob, pods: Observed, failure: Failure, node_ranks: Sequence[int]
) -> bool:
    """Return whether a node of the group is gone that the queue has provided, with these pods. It
    provides nodes once for a group, so a new pod would find none. A silent node may return.
    """
    if not (pods.nodes and provides_nodes(job.spec)):
        return False
    slots, known = members(job), pods.nodes.by_name
    lost = {rank: pods.current[rank].node for rank in node_ranks if rank in pods.current}
    lost[failure.index] = failure.node
    return any(
        node and node not in known and is_in_group(job, slots[rank]) for rank, node in lost.items()
    )


def _is_on_avoided_node(pod: PodState, nodes: Sequence[Node]) -> bool:
    """Return whether Kueue assigned a pod to a node that it avoids, and will not change that.

    Kueue assigns nodes once for a Workload. It replaces only nodes that are gone, not ready or
    tainted, and then fails the pods that wait for them.
    """
    if not (pod.queue and pod.host and pod.avoids) or pod.deleting or pod.failed:
        return False
    return any(
        node.name in pod.avoids
        and node.labels.get(HOSTNAME) == pod.host
        and not (node.unready or node.leaving)
        for node in nodes
    )


def _ending(job: DDPJob | None, pods: Sequence[PodState]) -> Sequence[PodState]:
    """Return the pods in whose groups no pod will be replaced any more."""
    if job is None or job.deleting or job.status.finished or job.status.is_true("Suspended"):
        return pods
    own = kueue_group(job)
    apart = [pod for pod in pods if pod.queue and pod.queue.group != own]
    slots = {*members(job), *outside_slots(job)} if apart else set()
    apart_by_itself = [slot for slot in slots if not is_in_group(job, slot)]
    wanted = {identity_at(job, slot, slot).pod_name(job.name) for slot in apart_by_itself}
    return [pod for pod in apart if pod.identity.pod_name(job.name) not in wanted]


def _marks(ending: Iterable[PodState]) -> list[Key]:
    """Return one pod of each group that has no mark yet."""
    groups: dict[str, list[PodState]] = {}
    for pod in ending:
        if pod.queue:
            groups.setdefault(pod.queue.group, []).append(pod)
    return [
        # Kueue may have replaced one that failed, and does not look at it any more.
        min(group, key=lambda pod: (pod.phase == "Failed", pod.identity.slot)).key
        for group in groups.values()
        if not any(pod.queue and pod.queue.ends_group for pod in group)
        and any(pod.phase != "Succeeded" for pod in group)
        and any(pod.scheduled for pod in group)
    ]


def _is_lost(job: DDPJob, pod: PodState, now: datetime) -> bool:
    """Return whether a deleted pod should have ended long ago, but its kubelet does not say so."""
    counts = pod.keeps_place and pod.deleting and pod.phase != "Succeeded"
    return counts and now >= awaited_until(job, pod, now)
