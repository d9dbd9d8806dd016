"""The pods of a job's group. Each generation is stored before any pod learns of it.

A pod's slot is the number in its name. The first slots form the initial group; the others wait
outside. `planning` decides about changes.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import count, islice
from typing import Final, Literal

from ddp_protocol.world import MAX_MEMBERS

from ddp_operator.api.constants import MAX_REPLICAS
from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.api.status.world import World
from ddp_operator.api.values.text import in_ranges
from ddp_operator.job.membership.launchers import PODS_UNREACHABLE

RESTART_GRACE_SECONDS: Final = 15
"""How long old processes of a restarting group may save: as long as a spot node has."""
_MAX_DIGITS: Final = 18


def scope_of(job: DDPJob) -> Literal["Gang", "InPlace", "Pod"]:
    """Return what a failure restarts: as the job says, or as its launcher reported."""
    asked = job.spec.restart.scope
    if asked != "Auto":
        return asked
    said = job.status.bookkeeping.launcher
    return "Pod" if said == "Pod" else "InPlace" if said == "InPlace" else "Gang"


def has_launcher(job: DDPJob) -> bool:
    """Return whether launchers can receive assignments: one has answered in this attempt, or,
    before any can, the spec says that each pod restarts by itself, and no group waited in vain.
    """
    if job.status.bookkeeping.launcher:
        return True
    waited = any(failure.reason == PODS_UNREACHABLE for failure in job.status.failures)
    return job.spec.restart.scope == "Pod" and not waited


def world_of(job: DDPJob) -> World:
    """Return the group on record, else the initial one."""
    return job.status.world or first_world(first_size(job.spec))


def members(job: DDPJob) -> Sequence[int]:
    """Return the slots of the group's pods by node rank."""
    return slots_of(job.status.world, job.spec.replicas, elastic=job.spec.elastic is not None)


def slots_of(stored: World | None, replicas: int, *, elastic: bool = False) -> Sequence[int]:
    """Return the slots of a group on record by node rank; None: of the initial group."""
    if stored is None:
        return range(replicas)
    found = read_slots(stored.members)
    # Ignore a record that was edited by hand.
    return found if found and (elastic or len(found) == replicas) else range(replicas)


def first_size(spec: DDPJobSpec) -> int:
    """Return how many pods a group begins with. Queues and gangs get the others one by one."""
    return spec.min_size if spec.placed_together else spec.replicas


def outside_slots(job: DDPJob) -> Sequence[int]:
    """Return the slots of pods outside the group: spares and those that can join, the lowest; then
    successors of pods that are to leave their nodes.
    """
    taken = node_ranks(job)
    # Without a launcher they could neither take over nor join, but would hold nodes that the group
    # may need.
    wanted = job.spec.spares if has_launcher(job) else 0
    if job.spec.elastic and job.status.bookkeeping.launcher:
        wanted += max(job.spec.max_size - len(taken), 0)
    others = islice((slot for slot in count() if slot not in taken), wanted)
    free = (slot for slot in count(first_successor(job)) if slot not in taken)
    return (*others, *islice(free, job.status.bookkeeping.successors or 0))


def first_successor(job: DDPJob) -> int:
    """Return the first slot of successors. The others never have it, so each keeps its own."""
    return job.spec.max_size + job.spec.spares


def node_ranks(job: DDPJob) -> Mapping[int, int]:
    """Return the node rank of each slot in the group."""
    return by_slot(members(job))


def members_to_lead(job: DDPJob) -> str:
    """Return the group as node rank 0's launcher needs it to lead without an operator; empty if it
    may not lead or the group is too large.
    """
    if job.spec.restart.scope not in ("Auto", "InPlace"):
        return ""
    text = in_ranges(members(job))
    return text if len(text) <= MAX_MEMBERS else ""


@lru_cache(maxsize=256)
def by_slot(slots: Sequence[int]) -> Mapping[int, int]:
    """Return the node rank of each of these slots."""
    return {slot: node_rank for node_rank, slot in enumerate(slots)}


def next_generation(
    job: DDPJob,
    status: DDPJobStatus,
    now: datetime,
    *,
    new_slots: Mapping[int, int] | None = None,
    without: Collection[int] = (),
    joining: Sequence[int] = (),
    lost: int = 0,
    grace_seconds: int | None = None,
) -> DDPJobStatus:
    """Return the status of the group's next generation, in which processes restart or rejoin.

    `new_slots`: slots that take over node ranks. `without`: node ranks to drop; later ones move up.
    `joining`: slots to append. `lost`: how many pods are gone. `grace_seconds`: how long old
    processes may save; by default none if rank 0 is dropped or replaced, since only rank 0 saves.
    """
    taken = new_slots or {}
    if grace_seconds is None:
        grace_seconds = 0 if 0 in taken or 0 in without else RESTART_GRACE_SECONDS
    kept = [
        taken.get(node_rank, slot)
        for node_rank, slot in enumerate(members(job))
        if node_rank not in without
    ]
    slots = [*kept, *joining]
    generation = world_of(job).generation + 1
    world = World(generation=generation, members=in_ranges(slots), changed_at=now)
    # Later node ranks move up, so recorded gaps would belong to other pods.
    status = status.updated(world=world, gaps=() if without else status.gaps)
    return status.noting(lost_members=lost, grace_seconds=grace_seconds)


def world_of_next_attempt(spec: DDPJobSpec, status: DDPJobStatus) -> World | None:
    """Return the group of the next attempt, in a new generation, if one was ever recorded."""
    if status.world is None:
        return None
    generation = status.world.generation + 1
    return first_world(first_size(spec)).updated(generation=generation)


def replaced(status: DDPJobStatus, slots: Iterable[int]) -> dict[str, int]:
    """Return the replacement counts, with those of these slots increased."""
    counts = dict(status.bookkeeping.replacements)
    for slot in slots:
        counts[str(slot)] = counts.get(str(slot), 0) + 1
    return counts


@lru_cache(maxsize=256)
def first_world(size: int) -> World:
    """Return the initial group."""
    last = size - 1
    return World(members=f"0-{last}" if last else "0")


@lru_cache(maxsize=256)
def read_slots(text: str) -> tuple[int, ...]:
    """Parse the output of `in_ranges`. Skip anything invalid, and repeated slots."""
    found: dict[int, None] = {}
    for part in text.split(","):
        first, _, last = part.partition("-")
        last = last or first
        if _is_number(first) and _is_number(last):
            room = MAX_REPLICAS - len(found)
            found.update(dict.fromkeys(islice(range(int(first), int(last) + 1), room)))
    return tuple(found)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
