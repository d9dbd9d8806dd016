"""Pass on why ranks cannot meet, as the launcher of rank 0 sees it. Nothing depends on it."""

from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.api.values.text import clean
from ddp_operator.job.membership.launchers import LauncherStates
from ddp_operator.job.planning.model import Plan
from ddp_operator.ports import Event

WAITS_AT_LOCALHOST: Final = "WaitsAtLocalhost"
_LONGEST: Final = 200


def note(job: DDPJob, launchers: LauncherStates) -> Plan | None:
    """Decide to record the first remark of an attempt, with an Event."""
    text = clean(launchers.leader.remark, _LONGEST) if launchers.leader else ""
    if not text or job.status.bookkeeping.remarked == job.status.attempt:
        return None
    status = job.status.noting(remark=text, remarked=job.status.attempt)
    return Plan(status, decided=True, events=(Event(WAITS_AT_LOCALHOST, text, warning=True),))


def present(status: DDPJobStatus) -> str:
    """Return the remark on the present attempt; empty if there is none, or its ranks have met."""
    notes = status.bookkeeping
    return notes.remark if notes.remarked == status.attempt and status.progress is None else ""
