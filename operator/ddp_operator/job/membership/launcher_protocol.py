"""What the launchers in a job's pods say, and what they are told."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from ddp_operator.job.membership.answers import YEARS, Answer, Count
from ddp_operator.ports import TokenSource

FIRST_PAUSE_SECONDS: Final = 2.0
LONGEST_PAUSE_SECONDS: Final = 60.0
"""Until a launcher is asked again that has not answered. One that has answered before is there, and
is asked again soon; one that never has is none, as a rule: of ten thousand images without one, each
asked every two seconds, the operator would do little else."""
_MAX_LED: Final = 64
_MAX_FAILURES: Final = 64 + 2 * _MAX_LED
"""As many as a launcher keeps: of the present generation, and two for each that was led."""
MAX_MEMBERS: Final = 2048
"""Characters of a group that a launcher may have to lead; it takes no more."""


def _in_a_zone(moment: datetime) -> datetime:
    if moment.tzinfo is None or moment.year not in YEARS:
        raise ValueError("it is no time of this age, in a time zone")
    return moment


_Moment = Annotated[datetime, Field(strict=False), AfterValidator(_in_a_zone)]


class PodFailure(Answer):
    """The processes of one pod have ended, and the pod has not."""

    pod: Annotated[str, Field(max_length=253)]
    """Its name."""
    generation: Count
    exit_code: Annotated[int, Field(ge=1, le=255)]
    message: Annotated[str, Field(max_length=4096)] = ""
    """What the pod would have left as its termination message."""
    time: _Moment


class Led(Answer):
    """A generation that node rank 0's launcher began, since no operator asked it."""

    generation: Count
    time: _Moment
    """When its processes could start."""


class LauncherStatus(Answer):
    """The answer to GET /world."""

    number: Count
    """Another one whenever anything else in it has changed."""
    generation: Count
    scope: Literal["InPlace", "Pod"] = "InPlace"
    """How its processes get into another group: started anew, or by themselves."""
    failures: Annotated[tuple[PodFailure, ...], Field(max_length=_MAX_FAILURES, strict=False)] = ()
    """Of this generation, and those that later generations were led for."""
    members: Annotated[str, Field(max_length=MAX_MEMBERS)] = ""
    """The slots of the group's pods in the order of their node ranks, as `World.members` has them;
    empty: the launcher never leads."""
    led: Annotated[tuple[Led, ...], Field(max_length=_MAX_LED, strict=False)] = ()
    """The newest generations that the operator has not told of, up to the present one."""
    saved_in_pod: bool = False
    """Whether processes of the pod have saved to a disk that no other pod sees."""


def pause_seconds(silent: int, *, has_answered: bool) -> float:
    """How long not to ask a launcher that was `silent` so many times in a row."""
    if has_answered:
        return FIRST_PAUSE_SECONDS
    return min(FIRST_PAUSE_SECONDS * 2.0 ** min(silent - 1, 10), LONGEST_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class LauncherStates:
    """What is known of the launchers of one job's pods; nothing, where nobody has asked."""

    told: Mapping[str, tuple[int, bool]] = field(default_factory=dict)
    """By the name of a pod: the generation that its launcher knows, whose predecessors' processes
    have all ended in it, and whether it was told to start."""
    unreached_since: Mapping[str, datetime] = field(default_factory=dict)
    """By the name of a pod: since when its launcher was told in vain, or has not ended what ran."""
    failures: tuple[PodFailure, ...] = ()
    scope: Literal["InPlace", "Pod", ""] = ""
    """What that of node rank 0 says that its processes can; empty: it has not answered."""
    leader: LauncherStatus | None = None
    """All that it has said; None: it has not answered."""
    ahead: int = 0
    """The highest generation that was led and for which a launcher refuses the present one; 0: none
    does."""

    def knows(self, pod: str, generation: int, *, start: bool = False) -> bool:
        """Whether a pod has been told of a generation and, where it may `start`, of that, too."""
        known, started = self.told.get(pod, (0, False))
        return known > generation or (known == generation and (started or not start))


NO_LAUNCHERS: Final = LauncherStates()


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the launcher of one pod is to be told of the group."""

    pod: str
    """Its name."""
    address: str
    """`ip:port`, where it listens."""
    generation: int
    start: bool
    document: Mapping[str, Any]
    token_source: TokenSource = TokenSource.VARIABLE
