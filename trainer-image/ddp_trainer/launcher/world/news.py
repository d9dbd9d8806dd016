"""The news of a group that node rank 0 gives to the operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddp_trainer.launcher.world.failure_reports import Failure


@dataclass(frozen=True, kw_only=True)
class Led:
    """A generation that began while the operator was away."""

    generation: int
    time: str
    """When its ranks could start: UTC, as in 2026-11-21T03:00:00Z."""


@dataclass(frozen=True, kw_only=True)
class RestoreNews:
    """The decision from which snapshots the ranks of a generation resume."""

    generation: int
    step: int | None = None
    """None: no step can be restored."""
    time: str
    """When it was decided: UTC, as in 2026-11-21T03:00:00Z."""
    reason: str = ""
    """Why no step can be restored; empty: one can."""


@dataclass(frozen=True, kw_only=True)
class MemoryNews:
    """The group's snapshots in memory."""

    step: int | None = None
    """Step of the newest complete snapshots; None: none are complete."""
    time: str | None = None
    """When they were complete: UTC, as in 2026-11-21T03:00:00Z."""
    bytes: int | None = None
    """Size of the snapshots of that step in the pod that has the most."""
    copies: int
    """Other pods that hold a copy of each sharded snapshot."""
    refusal: str | None = None
    """Why newer snapshots are not saved or not copied, and in which pod."""
    restored: RestoreNews | None = None
    """The newest decision; None: this generation has none yet."""


@dataclass(frozen=True, kw_only=True)
class News:
    """The answer of node rank 0 to the operator's request for news."""

    number: int
    """Grows with each change of the other fields."""
    generation: int
    scope: Literal["Pod", "InPlace"]
    """How ranks get into another group. Pod: they form it themselves; InPlace: they are restarted.
    """
    failures: tuple[Failure, ...]
    """In order of arrival: of this generation, and of those that led to restarts without the
    operator."""
    members: str | None = None
    """The slots of the group's pods, if node rank 0 may lead."""
    led: tuple[Led, ...] | None = None
    """The generations up to this one that did not come from the operator."""
    saved_in_pod: bool | None = None
    """True: ranks have saved to this pod's own disk, which no other pod can read."""
    memory: MemoryNews | None = None
    """None: the job keeps no snapshots in memory. Only a new decision about a restore changes
    `number`."""
