"""Explain a job's checkpoints in the memory of its pods."""

from collections.abc import Iterator
from datetime import datetime

from ddp_operator.api.values.text import clean, counted, duration, number

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
    said = job.status.memory_checkpoint
    if not (job.status.finished or job.suspend):  # their pods and memory are gone
        if said is not None and said.step is not None:
            age = f", {duration((now - said.time).total_seconds())} ago" if said.time else ""
            size = f", {_size(said.size_bytes)} in a pod" if said.size_bytes else ""
            yield f"step {said.step}{age}{size}, {counted(said.copies, 'copy', 'copies')}"
        elif job.status.phase == "Running" and not (said and said.refusal):
            yield MISSING
        if said and said.refusal:
            yield f"not saved: {clean(said.refusal)}"
    if said and said.restored_at:
        age = duration((now - said.restored_at).total_seconds())
        what = f"resumed at step {said.restored_step}"
        if said.restored_step is None:
            what = f"restored nothing: {clean(said.restore_reason) or 'no reason given'}"
        yield f"the latest restart, {age} ago, {what}"


def _size(count: int) -> str:
    """Return a number of bytes with a unit."""
    amount, units = float(count), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while amount >= 1024 and unit != "TiB":
        amount, unit = amount / 1024, next(units)
    return f"{number(amount)} {unit}"
