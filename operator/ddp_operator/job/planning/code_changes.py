"""Restart a job's processes with other code, which a client has sent to the pods."""

from datetime import datetime
from typing import Final

from ddp_operator.api.code import PARTS_VOLUME, Code, takes_code
from ddp_operator.api.constants import ANNOTATION_CODE
from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership.world import next_generation
from ddp_operator.job.planning.decisions import (
    CODE_CHANGED,
    next_attempt,
    restarting,
    without_pause,
)
from ddp_operator.job.planning.group import local_checkpoints
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.status.progress import without_progress
from ddp_operator.ports import Event

REFUSED: Final = "CodeRefused"


def change(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide to use the code that the job's annotation names.

    The processes restart in their pods if launchers can replace the code there, otherwise in new
    pods. Nothing is charged, and failures of the code before no longer count: a person has changed
    it.
    """
    requested = job.code_requested
    if not requested or requested == job.status.bookkeeping.code_requested:
        return None
    status = job.status.noting(code_requested=requested)
    if why := _refusal(job):
        message = f"annotation {ANNOTATION_CODE} is ignored: {why}"
        return Plan(status, decided=True, events=(Event(REFUSED, message, warning=True),))
    status = without_progress(status.noting(code=requested))
    if status.start_time is None or status.is_true("Suspended"):
        return Plan(status, decided=True)  # the next pods have it
    status = without_pause(status).noting(
        restarts_without_progress=0, node_failures_without_progress=0
    )
    why_pods = _why_pods(job, pods)
    what = f"restarting all pods ({why_pods})" if why_pods else "all processes restart in place"
    status = next_attempt(job, status) if why_pods else next_generation(job, status, now)
    code = Code.parse(requested)
    message = f"{what} with code {code.id if code else requested}: a person changed it"
    return restarting(status, CODE_CHANGED, message, now, creates=bool(why_pods))


def _refusal(job: DDPJob) -> str:
    if Code.parse(job.code_requested) is None:
        return "it names no code; use kubectl ddp run --into"
    if not takes_code(job.spec):
        return (
            f"the template has no volume {PARTS_VOLUME}; create the job with "
            "kubectl ddp run --workdir"
        )
    return ""


def _why_pods(job: DDPJob, pods: Observed) -> str:
    """Return why only new pods can start together with the code; empty: the present ones can."""
    if pods.any_succeeded:
        return "a pod has completed"
    if job.spec.restart.scope not in ("Auto", "InPlace"):
        return f"spec.restart.scope is {job.spec.restart.scope}"
    if not job.status.bookkeeping.launcher or pods.launchers.silent_since is not None:
        return "no launcher answers"
    return "rank 0 saved in its pod" if local_checkpoints.forbid_in_place(job) else ""
