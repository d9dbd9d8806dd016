"""The table of `kubectl ddp list`."""

from collections.abc import Sequence
from datetime import datetime

from ddp_operator.api.values.text import clean

from ddp_client.text import duration, number
from ddp_client.views.job import pace
from ddp_client.views.job.snapshot import JobSnapshot

Row = Sequence[str]
_HEADINGS = ("NAME", "PHASE", "READY", "RESTARTS", "STEP", "LEFT", "AGE")
_WIDE = ("LOSS", "TRAINING", "REASON", "ACCELERATOR", "PLACEMENT")
_CELL = 64


def heading(*, wide: bool, namespaces: bool) -> Row:
    """Return the column names."""
    return [*(("NAMESPACE",) if namespaces else ()), *_HEADINGS, *(_WIDE if wide else ())]


def row(job: JobSnapshot, now: datetime, *, wide: bool, namespaces: bool) -> Row:
    """Return one job's cells."""
    status = job.status
    left = pace.remaining_seconds(job, now)
    cells = [
        *((clean(job.key.namespace, 253),) if namespaces else ()),
        clean(job.name, 253),
        "Deleting" if job.deleting else status.phase,
        clean(status.ready, 16) or "-",
        str(status.restarts),
        _step(job),
        duration(left) if left is not None else "-",
        duration((now - job.created).total_seconds()),
    ]
    return [*cells, *_wide(job, now)] if wide else cells


def _step(job: JobSnapshot) -> str:
    progress = job.status.progress
    if progress is None:
        return "-"
    return f"{progress.step}/{progress.total_steps}" if progress.total_steps else str(progress.step)


def _wide(job: JobSnapshot, now: datetime) -> Sequence[str]:
    status = job.status
    loss = status.progress.loss if status.progress else None
    ratio = pace.training_ratio(job, now)
    accelerator = (job.manifest.get("spec") or {}).get("accelerator") or {}
    return [
        number(loss) if loss is not None else "-",
        f"{ratio:.0%}" if ratio is not None else "-",
        clean(status.reason, _CELL) or "-",
        clean(accelerator.get("type") or accelerator.get("computeClass") or "-", _CELL),
        clean(status.placement, _CELL) or "-",
    ]
