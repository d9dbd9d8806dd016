"""A job's pods, sorted by their role in it."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from ddp_protocol.message import moment
from ddp_protocol.world import PodFailure

from ddp_operator.api.job import DDPJob
from ddp_operator.api.rules import wants_host_network
from ddp_operator.api.spec.overrides import spec_of
from ddp_operator.api.status import Failure, GapReason
from ddp_operator.job.membership import world
from ddp_operator.job.membership.launchers import NO_LAUNCHERS, LauncherStates
from ddp_operator.job.pods.state import ContainerExit, Identity, PodState
from ddp_operator.ports import Nodes

NO_NODES: Final = Nodes()
SETTLED_SECONDS: Final = 5
"""How long after its end a pod is recorded. Usually the other pods have ended by then, and the job
too, which needs no record. A node's clock may be wrong by as much."""


class Gap(NamedTuple):
    """A node rank at which nothing trains."""

    node_rank: int
    reason: GapReason
    since: datetime


@dataclass(frozen=True, slots=True)
class Observed:
    """A job's pods, sorted by their role."""

    current: dict[int, PodState]
    """Pods of the group, by node rank, whatever order they are listed in."""
    old: tuple[PodState, ...]
    foreign: tuple[PodState, ...]
    """Pods of another owner, usually of an earlier job of the same name."""
    blocking: tuple[PodState, ...]
    """Foreign pods with an object or DNS name that this job needs."""
    missing: tuple[Identity, ...]
    """Members without a pod, except those that completed."""
    creatable: tuple[Identity, ...]
    """Missing ones with free names."""
    spares: tuple[PodState, ...] = ()
    """Pods outside the group that can take over or join."""
    spares_missing: tuple[Identity, ...] = ()
    """Missing spares with free names."""
    completed: frozenset[int] = frozenset()
    """Indexes of pods that completed and are gone."""
    not_restarted: frozenset[int] = frozenset()
    """Node ranks of pods that have not restarted since a failure broke the group. Failures in them
    are part of that failure."""
    ignored: tuple[tuple[Failure, str], ...] = ()
    """Failures of current pods that a rule counts as success, each with that rule."""
    gaps: tuple[Gap, ...] = ()
    launchers: LauncherStates = NO_LAUNCHERS
    nodes: Nodes = NO_NODES
    """Nodes that the pods may run on."""

    @property
    def any_succeeded(self) -> bool:
        """Return whether a pod completed: it can join no other group."""
        return bool(self.completed) or any(pod.succeeded for pod in self.current.values())

    @property
    def may_have_failed(self) -> bool:
        """Return whether a pod of the group is missing, has ended, leaves or cannot start."""
        return bool(self.missing) or any(
            pod.exit or pod.waiting or pod.failed or pod.disrupted for pod in self.current.values()
        )

    @property
    def all_scheduled(self) -> bool:
        """Return whether all pods of the group exist and have nodes."""
        return not self.missing and all(pod.scheduled for pod in self.current.values())


def observe(
    job: DDPJob,
    pods: Sequence[PodState],
    launchers: LauncherStates = NO_LAUNCHERS,
    nodes: Nodes = NO_NODES,
) -> Observed:
    """Sort a job's pods by their role."""
    unready = {name for name, node in nodes.signalled.items() if node.unready}
    status = job.status
    node_ranks, slots, free = world.node_ranks(job), world.members(job), world.outside_slots(job)
    ended = _ended(job, launchers)
    replacements: dict[int, int] = {}
    if stored := status.bookkeeping.replacements:
        replacements = {slot: stored.get(str(slot), 0) for slot in (*slots, *free)}
    current: dict[int, PodState] = {}
    spares: dict[int, PodState] = {}
    old: list[PodState] = []
    foreign: list[PodState] = []
    for pod in pods:
        if pod.has_nodes_ip:
            pod = with_own_address(job, pod)  # noqa: PLW2901
        if unready and pod.node in unready and pod.stays_on_lost_node:
            pod = replace(pod, silent=True)  # noqa: PLW2901
        slot = pod.identity.slot
        wanted = (status.attempt, replacements.get(slot, 0))
        if pod.owner_uid != job.uid:
            foreign.append(pod)
        elif (pod.identity.attempt, pod.identity.replacement) != wanted:
            old.append(pod)
        elif (index := node_ranks.get(slot)) is not None:
            if index != slot:
                pod = replace(pod, identity=Identity.at(slot, *wanted, index=index))  # noqa: PLW2901
            current[index] = _as_its_launcher_says(pod, ended) if ended else pod
        elif slot in free:
            unheard = pod.key.name in launchers.unreached_since
            spares[slot] = replace(pod, silent=pod.silent or unheard)
        else:
            old.append(pod)
    done = completed_indexes(status.completed_indexes, below=len(slots))
    missing = tuple(
        identity_at(job, slot, index)
        for index, slot in enumerate(slots)
        if index not in current and index not in done
    )
    spares_missing = [identity_at(job, slot, slot) for slot in free if slot not in spares]
    by_name = {pod.key.name: pod for pod in foreign}
    by_host_name = {pod.identity.host_name(job.name): pod for pod in foreign if pod.in_dns}

    def bearer(i: Identity) -> PodState | None:
        return by_name.get(i.pod_name(job.name)) or by_host_name.get(i.host_name(job.name))

    borne = {i: other for i in missing if foreign and (other := bearer(i))}
    return Observed(
        current=dict(sorted(current.items())),
        old=tuple(old),
        foreign=tuple(foreign),
        blocking=tuple({other.key: other for other in borne.values()}.values()),
        missing=missing,
        creatable=tuple(i for i in missing if i not in borne) if borne else missing,
        spares=tuple(spares[slot] for slot in sorted(spares)),
        spares_missing=tuple(i for i in spares_missing if bearer(i) is None),
        completed=done.difference(current),
        not_restarted=_not_restarted(job, current, launchers),
        launchers=launchers,
        nodes=nodes,
    )


