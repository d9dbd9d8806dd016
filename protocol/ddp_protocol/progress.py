"""The progress of a training, as the bundled trainer or a script reports it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from ddp_protocol.message import OR_NONE, Bounds, Count, Message, Time

_Seconds = Annotated[float, Bounds(0, 1e6)]


@dataclass(frozen=True, kw_only=True)
class CheckpointStatus:
    """The newest complete checkpoint."""

    step: Count
    path: Annotated[str, Bounds(0, 1024)] | None = None
    time: Time | None = None
    """Time of completion: UTC, as in 2026-11-21T03:00:00Z."""


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """A step at which a group began to train, or its first step."""

    step: Count
    time: Time
    """When the group formed, or completed the step: UTC, as in 2026-11-21T03:00:00.250Z."""


@dataclass(frozen=True, kw_only=True)
class PaceStatus:
    """The slowest rank of the latest comparison, by its own time per step in seconds."""

    step: Count
    """Step of the comparison; another one is another comparison."""
    rank: Count
    seconds: _Seconds
    """Without waiting for others."""
    others_seconds: _Seconds
    """Mean of the other ranks."""


@dataclass(frozen=True, kw_only=True)
class TrainingReport(Message):
    """A training's numbers, as it reports them while it runs and at its end. None: unknown."""

    step: Count | None = None
    """Optimizer steps completed since the beginning of training."""
    code: Annotated[str | None, Bounds(0, 64), OR_NONE] = None
    """ID of the code that reports this, see `code_archive`. The launcher adds it. Empty or None:
    unknown."""
    last_step_time: Time | None = None
    """Time of the last completed step: UTC, as in 2026-11-21T03:00:00.250Z.

    After a failure, training is down until this time changes.
    """
    trained_seconds: Annotated[float, Bounds(0, 1e9)] | None = None
    """Time that training to the last step took: of each group from its first step to the last one
    that is kept. So it contains no start, no failure, and no step that was trained again.
    """
    total_steps: Count | None = None
    loss: float | None = None
    """Mean over ranks at the last logged step."""
    accuracy: float | None = None
    """Newest score of the model, usually an accuracy; higher is better."""
    accuracy_step: Count | None = None
    """Step of that score; None: the present step."""
    metrics: Annotated[Mapping[str, float] | None, OR_NONE] = None
    """The script's own metrics, the newest value of each name."""
    checkpoint: CheckpointStatus | None = None
    resumed: Resumption | None = None
    """Start of the current group; later steps of earlier groups are trained again."""
    done: Annotated[bool | None, OR_NONE] = None
    """True: the job's result is safe, so a pod that is lost from now on has completed."""


@dataclass(frozen=True, kw_only=True)
class TrainerStatus(TrainingReport):
    """The answer to GET /status. None: unknown."""

    step: Count = field()
    """As above, but always there."""
    epoch: Count | None = None
    """Current epoch, counted from 1."""
    samples_per_second: float | None = None
    pace: PaceStatus | None = None
    first_steps: Annotated[tuple[Resumption, ...], Bounds(0, 16)] | None = None
    """First steps of this group and earlier ones, oldest first; None: they are not recorded."""
