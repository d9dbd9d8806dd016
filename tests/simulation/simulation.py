"""One history: the world, and the operator in it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.api.values.bounded import format_time
from ddp_operator.ports import Key, Manifest

from tests.simulation.actions.lasting import NOTHING_LASTS
from tests.simulation.checks.group import GroupJudge
from tests.simulation.checks.invariants import Invariants
from tests.simulation.checks.truth import TOGETHER_SECONDS, Class, Exit, class_of
from tests.simulation.clock import Clock
from tests.simulation.world import kubelet
from tests.simulation.world.cluster import RequestFaults
from tests.simulation.world.fleet import REQUESTS as GPU_REQUESTS
from tests.simulation.world.fleet import Fleet
from tests.simulation.world.launchers import Launchers, restarts_in_place
from tests.simulation.world.leading import Leaders
from tests.simulation.world.process import OperatorProcess
from tests.simulation.world.resources import offered
from tests.simulation.world.scheduler import Scheduler
from tests.simulation.world.server import ApiServer, owner_of, shape_of
from tests.simulation.world.start_faults import (
    START_FAULTS,
    Stage,
    StartFault,
    StartFaults,
    missing_secret,
)
from tests.simulation.world.training import SimulatedTrainers, Training


class Simulation:
    """A cluster in which anything may happen, and the operator in it. `events` lists what did."""

    def __init__(self, training: Training | None = None) -> None:
        self.clock = Clock()
        self.server = ApiServer(self.clock)
        self.requests = RequestFaults()
        self._specs: dict[tuple[str, int], DDPJob] = {}
        self._read: dict[tuple[str, str], DDPJob] = {}
        self._shapes: dict[tuple[str, int], str] = {}
        self.invariants = Invariants(self.server, self.clock, parse=self._parsed, shape=self._shape)
        self.server.judge = self.invariants
        self.training = training or Training()
        self.start_faults = StartFaults()
        self.scheduler = Scheduler(self.server.node_manifests, self.server.pods)
        self.gpu_request = GPU_REQUESTS[0]
        """How jobs request GPUs, in a cluster that has some."""
        self.dead_nodes: set[str] = set()
        """Nodes that do not answer; nor do the pods on them."""
        self.lasting_fault = NOTHING_LASTS
        self.evicted: dict[str, tuple[str, str]] = {}
        """Reason and message that pods get once they have ended, by UID."""
        self.launchers = Launchers(
            self.server,
            self.clock,
            self.invariants.require,
            clock_is_right=lambda: self.invariants.clock_is_right,
            dead_nodes=self.dead_nodes,
        )
        self.leaders = Leaders(self.launchers)
        self.invariants.led = self.launchers.led_generations
        self.invariants.judge_assignment_of = self.launchers.created
        self.invariants.judge_group = GroupJudge(
            self.server, self.clock, self.launchers, self.scheduler
        ).judge
        self._trainers = SimulatedTrainers(self.training, self.pods, self.launchers)
        self.events: list[str] = []
        self.steps = self.plans = self.writes = 0
        self.down_seconds = 0.0
        self._restart_at = 0.0
        self.operator: OperatorProcess | None = None
        self.start_operator()

    # What actions use

    def use(self, fleet: Fleet) -> None:
        """Have the nodes of this cluster, and the other tenants on them."""
        self.server.use(fleet)
        tenants = self.scheduler.tenants
        tenants.stay = {name: offered(fleet.nodes[name]) for name in fleet.occupied}
        tenants.clear()

    def log(self, what: str) -> None:
        """Note what happened, and when."""
        self.events.append(f"{self.clock.seconds:9.2f}  {what}")

    def job(self) -> DDPJob | None:
        """The job as stored."""
        return self._parsed(self.server.job) if self.server.job else None

    def _parsed(self, manifest: Manifest) -> DDPJob:
        """Read a job as stored, each version only once, and its spec not again for a new status."""
        metadata = manifest["metadata"]
        version = (metadata["uid"], metadata["resourceVersion"])
        if version not in self._read:
            self._read[version] = self._with_status(manifest)
        return self._read[version]

    def _with_status(self, manifest: Manifest) -> DDPJob:
        metadata = manifest["metadata"]
        known = self._valid(manifest)
        status = DDPJobStatus.model_validate(manifest.get("status") or {})
        return replace(known, resource_version=metadata["resourceVersion"], status=status)

    def _valid(self, manifest: Manifest) -> DDPJob:
        """Parse a job; while its spec is invalid, return it with the last valid one, in which only
        `suspend` changes.
        """
        metadata = manifest["metadata"]
        key = metadata["uid"], metadata["generation"]
        if key not in self._specs:
            try:
                self._specs[key] = DDPJob.parse(manifest)
            except InvalidJobError:
                newest = self._specs[self._newest_valid(key)]
                suspend = {"suspend": bool(manifest["spec"].get("suspend"))}
                return replace(newest, spec=newest.spec.model_copy(update=suspend))
            self._shapes[key] = shape_of(manifest)
        return self._specs[key]

    def _newest_valid(self, before: tuple[str, int]) -> tuple[str, int]:
        """Return the newest valid generation, of those that reached an operator if any did."""
        valid = [each for each in self._specs if each[0] == before[0] and each < before]
        return max([each for each in valid if each in self.server.delivered] or valid)

    def _shape(self, manifest: Manifest) -> str:
        """Return what shapes the pods of a job: its last valid spec."""
        job = self._valid(manifest)
        return self._shapes[job.uid, job.generation]

    def start_operator(self) -> None:
        """Start a new process, which reads the cluster and continues."""
        self.operator = OperatorProcess(self.server, self.clock, self.requests, self._trainers)

    def kill_operator(self) -> None:
        """End the process now. The next one starts after `down_seconds`."""
        if self.operator is not None:
            self.operator.kill()
            self.plans += self.operator.plans
            self.writes += self.operator.cluster.writes
            self.operator = None
            self._restart_at = self.clock.seconds + self.down_seconds
            self.log(f"the operator is dead for {self.down_seconds} s")

    def advance(self, seconds: float) -> None:
        """Let time pass, and the operator work."""
        end = self.clock.seconds + seconds
        while True:
            if self.operator is not None:
                self.operator.loop.run_until(end)
                if not self.operator.loop.halted:
                    return
                self.kill_operator()
            self.clock.seconds = max(self.clock.seconds, min(self._restart_at, end))
            if self._restart_at > end:
                return
            self.start_operator()

    def pods(self, *, live: bool = True) -> list[Manifest]:
        """Pods that a kubelet could still do something with, or all."""
        return [
            pod
            for pod in self.server.pods.values()
            if not live or not (kubelet.is_over(pod) or kubelet.node_of(pod) in self.dead_nodes)
        ]

    def key_of(self, pod: Manifest) -> Key:
        """The key of a stored pod."""
        return Key(pod["metadata"]["namespace"], pod["metadata"]["name"])

    def change(self, pod: Manifest, changed: Manifest) -> None:
        """Store a pod's next state."""
        self.server.change_pod(self.key_of(pod), changed)

    def bring_further(
        self, pod: Manifest, *, most: Stage = Stage.READY, nodes: Sequence[str] = ()
    ) -> None:
        """Bring a pod as far as it comes, but not beyond `most`, on the first of the nodes that
        take it, else on any.
        """
        now = self.clock.seconds
        fault = self._start_fault_of(pod, now)
        placed = pod
        if not kubelet.node_of(pod):
            if kubelet.is_gated(pod):
                return
            fit = self.scheduler.feasible(pod)
            chosen = next((name for name in (*nodes, *fit) if name in fit), None)
            if chosen is None or (fault and fault.stage is Stage.CREATED):
                self.change(pod, kubelet.unschedulable(pod, self.scheduler.message(pod)))
                return
            placed = kubelet.scheduled(pod, chosen)
            fault = self._start_fault_of(placed, now)
        if fault and kubelet.stage_of(placed) > fault.stage:
            fault = None  # it is beyond that
        if fault and fault.refuses and kubelet.node_of(placed) not in self.dead_nodes:
            self.change(pod, kubelet.failed(placed, fault.reason, fault.message))
            self._note_start_fault(pod, fault)
            return
        stage = min(most, fault.stage) if fault else most
        if kubelet.node_of(placed) in self.dead_nodes:
            stage = Stage.SCHEDULED
        if stage >= Stage.STARTED:
            self.start_trainer(placed, ready=stage is Stage.READY)
        elif stage >= Stage.SANDBOX and not kubelet.is_running(placed):
            why = (fault.reason, fault.message) if fault and fault.stage is stage else ("", "")
            sandbox = stage is Stage.CONTAINER
            self.change(placed, kubelet.waiting(placed, why, sandbox=sandbox))
        elif placed is not pod:
            self.change(pod, placed)
        if fault and fault.stage is stage:
            self._note_start_fault(pod, fault)

    def _start_fault_of(self, pod: Manifest, now: float) -> StartFault | None:
        fault = self.start_faults.of(pod, now)
        if fault is None or fault.stage > Stage.CONTAINER:
            for name in kubelet.secrets_of(pod):
                if name not in self.server.secrets:
                    return missing_secret(name)
        return fault

    def _note_start_fault(self, pod: Manifest, fault: StartFault) -> None:
        """Note that a pod is kept from starting. A spec that has run is not wrong."""
        deserved: set[Class] = {"Infrastructure", "Disruption"}
        if fault.fault == "spec" and not self.has_run(pod):
            deserved.add("Configuration")
        self.invariants.truth_of(pod).faults |= deserved

    def has_run(self, pod: Manifest) -> bool:
        """Return whether pods like it ran, and the operator must know it."""
        template, _ = self.invariants.kind_of(pod)
        spec = self.server.job["spec"] if self.server.job else {}
        ledger = self.invariants.ledgers[owner_of(pod)]
        return ledger.has_run(template, alike=not spec.get("overrides"))

    def fill(self, node: str) -> None:
        """Pods of other tenants take all that is free on a node."""
        free = self.scheduler.free(self.server.node_manifests[node])
        self.scheduler.tenants.fill(node, free, self.clock.seconds)

    def start_trainer(self, pod: Manifest, *, ready: bool) -> None:
        """The trainer of a pod runs."""
        if not kubelet.is_running(pod):
            self.invariants.truth_of(pod).move(self.clock.seconds)
            ran = self.invariants.ledgers[owner_of(pod)].ran
            ran.setdefault(self.invariants.kind_of(pod), self.clock.seconds)
        self.change(pod, kubelet.started(pod, ready=ready, now=self.clock.now()))

    def fail_trainer(self, pod: Manifest, exit_: Exit, *, side_car_runs: bool = False) -> None:
        """End the trainer of a pod by its own failure. A launcher ends as its processes have ended
        before; a pod that is already ending ends with 143.
        """
        code, reason, words, _ = exit_
        if restarts_in_place(pod) and (failure := self.launchers.of(pod).failure):
            code, reason, words = failure["exitCode"], "Error", failure["message"]
        elif self.is_ending(pod):
            code, reason, words = 143, "Error", ""
        else:
            self.invariants.note_fault(pod, class_of(exit_, pod))
        self.end_trainer(pod, code, reason=reason, message=words, side_car_runs=side_car_runs)

    def end_trainer(
        self,
        pod: Manifest,
        code: int,
        *,
        reason: str = "",
        message: str = "",
        side_car_runs: bool = False,
    ) -> None:
        """The trainer of a pod exits; well only if its processes run."""
        if code == 0 and not self.trains(pod):
            return
        truth = self.invariants.truth_of(pod)
        truth.exit_code, truth.ended_at = code, self.clock.seconds
        evicted = self.evicted.pop(pod["metadata"]["uid"], None)
        ends = evicted or kubelet.is_told_to_end(pod)
        truth.completed = code == 0 and not ends
        ended = kubelet.exited(
            pod,
            code,
            reason=reason or ("Error" if code else "Completed"),
            message=message,
            finished=self.clock.now(),
            side_car_runs=not ends and (side_car_runs or bool(kubelet.side_cars_of(pod))),
        )
        self.change(pod, kubelet.failed(ended, *evicted) if evicted else ended)

    def end_after_waiting(self, pod: Manifest) -> None:
        """End a launcher that has waited too long for an answer, with the code of its processes."""
        if failure := self.launchers.waited_too_long(pod):
            self.end_trainer(pod, failure["exitCode"], message=failure["message"])
            name = pod["metadata"]["name"]
            self.log(f"{name} ends with {failure['exitCode']}: no answer came")

    def trains(self, pod: Manifest) -> bool:
        """Return whether a pod's processes run."""
        return kubelet.is_running(pod) and self.launchers.works(pod)

    def possible_start_faults(self) -> Mapping[str, StartFault]:
        """Return the faults that may keep pods from starting now. An image's name that was valid
        stays so.
        """
        job = self.job()
        has_run = job is not None and bool(self.invariants.ledgers[job.uid].ran)
        return {
            what: fault
            for what, fault in START_FAULTS.items()
            if what != "no such name" or not has_run
        }

    def lose_containers(self, pod: Manifest) -> None:
        """Containers that ran when their machine was started again: containerd knows no more of
        them than that they are gone.
        """
        if kubelet.is_over(pod) or kubelet.trainer_exit(pod) or not kubelet.is_running(pod):
            return
        if not kubelet.is_told_to_end(pod):
            self.invariants.note_fault(pod, "Infrastructure")
            self.invariants.truth_of(pod).faults.add("Disruption")
        self.end_trainer(pod, 255, reason="Unknown")

    def overflow(self, pod: Manifest) -> None:
        """A pod writes more than it may: its own fault, unless its processes had failed before.

        The kubelet kills it within a second, and stores its own reason and message in the pod. The
        launcher leaves no words then: a failure that is not on record yet is never seen.
        """
        truth = self.invariants.truth_of(pod)
        failure = self.launchers.of(pod).failure if restarts_in_place(pod) else None
        if failure is None:
            self.invariants.note_fault(pod, "Application")
            truth.exit_code = 137
        elif truth.failed_as != "Application" and not self._is_recorded(failure):
            self.invariants.note_fault(pod, "Application")

    def _is_recorded(self, failure: Mapping[str, Any]) -> bool:
        """Return whether the job's status holds this failure of processes in a pod."""
        job = self.job()
        return job is not None and any(
            (known.pod, format_time(known.time)) == (failure["pod"], failure["time"])
            for known in job.status.failures
        )

    def is_ending(self, pod: Manifest) -> bool:
        """Return whether its kubelet ends it, or is about to."""
        return kubelet.is_told_to_end(pod) or pod["metadata"]["uid"] in self.evicted

    def take_away(self, pod: Manifest) -> None:
        """The cluster or a person takes a pod: no fault of its own, unless it had failed."""
        failed = restarts_in_place(pod) and self.launchers.of(pod).failure
        truth = self.invariants.truth_of(pod)
        ended_long_ago = self.clock.seconds - truth.ended_at > TOGETHER_SECONDS
        if not (kubelet.is_over(pod) and ended_long_ago):
            self.invariants.note_fault(pod, "Disruption")
        if not (kubelet.trainer_exit(pod) or failed):
            truth.taken_away = True

    def finish_termination(self, pod: Manifest, code: int) -> None:
        """End a deleted or evicted pod, as its kubelet does. A deleted pod's object goes."""
        key = self.key_of(pod)
        if kubelet.is_running(pod):
            self.end_trainer(pod, code if self.trains(pod) else code or 143)
        if evicted := self.evicted.pop(pod["metadata"]["uid"], None):
            self.change(pod, kubelet.failed(self.server.found_pod(key), *evicted))
        if kubelet.is_deleting(pod):
            self.server.remove_pod(key)

    def require(self, holds: object, claim: str) -> None:
        """Raise `AssertionError` when this claim, or any before it, does not hold."""
        self.invariants.require(holds, claim)
        self.check()

    def check(self) -> None:
        """Raise `AssertionError` when any claim has turned out not to hold."""
        if self.invariants.violation:
            raise AssertionError("\n".join((self.invariants.violation, *self.events)))
