"""Changes that commands make to a job: their effect in words, and the patch."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ddp_operator.api.code import Code, takes_code
from ddp_operator.api.constants import ANNOTATION_CODE, ANNOTATION_RESTART_REQUESTED
from ddp_operator.api.job import DDPJob
from ddp_operator.api.local_paths import dies_with_pods
from ddp_operator.api.rules import trainer_container
from ddp_operator.api.values.text import clean, counted
from ddp_operator.job.planning.group.local_checkpoints import forbid_in_place

from ddp_client.submit.code import CodeFolder, requirement_in
from ddp_client.views.job.pace import ago
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_client.views.refused import RefusedError


@dataclass(frozen=True)
class Change:
    """A merge patch of a job, and its effect."""

    done: str
    """One word for the result, such as `stopped`."""
    says: list[str]
    patch: Mapping[str, Any]


def stop(job: JobSnapshot, now: datetime) -> Change:
    """Delete all pods and keep the job."""
    _refuse_ended(job)
    if job.suspend:
        raise RefusedError(f"{clean(job.name)} is already stopped (spec.suspend is true)")
    says = [
        f"stops {clean(job.name)}: deletes {_pods(job)} after their time to save a checkpoint",
        _checkpoints(job, now, kept="its checkpoints stay"),
        f"to continue: kubectl ddp resume {clean(job.name)}",
    ]
    return Change("stopped", says, {"spec": {"suspend": True}})


def resume(job: JobSnapshot, now: datetime) -> Change:
    """Create the pods of a stopped job."""
    _refuse_ended(job)
    if not job.suspend:
        raise RefusedError(f"{clean(job.name)} is not stopped (spec.suspend is false)")
    says = [f"resumes {clean(job.name)}: creates {_pods(job)}", _continues(job, now)]
    return Change("resumed", says, {"spec": {"suspend": False}})


def restart(job: JobSnapshot, now: datetime) -> Change:
    """Restart all pods."""
    _refuse_ended(job)
    name = clean(job.name)
    if job.suspend:
        raise RefusedError(
            f"{name} is stopped and has no pods: start it with kubectl ddp resume {name}"
        )
    if job.status.start_time is None:
        raise RefusedError(f"{name} has not started yet: there is nothing to restart")
    says = [
        f"restarts {name}: deletes {_pods(job)} after their time to save a checkpoint, and starts "
        f"attempt {job.status.attempt + 1}; this does not count towards maxRestarts",
        _continues(job, now),
    ]
    annotation = {ANNOTATION_RESTART_REQUESTED: now.isoformat(timespec="milliseconds")}
    return Change("restarting", says, {"metadata": {"annotations": annotation}})


def new_code(job: JobSnapshot, folder: CodeFolder) -> Change:
    """Replace the code of a running job, in its pods."""
    _refuse_ended(job)
    name = clean(job.name)
    if job.suspend:
        raise RefusedError(
            f"{name} is stopped and has no pods: run kubectl ddp resume {name} first"
        )
    if job.parsed is None:
        raise RefusedError(f"this release cannot read the spec of {name}: {job.problem}")
    if job.parsed.spec.managed_elsewhere:
        raise RefusedError(
            f"MultiKueue runs the pods of {name} in another cluster: use that cluster's context"
        )
    if why := _why_new_pods(job.parsed) or _why_other_packages(job.parsed, folder):
        raise RefusedError(f"{name}: {why}, or use --replace instead of --into")
    before = Code.parse(job.status.bookkeeping.code)
    if before and before.id.partition("-")[0] == folder.code.id.partition("-")[0]:
        raise RefusedError(
            f"{name} already has this code ({before.id}): use kubectl ddp restart {name} to run it "
            "again"
        )
    says = [
        f"replaces the code of {name}, {before.id if before else 'unknown'}, by {folder.code.id}: "
        f"processes restart in {_pods(job)}, which stay; no restart is charged",
    ]
    annotation = {ANNOTATION_CODE: str(folder.code)}
    return Change("restarting", says, {"metadata": {"annotations": annotation}})


def _why_new_pods(job: DDPJob) -> str:
    """Return why the job's pods cannot take other code, and the remedy; empty: they can."""
    scope = job.spec.restart.scope
    if not takes_code(job.spec):
        return "it has no code to replace: create it with --workdir"
    if scope not in ("Auto", "InPlace"):
        return f"spec.restart.scope is {scope}, which replaces pods: set it to Auto"
    if not job.status.bookkeeping.launcher:
        return (
            "no launcher has answered the operator: try again in some seconds, create the job with "
            "--launcher inject"
        )
    if forbid_in_place(job):
        return (
            "rank 0 saved to its pod's own disk, so only new pods start alike: create the job with "
            "--checkpoint"
        )
    return ""


