"""A job's pods, sorted by what they mean to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple

from ddp_operator.api.job import DDPJob
from ddp_operator.api.rules import wants_host_network
from ddp_operator.api.spec.overrides import spec_of
from ddp_operator.api.status import Failure, GapReason
from ddp_operator.job.membership import world
from ddp_operator.job.membership.launcher_protocol import NO_LAUNCHERS, LauncherStates, PodFailure
from ddp_operator.job.pods import completion
from ddp_operator.job.pods.state import ContainerExit, Identity, PodState
from ddp_operator.ports import Nodes

NO_NODES: Final = Nodes()


class Gap(NamedTuple):
    """A place of the group in which nothing trains."""

    node_rank: int
    reason: GapReason
    since: datetime
    node: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """A job's pods, sorted by what they mean."""

    current: dict[int, PodState]
    """Those of the group, by node rank."""
    old: tuple[PodState, ...]
    foreign: tuple[PodState, ...]
    """Pods of another owner: of an earlier job of the same name, as a rule."""
    blocking: tuple[PodState, ...]
    """Strangers that bear a name which this job needs, as objects or in DNS."""
    missing: tuple[Identity, ...]
    """Those that ended well before they went are not."""
    creatable: tuple[Identity, ...]
    """Of the missing ones those whose names nobody else bears."""
    spares: tuple[PodState, ...] = ()
    """Those that wait without a place, for another one's or to join the group."""
    spares_missing: tuple[Identity, ...] = ()
    """Of these, those whose names nobody else bears."""
    completed: frozenset[int] = frozenset()
    """Indices of pods that have ended well and are gone."""
    not_restarted: frozenset[int] = frozenset()
    """Node ranks of the pods that are left of a group which a failure broke, and have not begun
    again since: what fails in them is part of that failure."""
    ignored: tuple[tuple[Failure, str], ...] = ()
    """Failures of current pods that count as good ends, each with the rule that says so."""
    gaps: tuple[Gap, ...] = ()
    """Of the group's places those in which nothing trains."""
    launchers: LauncherStates = NO_LAUNCHERS
    """What the pods' launchers say."""
    nodes: Nodes = NO_NODES
    """Those that the pods may be placed on."""

    @property
    def any_succeeded(self) -> bool:
        """A pod has ended well: it comes to no other group."""
        return bool(self.completed) or any(pod.succeeded for pod in self.current.values())

    @property
    def all_scheduled(self) -> bool:
        """All pods of the group are there and have nodes."""
        return not self.missing and all(pod.scheduled for pod in self.current.values())


def observe(
    job: DDPJob,
    pods: Sequence[PodState],
    launchers: LauncherStates = NO_LAUNCHERS,
    nodes: Nodes = NO_NODES,
) -> Observed:
    """Sort a job's pods by what they mean to it."""
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
        identity = pod.identity
        slot = identity.slot
        wanted = (status.attempt, replacements.get(slot, 0))
        if pod.owner_uid != job.uid:
            foreign.append(pod)
        elif (identity.attempt, identity.replacement) != wanted:
            old.append(pod)
        elif (index := node_ranks.get(slot)) is not None:
            if index != slot:
                identity = Identity.at(slot, *wanted, index=index)
                pod = replace(pod, identity=identity)  # noqa: PLW2901
            current[index] = _as_its_launcher_says(pod, ended) if ended else pod
        elif slot in free:
            unheard = pod.key.name in launchers.unreached_since
            spares[slot] = replace(pod, silent=pod.silent or unheard)
        else:
            old.append(pod)
    done = completion.read(status.completed_indexes, below=len(slots))
    missing = tuple(
        Identity.at(slot, status.attempt, replacements.get(slot, 0), index=index)
        for index, slot in enumerate(slots)
        if index not in current and index not in done
    )
    spares_missing = [
        Identity(slot, status.attempt, replacements.get(slot, 0))
        for slot in free
        if slot not in spares
    ]
    by_name = {pod.key.name: pod for pod in foreign}
    by_host_name = {pod.identity.host_name(job.name): pod for pod in foreign if pod.in_dns}

    def bearer(i: Identity) -> PodState | None:
        return by_name.get(i.pod_name(job.name)) or by_host_name.get(i.host_name(job.name))

    borne = {i: other for i in missing if foreign and (other := bearer(i))}
    return Observed(
        current=current,
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


def member_names(job: DDPJob, most: int | None = None) -> Sequence[str]:
    """The names of the group's pods, in the order of their node ranks; `most`: of the first ones
    alone.
    """
    attempt, replacements = job.status.attempt, job.status.bookkeeping.replacements
    return [
        Identity(slot, attempt, replacements.get(str(slot), 0)).pod_name(job.name)
        for slot in world.members(job)[:most]
    ]


def _ended(job: DDPJob, launchers: LauncherStates) -> dict[str, PodFailure]:
    """By the name of a pod: how its processes ended in the present generation."""
    generation = world.world_of(job).generation
    if (
        launchers.leader is not None
        and launchers.leader.led
        and launchers.leader.generation > generation
    ):
        return {}  # launchers have started them again
    return {one.pod: one for one in launchers.failures if one.generation == generation}


def _as_its_launcher_says(pod: PodState, ends: Mapping[str, PodFailure]) -> PodState:
    ended = ends.get(pod.key.name)
    # What happens to the pod itself counts more.
    if ended is None or pod.started is None or pod.exit or pod.deleting or pod.lost_to_cluster:
        return pod
    return with_failure(pod, ended)


def with_failure(pod: PodState, failed: PodFailure) -> PodState:
    """Return the pod as one whose processes have ended, and which has not."""
    ended = ContainerExit(failed.exit_code, 0, "Error", failed.message, failed.time)
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
        # Processes that form their group by themselves are the same ones in each generation.
        told = in_place and launchers.knows(pod.key.name, generation, start=True)
        return pod.restartable or told or pod.generation >= generation

    return frozenset(
        index
        for index, slot in enumerate(world.members(job))
        if slot not in notes.renewed and not has_begun(current.get(index))
    )


def with_own_address(job: DDPJob, pod: PodState) -> PodState:
    """The same pod; without its address, where that is its node's and the job asks for no such."""
    if pod.has_nodes_ip and not wants_host_network(spec_of(job.spec, pod.identity.index)):
        return replace(pod, address="")
    return pod
