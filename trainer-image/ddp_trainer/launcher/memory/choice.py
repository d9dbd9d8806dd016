"""Chooses the snapshots from which a group resumes. Pure; for node rank 0."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ddp_trainer.launcher.memory.protocol.messages import MAX_TEXT
from ddp_trainer.memory.volume import Key, SnapshotName

_LISTED = 4
"""Ranks to name in a sentence."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The snapshots of one step, or why there is none."""

    key: Key | None = None
    holders: Mapping[SnapshotName, Collection[int]] = field(default_factory=dict)
    """The node ranks that hold each snapshot of the step. A replicated step may lack ranks."""
    reason: str = ""


def choose(
    stored: Mapping[int, Collection[SnapshotName]],
    *,
    world_size: int,
    generation: int,
    silent: Collection[int] = (),
) -> Choice:
    """Choose the newest step that all ranks can resume from.

    Args:
        stored: the snapshots in each pod, by node rank.
        world_size: ranks of the group that resumes; snapshots of sharded state must have the same.
        generation: of that group; its own snapshots are too new.
        silent: node ranks that did not answer.
    """
    found: dict[tuple[Key, bool, int], dict[SnapshotName, list[int]]] = defaultdict(dict)
    for node_rank, names in sorted(stored.items()):
        for name in names:
            if name.key.generation < generation:
                of_step = found[name.key, name.replicated, name.world_size]
                of_step.setdefault(name, []).append(node_rank)
    for step in sorted(found, reverse=True):
        key, replicated, size = step
        if replicated or (size == world_size == len(found[step])):
            return Choice(key=key, holders=found[step])
    return Choice(reason=_reason(found, world_size, silent)[:MAX_TEXT])


def _reason(
    found: Mapping[tuple[Key, bool, int], Mapping[SnapshotName, object]],
    world_size: int,
    silent: Collection[int],
) -> str:
    without = f"; no answer from node ranks {listed(silent)}" if silent else ""
    if not found:
        return f"no pod has a snapshot{without}"
    key, replicated, size = max(found)
    if size != world_size:
        return f"the snapshots of step {key.step} are of {size} ranks, not {world_size}{without}"
    missing = set(range(size)) - {name.rank for name in found[key, replicated, size]}
    return f"step {key.step}, the newest, has no snapshot of ranks {listed(missing)}{without}"


def listed(numbers: Collection[int]) -> str:
    """Return the first few numbers, and how many more there are."""
    first = ", ".join(map(str, sorted(numbers)[:_LISTED]))
    return f"{first} and {len(numbers) - _LISTED} more" if len(numbers) > _LISTED else first
