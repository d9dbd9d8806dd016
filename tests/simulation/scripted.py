"""A history that follows a script instead of bytes: short, explicit and always the same."""

from collections.abc import Callable
from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.ports import Manifest

from tests.good_manifests import container, template
from tests.simulation.checks.truth import Exit
from tests.simulation.simulation import Simulation
from tests.simulation.world import kubelet
from tests.simulation.world.fleet import REQUESTS, ROOMY, Fleet, requesting_gpus
from tests.simulation.world.start_faults import Stage
from tests.simulation.world.training import Training

STEP_SECONDS = 5.0


class Script:
    """One job in a cluster where kubelets work and nothing happens but what a test does."""

    def __init__(
        self,
        fleet: Fleet = ROOMY,
        *,
        request: str = REQUESTS[0],
        training: Training | None = None,
        **spec: Any,
    ) -> None:
        self.simulation = Simulation(training)
        self.simulation.use(fleet)
        self.prefers: Callable[[Manifest], str] = lambda _: ""
        """Returns the node that a pod is bound to if it may be."""
        spec = {"template": template(container()), **spec}
        spec = requesting_gpus(spec, request) if fleet.has_gpus else spec
        self.simulation.server.create_job(spec)

    @property
    def job(self) -> DDPJob:
        """The job as stored."""
        job = self.simulation.job()
        assert job is not None
        return job

    @property
    def pods(self) -> list[Manifest]:
        """Pods that have not ended, in the order of their names."""
        return sorted(self.simulation.pods(), key=lambda pod: str(pod["metadata"]["name"]))

    @property
    def nodes(self) -> list[str]:
        """The node of each pod; empty for a pod that has none."""
        return [kubelet.node_of(pod) for pod in self.pods]

    def run(self, seconds: float, *, step: float = STEP_SECONDS) -> None:
        """Let time pass, while kubelets start and end pods and the operator asks for progress."""
        end = self.simulation.clock.seconds + seconds
        while self.simulation.clock.seconds < end:
            self.let_kubelets_work()
            assert self.simulation.operator is not None
            self.simulation.operator.ask_for_progress()
            self.simulation.operator.listen()
            self.simulation.advance(step)
            self.simulation.check()

    def train(self, *, steps: int) -> None:
        """All processes make steps, and save."""
        training, now = self.simulation.training, self.simulation.clock.seconds
        pods = [pod for pod in self.pods if self.simulation.trains(pod)]
        for pod in pods:
            training.proceed(pod, steps=steps, save=pod is pods[-1])
        for pod in pods:
            truth = self.simulation.invariants.truth_of(pod)
            truth.move(now)
            truth.last_step_at = now if training.is_complete(pod) else None

    def report_done(self) -> None:
        """The script reports that its result is safe: pods may be lost from now on."""
        self.simulation.training.is_done = True
        for pod in self.pods:
            self.simulation.invariants.truth_of(pod).is_done = True

    def fail(self, pod: Manifest, exit_: Exit) -> None:
        """The processes of a pod end; their launcher keeps the pod if it restarts them in place."""
        if self.simulation.launchers.fail_in_place(pod, exit_.code, exit_.words):
            self.simulation.invariants.note_fault(pod, exit_.class_)
        else:
            self.simulation.fail_trainer(pod, exit_)

    def let_kubelets_work(self) -> None:
        """Start pods that wait, and end those that are deleted."""
        for pod in self.simulation.pods(live=False):
            if kubelet.is_deleting(pod):
                self.simulation.finish_termination(pod, 143)
            elif kubelet.stage_of(pod) is Stage.READY:
                continue
            elif not (kubelet.is_over(pod) or kubelet.trainer_exit(pod)):
                self.simulation.bring_further(pod, nodes=(self.prefers(pod),))
