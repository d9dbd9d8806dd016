"""What a command is about to do: to which pods, in words, and as a patch of the job."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ddp_operator.api.constants import ANNOTATION_RESTART_REQUESTED
from ddp_operator.job.pods.local_checkpoints import dies_with_pods
from ddp_operator.views.job.snapshot import JobSnapshot
from ddp_operator.views.text import clean, counted, duration


class RefusedError(Exception):
    """The change would do nothing, or the API server would not let it be; says what would help."""


@dataclass(frozen=True)
class Change:
    """A merge patch of a job, and what comes of it."""

    done: str
    """In one word, what has happened to the job once the patch is stored."""
    says: list[str]
    patch: Mapping[str, Any]


def stop(job: JobSnapshot, now: datetime) -> Change:
    """Give up all pods and keep the state."""
    _refuse_ended(job)
    if job.suspend:
        raise RefusedError(f"{clean(job.name)} is stopped already (spec.suspend is true)")
    says = [
        f"stops {clean(job.name)}: {_pods(job)} are told to end and then go",
        _kept(job, now),
    ]
    says.append(f"kubectl ddp resume {clean(job.name)} goes on")
    return Change("stopped", says, {"spec": {"suspend": True}})


def resume(job: JobSnapshot, now: datetime) -> Change:
    """Create the pods of a job that was stopped."""
    _refuse_ended(job)
    if not job.suspend:
        raise RefusedError(f"{clean(job.name)} is not stopped (spec.suspend is false)")
    says = [f"resumes {clean(job.name)}: {_pods(job)} are created", _goes_on(job, now)]
    return Change("resumed", says, {"spec": {"suspend": False}})


def restart(job: JobSnapshot, now: datetime) -> Change:
    """Start all pods anew."""
    _refuse_ended(job)
    name = clean(job.name)
    if job.suspend:
        raise RefusedError(
            f"{name} is stopped and has no pods: kubectl ddp resume {name} starts it"
        )
    if job.status.start_time is None:
        raise RefusedError(f"{name} has not started yet: there is nothing to start anew")
    says = [
        f"restarts {name}: {_pods(job)} are told to end, and start anew as attempt "
        f"{job.status.attempt + 1}; no restart is charged",
        _goes_on(job, now),
    ]
    annotation = {ANNOTATION_RESTART_REQUESTED: now.isoformat(timespec="milliseconds")}
    return Change("restarting", says, {"metadata": {"annotations": annotation}})


def scale(job: JobSnapshot, replicas: int) -> Change:
    """Change the number of pods of a job that is elastic, is stopped or has never run."""
    _refuse_ended(job)
    name = clean(job.name)
    if replicas == job.replicas:
        raise RefusedError(f"{name} has {counted(replicas, 'replica')} already")
    if job.elastic and not job.suspend:
        says = [
            f"scales {name} from {job.replicas} to {counted(replicas, 'pod')} while it runs: pods "
            "that are too many leave, and others join when they are ready"
        ]
    elif job.suspend:
        says = [
            f"scales {name} from {job.replicas} to {counted(replicas, 'pod')}; none exists while "
            "it is stopped, and the learning rate and batch of a script of yours may depend on how "
            "many",
            f"kubectl ddp resume {name} creates them",
        ]
    elif not job.status.fixes_pods:
        says = [
            f"scales {name} from {job.replicas} to {counted(replicas, 'pod')}; no pod has run "
            "yet, so existing pods are replaced"
        ]
    else:
        raise RefusedError(
            f"spec.replicas of {name} can only change while it is stopped: kubectl ddp stop "
            f"{name}, then scale, then kubectl ddp resume {name}"
        )
    return Change("scaled", says, {"spec": {"replicas": replicas}})


def delete(job: JobSnapshot, now: datetime) -> Change:
    """Delete a job and all it owns."""
    says = [f"deletes {clean(job.name)}, with its status, and {_pods(job)} with their logs"]
    if not job.status.finished:
        says.append("it has not ended: its training is given up")
    says.append(_kept(job, now))
    return Change("deleted", says, {})


def _refuse_ended(job: JobSnapshot) -> None:
    name = clean(job.name)
    if job.deleting:
        raise RefusedError(f"{name} is being deleted")
    if job.status.finished:
        raise RefusedError(
            f"{name} has ended ({job.status.phase}), and a job that has ended stays so: delete it "
            "and apply it again"
        )


def _pods(job: JobSnapshot) -> str:
    return "its pod" if job.replicas == 1 else f"its {job.replicas} pods"


def _kept(job: JobSnapshot, now: datetime) -> str:
    if job.parsed is not None and dies_with_pods(job.parsed.spec):
        path = clean(job.parsed.spec.checkpoint.path, 80)
        return (
            f"what it saved in {path} is lost: that goes with "
            "its pods, since neither spec.checkpoint nor the template has a volume there that "
            "outlives them"
        )
    return f"its checkpoints stay{_of_step(job, now)}"


def _goes_on(job: JobSnapshot, now: datetime) -> str:
    if job.parsed is not None and dies_with_pods(job.parsed.spec):
        return (
            f"what it saved in {clean(job.parsed.spec.checkpoint.path, 80)} is lost, so that "
            "training begins at step 0: neither spec.checkpoint nor the template has a volume "
            "there that outlives its pods"
        )
    return f"training goes on from its latest checkpoint{_of_step(job, now)}"


def _of_step(job: JobSnapshot, now: datetime) -> str:
    saved = job.status.checkpoint
    if saved is None:
        return "; none was reported"
    age = f", {duration((now - saved.time).total_seconds())} ago" if saved.time else ""
    return f", of step {saved.step}{age}"
