"""A report: what became of a job, typed, bounded in size, ready to be drawn or printed.

None everywhere means that it is not known.
"""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class PodSpan:
    """One pod's life, a bar of the timeline."""

    name: str
    index: int
    ranks: str
    attempt: int
    node: str
    created: datetime | None
    scheduled: datetime | None
    started: datetime | None
    ended: datetime | None
    """None: it runs, or nobody knows when it ended."""
    end: str
    """How it ended, in words; or how it fares."""
    is_there: bool
    """False: only a failure still tells of it."""


PARTS = ("replace", "schedule", "start", "form", "first step")
"""What a recovery is made of: until the new pod is created, has a node, and runs its trainer; until
the ranks have found each other, and have completed a step."""


@dataclass(frozen=True)
class Recovery:
    """A failure, and how training went on."""

    time: datetime
    attempt: int
    index: int
    rank: int | None
    pod: str
    node: str
    cause: str
    class_: str
    action: str
    charged: bool
    parts: tuple[float | None, ...]
    """Seconds, as `PARTS` has them."""
    seconds: float | None
    """From the failure to the first step after it."""


@dataclass(frozen=True)
class Point:
    """Some intervals together: few enough to draw."""

    step: int
    time: float
    loss: float | None
    loss_low: float | None
    loss_high: float | None
    samples_per_second: float | None
    phases: tuple[float, ...] | None
    """Seconds, as `history.PHASES` has them."""
    breaks: bool
    """Training was begun anew within it."""


@dataclass(frozen=True)
class StepTimes:
    """How long steps took: means of intervals, weighted by their steps."""

    steps: int
    median: float
    p95: float
    p99: float
    longest: float | None
    """Of a single step, the first ones after a start left out."""
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """Steps between one bound and the next; in the last one also those that took longer."""


@dataclass(frozen=True)
class RankPace:
    """How often a rank was the slowest by its own time, before it waits for others."""

    rank: int
    times: int
    share: float
    mean_ratio: float | None
    """Its own time by the mean of the others, then."""
    worst_ratio: float | None
    held_up: int
    """Intervals in which the trainer says that it holds the others up."""


@dataclass(frozen=True)
class SaveRow:
    """A checkpoint."""

    step: int
    time: float | None
    seconds: float | None


@dataclass(frozen=True)
class Saves:
    """Checkpoints together."""

    rows: tuple[SaveRow, ...]
    """The newest."""
    known: int
    mean_seconds: float | None
    longest_seconds: float | None
    held_up_seconds: float | None
    """What training waited for them."""


@dataclass(frozen=True)
class GpuUse:
    """GPUs of one kind: all of them times the job's time."""

    kind: str
    count: int
    used_hours: float
    """While the job started, trained, or recovered."""
    lost_hours: float
    price: float | None
    """Of one GPU for an hour."""

    @property
    def cost(self) -> float | None:
        """Of all hours."""
        return None if self.price is None else self.used_hours * self.price

    @property
    def lost_cost(self) -> float | None:
        """Of the lost ones."""
        return None if self.price is None else self.lost_hours * self.price


@dataclass(frozen=True)
class NodeRow:
    """A node that failed the job's pods, or that its next pods avoid."""

    name: str
    failures: int
    is_avoided: bool
    says_so: bool
    """It is avoided since its own signals say that it is broken or about to go."""


@dataclass(frozen=True)
class Report:
    """All of it."""

    name: str
    namespace: str
    uid: str
    made_at: datetime
    version: str
    phase: str
    reason: str
    message: str
    created: datetime
    ended: datetime | None
    step: int | None
    total_steps: int | None
    epoch: int | None
    loss: float | None
    accuracy: float | None
    samples_per_second: float | None
    attempts: int
    restarts: int
    disruptions: int
    goodput: tuple[tuple[str, int], ...]
    """Seconds by what they were spent on."""
    training_ratio: float | None
    steps_lost: int | None
    pods: tuple[PodSpan, ...]
    pods_left_out: int
    recoveries: tuple[Recovery, ...]
    starts: tuple[tuple[int, float, float], ...]
    """The newest: first step, when the group had formed, when that step was complete."""
    points: tuple[Point, ...]
    scores: tuple[tuple[int, float], ...]
    """Step and accuracy, the newest."""
    phase_seconds: tuple[tuple[str, float], ...]
    """Rank 0's time by what it was spent on."""
    step_times: StepTimes | None
    ranks: tuple[RankPace, ...]
    """The most frequent first."""
    saves: Saves | None
    gpus: tuple[GpuUse, ...]
    nodes: tuple[NodeRow, ...]
    events: tuple[tuple[datetime, str, str], ...]
    configuration: tuple[tuple[str, str], ...]
    gaps: tuple[str, ...]
    """What is missing, and why."""

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.ended is not None
