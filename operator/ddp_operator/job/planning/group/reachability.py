"""Warn that the operator reaches none of a job's launchers. Nothing is restarted for that."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.values.bounded import format_time
from ddp_operator.job.failure.records import PODS_UNREACHABLE
from ddp_operator.job.planning.gaps import UNREACHABLE_SECONDS, unreached_since
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.status.conditions import PODS_STARTING, with_condition, with_phase
from ddp_operator.ports import Event

_PATIENCE: Final = timedelta(seconds=UNREACHABLE_SECONDS)


def with_warning(job: DDPJob, pods: Observed, planned: Plan, now: datetime) -> Plan:
    """Say in the plan of an active job, and in one Event, that no launcher answers."""
    known, running = job.status.condition("Running"), planned.status.condition("Running")
    if running is None or (running.status == "False" and running.reason != PODS_STARTING):
        return planned  # something else keeps the pods from running
    since = unreached_since(job, pods)
    warned = known is not None and known.reason == PODS_UNREACHABLE
    trains = running.status == "True"
    if since is not None and now < since + _PATIENCE:
        return planned.requeued_at(since + _PATIENCE)
    if since is not None:
        message = _message(job, since, trains=trains)
    elif known and warned and trains and known.status == "True" and not _any_answers(pods):
        message = known.message  # the operator has restarted, and has heard of nobody yet
    else:
        return planned
    status = with_condition(planned.status, "Running", trains, PODS_UNREACHABLE, message, now)
    status = with_phase(status, pods_scheduled=pods.all_scheduled)
    news = () if warned else (Event(PODS_UNREACHABLE, message, warning=True),)
    return replace(planned, status=status, events=(*planned.events, *news))


def _any_answers(pods: Observed) -> bool:
    return pods.launchers.leader is not None or bool(pods.launchers.told)


def _message(job: DDPJob, since: datetime, *, trains: bool) -> str:
    effect = "training continues, but failures restart all pods" if trains else "the group waits"
    return (
        f"no launcher has answered since {format_time(since)}; {effect}: let the operator reach "
        f"port {job.spec.status_port} of the job's pods (NetworkPolicy, firewall)"
    )
