"""What must hold at every moment, whatever happens: judged when a write takes effect."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ddp_operator.api.constants import LABEL_JOB_NAME, LABEL_SERVING
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.job.pods import Identity, PodState
from ddp_operator.ports import Manifest

from tests.simulation.kubelet import is_over
from tests.simulation.server import JOB, ApiServer

_OBSERVED = ("observed_generation", "ready_replicas", "ready")
"""What is simply seen, and may differ after a job has finished."""


@dataclass
class Truth:
    """How one pod ended, as only the simulation knows."""

    exit_code: int | None = None
    taken_away: bool = False
    """By the cluster or a person, before it ended."""


class Invariants:
    """Implements `server.Judge`; the first violation is kept, for the engine outlives errors."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self.pods_seen: Callable[[], list[PodState]] = list
        self.violation: str | None = None
        self.most_restarts_allowed = 0
        self._truth: dict[str, Truth] = {}
        self._uid_of: dict[tuple[str, str], str] = {}
        self._recorded: set[tuple[str, str]] = set()

    def truth_of(self, pod: Manifest) -> Truth:
        """What is known of a pod, to be told by whoever makes it end."""
        return self._truth.setdefault(pod["metadata"]["uid"], Truth())

    def require(self, holds: object, claim: str) -> None:
        """Keep it on record when a claim does not hold."""
        if not holds and self.violation is None:
            self.violation = claim

    # Pods

    def pod_created(self, pod: Manifest) -> None:
        state = PodState.project(pod)
        name = (state.owner_uid, state.key.name)
        self._uid_of[name] = pod["metadata"]["uid"]
        self.require(
            name not in self._recorded, f"{state.key.name} is made anew although it was recorded"
        )
        job = self._server.job
        if job is not None and job["metadata"]["uid"] == state.owner_uid:
            self._judge_creation(state.identity, _status(job))
        self.pod_changed()

    def _judge_creation(self, identity: Identity, status: DDPJobStatus) -> None:
        stored = Identity(
            identity.index, status.attempt, status.replacements.get(str(identity.index), 0)
        )
        self.require(identity == stored, f"created {identity}, stored is {stored}")
        self.require(not status.finished, "a pod is created for a job that has finished")
        self.require(not status.is_true("Suspended"), "a pod is created for a suspended job")

    def pod_changed(self) -> None:
        """One host name, one address: the name of a rank must never lead to a pod of the past."""
        names = Counter(
            pod["spec"]["hostname"]
            for pod in self._server.pods.values()
            if pod["metadata"]["labels"].get(LABEL_SERVING) == "true"
            and pod["metadata"]["labels"].get(LABEL_JOB_NAME) == JOB.name
            and not is_over(pod)
        )
        twice = [name for name, times in names.items() if times > 1]
        self.require(not twice, f"DNS lists two pods as {twice}")

    def pod_deleted(self, pod: Manifest) -> None:
        owner = PodState.project(pod).owner_uid
        self.require(owner.startswith("job-"), f"deleted a pod of {owner!r}")

    # The job

    def job_deleted(self, job: Manifest) -> None:
        self.require(_status(job).finished, "a job was deleted that had not finished")

    def status_written(self, before: Manifest, after: Manifest) -> None:
        uid = after["metadata"]["uid"]
        old, new = _status(before), _status(after)
        self._judge_counters(old, new, after)
        if old.finished:
            same = all(value == getattr(new, name) for name, value in old if name not in _OBSERVED)
            self.require(same, "a finished job's status changed")
        if new.is_true("Succeeded") and not old.finished:
            self._judge_success(uid, new, after["spec"]["replicas"])
        self._recorded = set()
        if new.is_true("PodsCreated"):
            identities = _identities(new, after["spec"]["replicas"])
            self._recorded = {(uid, identity.pod_name(JOB.name)) for identity in identities}

    def _judge_success(self, uid: str, status: DDPJobStatus, replicas: int) -> None:
        for identity in _identities(status, replicas):
            name = identity.pod_name(JOB.name)
            truth = self._truth.get(self._uid_of.get((uid, name), ""), Truth())
            self.require(truth.exit_code == 0, f"Succeeded, but {name} ended with {truth}")

    def _judge_counters(self, old: DDPJobStatus, new: DDPJobStatus, job: Manifest) -> None:
        charged = new.restarts - old.restarts
        disrupted = new.disruptions - old.disruptions
        started = new.attempt - old.attempt
        replaced = new.replacements != old.replacements
        self.require(charged >= 0 and disrupted >= 0 and started in (0, 1), "a counter jumped")
        self.require(charged + disrupted <= 1, "one decision was counted twice")
        if charged or disrupted:
            self.require(started or replaced, "a restart was counted that is none")
            self.require(new.failures[-1:] != old.failures[-1:], "a restart without a record")
            self._judge_cause(new, job, charged=bool(charged))
        elif started:
            restarting = new.condition("Restarting")
            edited = restarting is not None and restarting.reason == "SpecChanged"
            retried = new.scheduling_retries - old.scheduling_retries
            self.require(
                edited + old.is_true("Suspended") + retried == 1, "the gang starts anew for nothing"
            )
        elif replaced:
            self.require(False, "a pod was replaced uncounted")
        self.require(new.restarts <= self.most_restarts_allowed, "more restarts than allowed")

    def _judge_cause(self, status: DDPJobStatus, job: Manifest, *, charged: bool) -> None:
        failure = status.failures[-1]
        truth = self._truth.get(
            self._uid_of.get((job["metadata"]["uid"], failure.pod), ""), Truth()
        )
        if charged:
            self.require(
                truth.exit_code not in (None, 0) and not truth.taken_away,
                f"{failure.pod} was charged, but in truth: {truth}",
            )
        self.require(failure.charged is charged, "the record and the counter differ")


def _status(job: Manifest) -> DDPJobStatus:
    return DDPJobStatus.model_validate(job.get("status") or {})


def _identities(status: DDPJobStatus, replicas: int) -> list[Identity]:
    return [
        Identity(index, status.attempt, status.replacements.get(str(index), 0))
        for index in range(replicas)
    ]
