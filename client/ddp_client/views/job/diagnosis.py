"""Explain a job's state: one sentence, the evidence, and what to do."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from ddp_operator.api.reasons import REASONS
from ddp_operator.api.status import Failure
from ddp_operator.api.values.text import clean, clean_lines, duration, folded
from ddp_operator.job.failure import records
from ddp_operator.job.pods.state import GATED
from ddp_operator.job.status.conditions import QUEUED
from ddp_operator.job.status.progress import last_step_at

from ddp_client.views.job import advice, group, slow_rank
from ddp_client.views.job.memory import memory_checkpoint
from ddp_client.views.job.pods import Pods, waits
from ddp_client.views.job.queueing import UNKNOWN, QueueState
from ddp_client.views.job.screen import in_words
from ddp_client.views.job.snapshot import JobSnapshot

_SILENT_SECONDS: Final = 600.0
"""A job without a step for this long may hang; evaluations and checkpoints take minutes."""
_LAST_WORDS: Final = 6
_LINE: Final = 160


@dataclass
class Diagnosis:
    """The answer of `why`."""

    sentence: str
    evidence: list[str] = field(default_factory=list)
    last_words: list[str] = field(default_factory=list)
    """The last lines of the failed pod's message."""
    remedies: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(self.lines(80))

    def lines(self, width: int) -> list[str]:
        """Return the text, folded at `width`."""
        found = folded(self.sentence, width)
        for title, said in (("evidence", self.evidence), ("what to do", self.remedies)):
            if title == "what to do" and self.last_words:
                found += ["", "last words"]
                found += [f"  {line[: width - 2]}" for line in self.last_words]
            if said:
                found += ["", title]
                for each in dict.fromkeys(said):
                    found += folded(each, width, first="  - ", rest="    ")
        return found


def diagnose(
    job: JobSnapshot, pods: Pods, now: datetime, *, queue: QueueState = UNKNOWN
) -> Diagnosis:
    """Explain a job's state; `queue`: its state in its queue."""
    name = clean(job.name)
    if job.deleting:
        return Diagnosis(
            f"{name} is being deleted.",
            _finalizers(job),
            remedies=["wait: its pods are deleted after their time to save a checkpoint"],
        )
    if missing := advice.operator_missing(job, now):
        return Diagnosis(f"{name} is waiting for an operator: {missing}.", _problem(job))
    by_phase = {
        "Succeeded": _succeeded,
        "Failed": _failed,
        "Suspended": _suspended,
        "Running": _running,
    }
    if explain := by_phase.get(job.status.phase):
        return explain(job, pods, now)
    found = _waiting(job, pods, now)
    if queue != UNKNOWN:
        _queued(found, job, queue)
    return found


def _succeeded(job: JobSnapshot, _: Pods, now: datetime) -> Diagnosis:
    return Diagnosis(f"{clean(job.name)} has succeeded{_ago(job, now)}: {_message(job)}.")


def _suspended(job: JobSnapshot, _: Pods, now: datetime) -> Diagnosis:
    name = clean(job.name)
    found = Diagnosis(f"{name} is stopped: spec.suspend is true, and there are no pods.")
    if not job.suspend:
        found.sentence = f"{name} is about to resume: spec.suspend is false again."
    found.evidence += _saved(job, now)
    if job.suspend:
        found.remedies.append(f"kubectl ddp resume {name}")
    return found


def _failed(job: JobSnapshot, pods: Pods, now: datetime) -> Diagnosis:
    name, reason = clean(job.name), clean(job.status.reason, 64)
    found = Diagnosis(f"{name} failed{_ago(job, now)}, {reason}: {_message(job)}")
    _blame(found, _latest(job), pods, now)
    found.remedies += advice.local_checkpoints(job)
    if known := advice.for_ended(job.status.reason):
        found.remedies.insert(0, known)
    found.remedies.append(
        "a failed job does not start again: delete it and apply it again; it resumes from its "
        "checkpoint if that is not on the pods' own disks"
    )
    return found


