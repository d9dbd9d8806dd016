"""Says what failed, in words and as a record."""

from collections.abc import Sequence
from datetime import UTC, datetime

from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec import FailureClass
from ddp_operator.api.status import Failure
from ddp_operator.job.pods import Identity, PodState

MAX_FAILURES = 10
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def primary(pods: Sequence[PodState]) -> PodState:
    """Return the pod whose failure came first; one that fell over another's failure only if
    there is no other.
    """

    def order(pod: PodState) -> tuple[bool, datetime, int]:
        finished = pod.exit.finished if pod.exit else None
        return pod.secondary, finished or _LONG_AGO, pod.identity.index

    return min(pods, key=order)


def of_pod(pod: PodState, now: datetime) -> Failure:
    """Record how a pod failed, or how it was taken away."""
    ended = pod.exit
    if pod.disrupted:
        reason = pod.disruption or pod.reason or "Deleted"
        message = pod.message or "the pod was taken away from outside"
    elif ended:
        reason = ended.reason or "Error"
        message = ended.message or pod.message
    else:
        reason = pod.reason or "PodFailed"
        message = pod.message
    return Failure(
        time=(ended.finished if ended else None) or now,
        attempt=pod.identity.attempt,
        index=pod.identity.index,
        pod=pod.key.name,
        node=pod.node,
        exit_code=ended.code if ended else None,
        signal=(ended.signal or _signal(ended.code)) if ended else None,
        reason=reason[:256],
        message=message[:1024],
        class_=_class(pod),
    )


def of_missing(job: DDPJob, identity: Identity, now: datetime) -> Failure:
    """Record that a pod vanished: nobody can say any more how it ended."""
    return Failure(
        time=now,
        attempt=identity.attempt,
        index=identity.index,
        pod=identity.pod_name(job.name),
        reason="Vanished",
        message="the pod was deleted from outside, or its node is gone",
        class_="Disruption",
    )


def in_words(failure: Failure) -> str:
    """One sentence for people, naming rank, pod and cause."""
    text = f"pod {failure.pod} (node rank {failure.index})"
    if failure.disruption:
        text += f" was disrupted: {failure.reason}"
    elif failure.signal:
        text += f" was killed by signal {failure.signal} ({failure.reason})"
    elif failure.exit_code is not None:
        text += f" exited with code {failure.exit_code} ({failure.reason})"
    else:
        text += f" failed: {failure.reason}"
    if failure.node:
        text += f" on node {failure.node}"
    return f"{text}: {failure.message}" if failure.message else text


def _class(pod: PodState) -> FailureClass:
    if pod.disrupted:
        return "Disruption"
    return "Configuration" if pod.misconfigured else "Application"


def _signal(exit_code: int) -> int | None:
    """Shells and container runtimes report death by signal n as exit code 128 + n."""
    return exit_code - 128 if 128 < exit_code < 160 else None