def identity_at(job: DDPJob, slot: int, index: int) -> Identity:
    """Return a slot's pod in this attempt, at this node rank."""
    replacement = job.status.bookkeeping.replacements.get(str(slot), 0)
    return Identity.at(slot, job.status.attempt, replacement, index=index)


def member_names(job: DDPJob, most: int | None = None) -> Sequence[str]:
    """Return the names of the group's pods by node rank; `most`: only the first ones."""
    slots = world.members(job)[:most]
    return [identity_at(job, slot, slot).pod_name(job.name) for slot in slots]


def _ended(job: DDPJob, launchers: LauncherStates) -> dict[str, PodFailure]:
    """Return how processes ended in the present generation, by pod name."""
    generation = world.world_of(job).generation
    leader = launchers.leader
    if leader is not None and leader.led and leader.generation > generation:
        return {}  # launchers already restarted them
    return {one.pod: one for one in launchers.failures if one.generation == generation}


def _as_its_launcher_says(pod: PodState, ends: Mapping[str, PodFailure]) -> PodState:
    ended = ends.get(pod.key.name)
    # Events of the pod itself take precedence.
    if ended is None or pod.started is None or pod.exit or pod.deleting or pod.lost_to_cluster:
        return pod
    return with_failure(pod, ended)


def with_failure(pod: PodState, failed: PodFailure) -> PodState:
    """Return the pod with its processes ended, while the pod itself still runs."""
    ended = ContainerExit(failed.exit_code, 0, "Error", failed.message, moment(failed.time))
    return replace(pod, exit=ended, restartable=True)


def _not_restarted(
    job: DDPJob, current: dict[int, PodState], launchers: LauncherStates
) -> frozenset[int]:
    notes = job.status.bookkeeping
    if notes.broken_since is None:
        return frozenset()
    generation, in_place = world.world_of(job).generation, world.scope_of(job) != "Pod"

    def has_begun(pod: PodState | None) -> bool:
        if pod is None or generation == 0:
            return False
        # With scope Pod, the same processes stay in each generation.
        told = in_place and launchers.knows(pod.key.name, generation, start=True)
        return pod.restartable or told or pod.generation >= generation

    return frozenset(
        index
        for index, slot in enumerate(world.members(job))
        if slot not in notes.renewed and not has_begun(current.get(index))
    )


def with_own_address(job: DDPJob, pod: PodState) -> PodState:
    """Return the pod without its node's address, unless the job asks for hostNetwork."""
    if pod.has_nodes_ip and not wants_host_network(spec_of(job.spec, pod.identity.index)):
        return replace(pod, address="")
    return pod


def completed_indexes(text: str, *, below: int) -> frozenset[int]:
    """Parse indexes as in a Job's `completedIndexes`, such as `0-2,5`; skip anything invalid."""
    return frozenset(index for index in world.read_slots(text) if index < below)


def settled(pods: Iterable[PodState], now: datetime) -> Set[int]:
    """Return the indexes of pods that completed some time ago."""
    return {pod.identity.index for pod in pods if pod.succeeded and not _is_news(pod, now)}


def next_settled_at(pods: Iterable[PodState], now: datetime) -> datetime | None:
    """Return when another pod will be settled; None if none is about to be."""
    ends = (pod.exit.finished for pod in pods if pod.exit and pod.succeeded and _is_news(pod, now))
    due = (end + timedelta(seconds=SETTLED_SECONDS) for end in ends if end)
    return min(due, default=None)


def _is_news(pod: PodState, now: datetime) -> bool:
    finished = pod.exit.finished if pod.exit else None
    return finished is not None and abs(now - finished) < timedelta(seconds=SETTLED_SECONDS)
