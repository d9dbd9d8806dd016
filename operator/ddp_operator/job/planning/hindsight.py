"""Puts right what was said of a failure before its cause was seen.

A node that is lost is noticed last: its peers fail within moments, while the cluster takes a minute
to miss it. The gang has started again by then, at the job's expense; but pods of the attempt before
are still there, and tell.
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
    """Decide that the last failure on record, which can only be a consequence, had a cause that is
    seen now; None when there is nothing to put right.

    The restart stays what it was. If the cause is not the training's fault, its charge is taken
    back.
    """
    last = job.status.failures[-1] if job.status.failures else None
    if last is None or last.action != "RestartGang" or not classes.is_consequence(last):
        return None
    told = {failure.pod for failure in job.status.failures[:-1]}
    telling = [pod for pod in _of_attempt(pods, last.attempt) if _tells(pod, last)]
    telling = [pod for pod in telling if pod.key.name not in told]
    if not telling or (cause := causes.primary(telling)).key.name == last.pod:
        return None
    failure = records.of_pod(job, cause, now)
    ruled = restart_rules.judge(job, failure).charged
    charged = last.charged and (failure.class_ == "Application" if ruled is None else ruled)
    failure = failure.model_copy(update={"action": last.action, "charged": charged})
    status = job.status.model_copy(update={"failures": (*job.status.failures[:-1], failure)})
    if last.charged and not charged:
        status = budget.refund(status, failure)
    words = records.in_words(failure)
    message = f"what began attempt {last.attempt + 1} is known now: {words}"
    return decided(_retold(status, message, now), Event("CauseFound", message))


def _of_attempt(pods: Observed, attempt: int) -> list[PodState]:
    """The attempt's last pod of each slot: earlier ones had been replaced."""
    newest: dict[int, PodState] = {}
    for pod in pods.old:
        known = newest.get(pod.identity.slot)
        newer = known is None or known.identity.replacement < pod.identity.replacement
        if pod.identity.attempt == attempt and newer:
            newest[pod.identity.slot] = pod
    return list(newest.values())


def _tells(pod: PodState, last: Failure) -> bool:
    """Whether a pod, which has been told to go since, failed by itself before, or was lost."""
    if pod.lost_to_cluster:
        return True
    ended = pod.exit.finished if pod.exit else None
    if not pod.failed or pod.disrupted or classes.is_hopeless(pod) or classes.is_secondary(pod):
        return False
    return ended is not None and ended <= last.time + causes.CLOCK_SKEW


def _retold(status: DDPJobStatus, message: str, now: datetime) -> DDPJobStatus:
    """Replace the words of the restart wherever they still stand."""
    restarting = status.condition("Restarting")
    if restarting is None or restarting.status != "True":
        return status
    for condition in status.conditions:
        if condition.message == restarting.message:
            value = condition.status == "True"
            status = with_condition(status, condition.type, value, condition.reason, message, now)
    return status
