"""Groups that restart in place while the operator is away, slow or cut off: they always recover."""

import random
from collections.abc import Callable
from random import Random
from typing import Final

import pytest
from ddp_operator.ports import Manifest

from tests.simulation.actions.lasting import evict_by_taint, lose_node
from tests.simulation.checks.truth import Exit
from tests.simulation.scripted import Script
from tests.simulation.world import kubelet
from tests.simulation.world import refusals as answers
from tests.simulation.world.refusals import WRITES, Refusal

HISTORIES: Final = 20
_SHARDS, _DAILY_SHARDS = 20, 4
_BOOM: Final = Exit(1, "Error", "boom", "Application")
_LOST: Final = Exit(75, "Error", "lost a peer", "Application")


class History:
    """One job, to which all kinds of trouble happen. Kubelets work; polls come all the time."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        random.seed(seed)  # the operator chooses the launcher that it asks when one is silent
        self.script = Script(
            replicas=self.random.choice((1, 2, 3, 4)),
            spares=self.random.choice((0, 0, 1)),
            restart={"scope": "InPlace", "maxRestarts": 60},
        )
        self.simulation = self.script.simulation
        self.simulation.leaders.obey_timers = self.random.random() < 0.7
        self.down = 0.0
        """Seconds without a whole group."""

    def live(self) -> None:
        """Start, have trouble, and recover."""
        self.pass_time(60)
        for _ in range(10):
            self.random.choice(_TROUBLES)(self)
            self.pass_time(self.random.choice((0, 2, 6, 20, 60)))
        self.heal()
        self.pass_time(300, step=4.0)
        if self.simulation.operator is not None:
            self.simulation.operator.kill()
        status = self.script.job.status
        generation = status.world.generation if status.world else 0
        self.simulation.require(self.group == generation, f"{self.group} trains: {status}")

    def pass_time(self, seconds: float, *, step: float = 2.0) -> None:
        """Let kubelets, the operator and the leaders work."""
        simulation = self.simulation
        end = simulation.clock.seconds + seconds
        while simulation.clock.seconds < end:
            self.script.let_kubelets_work()
            if simulation.operator is not None:
                simulation.operator.listen()
            simulation.advance(step)
            simulation.leaders.lead(self.random.choice((1, 2, 40)))
            self.down += step if self.group is None else 0
            simulation.check()

    @property
    def group(self) -> int | None:
        """Return the generation in which all ranks run; None: there is none."""
        ranks: dict[int, set[int | None]] = {}
        for pod in self.script.pods:
            if self.simulation.trains(pod) and not kubelet.is_deleting(pod):
                one = self.simulation.launchers.of(pod)
                ranks.setdefault(one.generation, set()).add(one.node_rank)
        wanted = {*range(self.script.job.spec.replicas)}
        return max((one for one, of_it in ranks.items() if wanted <= of_it), default=None)

    def heal(self) -> None:
        """End all troubles."""
        simulation = self.simulation
        simulation.requests.clear()
        simulation.launchers.clear()
        for node in list(simulation.dead_nodes):
            simulation.dead_nodes.discard(node)
            simulation.server.put_node(simulation.server.fleet.nodes[node])
        if simulation.operator is not None:
            simulation.operator.heal()

    def _any_pod(self) -> Manifest | None:
        running = [pod for pod in self.script.pods if kubelet.is_running(pod)]
        return self.random.choice(running) if running else None

    def processes_end(self) -> None:
        if pod := self._any_pod():
            self.script.fail(pod, _BOOM)
            if self.random.random() < 0.5:
                for other in self.script.pods:
                    if kubelet.is_running(other) and other is not pod:
                        self.script.fail(other, _LOST)

    def operator_is_away(self) -> None:
        self.simulation.down_seconds = self.random.choice((0.0, 4.0, 10.0, 30.0, 120.0))
        self.simulation.kill_operator()

    def operator_fails_while_processes_end(self) -> None:
        self.simulation.down_seconds = self.random.choice((4.0, 10.0, 30.0))
        self.simulation.requests.writes_until_crash = self.random.choice((0, 1, 2))
        self.simulation.requests.crash_after_effect = self.random.random() < 0.5
        self.processes_end()

    def operator_is_cut_off(self) -> None:
        launchers = self.simulation.launchers
        is_lost = launchers.all_cut_off_since is not None
        launchers.all_cut_off_since = None if is_lost else self.simulation.clock.seconds

    def pod_is_cut_off(self) -> None:
        if pod := self._any_pod():
            launchers = self.simulation.launchers
            cut_off = self.random.choice((launchers.cut_off, launchers.apart))
            cut_off ^= {pod["metadata"]["uid"]}

    def answers_are_late(self) -> None:
        launchers = self.simulation.launchers
        launchers.answer_seconds = self.random.choice((0.01, 1.0, 5.0, 1000.0))
        launchers.loses_answers = self.random.random() < 0.2
        launchers.processes_linger = self.random.random() < 0.3

    def late_orders_come(self) -> None:
        self.simulation.launchers.deliver_late()

    def writes_are_refused(self) -> None:
        until = self.simulation.clock.seconds + self.random.choice((5.0, 30.0))
        refusal = Refusal(answers.webhook_down, requests=WRITES, until=until)
        self.simulation.requests.refusals.add(refusal)

    def pod_is_evicted(self) -> None:
        if pod := self._any_pod():
            evict_by_taint(self.simulation, pod)

    def node_is_lost(self) -> None:
        if pod := self._any_pod():
            lose_node(self.simulation, kubelet.node_of(pod))


_TROUBLES: Final[tuple[Callable[[History], None], ...]] = (
    *[History.processes_end] * 4,
    *[History.operator_is_away] * 3,
    *[History.operator_fails_while_processes_end] * 2,
    History.operator_is_cut_off,
    History.pod_is_cut_off,
    History.answers_are_late,
    History.late_orders_come,
    History.writes_are_refused,
    History.pod_is_evicted,
    History.node_is_lost,
    History.heal,
)


@pytest.mark.parametrize(
    "shard",
    [
        pytest.param(shard, marks=() if shard < _DAILY_SHARDS else pytest.mark.nightly)
        for shard in range(_SHARDS)
    ],
)
def test_group_recovers_although_launchers_and_the_operator_lead(shard: int) -> None:
    led = 0
    for number in range(HISTORIES):
        history = History(shard * HISTORIES + number)
        try:
            history.live()
        except AssertionError as error:
            raise AssertionError(f"history {shard * HISTORIES + number}: {error}") from None
        led += history.simulation.leaders.completed
    # 10 to 23 in each of the shards, 18 on average; far fewer would show nothing.
    assert led > HISTORIES / 4, "launchers seldom lead"
