"""Record failures, and describe them."""

from collections.abc import Sequence
from datetime import datetime

from ddp_operator.api import ranks
from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec import FailureClass
from ddp_operator.api.status import DDPJobStatus, Failure
from ddp_operator.job.failure import classes, symptoms
from ddp_operator.job.membership.launchers import PODS_UNREACHABLE
from ddp_operator.job.pods.state import UNSTARTABLE_REASONS, Identity, PodState

MAX_FAILURES = 10
MAX_IGNORED = 5
"""How many ignored failures of an attempt are recorded."""
# Reasons of failures; `ddp_client.views.reasons` says what each means.
NO_PROGRESS = "NoProgress"
NODE_LEAVING = "NodeLeaving"
SLOW_RANK = "SlowRank"
LAUNCHER_UNREACHABLE = "LauncherUnreachable"
_NO_PYTHON = (
    "spec.launcher: inject needs Python 3.11 or newer in the image; take an image that has it, or "
    "leave launcher out"
)
_MAX_MESSAGE = 1024
_MAX_HEADLINE = 300


def of_pod(job: DDPJob, pod: PodState, now: datetime) -> Failure:
    """Record how a pod failed, how it was disrupted, or why it cannot start."""
    ended = pod.exit
    rank, said = _last_words(job, pod)
    if pod.disrupted:
        lost = pod.exit.reason if pod.exit and not pod.ended_by_deletion else ""
        reason = pod.disruption or pod.reason or lost or "Deleted"
        message = pod.message or "the cluster or a user deleted the pod"
    elif pod.over_storage_limit:
        reason, message = "StorageLimitExceeded", pod.message
    elif ended:
        reason = pod.reason or ended.reason or "Error"
        message = said or pod.message
        if job.spec.launcher == "inject" and classes.lacks_command(pod):
            message = f"{_NO_PYTHON}: {message}"
    elif pod.waiting:
        reason, message = pod.waiting, pod.waiting_message
    else:
        reason, message = pod.reason or "PodFailed", pod.message
    return Failure(
        time=(ended.finished if ended else None) or now,
        attempt=pod.identity.attempt,
        index=pod.identity.index,
        rank=rank,
        pod=pod.key.name,
        container=pod.container,
        node=pod.node,
        exit_code=ended.code if ended else None,
        signal=(ended.signal or _signal(ended.code)) if ended else None,
        reason=reason,
        message=message[-_MAX_MESSAGE:],  # the end of a log matters
        class_=classes.of_pod(pod, has_run=classes.has_run(job)),
    )


def of_missing(job: DDPJob, identity: Identity, now: datetime) -> Failure:
    """Record that a pod vanished; how it ended is unknown."""
    return Failure(
        time=now,
        attempt=identity.attempt,
        index=identity.index,
        pod=identity.pod_name(job.name),
        reason="Vanished",
        message="deleted, or its node is gone",
        class_="Disruption",
    )


def of_lost(
    job: DDPJob, pod: PodState, reason: str, message: str, class_: FailureClass, now: datetime
) -> Failure:
    """Record that a pod which has not ended must be given up."""
    own = ranks.ranks(job.spec, pod.identity.index)
    return Failure(
        time=now,
        attempt=pod.identity.attempt,
        index=pod.identity.index,
        rank=own.start if len(own) == 1 else None,
        pod=pod.key.name,
        container=pod.container,
        node=pod.node,
        reason=reason,
        message=message,
        class_=class_,
    )


def describe(failure: Failure) -> str:
    """Return one sentence with rank, pod and cause."""
    if failure.reason == PODS_UNREACHABLE:
        return failure.message  # it is of no single pod
    of_several = failure.rank is not None and failure.rank != failure.index
    rank = f", rank {failure.rank}" if of_several else ""
    text = f"pod {failure.pod} (node rank {failure.index}{rank})"
    if failure.reason in UNSTARTABLE_REASONS and failure.exit_code is None:
        text += f" cannot start: {failure.reason}"
    elif failure.disruption:
        text += f" was disrupted: {failure.reason}"
    elif failure.reason == NO_PROGRESS:  # its exit code may be another pod's
        text += f" failed: {failure.reason}"
    elif failure.signal:
        text += f" was killed by signal {failure.signal} ({failure.reason})"
    elif failure.exit_code is not None:
        text += f" exited with code {failure.exit_code} ({failure.reason})"
    else:
        text += f" failed: {failure.reason}"
    if failure.node:
        text += f" on node {failure.node}"
    said = symptoms.headline(failure.message)[:_MAX_HEADLINE]
    return f"{text}: {said}" if said else text


def latest_event(failures: Sequence[Failure]) -> Sequence[Failure]:
    """Return the last failure that stands by itself, and those that are part of it."""
    found = [failure for failure in failures if failure.action != "Ignore"]
    first = max((i for i, failure in enumerate(found) if not failure.continued), default=0)
    return found[first:]


def remember(status: DDPJobStatus, *new: Failure) -> DDPJobStatus:
    """Add failures to the record. The oldest are dropped, but not the attempt's first charged one,
    which says how the trouble began.
    """
    kept = [*status.failures, *new]
    charged = (f for f in kept if f.charged and f.attempt == status.attempt)
    first = next(charged, None)
    while len(kept) > MAX_FAILURES:
        kept.remove(kept[0] if kept[0] is not first else kept[1])
    return status.updated(failures=tuple(kept))


def _last_words(job: DDPJob, pod: PodState) -> tuple[int | None, str]:
    """Return the global rank that failed, if known, and its message."""
    own = ranks.ranks(job.spec, pod.identity.index)
    said = symptoms.last_words(pod.exit.message if pod.exit else "")
    rank = symptoms.torchrun_rank(said.text) if said.rank is None else said.rank
    if rank in own:
        return rank, said.text
    return own.start if len(own) == 1 else None, said.text


def _signal(exit_code: int) -> int | None:
    """Return the signal n of exit code 128 + n, as shells and container runtimes report it."""
    return exit_code - 128 if 128 < exit_code < 160 else None
