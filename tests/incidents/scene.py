"""A job that an incident happens to, and what is seen of it from outside the operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from ddp_operator.api.constants import LABEL_ATTEMPT, LABEL_INDEX, LABEL_JOB_NAME

from tests.chaos.accounts import Begun
from tests.chaos.conftest import Victim
from tests.chaos.record import Record
from tests.e2e.jobs import TRAINER_IMAGE, Job, digits_job, last_words, script_job
from tests.e2e.kubectl import Kubectl, Manifest, wait_for
from tests.e2e.losses import STEP_LOG, StepLog, running_pod
from tests.e2e.queues import queued
from tests.incidents import training
from tests.incidents.verdict import Expected, Seen

FORMED: Final = "ranks formed"
"""Rank 0 of both trainings logs it when the group is formed."""
BROKE: Final = "the group broke at step"
"""Each rank of the bundled trainer logs it before it forms the next group."""
BUNDLED_EPOCHS: Final = 8
"""184 steps on two ranks."""


@dataclass(frozen=True)
class Incident:
    """One line of the table."""

    name: str
    what: str
    done: str
    """The fault, in words."""
    inject: Callable[[Scene], None]
    expected: Expected
    plain: bool = True
    """A script that uses torch alone, under the launcher; or the bundled trainer."""
    steps: int = 150
    """Of the plain script."""
    replicas: int = 2
    spec: Mapping[str, Any] = field(default_factory=dict)
    image: str = TRAINER_IMAGE
    limits: Mapping[str, str] = field(default_factory=dict)
    """Of each pod, beside the usual ones."""
    queued: bool = False
    """In a queue of Kueue."""
    others: bool = True
    """It also happens to jobs of other controllers, without the operator."""
    around: Callable[[Scene], AbstractContextManager[None]] = lambda _: nullcontext()
    """The state of the cluster while the job runs; the job's claims exist already."""


class SpoiledError(Exception):
    """The job trains on with something that it must not use."""


