"""The plan: API writes, the status to store, and events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from ddp_protocol.progress import Resumption

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.job.membership.launchers import Assignment
from ddp_operator.job.pods.state import Identity
from ddp_operator.job.status import goodput
from ddp_operator.ports import Event, Key


@dataclass(frozen=True, slots=True)
class Plan:
    """The next actions, and when to plan again.

    A `decided` plan only stores its status; then a new plan is made. For others, `status` holds
    once the writes succeed, and `seen` is stored if they fail.
    """

    status: DDPJobStatus
    seen: DDPJobStatus | None = None
    decided: bool = False
    create: tuple[Identity, ...] = ()
    create_spares: tuple[Identity, ...] = ()
    """Pods outside the group. They are created last, and the job continues if that fails."""
    create_service: bool = False
    """True if the Service may be missing. It is not watched, so each attempt creates it again."""
    isolate: bool | None = None
    """Create (True) or remove (False) the job's NetworkPolicy; None: neither."""
    delete: tuple[Key, ...] = ()
    grace_seconds: Mapping[Key, int] = field(default_factory=dict)
    """Grace period of pods to delete, where it is shorter than their own."""
    fence: tuple[Key, ...] = ()
    """Pods to take out of DNS, because a replacement has their host name."""
    dump_stacks: tuple[str, ...] = ()
    """Addresses of trainers to ask for their stacks before any pod is deleted."""
    ask_traces: tuple[tuple[int, str], ...] = ()
    """Node rank and address of launchers to ask where the ranks are, since the training hangs."""
    ask_checkpoint: str = ""
    """Address of the trainer to ask for a checkpoint, because a node ends soon."""
    assignments: tuple[Assignment, ...] = ()
    """Updates of the group to send to launchers."""
    delete_job: bool = False
    events: tuple[Event, ...] = ()
    requeue_at: datetime | None = None

    def requeued_at(self, *moments: datetime | None, after: datetime | None = None) -> "Plan":
        """Return the plan with an earlier `requeue_at`: the first of these after `after`."""
        new = (moment for moment in moments if moment and (after is None or after < moment))
        known = [*new, *([self.requeue_at] if self.requeue_at else ())]
        first = min(known, default=None)
        return self if first == self.requeue_at else replace(self, requeue_at=first)

    def expiring(self, expires: datetime | None, now: datetime) -> "Plan":
        """Return the plan of a finished job, which is deleted when it expires; None: never."""
        expired = expires is not None and expires <= now
        return replace(self, delete_job=expired).requeued_at(expires, after=now)


def with_goodput(
    job: DDPJob,
    planned: Plan,
    now: datetime,
    *,
    first_steps: Sequence[Resumption] | None = None,
) -> Plan:
    """Return the plan with the job's time accounted; `first_steps`: see `goodput.account`."""
    status = goodput.account(
        planned.status,
        before=job.status,
        created=job.created,
        now=now,
        first_steps=first_steps,
    )
    return replace(planned, status=status)
