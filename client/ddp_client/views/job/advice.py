"""Advice for a person, chosen by the reasons that the operator, kubelet and scheduler report."""

from datetime import datetime
from typing import Final

from ddp_operator.api.constants import EXIT_CONFIGURATION
from ddp_operator.api.local_paths import local_paths, named_paths
from ddp_operator.api.reasons import REASONS
from ddp_operator.api.status import Failure
from ddp_operator.api.values.text import clean, duration
from ddp_operator.job.failure.records import NO_PROGRESS
from ddp_operator.job.pods.state import CRASH_LOOP, GATED, UNSTARTABLE_REASONS
from ddp_operator.job.status.conditions import NAME_TAKEN, PODS_FORBIDDEN, QUEUED

from ddp_client.views.job.snapshot import JobSnapshot

_PATIENCE_SECONDS: Final = 30.0
"""The longest time in which an operator that serves the namespace updates a new job's status."""

_WAITING: Final = (
    *UNSTARTABLE_REASONS,
    CRASH_LOOP,
    "Unschedulable",
    GATED,
    QUEUED,
    PODS_FORBIDDEN,
    NAME_TAKEN,
)
_FAILED: Final = (
    "OOMKilled",
    "NoProgress",
    "DeadlineExceeded",
    "InvalidSpec",
    "InvalidPodTemplate",
    "StorageLimitExceeded",
)
"""Reasons with advice of their own. For other reasons the failure's class or a log decides."""
_OUT_OF_GPU_MEMORY: Final = ("OutOfMemoryError", "CUDA out of memory")
"""In torch's error messages."""
_BY_CLASS: Final = {
    "Disruption": "nothing: the cluster took the pod away; this does not count towards maxRestarts",
    "Configuration": "correct the command, its arguments or the image; a restart does not help",
    "Infrastructure": "check the node; after spec.restart.nodeFailureLimit failures it is avoided",
}


def for_waiting(reason: str) -> str:
    """Return advice for pods, or a job, waiting for this reason; empty without any."""
    return REASONS[reason].remedy if reason in _WAITING else ""


def for_ended(reason: str) -> str:
    """Return advice for a job that failed for this reason; empty without any."""
    return REASONS[reason].remedy if reason in _FAILED else for_waiting(reason)


def for_failure(failure: Failure, *, has_log: bool) -> str:
    """Return advice for the failure that ended an attempt; `has_log`: its pod still exists."""
    known = for_ended(failure.reason)
    if failure.reason == NO_PROGRESS and failure.class_ == "Infrastructure" and failure.node:
        known = _BY_CLASS["Infrastructure"]  # the stacks would tell about the script
    if known:
        return known
    if failure.exit_code == EXIT_CONFIGURATION:
        return _BY_CLASS["Configuration"]
    if failure.class_ in _BY_CLASS:
        return _BY_CLASS[failure.class_]
    if any(words in failure.message for words in _OUT_OF_GPU_MEMORY):
        return "use smaller batches or gradient accumulation: the GPU ran out of memory"
    if has_log:
        return f"read the end of its log: kubectl logs {clean(failure.pod)}"
    return "its pod and log are gone: to keep the next log, run kubectl ddp logs -f"


def operator_missing(job: JobSnapshot, now: datetime) -> str:
    """Return a warning that no operator handles the job; empty without signs of that."""
    if not job.unobserved or (now - job.created).total_seconds() < _PATIENCE_SECONDS:
        return ""
    if not job.status.observed_generation:
        age = duration((now - job.created).total_seconds())
        said = f"no operator has handled this job in {age}"
    else:
        said = "no operator has handled the latest change of the spec yet"
    return f"{said}: check that one runs for this namespace (kubectl -n ddp-operator get pods)"


def local_checkpoints(job: JobSnapshot) -> list[str]:
    """Return advice for checkpoints on each pod's own disk; empty when there are none."""
    if job.parsed is None or job.replicas == 1:
        return []
    saved = job.status.bookkeeping.saved_in_pod is not None
    paths = named_paths(job.parsed.spec) or (local_paths(job.parsed.spec) if saved else ())
    if not paths:
        return []
    return [
        f"{clean(', '.join(paths), 200)} is on each pod's own disk, so a failure restarts all pods "
        f"without a checkpoint: {REASONS['CheckpointInPod'].remedy}"
    ]
