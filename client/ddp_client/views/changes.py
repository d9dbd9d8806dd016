"""Changes that commands make to a job: their effect in words, and the patch."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ddp_operator.api.constants import ANNOTATION_RESTART_REQUESTED
from ddp_operator.api.local_paths import dies_with_pods
from ddp_operator.api.values.text import clean, counted, duration

from ddp_client.views.job.snapshot import JobSnapshot


class RefusedError(Exception):
    """The change would have no effect, or the API server would reject it; says what to do."""


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
        _kept(job, now),
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


def scale(job: JobSnapshot, replicas: int) -> Change:
    """Change the number of pods of a job that is elastic, is stopped or has never run."""
    _refuse_ended(job)
    name = clean(job.name)
    if replicas == job.replicas:
        raise RefusedError(f"{name} already has {counted(replicas, 'replica')}")
    if job.elastic and not job.suspend:
        says = [
            f"scales {name} from {job.replicas} to {counted(replicas, 'pod')} while it runs: "
            "surplus pods leave, new pods join when they are ready"
        ]
    elif job.suspend:
        says = [
            f"scales {name} from {job.replicas} to {counted(replicas, 'pod')}; check the learning "
            "rate and batch size of your script: they may depend on the number of pods",
            f"to create the pods: kubectl ddp resume {name}",
        ]
    elif not job.status.fixes_pods:
        says = [
            f"scales {name} from {job.replicas} to {counted(replicas, 'pod')}; no pod has run "
            "yet, so existing pods are replaced"
        ]
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
    says.append(_kept(job, now))
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


def _kept(job: JobSnapshot, now: datetime) -> str:
    if job.parsed is not None and dies_with_pods(job.parsed.spec):
        path = clean(job.parsed.spec.checkpoint.path, 80)
        return (
            f"its checkpoint in {path} is lost: neither spec.checkpoint nor the template has a "
            "volume there that outlives the pods"
        )
    return f"its checkpoints stay{_of_step(job, now)}"


def _continues(job: JobSnapshot, now: datetime) -> str:
    if job.parsed is not None and dies_with_pods(job.parsed.spec):
        path = clean(job.parsed.spec.checkpoint.path, 80)
        return (
            f"its checkpoint in {path} is lost and training begins at step 0: neither "
            "spec.checkpoint nor the template has a volume there that outlives the pods"
        )
    return f"training resumes from its latest checkpoint{_of_step(job, now)}"


def _of_step(job: JobSnapshot, now: datetime) -> str:
    saved = job.status.checkpoint
    if saved is None:
        return "; none was reported"
    age = f", {duration((now - saved.time).total_seconds())} ago" if saved.time else ""
    return f", of step {saved.step}{age}"
