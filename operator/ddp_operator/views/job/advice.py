"""What a person can do about it, by the words in which operator, kubelet and scheduler say it."""

from datetime import datetime
from typing import Final

from ddp_operator.api.constants import EXIT_CONFIGURATION
from ddp_operator.api.reasons import REASONS
from ddp_operator.api.status import Failure
from ddp_operator.job.pods.local_checkpoints import local_paths, named_paths
from ddp_operator.job.pods.state import CRASH_LOOP, GATED, UNSTARTABLE_REASONS
from ddp_operator.job.status.conditions import NAME_TAKEN, PODS_FORBIDDEN, QUEUED
from ddp_operator.views.job.snapshot import JobSnapshot
from ddp_operator.views.text import clean, duration

_PATIENCE_SECONDS: Final = 30.0
"""What an operator takes at most, when one serves the namespace, to say something of a new job."""

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
"""Reasons that say by themselves what to do; of others the class of the failure, or a log, does."""
_OUT_OF_GPU_MEMORY: Final = ("OutOfMemoryError", "CUDA out of memory")
"""As torch says it."""
_BY_CLASS: Final = {
    "Disruption": "nothing: the cluster took the pod away, which is not charged",
    "Configuration": "correct the command, its arguments or the image; starting anew cannot help",
    "Infrastructure": "have the node looked at; after spec.restart.nodeFailureLimit it is avoided",
}


def for_waiting(reason: str) -> str:
    """What to do about pods, or a job, that wait for this reason; empty where nothing is known."""
    return REASONS[reason].remedy if reason in _WAITING else ""


def for_ended(reason: str) -> str:
    """What to do about a job that failed for this reason; empty where nothing is known."""
    return REASONS[reason].remedy if reason in _FAILED else for_waiting(reason)


def for_failure(failure: Failure, *, has_log: bool) -> str:
    """What to do about what ended an attempt; `has_log`: its pod is still there."""
    if known := for_ended(failure.reason):
        return known
    if failure.exit_code == EXIT_CONFIGURATION:
        return _BY_CLASS["Configuration"]
    if failure.class_ in _BY_CLASS:
        return _BY_CLASS[failure.class_]
    if any(words in failure.message for words in _OUT_OF_GPU_MEMORY):
        return "train on smaller batches, or accumulate gradients: the GPU's memory was full"
    if has_log:
        return f"read the end of its log: kubectl logs {clean(failure.pod)}"
    return "its pod is gone, and its log with it: keep the next one's by kubectl ddp logs -f"


def operator_missing(job: JobSnapshot, now: datetime) -> str:
    """That no operator seems to look at the job; empty while there is no sign of that."""
    if not job.unobserved or (now - job.created).total_seconds() < _PATIENCE_SECONDS:
        return ""
    if not job.status.observed_generation:
        age = duration((now - job.created).total_seconds())
        said = f"none has looked at this job in {age}"
    else:
        said = "none has looked at the latest change of the spec yet"
    return f"{said}: see whether one runs for this namespace (kubectl -n ddp-operator get pods)"


def local_checkpoints(job: JobSnapshot) -> list[str]:
    """Return what to do about checkpoints that are each pod's own; nothing where none are."""
    if job.parsed is None or job.replicas == 1:
        return []
    saved = job.status.bookkeeping.saved_in_pod is not None
    paths = named_paths(job.parsed.spec) or (local_paths(job.parsed.spec) if saved else ())
    if not paths:
        return []
    return [
        f"each pod has a {clean(', '.join(paths), 200)} of its own, so that a failure restarts all "
        f"pods without a checkpoint: {REASONS['CheckpointInPod'].remedy}"
    ]
