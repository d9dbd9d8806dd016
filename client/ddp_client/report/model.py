"""A report about a job: typed, bounded in size, ready to draw or print.

None always means unknown.
"""

from dataclasses import dataclass
from datetime import datetime

from ddp_client.report.facts import LogEnd
from ddp_client.report.history import Save

COMPLETED = "completed"
"""The `end` of a pod that succeeded."""


@dataclass(frozen=True)
class PodSpan:
    """One pod: a bar of the timeline."""

    name: str
    index: int
    ranks: str
    attempt: int
    node: str
    created: datetime | None
    scheduled: datetime | None
    started: datetime | None
    ended: datetime | None
    """None: the pod runs, or the time is unknown."""
    end: str
    """How the pod ended, or its current state."""
    is_there: bool
    """False: only a failure record still names the pod."""


PARTS = ("replace", "schedule", "start", "form", "first step")
"""The parts of a recovery. They end when the new pod is created, has a node, runs its trainer, when
the process group has formed, and when the first step is complete."""


@dataclass(frozen=True)
class Recovery:
    """A failure and its recovery."""

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
    """Seconds of each of `PARTS`."""
    seconds: float | None
    """Seconds from the failure to the first step after it."""


@dataclass(frozen=True)
class Point:
    """Several intervals together, as one point of a curve."""

    step: int
    time: float | None
    """Unix time; None: the job's status keeps none."""
    loss: float | None
    loss_low: float | None
    loss_high: float | None
    samples_per_second: float | None
    phases: tuple[float, ...] | None
    """Seconds of each of `history.PHASES`."""
    breaks: bool
    """Training restarted within it."""


@dataclass(frozen=True)
class StepTimes:
    """The distribution of step times: means of intervals, weighted by their steps."""

    steps: int
    median: float
    p95: float
    p99: float
    longest: float | None
    """The longest single step, without the first ones after a start."""
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """Steps between one bound and the next; the last count includes longer ones."""


@dataclass(frozen=True)
class RankPace:
    """How often a rank was the slowest, by its own time without waiting for others."""

    rank: int
    times: int
    share: float
    mean_ratio: float | None
    """Its own time divided by the mean of the others, in those intervals."""
    worst_ratio: float | None
    held_up: int
    """Intervals in which the trainer reports that it delays the others."""


@dataclass(frozen=True)
class Saves:
    """The checkpoints of a job."""

    rows: tuple[Save, ...]
    """The newest ones."""
    known: int
    mean_seconds: float | None
    longest_seconds: float | None
    held_up_seconds: float | None
    """Time that training waited for them."""


@dataclass(frozen=True)
class Usage:
    """Hours of GPUs of one kind, or of whole pods: their number times the job's time."""

    kind: str
    """The type of GPU, or `pods`."""
    count: int
    used_hours: float
    """Hours in which the job started, trained or recovered."""
    lost_hours: float
    price: float | None
    """Price of one for an hour."""
    cost: float | None
    """Cost of all hours."""
    lost_cost: float | None
    """Cost of the lost hours."""


@dataclass(frozen=True)
class FailureInterval:
    """Time between the recorded failures of one class, or on one node."""

    group: str
    """`class` or `node`."""
    name: str
    count: int
    mean_seconds: int | None
    """None: fewer than three failures."""


@dataclass(frozen=True)
class SpareEstimate:
    """An estimate of what a spare that was ready at each failure would have saved."""

    recoveries: int
    """Recoveries that waited for a new pod for a known time."""
    unknown: int
    """Recoveries with a new pod whose wait is unknown; not included."""
    waited_seconds: int
    """Seconds until the new pods ran their trainers: what a spare would have saved."""
    with_spare_seconds: int | None
    """The rest of the same recoveries, which a spare does not save: the group forms and completes
    its first step."""


@dataclass(frozen=True)
class NodeRow:
    """A node on which the job's pods failed, or that its next pods avoid."""

    name: str
    failures: int
    is_avoided: bool
    says_so: bool
    """It is avoided because it reports itself broken or about to shut down."""


@dataclass(frozen=True)
class Report:
    """The whole report."""

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
    """Seconds by kind."""
    training_ratio: float | None
    effective_training_ratio: float | None
    """ETTR: training, as a share of the time in which the job held its pods."""
    steps_lost: int | None
    pods: tuple[PodSpan, ...]
    pods_left_out: int
    recoveries: tuple[Recovery, ...]
    failure_intervals: tuple[FailureInterval, ...]
    spare_estimate: SpareEstimate | None
    starts: tuple[tuple[int, float, float], ...]
    """The newest starts: first step, when the group formed, when that step was complete."""
    points: tuple[Point, ...]
    scores: tuple[tuple[int, float], ...]
    """Step and accuracy of the newest evaluations."""
    remedies: tuple[str, ...]
    """Advice for a job in trouble, in sentences."""
    logs: tuple[LogEnd, ...]
    """A log that can still be read, and what the status keeps of failed pods; without secrets."""
    phase_seconds: tuple[tuple[str, float], ...]
    """Rank 0's seconds by phase."""
    step_times: StepTimes | None
    ranks: tuple[RankPace, ...]
    """The most frequent first."""
    saves: Saves | None
    usages: tuple[Usage, ...]
    """GPUs by kind; with a price of a pod, the pods of the spec and its spares."""
    nodes: tuple[NodeRow, ...]
    events: tuple[tuple[datetime, str, str], ...]
    configuration: tuple[tuple[str, str], ...]
    gaps: tuple[str, ...]
    """Missing data, and why."""

    @property
    def is_over(self) -> bool:
        """True when the job has ended."""
        return self.ended is not None
