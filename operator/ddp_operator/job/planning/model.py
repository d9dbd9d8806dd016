"""The plan: what to do, and what to say."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.job.membership.launcher_protocol import Assignment
from ddp_operator.job.pods.state import Identity
from ddp_operator.job.status import goodput
from ddp_operator.ports import Event, Key


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, and when to look again.

    A plan that `decided` has only a status to store; then a new plan is made. Otherwise `status`
    holds once the writes have succeeded, and `seen` is stored if they are refused.
    """

    status: DDPJobStatus
    seen: DDPJobStatus | None = None
    decided: bool = False
    create: tuple[Identity, ...] = ()
    create_spares: tuple[Identity, ...] = ()
    """Pods without a place, of which the job is not to suffer if they are refused."""
    create_service: bool = False
    """Whether the Service may be missing: it is not watched, so it is created again with an
    attempt.
    """
    isolate: bool | None = None
    """Whether the job's NetworkPolicy is made or removed; None: neither."""
    delete: tuple[Key, ...] = ()
    grace_seconds: Mapping[Key, int] = field(default_factory=dict)
    """What pods to delete get to end, where that is less than their own grace period."""
    fence: tuple[Key, ...] = ()
    """Pods to take out of DNS, since a replacement bears their host name."""
    dump_stacks: tuple[str, ...] = ()
    """Addresses of trainers to ask for their stacks before any pod is deleted."""
    ask_checkpoint: str = ""
    """Address of the trainer to ask for a checkpoint, since a node will be gone soon."""
    assignments: tuple[Assignment, ...] = ()
    """What launchers are to be told of the group."""
    delete_job: bool = False
    events: tuple[Event, ...] = ()
    requeue_at: datetime | None = None

    def requeued_at(self, *moments: datetime | None, after: datetime | None = None) -> "Plan":
        """The same, looked at again by the first of these moments, those `after` one if that is
        given, or as soon as before.
        """
        new = (moment for moment in moments if moment and (after is None or after < moment))
        known = [*new, *([self.requeue_at] if self.requeue_at else ())]
        first = min(known, default=None)
        return self if first == self.requeue_at else replace(self, requeue_at=first)


def with_goodput(
    job: DDPJob, planned: Plan, now: datetime, *, started: datetime | None = None
) -> Plan:
    """Return the plan with what the job's time went into, up to now; `started`: when the last of
    the trainers was that run.
    """
    status = goodput.account(
        planned.status, before=job.status, created=job.created, now=now, started=started
    )
    return replace(planned, status=status)
