"""What a command is about to do: to which pods, in words, and as a patch of the job."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ddp_operator.api.constants import ANNOTATION_RESTART_REQUESTED
from ddp_operator.job.pods.local_checkpoints import dies_with_pods
from ddp_operator.views.job.snapshot import SeenJob
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


def stop(seen: SeenJob, now: datetime) -> Change:
    """Give up all pods and keep the state."""
    _refuse_ended(seen)
    if seen.suspend:
        raise RefusedError(f"{clean(seen.name)} is stopped already (spec.suspend is true)")
    says = [
        f"stops {clean(seen.name)}: {_pods(seen)} are told to end and then go",
        _kept(seen, now),
    ]
    says.append(f"kubectl ddp resume {clean(seen.name)} goes on")
    return Change("stopped", says, {"spec": {"suspend": True}})


def resume(seen: SeenJob, now: datetime) -> Change:
    """Create the pods of a job that was stopped."""
    _refuse_ended(seen)
    if not seen.suspend:
        raise RefusedError(f"{clean(seen.name)} is not stopped (spec.suspend is false)")
    says = [f"resumes {clean(seen.name)}: {_pods(seen)} are created", _goes_on(seen, now)]
    return Change("resumed", says, {"spec": {"suspend": False}})


def restart(seen: SeenJob, now: datetime) -> Change:
    """Start all pods anew."""
    _refuse_ended(seen)
    name = clean(seen.name)
    if seen.suspend:
        raise RefusedError(
            f"{name} is stopped and has no pods: kubectl ddp resume {name} starts it"
        )
    if seen.status.start_time is None:
        raise RefusedError(f"{name} has not started yet: there is nothing to start anew")
    says = [
        f"restarts {name}: {_pods(seen)} are told to end, and start anew as attempt "
        f"{seen.status.attempt + 1}; no restart is charged",
        _goes_on(seen, now),
    ]
    annotation = {ANNOTATION_RESTART_REQUESTED: now.isoformat(timespec="milliseconds")}
    return Change("restarting", says, {"metadata": {"annotations": annotation}})


def scale(seen: SeenJob, replicas: int) -> Change:
    """Change the number of pods of a job that is elastic, is stopped or has never run."""
    _refuse_ended(seen)
    name = clean(seen.name)
    if replicas == seen.replicas:
        raise RefusedError(f"{name} has {counted(replicas, 'replica')} already")
    if seen.elastic and not seen.suspend:
        says = [
            f"scales {name} from {seen.replicas} to {counted(replicas, 'pod')} while it runs: pods "
            "that are too many leave, and others join when they are ready"
        ]
    elif seen.suspend:
        says = [
            f"scales {name} from {seen.replicas} to {counted(replicas, 'pod')}; none exists while "
            "it is stopped, and the learning rate and batch of a script of yours may depend on how "
            "many",
            f"kubectl ddp resume {name} creates them",
        ]
    elif not seen.status.fixes_pods:
        says = [
            f"scales {name} from {seen.replicas} to {counted(replicas, 'pod')}; no pod has run "
            "yet, so existing pods are replaced"
        ]
    else:
        raise RefusedError(
            f"spec.replicas of {name} can only change while it is stopped: kubectl ddp stop "
            f"{name}, then scale, then kubectl ddp resume {name}"
        )
    return Change("scaled", says, {"spec": {"replicas": replicas}})


def delete(seen: SeenJob, now: datetime) -> Change:
    """Delete a job and all it owns."""
    says = [f"deletes {clean(seen.name)}, with its status, and {_pods(seen)} with their logs"]
    if not seen.status.finished:
        says.append("it has not ended: its training is given up")
    says.append(_kept(seen, now))
    return Change("deleted", says, {})


def _refuse_ended(seen: SeenJob) -> None:
    name = clean(seen.name)
    if seen.deleting:
        raise RefusedError(f"{name} is being deleted")
    if seen.status.finished:
        raise RefusedError(
            f"{name} has ended ({seen.status.phase}), and a job that has ended stays so: delete it "
            "and apply it again"
        )


def _pods(seen: SeenJob) -> str:
    return "its pod" if seen.replicas == 1 else f"its {seen.replicas} pods"


def _kept(seen: SeenJob, now: datetime) -> str:
    if seen.job is not None and dies_with_pods(seen.job.spec):
        return (
            f"what it saved in {clean(seen.job.spec.checkpoint.path, 80)} is lost: that goes with "
            "its pods, since neither spec.checkpoint nor the template has a volume there that "
            "outlives them"
        )
    return f"its checkpoints stay{_of_step(seen, now)}"


def _goes_on(seen: SeenJob, now: datetime) -> str:
    if seen.job is not None and dies_with_pods(seen.job.spec):
        return (
            f"what it saved in {clean(seen.job.spec.checkpoint.path, 80)} is lost, so that "
            "training begins at step 0: neither spec.checkpoint nor the template has a volume "
            "there that outlives its pods"
        )
    return f"training goes on from its latest checkpoint{_of_step(seen, now)}"


def _of_step(seen: SeenJob, now: datetime) -> str:
    saved = seen.status.checkpoint
    if saved is None:
        return "; none was reported"
    age = f", {duration((now - saved.time).total_seconds())} ago" if saved.time else ""
    return f", of step {saved.step}{age}"
