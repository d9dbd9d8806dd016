"""The goodput in a job's status is that of an independent stopwatch, in random histories."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from ddp_operator.job.status.goodput import is_down
from ddp_operator.ports import Manifest

from tests.good_manifests import container, template
from tests.simulation.actions.lasting import lose_node
from tests.simulation.checks.truth import EXITS
from tests.simulation.simulation import Simulation
from tests.simulation.stopwatch import Seconds, Times, measure
from tests.simulation.world import kubelet
from tests.simulation.world.launchers import restarts_in_place
from tests.simulation.world.nodes import WELL, reporting
from tests.simulation.world.paced_training import PacedTraining, all_placed, paces
from tests.simulation.world.start_faults import Stage

HISTORIES, SHARDS, DAILY_SHARDS = 200, 8, 4
KINDS = 15
"""Of what happens; each shard has all of them."""
TOLERANCE = 0.01
"""Of the job's age."""
HANG_SECONDS = 90


class History:
    """One job's life, with failures at random times."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.happened: list[str] = []
        self.number = seed % (HISTORIES // SHARDS)
        """In its shard."""
        self.led = self.number == 24
        """True: launchers lead first; one in each shard."""
        self.elastic = self.number % 5 == 3
        replicas = random.randint(2 if self.led or self.elastic else 1, 3)
        times = Times(created=0.0)
        self.training = PacedTraining(paces(random), times, replicas)
        self.simulation = simulation = Simulation(self.training)
        self.training.follow(simulation)
        self.training.has_volume = self.number % 3 > 0
        simulation.server._version = random.randrange(8)  # it chooses what launchers can do
        scope = random.choice(("Gang", "Pod", "InPlace", "Auto"))
        scope = "InPlace" if self.led else "Pod" if self.elastic else scope
        spares = random.choice((0, 0, 1)) if scope != "Gang" and not self.elastic else 0
        sizes = {"minReplicas": 1, "maxReplicas": replicas}
        waits = {"shrinkAfterSeconds": 2, "growAfterSeconds": random.choice((0, 30))}
        hangs = {"progressDeadlineSeconds": HANG_SECONDS} if self.number % 2 else {}
        self.spec = {
            "replicas": replicas,
            "restart": {
                "scope": scope,
                "maxRestarts": 99,
                "backoff": {"initialSeconds": random.choice((0, 10))},
            },
            "template": template(container()),
            **({"spares": spares} if spares else {}),
            **({"elastic": sizes | waits} if self.elastic else {}),
            **hangs,
        }
        simulation.server.create_job(self.spec)
        self._due: dict[tuple[str, str], float] = {}
        self._is_heard = True
        """False: the operator does not reach the trainers."""

    def live(self, *, failures: int, between: tuple[float, float]) -> None:
        """Train with so many failures, and succeed."""
        if self.number % 2 == 0:
            self.groups_are_lost_unheard()
        for number in range(failures):
            self.train(self.random.uniform(*between))
            kinds = self._kinds()
            first = kinds[self.number // 2 % len(kinds)]
            first = self.launchers_lead if self.led else first
            kind = first if number == 0 else self.random.choice(kinds)
            kind()
            self.happened.append(kind.__name__)
        self.train(self.random.uniform(*between))
        self._make_up()
        self._succeed()

    def train(self, seconds: float) -> None:
        """Let so many seconds pass, and then wait until the group trains."""
        end = self.simulation.clock.seconds + seconds
        deadline = end + 3600
        while self.simulation.clock.seconds < end or not self.training.is_training:
            left = max(end - self.simulation.clock.seconds, 0.1)
            self._pass(min(left, self.random.uniform(9, 11) if self._is_undisturbed() else 1.5))
            self.simulation.require(self.simulation.clock.seconds < deadline, "it never trains")

    def _make_up(self) -> None:
        """Train all steps that were lost, as a job does that is to complete a number of steps."""
        steps = self.training.times.steps
        most = max(step for _, step in steps)
        while steps[-1][1] < most + 20:
            self.train(30)

    def _pass(self, seconds: float) -> None:
        simulation = self.simulation
        simulation.advance(seconds)
        self._kubelets()
        self.training.observe()
        if simulation.operator is not None:
            if self._is_heard:
                simulation.operator.ask_for_progress()
            if not self._is_undisturbed():
                simulation.operator.listen()
        simulation.check()

    def _is_undisturbed(self) -> bool:
        job, training = self.simulation.job(), self.training
        pods = self.simulation.pods(live=False)
        return bool(
            training.is_training
            and training.group
            and not training.group.hangs
            and self.simulation.operator is not None
            and job
            and not is_down(job.status)
            and job.status.phase == "Running"
            and all(kubelet.stage_of(pod) is Stage.READY for pod in pods)
            and not any(map(kubelet.is_deleting, pods))
            and not any(self.simulation.launchers.of(pod).led for pod in pods)
        )

    def _kubelets(self) -> None:
        """Bring pods further, and end those that are to go, each after a while."""
        simulation = self.simulation
        for pod in simulation.pods(live=False):
            if kubelet.is_deleting(pod):
                if kubelet.node_of(pod) not in simulation.dead_nodes and self._is_due(
                    pod, "end", 2
                ):
                    self.training.leave(pod)
                    simulation.finish_termination(pod, 143)
            elif kubelet.is_over(pod) or kubelet.trainer_exit(pod):
                continue
            elif (stage := kubelet.stage_of(pod)) < Stage.READY:
                if self._is_due(pod, stage.name, 8):
                    most = Stage.SCHEDULED if stage is Stage.CREATED else Stage.READY
                    simulation.bring_further(pod, most=most)
            else:
                simulation.end_after_waiting(pod)
        placed = self.training.times.placed
        if all_placed(simulation.pods(), self.training.replicas):
            placed.append(simulation.clock.seconds)

    def _is_due(self, pod: Manifest, what: str, most: float) -> bool:
        key = pod["metadata"]["uid"], what
        now = self.simulation.clock.seconds
        return now >= self._due.setdefault(key, now + self.random.uniform(0, most))

    # What happens to it

    def _kinds(self) -> list[Callable[[], object]]:
        kinds: list[Callable[[], object]] = [
            self.ranks_restart,
            self.a_trainer_exits,
            self.processes_end,
            self.a_pod_is_deleted,
            self.deleted_pods_train_on,
            self.a_pod_vanishes,
            self.a_vanished_pod_trains_on,
            self.a_node_is_lost,
            self.the_job_is_suspended,
            self.the_operator_is_away,
            self.the_operator_leaves_in_a_restart,
            self.rank_0_saves_alone,
        ]
        return [self.training_hangs] * ("progressDeadlineSeconds" in self.spec) + kinds

    def _member(self) -> Manifest:
        assert self.training.group is not None
        pods = [
            p for p in self.simulation.pods() if p["metadata"]["uid"] in self.training.group.pods
        ]
        return self.random.choice(pods)

    def a_trainer_exits(self) -> None:
        self.simulation.fail_trainer(self._member(), EXITS[0])
        self.training.observe()

    def ranks_restart(self) -> None:
        """Their launcher restarts them, which is no failure of the job."""
        self.training.form_again()

    def processes_end(self, pod: Manifest | None = None) -> bool:
        pod = pod or self._member()
        if not (restarts_in_place(pod) and self.simulation.launchers.fail(pod, 1, "failed")):
            return False
        self.simulation.invariants.note_fault(pod, "Application")
        self.training.observe()
        return True

    def a_pod_is_deleted(self, pod: Manifest | None = None) -> None:
        pod = pod or self._member()
        self.simulation.take_away(pod)
        self.simulation.server.end_pod(self.simulation.key_of(pod))
        self.training.observe()

    def deleted_pods_train_on(self) -> None:
        """One, and perhaps another one soon after it, until their kubelets end them."""
        saves = self.random.random() < 0.5
        for _ in range(self.random.randint(1, 2)):
            if self.training.group is not None:
                pod = self._member()
                uid = pod["metadata"]["uid"]
                self.training.leaving[uid] = saves
                grace = self.random.uniform(5, 30)
                self._due.setdefault((uid, "end"), self.simulation.clock.seconds + grace)
                self.a_pod_is_deleted(pod)
                self._wait(self.random.uniform(0, 5))

    def a_pod_vanishes(self) -> None:
        pod = self._member()
        self.simulation.take_away(pod)
        self.simulation.server.remove_pod(self.simulation.key_of(pod))
        self.training.observe()

    def a_vanished_pod_trains_on(self) -> None:
        """It was deleted by force, and its kubelet does not know yet."""
        if self.training.replicas == 1:
            seconds = self.random.uniform(0, 60)
            self.training.unseen_until = self.simulation.clock.seconds + seconds
        self.a_pod_vanishes()

    def a_node_is_lost(self) -> None:
        """It is noticed after a while, and comes back later."""
        simulation = self.simulation
        node = kubelet.node_of(self._member())
        simulation.dead_nodes.add(node)
        self.training.observe()
        self._wait(40)
        lose_node(simulation, node)
        self._wait(self.random.uniform(0, 100))
        for pod in simulation.pods(live=False):
            if kubelet.node_of(pod) == node:
                simulation.lose_containers(pod)
        simulation.server.put_node(reporting(simulation.server.node_manifests[node], WELL))
        simulation.dead_nodes.discard(node)

    def training_hangs(self) -> None:
        assert self.training.group is not None
        self.training.observe()
        self.training.group.hangs = True
        self.training.times.interruptions.append(self.simulation.clock.seconds)
        self._wait(HANG_SECONDS)

    def the_operator_is_away(self) -> None:
        """And something fails meanwhile, or not."""
        self.simulation.down_seconds = self.random.uniform(0, 60)
        self.simulation.kill_operator()
        if self.random.random() < 0.5:
            self.a_trainer_exits()

    def rank_0_saves_alone(self) -> None:
        """While no operator is there, it waits for a rank that was lost, and its pod is deleted."""
        if self.training.replicas == 1:
            self.the_operator_is_away()
            return
        assert self.training.group is not None
        leader, lost, *_ = self.training.group.pods
        pods = {pod["metadata"]["uid"]: pod for pod in self.simulation.pods()}
        self.simulation.down_seconds = down = self.random.uniform(20, 90)
        self.simulation.kill_operator()
        end = self.simulation.clock.seconds + down
        self._wait(self.random.uniform(0, down / 2))
        if not self.processes_end(pods[lost]):
            self.simulation.fail_trainer(pods[lost], EXITS[0])
            self.training.observe()
        self._wait(self.random.uniform(0, down / 2))
        if self.training.is_left(pods[leader]):
            self.training.save_alone(pods[leader])
            self.simulation.take_away(pods[leader])
            self.simulation.server.remove_pod(self.simulation.key_of(pods[leader]))
            self.training.observe()
        self._wait(end - self.simulation.clock.seconds)

    def the_operator_leaves_in_a_restart(self) -> None:
        """The group trains again, and perhaps loses another pod, before one is there."""
        self.a_trainer_exits()
        self._wait(self.random.uniform(0, 30))
        self.simulation.down_seconds = down = self.random.uniform(30, 200)
        self.simulation.kill_operator()
        end = self.simulation.clock.seconds + down
        self._wait(self.random.uniform(0, down))
        if self.random.random() < 0.5 and self.training.group is not None:
            self.a_trainer_exits()
        self._wait(end - self.simulation.clock.seconds)

    def launchers_lead(self) -> None:
        """Processes end while no operator is there, and launchers restart them."""
        self.simulation.down_seconds = down = self.random.uniform(100, 300)
        self.simulation.kill_operator()
        end = self.simulation.clock.seconds + down
        self._wait(self.random.uniform(1, 60))
        self.processes_end()
        self._wait(30)
        self.simulation.leaders.lead()
        self.training.observe()
        self._wait(end - self.simulation.clock.seconds)

    def the_job_is_suspended(self) -> None:
        simulation, times = self.simulation, self.training.times
        self.training.save_and_stop()
        simulation.server.edit_job({"suspend": True})
        times.suspended.append(simulation.clock.seconds)
        self._wait(self.random.uniform(20, 300))
        simulation.server.edit_job({"suspend": False})
        times.resumed.append(simulation.clock.seconds)

    def groups_are_lost_unheard(self) -> None:
        """A group is lost before the operator has heard of a step, perhaps before there was one;
        and perhaps another one while it starts.
        """
        self._is_heard = False
        for most in self.random.choice(((120,), (120, 10))):
            end = self.simulation.clock.seconds + 600
            while self.training.group is None:
                self._wait(2)
                self.simulation.require(self.simulation.clock.seconds < end, "no group forms")
            self._wait(self.random.uniform(0, most))
            loss = self.random.choice((self.a_trainer_exits, self.a_pod_vanishes))
            loss()
            # What is left of the lost group may answer.
            self._is_heard = self.random.random() < 0.3
            self._wait(self.random.uniform(0, 20))
            self._is_heard = False
        self._is_heard = True
        self.happened.append("groups_are_lost_unheard")

    def _wait(self, seconds: float) -> None:
        end = self.simulation.clock.seconds + seconds
        while (left := end - self.simulation.clock.seconds) > 0:
            self._pass(min(left, 2.0))

    def _succeed(self) -> None:
        self.training.observe()
        for pod in self.simulation.pods():
            self.simulation.end_trainer(pod, 0)
        self.training.times.ended = self.simulation.clock.seconds
        self.simulation.advance(60)
        assert self.simulation.operator is not None
        self.simulation.operator.kill()

    def booked(self) -> Seconds:
        """Return what the job's status says."""
        job = self.simulation.job()
        assert job is not None
        assert job.status.phase == "Succeeded", job.status
        assert job.status.goodput is not None
        books = job.status.goodput
        return {
            "pending": books.pending_seconds,
            "starting": books.starting_seconds,
            "training": books.training_seconds,
            "lost": books.lost_seconds,
            "suspended": books.suspended_seconds,
        }


@pytest.mark.parametrize(
    "shard",
    [
        pytest.param(shard, marks=() if shard < DAILY_SHARDS else pytest.mark.nightly)
        for shard in range(SHARDS)
    ],
)
def test_status_agrees_with_independent_stopwatch(shard: int) -> None:
    happened, shrank = Counter[str](), 0
    each = HISTORIES // SHARDS
    for seed in range(shard * each, (shard + 1) * each):
        history = History(seed)
        history.live(failures=1 + seed % 4, between=(200, 600))
        measured, booked = measure(history.training.times), history.booked()
        age = sum(measured.values())
        if not history.training.has_volume:
            # Nobody knows whether a first group completed steps that was lost unheard.
            for spent in (measured, booked):
                spent["lost"] += spent.pop("starting")
        for kind, seconds in measured.items():
            claim = f"history {seed}, {history.happened}, {kind}: {booked} is not {measured}"
            assert abs(booked[kind] - seconds) <= TOLERANCE * age, claim
        happened.update(history.happened)
        sizes = history.training.sizes.values()
        shrank += history.elastic and min(sizes) < history.training.replicas
    assert len(happened) == KINDS, happened
    assert shrank > 0
