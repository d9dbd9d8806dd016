"""Keep pods with a checkpoint on their own disk apart from pods without one.

The launcher of rank 0 reports such a checkpoint. From then on the job restarts all pods instead of
restarting in place, and adds no new pod to its group: the others cannot read that checkpoint, and a
script that loads what it finds would start at different steps.
"""

from collections.abc import Sequence
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.local_paths import lost_paths, named_paths
from ddp_operator.job.membership.launchers import LauncherStates
from ddp_operator.job.membership.world import members, scope_of
from ddp_operator.job.planning.model import Plan
from ddp_operator.ports import Event

CHECKPOINT_IN_POD: Final = "CheckpointInPod"
_THEN: Final = (
    "which other pods cannot read: a failure restarts all pods without it; set "
    "persistentVolumeClaim or gcsBucket in spec.checkpoint"
)


def warnings(job: DDPJob) -> Sequence[Event]:
    """Return the warning, at the first attempt, that the template saves to a pod's own disk."""
    paths = lost_paths(job.spec) if _is_group(job) else ()
    if not paths or job.status.attempt:
        return ()
    message = f"{', '.join(paths)} is on each pod's own disk, {_THEN}"
    return (Event(CHECKPOINT_IN_POD, message, warning=True),)


def note(job: DDPJob, launchers: LauncherStates) -> Plan | None:
    """Decide to record that rank 0 of this attempt saved to its pod's own disk."""
    said = launchers.leader
    # With scope Pod, processes get the state from each other.
    if said is None or not said.saved_in_pod or said.scope != "InPlace":
        return None
    if job.status.bookkeeping.saved_in_pod == job.status.attempt or not _is_group(job):
        return None
    known = job.status.bookkeeping.saved_in_pod is not None or named_paths(job.spec)
    message = f"rank 0 saved a checkpoint to its pod's own disk, {_THEN}"
    events = () if known else (Event(CHECKPOINT_IN_POD, message, warning=True),)
    status = job.status.noting(saved_in_pod=job.status.attempt)
    return Plan(status, decided=True, events=events)


def saved_in_pod(job: DDPJob) -> bool:
    """Return whether rank 0 of this attempt saved to its pod's own disk."""
    noted = job.status.bookkeeping.saved_in_pod == job.status.attempt
    return noted and scope_of(job) == "InPlace"


def forbid_in_place(job: DDPJob) -> bool:
    """Return whether a restart in place would mix pods with and without a checkpoint."""
    return saved_in_pod(job) and len(members(job)) > 1


def _is_group(job: DDPJob) -> bool:
    return max(len(members(job)), job.spec.max_size) > 1
