"""Advice for a person, chosen by the reasons that the operator, kubelet and scheduler report."""

import re
from datetime import datetime
from pathlib import PurePosixPath
from typing import Final

from ddp_operator.api.constants import EXIT_CONFIGURATION
from ddp_operator.api.local_paths import local_paths, named_paths
from ddp_operator.api.status import DDPJobStatus, Failure
from ddp_operator.api.values.text import clean
from ddp_operator.job.failure.records import NO_PROGRESS
from ddp_operator.job.planning import gap_records
from ddp_operator.job.planning.gaps import UNSTARTABLE_SECONDS
from ddp_operator.job.pods.state import CRASH_LOOP, GATED, UNSTARTABLE_REASONS
from ddp_operator.job.status.conditions import NAME_TAKEN, PODS_FORBIDDEN, QUEUED
from ddp_protocol.error_texts import AT_LOCALHOST, PULLS

from ddp_client.text import duration
from ddp_client.views.job.known_errors import known_error
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_client.views.reasons import REASONS

_AT_LOCALHOST: Final = re.compile(AT_LOCALHOST)
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
_BY_CLASS: Final = {
    "Disruption": "nothing: the cluster took the pod away; this does not count towards maxRestarts",
    "Configuration": "correct the command, its arguments or the image; a restart does not help",
    "Infrastructure": "check the node; after spec.restart.nodeFailureLimit failures it is avoided",
}


def for_waiting(reason: str, message: str = "") -> str:
    """Return advice for pods, or a job, waiting for this reason; empty without any."""
    if known := known_error(message, reason):
        return known.remedy
    return REASONS[reason].remedy if reason in _WAITING else ""


def meaning(message: str, reason: str) -> list[str]:
    """Return what a message says, if it is a known error."""
    known = known_error(message, reason)
    return [f"a known error: {known.meaning}"] if known else []


def for_ended(reason: str, message: str = "") -> str:
    """Return advice for a job, or a pod, that failed for this reason; empty without any."""
    return REASONS[reason].remedy if reason in _FAILED else for_waiting(reason, message)


def for_failure(failure: Failure, *, has_log: bool, local: bool = False) -> str:
    """Return advice for the failure that ended an attempt.

    `has_log`: its pod still exists. `local`: it is a process of this machine.
    """
    if failure.reason == NO_PROGRESS and failure.class_ == "Infrastructure" and failure.node:
        return _BY_CLASS["Infrastructure"]  # the stacks would tell about the script
    is_wrong = failure.exit_code == EXIT_CONFIGURATION or failure.class_ == "Configuration"
    known = _lacking(failure.message, local=local) if is_wrong else ""
    known = known or for_ended(failure.reason, failure.message)
    class_ = "Configuration" if is_wrong else failure.class_
    if known or class_ in _BY_CLASS:
        return known or _BY_CLASS[class_]
    if has_log:
        return f"read the end of its log: kubectl logs {clean(failure.pod)}"
    return "its pod and log are gone: to keep the next log, run kubectl ddp logs -f"


def for_end(status: DDPJobStatus, *, local: bool = False) -> str:
    """Return advice for a job that has failed; empty for others."""
    if status.phase != "Failed":
        return ""
    cause = latest_cause(status)
    of_failure = for_failure(cause, has_log=True, local=local) if cause else ""
    return for_ended(status.reason) or of_failure


def latest_cause(status: DDPJobStatus) -> Failure | None:
    """Return the newest failure that the operator did not ignore."""
    causes = (each for each in reversed(status.failures) if each.action != "Ignore")
    return next(causes, None)


def _lacking(message: str, *, local: bool) -> str:
    """Return advice for a command whose file or module is not there; empty for other errors."""
    _, mark, rest = message.rpartition(": can't open file '")
    if mark:
        name = PurePosixPath(clean(rest.partition("'")[0], 120)).name
        where = "from the present folder" if local else "in the image"
        return f"send the file with --script {name}, or give its path {where}"
    _, mark, rest = message.rpartition("No module named ")
    if mark:
        module = clean(rest.splitlines()[0].strip("'\" "), 80)
        where = "for the Python that runs the job" if local else "in the image"
        return f"install {module} {where}; your own modules need --script, too"
    return ""


def for_pull(job: JobSnapshot, now: datetime) -> str:
    """Return advice, and what comes next, while a job's image cannot be pulled; else empty."""
    if job.status.reason not in PULLS:
        return ""
    waits = (gap.since for gap in gap_records.stored(job.status) if gap.reason == "CannotStart")
    left = UNSTARTABLE_SECONDS - (now - min(waits, default=now)).total_seconds()
    return (
        f"{REASONS[job.status.reason].remedy}. In {duration(max(left, 0))} the pod is given up; "
        "if a second node cannot find the image either, the job fails"
    )


def own_localhost(failure: Failure, pods: Pods) -> str:
    """Return advice for a rank that waited for rank 0 in its own pod; empty if none did."""
    ended = {pod.key.name: pod.exit.message for pod in pods.current.values() if pod.exit}
    for pod, message in {**ended, failure.pod or "": failure.message}.items():
        if len(pods.states) > 1 and (address := _AT_LOCALHOST.search(message)):
            return (
                f"pod {clean(pod, 253)} waited for rank 0 at {address[1]}, which is that pod "
                "itself: remove the line of the script that sets MASTER_ADDR"
            )
    return ""


def operator_missing(job: JobSnapshot, now: datetime) -> str:
    """Return a warning that no operator handles the job; empty without signs of that."""
    if not job.unobserved or (now - job.created).total_seconds() < _PATIENCE_SECONDS:
        return ""
    if not job.status.observed_generation:
        age = duration((now - job.created).total_seconds())
        problem = f"no operator has handled this job in {age}"
    else:
        problem = "no operator has handled the latest change of the spec yet"
    return f"{problem}: check that one runs for this namespace (kubectl -n ddp-operator get pods)"


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
