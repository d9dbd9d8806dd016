"""Who is in a job's group: each generation is on record before any pod is told.

Pods are known by their slots, the numbers in their names. The first ones are the group as it
begins; the rest wait outside. `planning` decides what changes that.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import count, islice
from typing import Final, Literal

from ddp_operator.api.constants import MAX_REPLICAS
from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.api.status.world import World
from ddp_operator.job.membership.launcher_protocol import MAX_MEMBERS

RESTART_GRACE_SECONDS: Final = 15
"""How long the old processes of a group that restarts may save: as long as a spot node has."""
_DIGITS: Final = 5
"""Of a slot: `MAX_REPLICAS` has as many."""


def scope_of(job: DDPJob) -> Literal["Gang", "InPlace", "Pod"]:
    """What a failure starts anew, as the job says it or its pods' launcher."""
    asked = job.spec.restart.scope
    if asked != "Auto":
        return asked
    said = "" if job.spec.kueue_queue else job.status.bookkeeping.launcher
    return "Pod" if said == "Pod" else "InPlace" if said == "InPlace" else "Gang"


def world_of(job: DDPJob) -> World:
    """The group as it is stored, else as it begins."""
    return job.status.world or first_world(job.spec.replicas)


def members(job: DDPJob) -> Sequence[int]:
    """The slots of the group's pods, in the order of their node ranks."""
    return slots_of(job.status.world, job.spec.replicas, elastic=job.spec.elastic is not None)


def slots_of(stored: World | None, replicas: int, *, elastic: bool = False) -> Sequence[int]:
    """The same, of a group as it is on record; None: as it begins."""
    if stored is None:
        return range(replicas)
    found = _read(stored.members)
    size = stored.size if elastic else replicas
    # A record that people have changed is none.
    return found if len(found) == size > 0 else range(replicas)


def min_size(spec: DDPJobSpec) -> int:
    """The fewest pods that a job trains with."""
    least = spec.elastic and spec.elastic.min_replicas
    return least or spec.replicas


def max_size(spec: DDPJobSpec) -> int:
    """As many pods as a job would have in its group."""
    most = spec.elastic and spec.elastic.max_replicas
    return most or spec.replicas


def outside_slots(job: DDPJob) -> Sequence[int]:
    """The slots of those that are wanted beyond the group, as spares or to join it: the lowest
    that are free.
    """
    taken = node_ranks(job)
    wanted = job.spec.spares
    if job.spec.elastic and job.status.bookkeeping.launcher:  # which can take them in
        wanted += max(max_size(job.spec) - len(taken), 0)
    return tuple(islice((slot for slot in count() if slot not in taken), wanted))


def node_ranks(job: DDPJob) -> Mapping[int, int]:
    """The node rank of each slot that has one."""
    return by_slot(members(job))


def members_to_lead(job: DDPJob) -> str:
    """The group, as the launcher of node rank 0 has to know it to lead while no operator is there;
    empty where it must not, or the group is too large.
    """
    if job.spec.restart.scope not in ("Auto", "InPlace"):
        return ""
    text = format_slots(members(job))
    return text if len(text) <= MAX_MEMBERS else ""


@lru_cache(maxsize=256)
def by_slot(slots: Sequence[int]) -> Mapping[int, int]:
    """The node rank of each of a group's slots, which `slots_of` has found."""
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
    """Return the status of the group's next generation, in which processes restart that cannot join
    another group.

    `new_slots`: the slots of pods that take other pods' places, by node rank. `without`: node ranks
    that are given up; those after them move up. `joining`: the slots of pods that come last.
    `lost`: how many pods are gone. `grace_seconds`: how long processes of before may save, unless
    it follows from who leaves: rank 0 saves, or nobody.
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
    world = World(
        generation=world_of(job).generation + 1,
        size=len(slots),
        members=format_slots(slots),
        lost=lost,
        grace_seconds=grace_seconds,
        changed_at=now,
    )
    # Those after a place that nobody has any more move up: what was on record is of others.
    gaps = () if without else status.gaps
    return status.model_copy(update={"world": world, "gaps": gaps})


def world_of_next_attempt(spec: DDPJobSpec, status: DDPJobStatus) -> World | None:
    """Return the group that pods of another attempt form, if any was ever on record: who hears of
    it late must not take it for the attempt before.
    """
    if status.world is None:
        return None
    generation = status.world.generation + 1
    return first_world(spec.replicas).model_copy(update={"generation": generation})


def replaced(status: DDPJobStatus, slots: Iterable[int]) -> dict[str, int]:
    """How often the pod of each slot was replaced, once those of these slots are once more."""
    counts = dict(status.bookkeeping.replacements)
    for slot in slots:
        counts[str(slot)] = counts.get(str(slot), 0) + 1
    return counts


def format_slots(slots: Sequence[int]) -> str:
    """Slots in any order, such as `0-2,5,4`."""
    parts: list[str] = []
    begin = 0
    for end in range(1, len(slots) + 1):
        if end == len(slots) or slots[end] != slots[end - 1] + 1:
            first, last = slots[begin], slots[end - 1]
            parts.append(f"{first}-{last}" if first < last else str(first))
            begin = end
    return ",".join(parts)


@lru_cache(maxsize=256)
def first_world(size: int) -> World:
    """The group as it begins."""
    last = size - 1
    return World(size=size, members=f"0-{last}" if last else "0")


@lru_cache(maxsize=256)
def _read(text: str) -> tuple[int, ...]:
    """What `format_slots` has written; of anything else, what can be understood, each slot once."""
    found: dict[int, None] = {}
    for part in text.split(","):
        first, _, last = part.partition("-")
        last = last or first
        if not all(each.isascii() and each.isdigit() for each in (first, last)):
            continue
        if max(len(first), len(last)) <= _DIGITS:
            room = MAX_REPLICAS - len(found)
            found.update(dict.fromkeys(islice(range(int(first), int(last) + 1), room)))
    return tuple(found)
