"""Explain a job's state: one sentence, the evidence, and what to do."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from ddp_operator.api.rules import warnings
from ddp_operator.api.status import Failure
from ddp_operator.api.values.text import clean, counted
from ddp_operator.job.failure import records
from ddp_operator.job.planning.group import remarks
from ddp_operator.job.pods.state import GATED
from ddp_operator.job.status.conditions import QUEUED
from ddp_operator.job.status.progress import last_step_at

from ddp_client.text import clean_lines, duration, folded
from ddp_client.views.job import advice, group, pace, slow_rank
from ddp_client.views.job.last_words import readable
from ddp_client.views.job.memory import memory_checkpoint
from ddp_client.views.job.pods import Pods, waits
from ddp_client.views.job.queueing import UNKNOWN, QueueState
from ddp_client.views.job.screen import in_words
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_client.views.reasons import REASONS

_SILENT_SECONDS: Final = 600.0
"""A job without a step for this long may hang; evaluations and checkpoints take minutes."""
_LAST_WORDS: Final = 6
_MOST_SIDE_CARS: Final = 3
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
        text = folded(self.sentence, width)
        for title, entries in (("evidence", self.evidence), ("what to do", self.remedies)):
            if title == "what to do" and self.last_words:
                text += ["", "last words"]
                text += [f"  {line[: width - 2]}" for line in self.last_words]
            if entries:
                text += ["", title]
                for each in dict.fromkeys(entries):
                    text += folded(each, width, first="  - ", rest="    ")
        return text


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
    diagnosis = _waiting(job, pods, now)
    if queue != UNKNOWN:
        _queued(diagnosis, job, queue)
    return diagnosis


def _succeeded(job: JobSnapshot, _: Pods, now: datetime) -> Diagnosis:
    diagnosis = Diagnosis(f"{clean(job.name)} has succeeded{_ago(job, now)}: {_message(job)}.")
    if pace.trained_nothing(job.status):
        diagnosis.evidence.append("it trained no step: its checkpoint was of the last one")
    return diagnosis


def _suspended(job: JobSnapshot, _: Pods, now: datetime) -> Diagnosis:
    name = clean(job.name)
    diagnosis = Diagnosis(f"{name} is stopped: spec.suspend is true, and there are no pods.")
    if not job.suspend:
        diagnosis.sentence = f"{name} is about to resume: spec.suspend is false again."
    diagnosis.evidence += _saved(job, now)
    if job.suspend:
        diagnosis.remedies.append(f"kubectl ddp resume {name}")
    return diagnosis


def _failed(job: JobSnapshot, pods: Pods, now: datetime) -> Diagnosis:
    name, reason = clean(job.name), clean(job.status.reason, 64)
    diagnosis = Diagnosis(f"{name} failed{_ago(job, now)}, {reason}: {_message(job)}")
    _blame(diagnosis, advice.latest_cause(job.status), pods, now)
    diagnosis.evidence += [*_side_cars(pods), *_doubts(job)]
    diagnosis.remedies += advice.local_checkpoints(job)
    if known := advice.for_ended(job.status.reason):
        diagnosis.remedies.insert(0, known)
    diagnosis.remedies.append(
        "a failed job does not start again: delete it and apply it again; it resumes from its "
        "checkpoint if that is not on the pods' own disks"
    )
    return diagnosis


def _running(job: JobSnapshot, pods: Pods, now: datetime) -> Diagnosis:
    name, progress = clean(job.name), job.status.progress
    unwell = [state for state in pods.states if state not in ("ready", "done")]
    doing = "is running" if progress is None else "is training"
    diagnosis = Diagnosis(f"{name} {doing}: {_message(job)}.")
    if progress is None and job.status.restarts:
        again = counted(job.status.restarts, "restart")
        diagnosis.sentence = f"{name} runs again after {again}: {_message(job)}."
    if progress is not None:
        silent = (now - (progress.last_step_time or progress.updated_at)).total_seconds()
        diagnosis.evidence.append(f"step {progress.step}, {duration(silent)} ago")
        if last_step_at(job.status) is not None:
            diagnosis.sentence = (
                f"{name}: the script works after its last step, for {duration(silent)}."
            )
            diagnosis.remedies.append(
                "wait until the script exits: work after the last step has no deadline, except "
                "spec.activeDeadlineSeconds"
            )
            diagnosis.remedies.append(f"kubectl ddp stacks {name} shows what each rank does")
        elif silent > _SILENT_SECONDS:
            diagnosis.sentence = (
                f"{name} is running, but has completed no step for {duration(silent)}: it hangs, "
                "or evaluates or saves a checkpoint."
            )
            if job.parsed and job.parsed.spec.progress_deadline_seconds is None:
                diagnosis.remedies.append(
                    "set spec.progressDeadlineSeconds: the operator then logs the stacks of a hung "
                    "job and restarts it"
                )
            diagnosis.remedies.append(
                f"kubectl ddp why {name} --hang asks all ranks, and names the one that the others "
                "wait for"
            )
            diagnosis.remedies.append(f"kubectl ddp stacks {name} shows the stack of each rank")
            diagnosis.remedies.append(f"kubectl ddp restart {name} restarts all pods")
        elif (slow := job.status.slow_rank) is not None:
            diagnosis.sentence = f"{name} is slow: rank {slow.rank} delays the others in each step."
            diagnosis.evidence += slow_rank.lines(slow, now)
            diagnosis.remedies.append(REASONS["SlowRank"].remedy)
    else:
        diagnosis.evidence.append(
            "its trainer reports no progress: neither its speed nor a hang can be detected"
        )
    if remark := remarks.present(job.status):
        first = pods.current.get(0)
        where = f"pod {clean(first.key.name, 253)}: " if first else ""
        diagnosis.evidence.append(f"{where}{clean(remark)}")
        diagnosis.remedies.append(REASONS[remarks.WAITS_AT_LOCALHOST].remedy)
    if unwell:
        diagnosis.evidence.append(f"{len(unwell)} of {len(pods.states)} pods are not ready")
    if size := group.size(job, now):
        diagnosis.evidence.append(f"its group: {size}")
    diagnosis.evidence += group.gaps(job, pods, now)
    if unwell or pods.wanted:
        diagnosis.evidence += waits(pods)
    if remark := group.powerless(job):
        diagnosis.remedies.append(remark)
    diagnosis.evidence += [*_side_cars(pods), *_doubts(job)]
    diagnosis.remedies += advice.local_checkpoints(job)
    diagnosis.evidence += _past(job, now)
    diagnosis.evidence += _in_memory(job, now)
    return diagnosis


def _waiting(job: JobSnapshot, pods: Pods, now: datetime) -> Diagnosis:
    name, status = clean(job.name), job.status
    reason = clean(status.reason, 64)
    doing = {"Restarting": "is restarting", "Starting": "is starting"}.get(
        status.phase, "is waiting"
    )
    diagnosis = Diagnosis(f"{name} {doing}, {reason or 'Pending'}: {_message(job) or 'pods start'}")
    if status.next_start_time is not None and status.next_start_time > now:
        pause = duration((status.next_start_time - now).total_seconds())
        diagnosis.evidence.append(f"the next start is in {pause} (restart backoff)")
    diagnosis.evidence += group.gaps(job, pods, now)
    diagnosis.evidence += waits(pods)
    messages = {status.reason: ""}
    messages |= {pod.waiting: pod.waiting_message for pod in pods.current.values() if pod.waiting}
    for waiting, message in sorted(messages.items()):
        diagnosis.evidence += advice.meaning(message, waiting)
        if known := advice.for_waiting(waiting, message):
            diagnosis.remedies.append(known)
    failed = pods.first_failed
    if failed is not None and job.parsed is not None:
        _blame(diagnosis, records.of_pod(job.parsed, failed, now), pods, now)
    elif status.phase == "Restarting":
        _blame(diagnosis, advice.latest_cause(job.status), pods, now)
    diagnosis.evidence += [*_side_cars(pods), *_doubts(job)]
    diagnosis.remedies += advice.local_checkpoints(job)
    diagnosis.evidence += [*_in_memory(job, now), *_problem(job)]
    return diagnosis


def _queued(diagnosis: Diagnosis, job: JobSnapshot, queue: QueueState) -> None:
    """Explain with Kueue's words that the job waits in its queue."""
    if queue.position:
        diagnosis.evidence.insert(0, f"it waits for {queue.position}")
    if queue.message:
        diagnosis.evidence.insert(0, _message(job))
        diagnosis.sentence = f"{clean(job.name)} is waiting, {job.status.reason}: {queue.message}"
    if queue.eviction:
        diagnosis.evidence.append(f"evicted before: {queue.eviction}")
    if queue.remedy:
        general = {advice.for_waiting(QUEUED), advice.for_waiting(GATED)}
        others = [remedy for remedy in diagnosis.remedies if remedy not in general]
        diagnosis.remedies = [queue.remedy, *others]


