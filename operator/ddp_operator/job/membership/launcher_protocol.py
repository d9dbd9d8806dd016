"""The protocol between the operator and the launchers in a job's pods."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from ddp_operator.answers import YEARS, Answer, Count
from ddp_operator.api.constants import MAX_COPIES
from ddp_operator.api.values.bounded import MAX_WORD, OR_NONE, first
from ddp_operator.api.values.printable import printable

_MAX_LED: Final = 64
_MAX_FAILURES: Final = 64 + 2 * _MAX_LED
"""Launchers keep this many: of the present generation, and two for each generation they led."""
MAX_MEMBERS: Final = 2048
"""Most characters of a group that a launcher may lead."""


def _in_a_zone(moment: datetime) -> datetime:
    if moment.tzinfo is None or moment.year not in YEARS:
        raise ValueError("must be a time with a time zone, from 1970 on")
    return moment


_Moment = Annotated[datetime, Field(strict=False), AfterValidator(_in_a_zone)]


class PodFailure(Answer):
    """The processes of a pod have ended, but the pod has not."""

    pod: Annotated[str, Field(max_length=253)]
    generation: Count
    exit_code: Annotated[int, Field(ge=1, le=255)]
    message: Annotated[str, Field(max_length=4096)] = ""
    """The text that the pod would have left as its termination message."""
    time: _Moment


class Led(Answer):
    """A generation that node rank 0's launcher started without an operator."""

    generation: Count
    time: _Moment
    """When its processes could start."""


_Text = Annotated[str, first(MAX_WORD), AfterValidator(printable)]


class RestoreDecision(Answer):
    """From which snapshots in memory the processes of a generation resume."""

    generation: Count
    step: Count | None = None
    """None: from none."""
    time: _Moment
    reason: _Text = ""
    """Why from none."""


class MemoryReport(Answer):
    """Snapshots in the memory of a job's pods."""

    step: Count | None = None
    """Newest step of which all snapshots and copies are stored; None: of no step."""
    time: _Moment | None = None
    bytes: Count | None = None
    """Size of that step's snapshots in the pod that has the most."""
    copies: Annotated[int, Field(ge=0, le=MAX_COPIES)] = 0
    refusal: _Text = ""
    """Why newer snapshots are not saved or not copied."""
    restored: RestoreDecision | None = None
    """The newest decision; None: this generation has none yet."""


class LauncherStatus(Answer):
    """The answer to GET /world."""

    number: Count
    """Changes whenever another field changes."""
    generation: Count
    scope: Literal["InPlace", "Pod"] = "InPlace"
    """How its processes join another group: by restarting in place, or by themselves."""
    failures: Annotated[tuple[PodFailure, ...], Field(max_length=_MAX_FAILURES, strict=False)] = ()
    """Failures of this generation, and those that later generations were led for."""
    members: Annotated[str, Field(max_length=MAX_MEMBERS)] = ""
    """Slots of the group's pods by node rank, as in `World.members`; empty: the launcher never
    leads."""
    led: Annotated[tuple[Led, ...], Field(max_length=_MAX_LED, strict=False)] = ()
    """Newest generations that no operator announced, up to the present one."""
    saved_in_pod: bool = False
    """True if processes saved to a disk that no other pod can read."""
    memory: Annotated[MemoryReport | None, OR_NONE] = None
    """None: there are no snapshots in memory, or the report is invalid. People read it; nothing
    depends on it."""


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
    generation: int
    start: bool
    document: Mapping[str, Any]
    token_key: str = ""
    """Name of the operator's key from which that pod's token is derived."""
