"""Kueue's report about a waiting job: its position, the cause of the wait, and what to do.

Kueue writes the cause into the job's Workload (kueue.x-k8s.io v1beta1 and v1beta2). Its messages
are shown as they are: Kueue words them differently from release to release.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from ddp_operator.api.values.text import clean, duration

from ddp_client.views.job.workload import Workload, message_of

_ACTIVE: Final = '{"spec":{"active":true}}'
_PODS_READY_TIMEOUT: Final = "PodsReadyTimeout"

_WAIT: Final = (
    "wait if other jobs use the quota; otherwise correct what Kueue's message names, or ask the "
    "queue's administrator"
)
_OPEN: Final = (
    "ask the queue's administrator to open the queue, or choose another spec.scheduling.queueName"
)
_START_FASTER: Final = (
    "shorten the start of the pods, for example with a smaller image, or ask Kueue's administrator "
    "to raise waitForPodsReady.timeout"
)


@dataclass(frozen=True)
class QueueState:
    """The state of a waiting job in its queue; all texts are empty if unknown."""

    position: str = ""
    """The number of jobs ahead."""
    cause: str = ""
    """Why the job waits, with Kueue's own message."""
    eviction: str = ""
    """The latest eviction, if it is not the cause."""
    remedies: Sequence[str] = ()


UNKNOWN: Final = QueueState()
"""The state of a job that waits in no queue, or in one that the user may not read."""


class _Cause(NamedTuple):
    text: str
    remedies: Sequence[str]
    is_quota: bool = False
    """The job waits for its turn: its position in the queue matters."""


def explain(
    workload: Workload, name: str, now: datetime, *, position: str = "", closed: str = ""
) -> QueueState:
    """Explain why a job with this Workload waits.

    `position`: the number of jobs ahead, as text. `closed`: why its queue admits nothing.
    """
    cause = (
        _finished(workload, name)
        or _deactivated(workload, name)
        or _backoff(workload, now)
        or _pending(workload, closed)
        or _checks(workload)
    )
    evicted = workload.condition("Evicted", "True")
    is_cause = evicted is not None and evicted.reason.startswith("Deactivated")
    eviction = "" if is_cause else message_of(evicted)
    if cause is None:
        return QueueState(position, eviction=eviction)
    remedies = cause.remedies
    if cause.is_quota and evicted and evicted.reason == _PODS_READY_TIMEOUT:
        remedies = [_START_FASTER]
    return QueueState(
        position if cause.is_quota else "",
        cause.text,
        "" if eviction in cause.text else eviction,
        remedies,
    )


def _finished(workload: Workload, name: str) -> _Cause | None:
    finished = workload.condition("Finished", "True")
    if finished is None:
        return None
    text = f"Workload {name} is finished, {clean(finished.reason, 64)}: {message_of(finished)}"
    return _Cause(text, ["correct what the message names, then run kubectl ddp restart"])


def _deactivated(workload: Workload, name: str) -> _Cause | None:
    if workload.spec.active is not False:
        return None
    evicted = workload.condition("Evicted", "True")
    target = workload.condition("DeactivationTarget", "True")  # until Kueue has evicted it
    why, reason = "somebody set its spec.active to false", ""
    if target:
        why, reason = message_of(target), target.reason
    elif evicted and evicted.reason.startswith("DeactivatedDueTo"):
        why = message_of(evicted).removeprefix("The workload is deactivated due to ")
        reason = evicted.reason
    # Kubernetes has a kind Workload, too: the name includes the group.
    remedy = f"kubectl patch workloads.kueue.x-k8s.io {name} --type merge -p '{_ACTIVE}'"
    if reason:
        # Kueue 0.17 does not queue one that it deactivated itself, even if it is active again.
        remedy = f"kubectl delete workloads.kueue.x-k8s.io {name}"
    remedies = [f"to queue the job again: {remedy}"]
    if reason.endswith("RequeuingLimitExceeded"):
        remedies.insert(0, _START_FASTER)
    return _Cause(f"Workload {name} is deactivated: {why}", remedies)


def _backoff(workload: Workload, now: datetime) -> _Cause | None:
    requeue = workload.status.requeue_state
    if requeue is None or requeue.requeue_at is None or requeue.requeue_at <= now:
        return None
    pause = duration((requeue.requeue_at - now).total_seconds())
    number = f" {requeue.count}" if requeue.count else ""
    evicted = workload.condition("Evicted", "True")
    text = f"Kueue requeues the job in {pause} (requeue{number}): {message_of(evicted)}"
    timed_out = evicted is not None and evicted.reason == _PODS_READY_TIMEOUT
    return _Cause(text.rstrip(": "), [_START_FASTER if timed_out else "wait for the requeue"])


def _pending(workload: Workload, closed: str) -> _Cause | None:
    pending = workload.condition("QuotaReserved", "False")
    if pending is None or not pending.message:
        return None
    if closed:
        return _Cause(f"{message_of(pending)}: {closed}", [_OPEN])
    return _Cause(message_of(pending), [_WAIT], is_quota=True)


def _checks(workload: Workload) -> _Cause | None:
    waits = [check for check in workload.status.admission_checks if check.state != "Ready"]
    if not waits or workload.condition("QuotaReserved", "True") is None:
        return None
    check = waits[0]
    text = (
        f"quota is reserved; admission check {clean(check.name, 64)} is {clean(check.state, 16)}: "
        f"{message_of(check)}"
    )
    return _Cause(
        text.rstrip(": "), ["wait for the admission check, or ask the queue's administrator"]
    )
