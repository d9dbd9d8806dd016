"""One history: the world, the operator in it, and the calm after the storm."""

from dataclasses import replace

from ddp_operator.api.constants import LABEL_ATTEMPT, LABEL_INDEX, LABEL_REPLACEMENT
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.job.pods.projection import project
from ddp_operator.ports import Key, Manifest

from tests.simulation import kubelet
from tests.simulation.clock import Clock
from tests.simulation.cluster import Weather
from tests.simulation.invariants import Invariants, told_of, wanted_by
from tests.simulation.launchers import Launchers, starts_anew
from tests.simulation.process import OperatorProcess
from tests.simulation.server import NODES, ApiServer
from tests.simulation.training import SimulatedTrainers, Training

_CALM_ROUNDS = 12
_CALM_ROUND_SECONDS = 330
"""Longer than any pause that the operator makes by itself."""

_IDLE_SECONDS = 1000
_MOST_IDLE_PLANS = 4
_MOST_PLANS_PER_STEP = 6
_MOST_WRITES_PER_STEP = 6


class Simulation:
    """A cluster in which anything may happen; `tale` says in words what did."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.server = ApiServer(self.clock)
        self.weather = Weather()
        self._specs: dict[tuple[str, int], DDPJob] = {}
        self.invariants = Invariants(self.server, self.clock, parse=self._parsed)
        self.server.judge = self.invariants
        self.training = Training()
        self.launchers = Launchers(
            self.server,
            self.clock,
            self.invariants.require,
            clock_is_right=lambda: self.invariants.clock_is_right,
        )
        self.invariants.judge_place = self.launchers.born
        self._trainers = SimulatedTrainers(self.training, self.pods, self.launchers)
        self.dead_nodes: set[str] = set()
        self.tale: list[str] = []
        self.steps = self.plans = self.writes = 0
        self.down_seconds = 0.0
        self._restart_at = 0.0
        self.operator: OperatorProcess | None = None
        self.start_operator()

    # What actions use

    def tell(self, what: str) -> None:
        """Note what happened, and when."""
        self.tale.append(f"{self.clock.seconds:9.2f}  {what}")

    def job(self) -> DDPJob | None:
        """The job as stored."""
        return self._parsed(self.server.job) if self.server.job else None

    def _parsed(self, manifest: Manifest) -> DDPJob:
        """Read a job as stored; its spec only once, for that takes longest."""
        metadata = manifest["metadata"]
        known = self._specs.get((metadata["uid"], metadata["generation"]))
        if known is None:
            known = self._specs[metadata["uid"], metadata["generation"]] = DDPJob.parse(manifest)
        status = DDPJobStatus.model_validate(manifest.get("status") or {})
        return replace(known, resource_version=metadata["resourceVersion"], status=status)

    def start_operator(self) -> None:
        """A new process reads the cluster and goes on."""
        self.operator = OperatorProcess(self.server, self.clock, self.weather, self._trainers)

    def kill_operator(self) -> None:
        """The process ends now; the next one comes after `down_seconds`."""
        if self.operator is not None:
            self.operator.kill()
            self.plans += self.operator.cluster.plans
            self.writes += self.operator.cluster.writes
            self.operator = None
            self._restart_at = self.clock.seconds + self.down_seconds
            self.tell(f"the operator is dead for {self.down_seconds} s")

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

    def start_trainer(self, pod: Manifest, *, ready: bool) -> None:
        """The trainer of a pod runs."""
        if not kubelet.is_running(pod):
            self.invariants.truth_of(pod).move(self.clock.seconds)
        self.change(pod, kubelet.started(pod, ready=ready, now=self.clock.now()))

    def end_trainer(
        self, pod: Manifest, code: int, *, message: str = "", side_car_runs: bool = False
    ) -> None:
        """The trainer of a pod exits; well only if its processes run."""
        if code == 0 and not self.trains(pod):
            return
        truth = self.invariants.truth_of(pod)
        truth.exit_code = code
        truth.completed = code == 0 and not kubelet.is_told_to_end(pod)
        reason = "OOMKilled" if code == 137 else "Error" if code else "Completed"
        self.change(
            pod,
            kubelet.exited(
                pod,
                code,
                reason=reason,
                message=message,
                finished=self.clock.now(),
                side_car_runs=side_car_runs,
            ),
        )

    def trains(self, pod: Manifest) -> bool:
        """Whether a pod's processes run."""
        return kubelet.is_running(pod) and self.launchers.works(pod)

    def take_away(self, pod: Manifest) -> None:
        """The cluster or a person takes a pod: no fault of its own, unless it had failed."""
        failed = starts_anew(pod) and self.launchers.of(pod).failure
        if not (kubelet.trainer_exit(pod) or failed):
            self.invariants.truth_of(pod).taken_away = True

    def finish_termination(self, pod: Manifest, code: int) -> None:
        """The kubelet has ended a pod that was to go; its object goes."""
        if kubelet.is_running(pod):
            self.end_trainer(pod, code)
        self.server.remove_pod(self.key_of(pod))

    # The end

    def calm(self) -> None:
        """All faults end; then everything must come to where its user wants it."""
        self.tell("the weather is let clear")
        self.weather.clear()
        self.launchers.cut_off.clear()
        self.launchers.apart.clear()
        self.launchers.loses_answers = self.launchers.processes_linger = False
        self.dead_nodes.clear()
        for node in NODES:
            self.server.put_node(node)
        self.clock.operator_skew_seconds = 0.0
        self.server.refuse_nothing()
        self.down_seconds = 0.0  # a write under way may still be its last
        self.server.remove_strangers()
        if self.operator is None:
            self.start_operator()
        for _ in range(_CALM_ROUNDS):
            self.advance(0.1)
            assert self.operator is not None
            self.operator.heal()
            self.operator.listen()
            self.advance(_CALM_ROUND_SECONDS)
            self._require_only_current_pods()
            if self._at_rest():
                break
            self._kubelets_catch_up()
        self.require(self._at_rest(), f"not at rest in the end: {self._status_in_words()}")
        self._idle()

    def _require_only_current_pods(self) -> None:
        """Nothing of the past runs on, and nothing of a suspended job."""
        job = self.job()
        if job is None:
            return
        status = job.status
        for pod in self.pods(live=False):
            owned = pod["metadata"]["ownerReferences"][0]["uid"] == job.uid
            if not owned or kubelet.is_deleting(pod) or kubelet.is_over(pod):
                continue
            name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
            index, attempt = labels[LABEL_INDEX], int(labels[LABEL_ATTEMPT])
            replacement = int(labels.get(LABEL_REPLACEMENT, 0))
            wanted = (status.attempt, status.bookkeeping.replacements.get(index, 0))
            self.require((attempt, replacement) == wanted, f"{name} was left running")
            world = (told_of(pod), wanted_by(job.spec))
            # Edits of a finished job do nothing, and an elastic one is of any size.
            fixed = not (status.finished or job.spec.elastic)
            agree = not fixed or world[0] is None or world[0] == world[1]
            self.require(agree, f"{name} is told of {world[0]}, not {world[1]}")
            self.require(not status.is_true("Suspended"), f"{name} outlived the suspension")

    def _kubelets_catch_up(self) -> None:
        self.server.collect_garbage()
        job = self.job()
        running = job is not None and job.status.phase == "Running"
        for pod in self.pods(live=False):
            if kubelet.is_deleting(pod):
                self.finish_termination(pod, 143)
            elif kubelet.is_running(pod) and self._waits_in_vain(pod):
                continue
            elif kubelet.is_running(pod) and running:
                self.end_trainer(pod, 0)
            elif not kubelet.is_over(pod) and not kubelet.trainer_exit(pod):
                placed = pod if kubelet.node_of(pod) else kubelet.scheduled(pod, NODES[0].name)
                self.start_trainer(placed, ready=True)

    def _waits_in_vain(self, pod: Manifest) -> bool:
        """Whether its processes have ended or not begun; what waited too long ends with them."""
        if self.launchers.works(pod):
            return False
        code = self.launchers.out_of_patience(pod)
        if code is not None:
            self.end_trainer(pod, code)
        return True

    def _at_rest(self) -> bool:
        """Whether nothing is left to do: no job, a finished one, or a suspended one."""
        job = self.job()
        pods = self.pods(live=False)
        if job is None:
            return not pods
        live = [pod for pod in pods if not kubelet.is_over(pod)]
        if job.status.finished:
            policy_left_them = job.spec.clean_pod_policy == "None"
            return not any(map(kubelet.is_deleting, pods)) and (policy_left_them or not live)
        return job.status.is_true("Suspended") and job.spec.suspend and not live

    def _status_in_words(self) -> str:
        job = self.job()
        pods = [project(pod) for pod in self.pods(live=False)]
        return f"{job.status if job else 'no job'}, {pods}"

    def _idle(self) -> None:
        """An operator that has nothing to do does nothing."""
        assert self.operator is not None
        cluster = self.operator.cluster
        plans, writes = cluster.plans, cluster.writes
        job_was_there = self.server.job is not None
        self.advance(_IDLE_SECONDS)
        if job_was_there == (self.server.job is not None):  # else its time to live was over
            self.require(cluster.writes == writes, "it writes although nothing has changed")
        self.require(cluster.plans - plans <= _MOST_IDLE_PLANS, "it plans without end")
        steps = self.steps + _CALM_ROUNDS
        plans, writes = self.plans + cluster.plans, self.writes + cluster.writes
        self.require(plans <= _MOST_PLANS_PER_STEP * steps, f"{plans} plans in {steps} steps")
        self.require(writes <= _MOST_WRITES_PER_STEP * steps, f"{writes} writes in {steps} steps")

    def require(self, holds: object, claim: str) -> None:
        """Raise `AssertionError` when this claim, or any before it, does not hold."""
        self.invariants.require(holds, claim)
        self.check()

    def check(self) -> None:
        """Raise `AssertionError` when any claim has turned out not to hold."""
        if self.invariants.violation:
            raise AssertionError("\n".join((self.invariants.violation, *self.tale)))
