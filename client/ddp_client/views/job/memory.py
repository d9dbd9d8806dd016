"""Explain a job's checkpoints in the memory of its pods."""

from collections.abc import Iterator
from datetime import datetime

from ddp_operator.api.values.text import clean, counted

from ddp_client.text import duration, number
from ddp_client.views.job.pace import ago
from ddp_client.views.job.snapshot import JobSnapshot

MISSING = (
    "nothing reported yet; it needs the bundled launcher, and a script that calls "
    "ddp_trainer.memory.save"
)


def memory_checkpoint(job: JobSnapshot, now: datetime) -> Iterator[str]:
    """Yield what is stored in memory, why no more is, and what the latest restart has restored;
    nothing if the job has no memory checkpoints.
    """
    if job.parsed is None or job.parsed.spec.memory_checkpoint is None:
        return
    asked, checkpoint = job.parsed.spec.memory_checkpoint, job.status.memory_checkpoint
    if not (job.status.finished or job.suspend):  # their pods and memory are gone
        if checkpoint is not None and checkpoint.step is not None:
            size = f", {_size(checkpoint.size_bytes)} in a pod" if checkpoint.size_bytes else ""
            copies = counted(asked.copies, "copy", "copies")
            yield f"step {checkpoint.step}{ago(checkpoint.time, now)}{size}, {copies}"
            if checkpoint.protection:
                yield clean(checkpoint.protection)
        elif job.status.phase == "Running" and not (checkpoint and checkpoint.refusal):
            yield MISSING
        if checkpoint and checkpoint.refusal:
            yield f"not saved: {clean(checkpoint.refusal)}"
    if checkpoint and checkpoint.restored_at:
        age = duration((now - checkpoint.restored_at).total_seconds())
        what = f"resumed at step {checkpoint.restored_step}"
        if checkpoint.restored_step is None:
            what = f"restored nothing: {clean(checkpoint.restore_reason) or 'no reason given'}"
        yield f"the latest restart, {age} ago, {what}"


def _size(count: int) -> str:
    """Return a number of bytes with a unit."""
    amount, units = float(count), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while amount >= 1024 and unit != "TiB":
        amount, unit = amount / 1024, next(units)
    return f"{number(amount)} {unit}"
