"""Correct a decision about a failure once its cause is seen.

A lost node is noticed after its peers fail. By then the job has restarted and charged it.
"""

from datetime import datetime

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus, Failure
from ddp_operator.job.failure import budget, causes, classes, records, restart_rules
from ddp_operator.job.planning.decisions import decided
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status.conditions import with_condition
from ddp_operator.ports import Event


def correct(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide that another failure caused the last restart of all pods, which may be free then."""
    event = records.latest_event(job.status.failures)
    if not event or event[-1].action != "RestartGang":
        return None
    wrong = next((failure for failure in event if failure.charged), event[-1])
    if not classes.is_consequence(wrong):
        return None
    told = {failure.pod for failure in job.status.failures if failure is not wrong}
    telling = [pod for pod in _of_attempt(pods, wrong.attempt) if _tells(pod, wrong)]
    telling = [pod for pod in telling if pod.key.name not in told]
    if not telling or (cause := causes.primary(telling)).key.name == wrong.pod:
        return None
    failure = records.of_pod(job, cause, now)
    charged = wrong.charged and _is_charged(job, failure)
    status = _corrected(job.status, wrong, failure, charged=charged)
    if wrong.charged and not charged:
        status = budget.count_for_node(status, failure)
    words = records.describe(failure)
    message = f"found the cause of attempt {wrong.attempt + 1}: {words}"
    return decided(_retold(status, message, now), Event("CauseFound", message))


def take_back_charge(job: DDPJob, pods: Observed, cause: Failure) -> Plan | None:
    """Decide to take back the charge for a failure whose `cause` in the group is seen only now."""
    event = records.latest_event(job.status.failures)
    charged = next((failure for failure in event if failure.charged), None)
    if charged is None or classes.is_consequence(cause) or _is_charged(job, cause):
        return None
    if cause.class_ == "Configuration":
        return None  # it ends the job
    if not (classes.is_consequence(charged) or _came_first(pods, cause, charged)):
        return None
    status = _corrected(job.status, charged, cause)
    message = f"found the cause of the last restart: {records.describe(cause)}"
    return Plan(status, decided=True, events=(Event("CauseFound", message),))


def _came_first(pods: Observed, cause: Failure, charged: Failure) -> bool:
    """Return whether the cluster was already removing the pod when its processes failed."""
    pod = pods.current.get(cause.index)
    if pod is None or pod.key.name != charged.pod or pod.disrupted_at is None:
        return False
    return pod.lost_to_cluster and pod.disrupted_at - causes.CLOCK_SKEW <= charged.time


def _is_charged(job: DDPJob, failure: Failure) -> bool:
    ruled = restart_rules.judge(job, failure).charged
    return failure.class_ == "Application" if ruled is None else ruled


def _corrected(
    status: DDPJobStatus, wrong: Failure, cause: Failure, *, charged: bool = False
) -> DDPJobStatus:
    """Return the status with the cause recorded instead, and the wrong charge taken back."""
    right = cause.updated(action=wrong.action, charged=charged, continued=wrong.continued)
    failures = tuple(right if failure is wrong else failure for failure in status.failures)
    status = status.updated(failures=failures)
    return budget.refund(status) if wrong.charged and not charged else status


def _of_attempt(pods: Observed, attempt: int) -> list[PodState]:
    """Return the attempt's last pod of each slot; earlier ones were replaced."""
    found = [pod for pod in pods.old if pod.identity.attempt == attempt]
    found.sort(key=lambda pod: pod.identity.replacement)
    return list({pod.identity.slot: pod for pod in found}.values())


def _tells(pod: PodState, last: Failure) -> bool:
    """Return whether a pod, since deleted, had failed by itself before or was lost."""
    if pod.lost_to_cluster:
        return True
    ended = pod.exit.finished if pod.exit else None
    if not pod.failed or pod.disrupted or classes.is_hopeless(pod) or classes.is_secondary(pod):
        return False
    return ended is not None and ended <= last.time + causes.CLOCK_SKEW


def _retold(status: DDPJobStatus, message: str, now: datetime) -> DDPJobStatus:
    """Return the status with the restart's message replaced in all conditions."""
    restarting = status.condition("Restarting")
    if restarting is None or restarting.status != "True":
        return status
    for condition in status.conditions:
        if condition.message == restarting.message:
            value = condition.status == "True"
            status = with_condition(status, condition.type, value, condition.reason, message, now)
    return status
