"""Training progress: what trainers report, and what the status keeps of it."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, Field

from ddp_operator.answers import YEARS, Answer, Count, InvalidAnswerError
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import CheckpointRecord, DDPJobStatus, Progress
from ddp_operator.api.values.bounded import OR_NONE
from ddp_operator.job.membership.world import members
from ddp_operator.job.pods.observed import identity_at
from ddp_operator.job.pods.state import Identity, PodState


def _rounded(value: float | None) -> float | None:
    """Round to six digits. A loss that is not finite becomes None, which keeps the step valid."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def _in_utc(moment: datetime) -> datetime:
    if moment.year not in YEARS:
        raise ValueError(f"year {moment.year} is out of range")
    moment = moment.replace(tzinfo=moment.tzinfo or UTC, microsecond=0)  # as the status stores it
    return moment.astimezone(UTC)


_Measure = Annotated[float | None, AfterValidator(_rounded)]
_Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
_LongTime = Annotated[
    float, Field(ge=0, le=1e9, allow_inf_nan=False), AfterValidator(lambda value: round(value, 3))
]
_Moment = Annotated[datetime, Field(strict=False), AfterValidator(_in_utc)]


class ReportedCheckpoint(Answer):
    """The newest complete checkpoint."""

    step: Count
    path: Annotated[str, Field(max_length=1024)] = ""
    time: _Moment | None = None


class ReportedProgress(Answer):
    """Training progress as a trainer reports it."""

    step: Count
    last_step_time: _Moment | None = None
    trained_seconds: _LongTime | None = None
    total_steps: Count | None = None
    epoch: Count | None = None
    loss: _Measure = None
    samples_per_second: _Measure = None


class ReportedResumption(Answer):
    """Where a group began, or its first step."""

    step: Count
    time: _Moment
    """When the group formed, or completed the step."""


class ReportedPace(Answer):
    """The slowest rank of the latest comparison, by its own time per step."""

    step: Count
    rank: Count
    seconds: _Seconds
    others_seconds: _Seconds
    """Mean of the other ranks."""


class TrainerStatus(ReportedProgress):
    """The answer to GET /status."""

    pace: ReportedPace | None = None
    checkpoint: ReportedCheckpoint | None = None
    resumed: ReportedResumption | None = None
    first_steps: Annotated[list[ReportedResumption] | None, Field(max_length=16)] = None
    """First steps of this group and earlier ones, oldest first."""
    done: Annotated[bool | None, OR_NONE] = None
    """True: the result is safe, so a pod that is lost from now on has completed."""


@dataclass(frozen=True, slots=True)
class Report:
    """The last report of one pod's trainer."""

    owner_uid: str
    identity: Identity
    status: TrainerStatus | None
    """None: its launcher answers, but no step was reported yet."""
    first_received: datetime
    """When this pod first reported this step."""
    received: datetime
    """When it last did, by a clock that does not jump in between."""

    def concerns(self, job: DDPJob) -> bool:
        """Return whether the reporting pod has node rank 0 in the job's present group."""
        current = identity_at(job, members(job)[0], 0)
        return self.owner_uid == job.uid and self.identity == current


def with_report(job: DDPJob, report: Report | None) -> DDPJobStatus:
    """Return the job's status with its trainer's last report."""
    if report is None or report.status is None or not report.concerns(job):
        return job.status
    progress = _progress(job.status.progress, report.status, report.received)
    checkpoint = _checkpoint(job.status.checkpoint, report.status)
    if (progress, checkpoint) == (job.status.progress, job.status.checkpoint):
        return job.status
    return job.status.updated(progress=progress, checkpoint=checkpoint)


def with_last_words(status: DDPJobStatus, pod: PodState | None, now: datetime) -> DDPJobStatus:
    """Return the status with what a trainer's termination message reports."""
    message = pod.exit.message if pod and pod.exit else ""
    if not message.lstrip().startswith("{"):
        return status
    try:
        said = TrainerStatus.read(message)
    except InvalidAnswerError:
        return status
    progress = status.progress
    if progress is None or said.step > progress.step:
        known, progress = progress, _progress(progress, said, now)
        if known is not None and said.resumed is None:
            progress = progress.updated(
                resumed_step=known.resumed_step, resumed_at=known.resumed_at
            )
    elif said.done and progress.done_at is None:
        progress = progress.updated(done_at=now.replace(microsecond=0))
    checkpoint = _checkpoint(status.checkpoint, said)
    return status.updated(progress=progress, checkpoint=checkpoint)


def resumption(before: DDPJobStatus, after: DDPJobStatus) -> int | None:
    """Return the step at which a new group began, if a report shows one; None otherwise.

    A trainer that does not report it has resumed if its step goes back or all pods are new: from
    the newest checkpoint of that time, unless that is beyond its step.
    """
    old, new = before.progress, after.progress
    if old is None or new is None or old == new:
        return None
    if new.resumed_at is not None:
        is_same = (new.resumed_step, new.resumed_at) == (old.resumed_step, old.resumed_at)
        # An earlier release did not store it.
        is_old = old.resumed_at is None and new.resumed_at <= old.updated_at
        return None if is_same or is_old else new.resumed_step
    began = before.running_since
    gang = bool(before.failures) and before.failures[-1].action == "RestartGang"
    starts = gang and began is not None and old.updated_at < began <= new.updated_at
    if new.step >= old.step and not starts:
        return None
    saved = [before.checkpoint.step] if before.checkpoint else []
    newest = after.checkpoint
    if newest is not None and newest.time is not None and began is not None:
        saved += [newest.step] if newest.time < began else []
    return max((step for step in saved if step <= new.step), default=new.step)


def last_step_at(status: DDPJobStatus) -> datetime | None:
    """Return since when the script works after its last step; None while it trains."""
    progress, since = status.progress, status.running_since
    if progress is None or since is None or not progress.has_last_step:
        return None
    if progress.updated_at < since:
        return None  # an earlier attempt made the step, and this one may train it again
    return progress.last_step_time or progress.updated_at


def is_done(status: DDPJobStatus) -> bool:
    """Return whether the trainer has reported that it is done, since all pods run."""
    progress, since = status.progress, status.running_since
    done_at = progress.done_at if progress else None
    return done_at is not None and since is not None and since <= done_at


def _progress(known: Progress | None, said: TrainerStatus, received: datetime) -> Progress:
    same_step = known is not None and known.step == said.step
    values = {name: getattr(said, name) for name in ReportedProgress.model_fields}
    updated_at = known.updated_at if known is not None and same_step else received
    done_at = ((known.done_at if known else None) or received) if said.done else None
    began = said.resumed
    return Progress(
        **values,
        pace=known.pace if known else None,
        updated_at=updated_at.replace(microsecond=0),
        resumed_step=began.step if began else None,
        resumed_at=began.time if began else None,
        done_at=done_at.replace(microsecond=0) if done_at else None,
    )


def _checkpoint(known: CheckpointRecord | None, said: TrainerStatus) -> CheckpointRecord | None:
    """Return the newer checkpoint; an older one only if training went back behind the known one."""
    new = said.checkpoint
    if new is None or (known is not None and new.step < known.step <= said.step):
        return known
    return CheckpointRecord(step=new.step, path=new.path, time=new.time)
