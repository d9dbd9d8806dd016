"""The reports of the launchers in a job's pods, and the assignments to send to them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from ddp_protocol.world import GroupAssignment, LauncherStatus, PodFailure

PODS_UNREACHABLE: Final = "PodsUnreachable"
"""Reason while no launcher of a job answers, and of failures that follow from it."""


@dataclass(frozen=True, slots=True)
class LauncherStates:
    """Reports of the launchers of one job's pods; empty if nobody asked them."""

    told: Mapping[str, tuple[int, bool]] = field(default_factory=dict)
    """By pod name: the generation that its launcher acknowledged after all earlier processes ended,
    and whether it was sent with `start`."""
    unreached_since: Mapping[str, datetime] = field(default_factory=dict)
    """By pod name: since when its launcher has not answered or not ended old processes."""
    silent_since: datetime | None = None
    """Since when none of the job's launchers answers; None: one does, or none was asked for long.
    If all are silent at once, the operator's own network is the likely cause."""
    failures: tuple[PodFailure, ...] = ()
    scope: Literal["InPlace", "Pod", ""] = ""
    """The scope that node rank 0's launcher reports; empty: it has not answered."""
    leader: LauncherStatus | None = None
    """The status of node rank 0's launcher; None: it has not answered."""
    ahead: int = 0
    """The highest generation that was led and makes a launcher refuse the present one; 0: none."""

    def knows(self, pod: str, generation: int, *, start: bool = False) -> bool:
        """Return whether a pod acknowledged a generation and, with `start`, that it may start."""
        known, started = self.told.get(pod, (0, False))
        return known > generation or (known == generation and (started or not start))


NO_LAUNCHERS: Final = LauncherStates()


@dataclass(frozen=True, slots=True)
class Assignment:
    """The group and the node rank to send to one pod's launcher."""

    pod: str
    address: str
    """`ip:port` of the launcher."""
    group: GroupAssignment
    token_key: str = ""
    """Name of the operator's key from which that pod's token is derived."""
