"""Accept the restarts in place that launchers led while no operator was running.

Each gets a record, a class and perhaps a charge, as if the operator had decided it. But failures
that the training has overcome do not end the job.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from ddp_protocol.message import moment
from ddp_protocol.world import LauncherStatus, PodFailure

from ddp_operator.api.code import is_other
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus, Failure
from ddp_operator.api.values.text import in_ranges
from ddp_operator.job.failure import budget, causes, records, restart_rules
from ddp_operator.job.membership.world import members, world_of
from ddp_operator.job.planning.decisions import regrouped
from ddp_operator.job.planning.group import local_checkpoints, remarks
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.observed import Observed, with_failure
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Event

LED: Final = "LedWithoutOperator"
_LARGEST: Final = 2**30
"""Larger generations are not believed: no launcher leads that often."""


def accept(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide to record what launchers say: where rank 0 saves, why ranks cannot meet, and how often
    they restarted.
    """
    return (
        local_checkpoints.note(job, pods.launchers)
        or remarks.note(job, pods.launchers)
        or _accept_restarts(job, pods, now)
    )


def _accept_restarts(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide that the group is in the generation that launchers led.

    If that group has other pods or other code than the one on record, all processes restart in a
    newer generation.
    """
    launchers, known = pods.launchers, world_of(job).generation
    said = launchers.leader
    led = said.generation if said is not None and said.led else 0
    newest = max(led, launchers.ahead)
    if newest > _LARGEST:
        return None
    if said is None or led <= known:
        leader = pods.current.get(0)
        if said is None and leader and leader.started and not leader.exit:
            return None  # its launcher may still answer
        differs = said is not None and led == known > 0 and _is_other(job, said)
        if not (differs or launchers.ahead >= known > 0):
            return None
        return _above(job, job.status, max(newest, known), now)
    status, failures = _accounted(job, pods, said, now)
    if said.members != in_ranges(members(job)) or _is_other(job, said):
        return _above(job, status, newest, now)
    charged = sum(failure.charged for failure in failures)
    message = (
        f"launchers restarted up to generation {led} while no operator was running: "
        f"{len(failures)} failures since generation {known}, {charged} of them charged"
    )
    changed_at = min(moment(said.led[-1].time), now)
    world = world_of(job).updated(generation=led, changed_at=changed_at)
    status = status.updated(world=world).noting(lost_members=0)
    return Plan(status, decided=True, events=(Event(LED, message, warning=bool(charged)),))


def _is_other(job: DDPJob, said: LauncherStatus) -> bool:
    """Return whether launchers led other pods than those on record, or the same with other code."""
    other_code = is_other(job.status.bookkeeping.code, said.code)
    return other_code or said.members not in ("", in_ranges(members(job)))


def _above(job: DDPJob, status: DDPJobStatus, known: int, now: datetime) -> Plan:
    """Decide to restart the group on record in a generation that no launcher has seen."""
    world = world_of(job).updated(generation=known + 1, changed_at=now)
    status = status.updated(world=world)
    message = (
        f"all processes restart in place: launchers led generation {known} with other pods or "
        "code while no operator was running"
    )
    return regrouped(status, LED, message, now)


def _accounted(
    job: DDPJob, pods: Observed, said: LauncherStatus, now: datetime
) -> tuple[DDPJobStatus, Sequence[Failure]]:
    """Return the status with the failures that launchers led restarts for, and those failures."""
    known, status = world_of(job).generation, job.status
    failures: list[Failure] = []
    for generation in sorted({one.generation for one in said.failures}):
        if not known <= generation < said.generation:
            continue
        told = [one for one in said.failures if one.generation == generation]
        failure = _first(job, pods, told, now)
        if status.saved_at is not None and status.saved_at < failure.time:
            status = budget.after_progress(status)
        charged = restart_rules.judge(job, failure).charged
        if charged is None:
            charged = budget.is_charged(job, status, failure.class_)
        failure = failure.updated(action="RestartInPlace", charged=charged)
        failures.append(failure)
        status = budget.count(records.remember(status, failure), failure)
    return status, failures


def _first(job: DDPJob, pods: Observed, told: Sequence[PodFailure], now: datetime) -> Failure:
    """Return the first failure of one generation."""
    by_name = {pod.key.name: pod for pod in (*pods.current.values(), *pods.old)}
    states: list[PodState] = [
        with_failure(by_name[one.pod], one) for one in told if one.pod in by_name
    ]
    if states:
        return records.of_pod(job, causes.primary(states), now)
    return Failure(
        time=moment(told[0].time),
        attempt=job.status.attempt,
        index=0,
        pod=told[0].pod,
        exit_code=told[0].exit_code,
        reason="Error",
        message=told[0].message,
        class_="Application",
    )