def _why_other_packages(job: DDPJob, folder: CodeFolder) -> str:
    """Return why the packages of the pods are not those of the folder; empty: they are."""
    installed = requirement_in(trainer_container(job.spec.template))
    name = folder.requirements or installed.rpartition("@")[0]
    if installed == (folder.requirement_of(name) if name in folder.files else ""):
        return ""
    return (
        f"{clean(name, 60)} has changed or is not sent, and packages are installed only when pods "
        "start: send it as before"
    )


def scale(job: JobSnapshot, replicas: int) -> Change:
    """Change the number of pods of a job that is elastic, is stopped or has never run."""
    _refuse_ended(job)
    name = clean(job.name)
    if replicas == job.replicas:
        raise RefusedError(f"{name} already has {counted(replicas, 'replica')}")
    says = [f"scales {name} from {job.replicas} to {counted(replicas, 'pod')}"]
    if job.elastic and not job.suspend:
        says[0] += " while it runs: surplus pods leave, new pods join when they are ready"
    elif job.suspend:
        says[0] += (
            "; check the learning rate and batch size of your script: they may depend on the "
            "number of pods"
        )
        says.append(f"to create the pods: kubectl ddp resume {name}")
    elif not job.status.fixes_pods:
        says[0] += "; no pod has run yet, so existing pods are replaced"
    else:
        raise RefusedError(
            f"spec.replicas of {name} can change only while the job is stopped: run kubectl ddp "
            f"stop {name}, then scale, then kubectl ddp resume {name}"
        )
    return Change("scaled", says, {"spec": {"replicas": replicas}})


def delete(job: JobSnapshot, now: datetime) -> Change:
    """Delete a job and everything it owns."""
    says = [f"deletes {clean(job.name)} and its status, and {_pods(job)} and their logs"]
    if not job.status.finished:
        says.append("the job has not ended: its training stops")
    says.append(_checkpoints(job, now, kept="its checkpoints stay"))
    return Change("deleted", says, {})


def _refuse_ended(job: JobSnapshot) -> None:
    name = clean(job.name)
    if job.deleting:
        raise RefusedError(f"{name} is being deleted")
    if job.status.finished:
        raise RefusedError(
            f"{name} has ended ({job.status.phase}), and cannot change any more: delete it and "
            "apply it again"
        )


def _pods(job: JobSnapshot) -> str:
    return "its pod" if job.replicas == 1 else f"its {job.replicas} pods"


def _checkpoints(job: JobSnapshot, now: datetime, *, kept: str, lost: str = "") -> str:
    """Return that a job's checkpoints are `kept`, or that they are lost, followed by `lost`."""
    if job.parsed is not None and dies_with_pods(job.parsed.spec):
        path = clean(job.parsed.spec.checkpoint.path, 80)
        return (
            f"checkpoints in {path} are lost{lost}: neither spec.checkpoint nor the template has a "
            "volume there that outlives the pods"
        )
    saved = job.status.checkpoint
    of = f", of step {saved.step}{ago(saved.time, now)}" if saved else "; none was reported"
    return f"{kept}{of}"


def _continues(job: JobSnapshot, now: datetime) -> str:
    kept = "training resumes from its latest checkpoint"
    return _checkpoints(job, now, kept=kept, lost=" and training begins at step 0")
