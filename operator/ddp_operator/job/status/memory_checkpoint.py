"""Snapshots in the memory of a job's pods, as its status shows them.

They are progress, as checkpoints are. The launchers alone decide what the ranks resume from.
"""

from typing import Final

from ddp_protocol.message import moment
from ddp_protocol.world import MemoryReport, RestoreDecision

from ddp_operator.api.job import DDPJob
from ddp_operator.api.local_paths import is_lost_with_pod
from ddp_operator.api.status import DDPJobStatus, MemoryCheckpointRecord
from ddp_operator.api.values.bounded import MAX_WORD
from ddp_operator.api.values.text import printable
from ddp_operator.job.membership.world import world_of
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.status.failure_domains import failure_domains
from ddp_operator.job.status.protection import UNKNOWN, levels_of, protection
from ddp_operator.ports import Event

_REASON: Final = 100
"""Characters of a launcher's reason in an Event."""


def with_report(
    job: DDPJob, status: DDPJobStatus, pods: Observed
) -> tuple[DDPJobStatus, tuple[Event, ...]]:
    """Return the status with the report of node rank 0's launcher, and the event of a new restore
    decision.

    A first start has nothing to restore, so its decision is left out.
    """
    leader = pods.launchers.leader
    said = leader.memory if leader else None
    known = status.memory_checkpoint or MemoryCheckpointRecord()
    if said is None:
        if known.protection and failure_domains(job, pods) is None:
            status = status.updated(memory_checkpoint=known.updated(protection=""))
        return status, ()
    record = _record(known, said, _news(job, said.restored))
    record = record.updated(protection=_protection(job, status, pods, record))
    if record == status.memory_checkpoint:
        return status, ()
    is_news = record.restored_at != known.restored_at
    # Before the first snapshot there was nothing to lose.
    is_news = is_news and (record.restored_step, known.step) != (None, None)
    return status.updated(memory_checkpoint=record), (_event(record),) if is_news else ()


def _news(job: DDPJob, decision: RestoreDecision | None) -> RestoreDecision | None:
    """Return the decision of the present generation, unless it is that of the first start."""
    if decision is None or decision.generation < world_of(job).generation:
        return None
    return decision if job.status.attempt or decision.generation else None


def _record(
    known: MemoryCheckpointRecord, said: MemoryReport, decision: RestoreDecision | None
) -> MemoryCheckpointRecord:
    record = known.updated(refusal=_shown(said.refusal))
    if said.step is not None:
        time = moment(said.time) if said.time else None
        record = record.updated(step=said.step, time=time, size_bytes=said.bytes)
    elif decision and decision.step != known.step:  # a new launcher knows what was restored first
        record = record.updated(step=decision.step, time=None, size_bytes=None)
    if decision is None:
        return record
    return record.updated(
        restored_step=decision.step,
        restored_at=moment(decision.time),
        restore_reason=_shown(decision.reason),
    )


def _protection(
    job: DDPJob, status: DDPJobStatus, pods: Observed, record: MemoryCheckpointRecord
) -> str:
    """Return what lost pods would cost now; empty if that cannot be known."""
    leader, domains = pods.launchers.leader, failure_domains(job, pods)
    said = leader.memory if leader else None
    if leader is None or said is None or domains is None or record.step is None:
        return ""
    is_restored = said.restored is not None and said.restored.step == record.step
    if said.copy_order is None and not is_restored:
        return ""  # a launcher of an earlier release
    is_whole = leader.generation == world_of(job).generation and _have_all_copied(pods, said)
    levels = None
    if said.copy_order is not None and is_whole:
        levels = levels_of(
            domains, copies=said.copies, order=said.copy_order, replicated=said.replicated
        )
    if levels is None:
        return UNKNOWN
    stored = status.checkpoint
    if stored is not None and is_lost_with_pod(job.spec, stored.path):
        stored = None
    return protection(
        levels, pods=len(domains), step=record.step, stored=stored.step if stored else None
    )


def _have_all_copied(pods: Observed, said: MemoryReport) -> bool:
    """Return whether no pod has been replaced since the step is complete."""
    complete = moment(said.time) if said.time else None
    return complete is not None and all(
        pod.started is None or pod.started <= complete for pod in pods.current.values()
    )


def _shown(text: str) -> str:
    return printable(text[:MAX_WORD])


def _event(record: MemoryCheckpointRecord) -> Event:
    if record.restored_step is not None:
        return Event(
            "RestoredFromMemory", f"the ranks resume at step {record.restored_step} from memory"
        )
    reason = record.restore_reason[:_REASON] or "no reason given"
    return Event(
        "NotRestoredFromMemory", f"no step can be restored from memory: {reason}", warning=True
    )
