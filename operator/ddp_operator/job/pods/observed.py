"""A job's pods, sorted by what they mean to it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddp_operator.api.job import DDPJob
from ddp_operator.api.overrides import spec_of
from ddp_operator.api.rules import wants_host_network
from ddp_operator.api.status import Failure
from ddp_operator.job.pods import completion
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.ports import Key


@dataclass(frozen=True, slots=True)
class Observed:
    """A job's pods, sorted by what they mean."""

    current: dict[int, PodState]
    old: tuple[PodState, ...]
    strangers: tuple[PodState, ...]
    """Pods of another owner: of an earlier job of the same name, as a rule."""
    blocking: tuple[PodState, ...]
    """Strangers that bear a name which this job needs, as objects or in DNS."""
    missing: tuple[Identity, ...]
    """Those that ended well before they went are not."""
    creatable: tuple[Identity, ...]
    """Of the missing ones those whose names nobody else bears."""
    completed: frozenset[int] = frozenset()
    """Indices of pods that have ended well and are gone."""
    ignored: tuple[tuple[Failure, str], ...] = ()
    """Failures of current pods that count as good ends, each with the rule that says so."""


def observe(job: DDPJob, pods: Sequence[PodState]) -> Observed:
    """Sort a job's pods by what they mean to it."""
    status, replicas = job.status, job.spec.replicas
    replacements: dict[int, int] = {}
    if status.bookkeeping.replacements:
        replacements = {i: status.bookkeeping.replacements.get(str(i), 0) for i in range(replicas)}
    current: dict[int, PodState] = {}
    old: list[PodState] = []
    strangers: list[PodState] = []
    for pod in pods:
        if pod.has_nodes_ip and not _wants_nodes_ip(job, pod):
            pod = replace(pod, address="")  # noqa: PLW2901
        identity = pod.identity
        index = identity.index
        if pod.owner_uid != job.uid:
            strangers.append(pod)
        elif (
            identity.attempt == status.attempt
            and identity.replacement == replacements.get(index, 0)
            and 0 <= index < replicas
        ):
            current[index] = pod
        else:
            old.append(pod)
    done = completion.read(status.completed_indexes, below=replicas)
    missing = tuple(
        Identity(index, status.attempt, replacements.get(index, 0))
        for index in range(replicas)
        if index not in current and index not in done
    )
    by_name = {pod.key.name: pod for pod in strangers}
    by_host_name = {pod.identity.host_name(job.name): pod for pod in strangers if pod.in_dns}
    blocking: dict[Key, PodState] = {}
    creatable: list[Identity] = []
    for i in missing:
        other = by_name.get(i.pod_name(job.name)) or by_host_name.get(i.host_name(job.name))
        if other is None:
            creatable.append(i)
        else:
            blocking[other.key] = other
    return Observed(
        current=current,
        old=tuple(old),
        strangers=tuple(strangers),
        blocking=tuple(blocking.values()),
        missing=missing,
        creatable=tuple(creatable),
        completed=done.difference(current),
    )


def _wants_nodes_ip(job: DDPJob, pod: PodState) -> bool:
    return wants_host_network(spec_of(job.spec, pod.identity.index))
