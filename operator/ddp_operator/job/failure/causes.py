"""Find the failure that caused the others.

Kubelets report exits in any order. The earliest one that is not a consequence is the cause.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Failure
from ddp_operator.job.failure import classes, records, symptoms
from ddp_operator.job.membership.world import members
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.state import Identity, PodState

CAUSE_WAIT_SECONDS: Final = 3
"""How long to wait for the cause of a consequence. Kubelets look for exits once a second (PLEG) and
report them in any order."""

CLOCK_SKEW: Final = timedelta(seconds=CAUSE_WAIT_SECONDS)
"""How far the clocks of two nodes, or of a node and the API server, may differ. A pod that ends
this little before another is removed may have ended because of it."""

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Cause:
    """The first failure, and the lost pods."""

    failure: Failure
    lost: tuple[int, ...]
    """Replica indexes."""
    secondary: bool = False
    """It can only be a consequence, but its cause never appeared."""


def find(job: DDPJob, pods: Observed, now: datetime) -> Cause | None:
    """Return the cause of failed or missing pods; None without any, or while it is awaited."""
    failed, gone = _failed(pods), vanished(job, pods)
    lost = (*(pod.identity.index for pod in failed), *(place.index for place in gone))
    ran = classes.has_run(job)
    hopeless = [
        pod
        for pod in pods.current.values()
        if (pod.exit or pod.waiting)  # cheap for thousands of healthy pods
        and not (pod.succeeded or pod.disrupted)
        and classes.is_hopeless(pod, has_run=ran)
    ]
    if hopeless:
        lost = tuple(sorted({pod.identity.index for pod in hopeless}.union(lost)))
        return Cause(records.of_pod(job, primary(hopeless), now), lost)
    first = primary(failed) if failed else None
    secondary = first is not None and _is_consequence(first) and len(members(job)) > 1
    if gone and (first is None or secondary):
        return Cause(records.of_missing(job, gone[0], now), lost)
    if first is None or cause_due(job, pods, now):
        return None
    failure = records.of_pod(job, first, now)
    if _all_mistaken(job, pods):
        failure = failure.updated(class_="Configuration")
    return Cause(failure, lost, secondary)


def primary(pods: Sequence[PodState]) -> PodState:
    """Return the pod that failed first; a consequence only if there is no other."""
    return min(pods, key=lambda pod: (_is_consequence(pod), _began(pod), pod.identity.index))


def cause_due(job: DDPJob, pods: Observed, now: datetime) -> datetime | None:
    """Return until when to wait for the cause of consequences, or for other pods to make the same
    mistake; None: the cause is known, or the time is up.
    """
    failed = _failed(pods)
    if not failed or vanished(job, pods):
        return None
    if not all(_is_consequence(pod) or _is_mistaken(job, pod) for pod in failed):
        return None
    if all(pod.failed or pod.succeeded for pod in pods.current.values()):
        return None
    ends = [pod.exit.finished for pod in failed if pod.exit and pod.exit.finished]
    due = max(ends, default=now) + timedelta(seconds=CAUSE_WAIT_SECONDS)
    # A node's clock that is ahead must not delay the job.
    return due if now < due <= now + timedelta(seconds=CAUSE_WAIT_SECONDS) else None


def _failed(pods: Observed) -> list[PodState]:
    return [pod for pod in pods.current.values() if pod.failed or pod.disrupted]


def vanished(job: DDPJob, pods: Observed) -> tuple[Identity, ...]:
    """Return pods that existed and are missing. During a replacement, all others existed."""
    status = job.status
    if not status.is_true("PodsCreated") and not status.bookkeeping.replacing:
        return ()
    replacing = frozenset(status.bookkeeping.replacing)
    return tuple(gone for gone in pods.missing if gone.slot not in replacing)


def _all_mistaken(job: DDPJob, pods: Observed) -> bool:
    """Return whether all pods ended alike because the command is wrong, so that none can start."""
    if pods.missing or not all(_is_mistaken(job, pod) for pod in pods.current.values()):
        return False
    return len({pod.exit and pod.exit.code for pod in pods.current.values()}) == 1


def _is_mistaken(job: DDPJob, pod: PodState) -> bool:
    """Return whether a pod failed before the first step, with words that name its command."""
    if job.status.progress or job.status.checkpoint or pod.exit is None or pod.disrupted:
        return False
    said = symptoms.last_words(pod.exit.message).text
    return pod.exit.code != 0 and symptoms.is_of_command_line(said)


def _is_consequence(pod: PodState) -> bool:
    return not pod.disrupted and classes.is_secondary(pod)


def _began(pod: PodState) -> datetime:
    """Return when the pod's failure began; long ago if unknown."""
    if pod.disrupted:
        return pod.disrupted_at - CLOCK_SKEW if pod.disrupted_at else _LONG_AGO
    return (pod.exit.finished if pod.exit else None) or _LONG_AGO