def _blame(diagnosis: Diagnosis, failure: Failure | None, pods: Pods, now: datetime) -> None:
    """Add the failure, the last lines of its message and their meaning, and advice."""
    if failure is None:
        return
    diagnosis.evidence.append(in_words(failure, now))
    diagnosis.evidence += advice.meaning(failure.message, failure.reason)
    words = clean_lines(failure.message, last=_LAST_WORDS, limit=_LINE)
    if failure.exit_code is not None or len(words) > 1:  # otherwise the evidence has all of it
        diagnosis.last_words = words
    if remedy := advice.own_localhost(failure, pods):
        diagnosis.remedies.append(remedy)
    diagnosis.remedies.append(advice.for_failure(failure, has_log=failure.pod in pods.names))


def _past(job: JobSnapshot, now: datetime) -> Iterable[str]:
    latest = advice.latest_cause(job.status)
    return [f"its latest failure: {in_words(latest, now)}"] if latest else []


def _saved(job: JobSnapshot, now: datetime) -> list[str]:
    saved = job.status.checkpoint
    if saved is None:
        return []
    return [f"its latest checkpoint is of step {saved.step}{pace.ago(saved.time, now)}"]


def _in_memory(job: JobSnapshot, now: datetime) -> Iterable[str]:
    return [f"its checkpoint in memory: {line}" for line in memory_checkpoint(job, now)]