@dataclass(frozen=True)
class Scene:
    """A job that trains."""

    kind: ClassVar = "ddpjob"
    selector: ClassVar = LABEL_JOB_NAME
    """The label of the job's pods."""
    index: ClassVar = LABEL_INDEX
    """The label of a pod with its place in the job."""

    victim: Victim
    kubectl: Kubectl
    incident: Incident
    record: Record

    @property
    def job(self) -> Job:
        """Return the job."""
        return Job(self.kubectl, self.incident.name)

    @property
    def plain(self) -> bool:
        """Return whether the job runs the script that uses torch alone."""
        return self.incident.plain

    @property
    def trace(self) -> Path:
        """Return the folder in which ranks write their steps."""
        return self.victim.environment.volume_path(self.kubectl, self.trace_claim)

    @property
    def checkpoints(self) -> Path:
        """Return the folder of the job's checkpoints, on the node."""
        return self.victim.environment.volume_path(self.kubectl, self.incident.name)

    @property
    def log(self) -> StepLog:
        """Return the steps that ranks have begun."""
        return StepLog(self.trace, self.incident.replicas)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Create the job, and wait until its launcher can restart it."""
        environment = self.victim.environment
        environment.make_claim(self.kubectl, self.incident.name)
        environment.make_claim(self.kubectl, self.trace_claim)
        self.victim.node.wait_until_ready()  # an earlier incident may have cut it off
        with self.incident.around(self):
            self.kubectl.apply(*self.manifests())
            self.wait_until_running()
            self.wait_for_steps()
            yield

    def wait_until_running(self) -> None:
        """Wait until the operator can restart the job in the smallest scope."""
        self.job.wait_until("Running")
        self.job.wait_until_launcher_answers("InPlace" if self.plain else "Pod")

    def pods(self) -> list[Any]:
        """Return the job's pods."""
        return self.kubectl.items("pods", "--selector", f"{self.selector}={self.incident.name}")

    def remove(self) -> None:
        """Delete the job, and wait until its pods are gone."""
        self.kubectl.run("delete", self.kind, self.incident.name)
        wait_for(lambda: not self.pods(), what="end of the job's pods")

    def pod(self, slot: int) -> Any:
        """Wait for the running pod of a slot."""
        return running_pod(self.job, slot)

    def wait_until_gone(self, pod: Any) -> None:
        """Wait until the API server has no such pod."""
        name = pod["metadata"]["name"]
        self.wait(
            lambda: all(each["metadata"]["name"] != name for each in self.pods()),
            what=f"end of {name}",
        )

    def wait_for_steps(self, count: int = 10) -> None:
        """Wait until all ranks have trained so many more steps together."""
        goal = max(self.log.last()) + count
        self.wait(lambda: min(self.log.last()) >= goal, what=f"step {goal} of all ranks")

    def wait_until_rank_is_named_slow(self, rank: int) -> None:
        """Wait until the status names it."""
        self.wait(
            lambda: (slow := self.job.status().slow_rank) is not None and slow.rank == rank,
            what="the slow rank in the status",
        )

    def wait_until_claim_is_missed(self) -> None:
        """Wait until the status says that pods lack their claim."""
        self.wait(
            lambda: "persistentvolumeclaim" in self.job.status().message,
            what="the missing claim in the status",
        )

    def wait(self, look: Callable[[], Any], *, what: str) -> Any:
        """Wait until something true is returned, and return it."""
        return wait_for(look, what=what, describe=self.job.status)

    def order(self, what: str, *ranks: int) -> None:
        """Give scripts of ranks an order for the same step, five steps from now."""
        step = max(self.log.last()) + 5
        for rank in ranks:
            (self.trace / f"{what}-{rank}-{step}").touch()

    def seen(self) -> Seen:
        """Return what was seen of the job, which has ended."""
        pods = self.job.ended_pods()
        names = self.record.names_of(self.incident.name)
        steps = self.steps()
        status = self.job.status()
        return Seen(
            steps=steps,
            last_step=self.incident.steps if self.plain else last_words(status)["totalSteps"],
            phases={name: pod["status"]["phase"] for name, pod in pods.items()},
            new_pods=len(names) - self.incident.replicas,
            new_groups=self._groups(pods, steps) - 1,
            doubles=sorted(self.record.doubles),
            status=status,
        )

    @property
    def trace_claim(self) -> str:
        """Return the name of the claim for the ranks' steps."""
        return f"{self.incident.name}-trace"

    def steps(self) -> list[list[Begun]]:
        """Return the steps that were begun so far, by rank."""
        ranks = range(self.incident.replicas)
        return [Begun.all_in(self.trace / f"{STEP_LOG}.rank{rank}") for rank in ranks]

    def _groups(self, pods: Mapping[str, Any], steps: Sequence[Sequence[Begun]]) -> int:
        """Count groups by the pods' logs. A pod that was lost takes its log along, but the others
        saw the same groups. Of an attempt without any pod left, only its steps tell of a group.
        """
        prefix = f"{self.incident.name}-"
        trained = {step.pod.removeprefix(prefix).split("-")[0] for each in steps for step in each}
        seen = {int(attempt): 1 for attempt in trained}
        for name, pod in pods.items():
            attempt = int(pod["metadata"]["labels"][LABEL_ATTEMPT])
            log = self.job.log(name)
            groups = max(log.count(FORMED), log.count(BROKE) + 1)
            seen[attempt] = max(seen.get(attempt, 0), groups)
        return sum(seen.values())

    def manifests(self) -> list[Manifest]:
        """Return the job."""
        incident = self.incident
        spec = {
            "replicas": incident.replicas,
            "checkpoint": {"persistentVolumeClaim": incident.name},
            **incident.spec,
        }
        manifest: Any
        if self.plain:
            script = Path(training.__file__).read_text()
            command = "python -m ddp_trainer.launch -- python /tmp/script.py"
            manifest = script_job(incident.name, script, command, **spec)
        else:
            manifest = digits_job(
                incident.name,
                f"--epochs={BUNDLED_EPOCHS}",
                "--checkpoint-every-steps=10",
                "--log-every-steps=5",
                f"--step-delay-seconds={training.STEP_SECONDS}",
                f"--trace-samples={training.TRACE}/{STEP_LOG}",
                image=incident.image,
                **spec,
            )
        pod = manifest["spec"]["template"]["spec"]
        claim = {"claimName": self.trace_claim}
        pod["volumes"] = [{"name": "trace", "persistentVolumeClaim": claim}]
        [container] = pod["containers"]
        container["env"] = [
            *container.get("env", ()),
            {"name": "STEPS", "value": str(incident.steps)},
        ]
        container["resources"]["limits"] |= incident.limits
        container["volumeMounts"] = [{"name": "trace", "mountPath": str(training.TRACE)}]
        return [queued(manifest) if incident.queued else manifest]