def _running(job: JobSnapshot, pods: Pods, now: datetime) -> Diagnosis:
    name, progress = clean(job.name), job.status.progress
    unwell = [state for state in pods.states if state not in ("ready", "done")]
    found = Diagnosis(f"{name} is training: {_message(job)}.")
    if progress is not None:
        silent = (now - (progress.last_step_time or progress.updated_at)).total_seconds()
        found.evidence.append(f"step {progress.step}, {duration(silent)} ago")
        if last_step_at(job.status) is not None:
            found.sentence = (
                f"{name}: the script works after its last step, for {duration(silent)}."
            )
            found.remedies.append(
                "wait until the script exits: work after the last step has no deadline, except "
                "spec.activeDeadlineSeconds"
            )
            found.remedies.append(f"kubectl ddp stacks {name} shows what each rank does")
        elif silent > _SILENT_SECONDS:
            found.sentence = (
                f"{name} is running, but has completed no step for {duration(silent)}: it hangs, "
                "or evaluates or saves a checkpoint."
            )
            if job.parsed and job.parsed.spec.progress_deadline_seconds is None:
                found.remedies.append(
                    "set spec.progressDeadlineSeconds: the operator then logs the stacks of a hung "
                    "job and restarts it"
                )
            found.remedies.append(
                f"kubectl ddp why {name} --hang asks all ranks, and names the one that the others "
                "wait for"
            )
            found.remedies.append(f"kubectl ddp stacks {name} shows the stack of each rank")
            found.remedies.append(f"kubectl ddp restart {name} restarts all pods")
        elif (slow := job.status.slow_rank) is not None:
            found.sentence = f"{name} is slow: rank {slow.rank} delays the others in each step."
            found.evidence += slow_rank.lines(slow, now)
            found.remedies.append(REASONS["SlowRank"].remedy)
    else:
        found.evidence.append(
            "its trainer reports no progress: neither its speed nor a hang can be detected"
        )
    if unwell:
        found.evidence.append(f"{len(unwell)} of {len(pods.states)} pods are not ready")
    if size := group.size(job, now):
        found.evidence.append(f"its group: {size}")
    found.evidence += group.gaps(job, now)
    if unwell or pods.wanted:
        found.evidence += waits(pods)
    if remark := group.powerless(job):
        found.remedies.append(remark)
    found.remedies += advice.local_checkpoints(job)
    found.evidence += _past(job, now)
    found.evidence += _in_memory(job, now)
    return found


def _waiting(job: JobSnapshot, pods: Pods, now: datetime) -> Diagnosis:
    name, status = clean(job.name), job.status
    reason = clean(status.reason, 64)
    doing = {"Restarting": "is restarting", "Starting": "is starting"}.get(
        status.phase, "is waiting"
    )
    found = Diagnosis(f"{name} {doing}, {reason or 'Pending'}: {_message(job) or 'pods start'}")
    if status.next_start_time is not None and status.next_start_time > now:
        pause = duration((status.next_start_time - now).total_seconds())
        found.evidence.append(f"the next start is in {pause} (restart backoff)")
    found.evidence += group.gaps(job, now)
    found.evidence += waits(pods)
    reasons = {status.reason, *(pod.waiting for pod in pods.current.values() if pod.waiting)}
    found.remedies += [known for each in sorted(reasons) if (known := advice.for_waiting(each))]
    failed = pods.first_failed
    if failed is not None and job.parsed is not None:
        _blame(found, records.of_pod(job.parsed, failed, now), pods, now)
    elif status.phase == "Restarting":
        _blame(found, _latest(job), pods, now)
    found.remedies += advice.local_checkpoints(job)
    found.evidence += [*_in_memory(job, now), *_problem(job)]
    return found


def _queued(found: Diagnosis, job: JobSnapshot, queue: QueueState) -> None:
    """Explain with Kueue's words that the job waits in its queue."""
    if queue.position:
        found.evidence.insert(0, f"it waits for {queue.position}")
    if queue.cause:
        found.evidence.insert(0, _message(job))
        found.sentence = f"{clean(job.name)} is waiting, {job.status.reason}: {queue.cause}"
    if queue.eviction:
        found.evidence.append(f"evicted before: {queue.eviction}")
    if queue.remedies:
        general = {advice.for_waiting(QUEUED), advice.for_waiting(GATED)}
        others = [remedy for remedy in found.remedies if remedy not in general]
        found.remedies = [*queue.remedies, *others]


def _blame(found: Diagnosis, failure: Failure | None, pods: Pods, now: datetime) -> None:
    """Add the failure, the last lines of its message, and advice."""
    if failure is None:
        return
    found.evidence.append(in_words(failure, now))
    found.last_words = clean_lines(failure.message, last=_LAST_WORDS, limit=_LINE)
    found.remedies.append(advice.for_failure(failure, has_log=failure.pod in pods.names))


def _latest(job: JobSnapshot) -> Failure | None:
    """Return the newest failure that the operator did not ignore."""
    causes = [failure for failure in job.status.failures if failure.action != "Ignore"]
    return causes[-1] if causes else None


def _past(job: JobSnapshot, now: datetime) -> Iterable[str]:
    latest = _latest(job)
    return [f"its latest failure: {in_words(latest, now)}"] if latest else []


def _saved(job: JobSnapshot, now: datetime) -> list[str]:
    saved = job.status.checkpoint
    if saved is None:
        return []
    age = f", {duration((now - saved.time).total_seconds())} ago" if saved.time else ""
    return [f"its latest checkpoint is of step {saved.step}{age}"]


def _in_memory(job: JobSnapshot, now: datetime) -> Iterable[str]:
    return [f"its checkpoint in memory: {line}" for line in memory_checkpoint(job, now)]


def _problem(job: JobSnapshot) -> list[str]:
    said = f"this release of kubectl ddp cannot read its spec: {job.problem}"
    return [clean(said)] if job.problem else []


def _finalizers(job: JobSnapshot) -> list[str]:
    held = job.manifest["metadata"].get("finalizers") or []
    return [clean(f"held back by finalizers: {', '.join(map(str, held))}")] if held else []


def _message(job: JobSnapshot) -> str:
    return clean(job.status.message).rstrip(".")


def _ago(job: JobSnapshot, now: datetime) -> str:
    at = job.status.completion_time or job.since(job.status.phase)
    return f" {duration((now - at).total_seconds())} ago" if at else ""
