"""Snapshots in the memory of a job's pods, as its status shows them.

They are progress, as checkpoints are. The launchers alone decide what the ranks resume from.
"""

from typing import Final

from ddp_protocol.message import moment
from ddp_protocol.world import LauncherStatus, MemoryReport, RestoreDecision

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus, MemoryCheckpointRecord
from ddp_operator.api.values.bounded import MAX_WORD
from ddp_operator.api.values.text import printable
from ddp_operator.job.membership.world import world_of
from ddp_operator.ports import Event

_REASON: Final = 100
"""Characters of a launcher's reason in an Event."""


def with_report(
    job: DDPJob, status: DDPJobStatus, leader: LauncherStatus | None
) -> tuple[DDPJobStatus, tuple[Event, ...]]:
    """Return the status with the report of node rank 0's launcher, and the event of a new restore
    decision.

    A first start has nothing to restore, so its decision is left out.
    """
    said = leader.memory if leader else None
    if said is None:
        return status, ()
    known = status.memory_checkpoint or MemoryCheckpointRecord()
    record = _record(known, said, _news(job, said.restored))
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
    record = known.updated(copies=said.copies, refusal=_shown(said.refusal))
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
