"""Training progress: what trainers report, and what the status keeps of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from ddp_protocol.message import InvalidMessageError, moment
from ddp_protocol.progress import TrainerStatus

from ddp_operator.api.code import is_other
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import MAX_METRICS, CheckpointRecord, DDPJobStatus, Progress
from ddp_operator.api.values.limits import linear
from ddp_operator.job.membership.world import members
from ddp_operator.job.pods.observed import identity_at
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.job.status import curve

_METRIC: Final = linear(r"[A-Za-z0-9_./-]{1,63}")
"""Names that `job.log` accepts."""


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
        """Return whether the reporting pod has node rank 0 in the job's present group, and its
        processes have the job's code.
        """
        current = identity_at(job, members(job)[0], 0)
        if self.owner_uid != job.uid or self.identity != current:
            return False
        return self.status is None or _is_of_code(job.status, self.status)


def with_report(job: DDPJob, report: Report | None) -> DDPJobStatus:
    """Return the job's status with its trainer's last report."""
    if report is None or report.status is None or not report.concerns(job):
        return job.status
    checkpoint = _checkpoint(job.status.checkpoint, report.status)
    status = _with_progress(job.status, report.status, report.received)
    return _with_results(status, report.status).updated(checkpoint=checkpoint)


def with_last_words(status: DDPJobStatus, pod: PodState | None, now: datetime) -> DDPJobStatus:
    """Return the status with what a trainer's termination message reports."""
    message = pod.exit.message if pod and pod.exit else ""
    if not message.lstrip().startswith("{"):
        return status
    try:
        said = TrainerStatus.read(message)
    except InvalidMessageError:
        return status
    if not _is_of_code(status, said):
        return status
    known, checkpoint = status.bookkeeping, _checkpoint(status.checkpoint, said)
    if status.progress is None or said.step > status.progress.step:
        status = _with_progress(status, said, now)
        if said.resumed is None:
            status = status.noting(resumed_step=known.resumed_step, resumed_at=known.resumed_at)
    elif said.done and known.done_at is None:
        status = status.noting(done_at=now.replace(microsecond=0))
    if status.progress is not None and said.step >= status.progress.step:
        status = _with_results(status, said)
    return status.updated(checkpoint=checkpoint)


def without_progress(status: DDPJobStatus) -> DDPJobStatus:
    """Return the status of a job with new code: the last numbers were those of the code before.

    The curve stays until the new code reports from which step it continues.
    """
    return status.updated(progress=None).noting(metrics={})


def resumption(before: DDPJobStatus, after: DDPJobStatus) -> int | None:
    """Return the step at which a new group began, if a report shows one; None otherwise.

    A trainer that does not report it has resumed if its step goes back or all pods are new: from
    the newest checkpoint of that time, unless that is beyond its step.
    """
    old, new = before.progress, after.progress
    if old is None or new is None:
        return None
    then, now = before.bookkeeping, after.bookkeeping
    if now.resumed_at is not None:
        is_same = (now.resumed_step, now.resumed_at) == (then.resumed_step, then.resumed_at)
        return None if is_same else now.resumed_step
    if old == new:
        return None
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
    done_at, since = status.bookkeeping.done_at, status.running_since
    return done_at is not None and since is not None and since <= done_at


def _is_of_code(status: DDPJobStatus, said: TrainerStatus) -> bool:
    """Return whether the job's present code reports this; True if the launcher does not know."""
    known = status.bookkeeping.code
    return not known or not is_other(known, said.code or "")


def _with_progress(status: DDPJobStatus, said: TrainerStatus, received: datetime) -> DDPJobStatus:
    known, began, trained = status.progress, said.resumed, said.trained_seconds
    received = received.replace(microsecond=0)
    points = status.bookkeeping.curve
    if known is None and points:  # the first report of new code, which may begin at step 0
        points = curve.until(points, (began.step if began else 0) or -1)
    progress = Progress(
        step=said.step,
        total_steps=said.total_steps,
        epoch=said.epoch,
        loss=_rounded(said.loss),
        samples_per_second=_rounded(said.samples_per_second),
        updated_at=known.updated_at if known and known.step == said.step else received,
        last_step_time=moment(said.last_step_time) if said.last_step_time else None,
    )
    return status.updated(progress=progress).noting(
        trained_seconds=trained and round(trained, 3),
        resumed_step=began.step if began else None,
        resumed_at=moment(began.time) if began else None,
        curve=points,
        done_at=(status.bookkeeping.done_at or received) if said.done else None,
    )


def _with_results(status: DDPJobStatus, said: TrainerStatus) -> DDPJobStatus:
    """Return the status with the reported loss, score and metrics, which outlive the pods."""
    known = status.bookkeeping
    metrics = _metrics(said.metrics) if said.metrics else known.metrics
    return status.noting(curve=curve.extended(known.curve, said), metrics=metrics)


def _metrics(reported: Mapping[str, float]) -> dict[str, float]:
    named = ((name, value) for name, value in reported.items() if _is_metric(name))
    return {name: float(f"{value:.6g}") for name, value in islice(named, MAX_METRICS)}


def _is_metric(name: str) -> bool:
    return name.isascii() and _METRIC.fullmatch(name) is not None


def _checkpoint(known: CheckpointRecord | None, said: TrainerStatus) -> CheckpointRecord | None:
    """Return the newer checkpoint; an older one only if training went back behind the known one."""
    new = said.checkpoint
    if new is None or (known is not None and new.step < known.step <= said.step):
        return known
    time = moment(new.time) if new.time else None
    return CheckpointRecord(step=new.step, path=new.path or "", time=time)


def _rounded(value: float | None) -> float | None:
    """Round to six digits."""
    return None if value is None else float(f"{value:.6g}")
