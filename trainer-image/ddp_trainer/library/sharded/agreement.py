"""Decides from which step ranks continue, and who sends the state of each rank that lost it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """The snapshots that one rank holds."""

    own: Sequence[int]
    """Steps of its own snapshots; none: this process has replaced a lost one."""
    copies: Sequence[tuple[int, int]]
    """Ranks and steps of its copies of other ranks' snapshots."""


@dataclass(frozen=True)
class Decision:
    """The step of all ranks, and the ranks that send snapshots of it."""

    step: int
    senders: Mapping[int, int]
    """For each rank that needs its snapshot, a rank that has a copy."""


def newest_complete(inventories: Sequence[Inventory]) -> Decision | None:
    """Return the newest step of which every rank's snapshot exists; None: there is none."""
    steps = {step for held in inventories for step in held.own}
    steps |= {step for held in inventories for _, step in held.copies}
    for step in sorted(steps, reverse=True):
        senders = {}
        for rank, held in enumerate(inventories):
            if step in held.own:
                continue
            sender = next(
                (other for other, its in enumerate(inventories) if (rank, step) in its.copies), None
            )
            if sender is None:
                break
            senders[rank] = sender
        else:
            return Decision(step, senders)
    return None


def copy_distances(size: int, copies: int) -> list[int]:
    """Return how many ranks further each copy of a rank's snapshot is, in a group of `size`.

    They divide the group into equal parts, so that a pod with few ranks holds a snapshot and its
    copies only if the group has too few pods.
    """
    distance = size // (copies + 1)
    return [number * distance for number in range(1, copies + 1)]