def _side_cars(pods: Pods) -> list[str]:
    """Name side cars that failed, with one line for each failure."""
    failed: dict[str, str] = {}
    for pod in (*pods.current.values(), *pods.outside):
        if pod.side_car_failure:
            failed.setdefault(clean(pod.side_car_failure), clean(pod.key.name, 253))
    return [f"pod {name}: {failure}" for failure, name in list(failed.items())[:_MOST_SIDE_CARS]]


def _doubts(job: JobSnapshot) -> list[str]:
    doubts = warnings(job.parsed.spec) if job.parsed else ()
    return [clean(f"the command: {text}") for text in doubts]


def _problem(job: JobSnapshot) -> list[str]:
    text = f"this release of kubectl ddp cannot read its spec: {job.problem}"
    return [clean(text)] if job.problem else []


def _finalizers(job: JobSnapshot) -> list[str]:
    held = job.manifest["metadata"].get("finalizers") or []
    return [clean(f"held back by finalizers: {', '.join(map(str, held))}")] if held else []


def _message(job: JobSnapshot) -> str:
    text = readable(job.status.message, succeeded=job.status.phase == "Succeeded")
    return clean(text).rstrip(".")


def _ago(job: JobSnapshot, now: datetime) -> str:
    at = job.status.completion_time or job.since(job.status.phase)
    return f" {duration((now - at).total_seconds())} ago" if at else ""
