"""Random histories of an elastic job of two to six pods, and of urgent ones, in Kueue's model."""

from random import Random

import pytest
from ddp_operator.job.membership.world import read_slots
from ddp_operator.ports import Key

from tests.simulation.kueue import Json, condition
from tests.simulation.kueue_world import JOB, URGENT, World
from tests.unit.engine.test_reconciler import job

QUOTA, LEAST = 6, 2
STEPS = 60
ELASTIC = {"minReplicas": LEAST, "shrinkAfterSeconds": 0, "growAfterSeconds": 60}


class History:
    """One history: urgent jobs come and go, pods are lost, and operators restart."""

    def __init__(self, seed: int, *, largest: int, loses_pods: bool = False) -> None:
        """Urgent jobs take at most `largest` pods of the quota together."""
        self._chance = Random(seed)
        self._loses_pods = loses_pods
        self._largest = largest
        self._urgent: dict[Key, int] = {}
        self._number = 0
        self.world = World(quota=QUOTA, has_launchers=True)
        queue = {"queueName": "team"}
        self.world.apply(job(replicas=QUOTA, elastic=ELASTIC, scheduling=queue))

    async def step(self) -> None:
        """Let something happen, and some time pass."""
        match self._chance.randrange(6):
            case 0 | 1 if (free := self._largest - sum(self._urgent.values())) > 0:
                self.take(self._chance.randint(1, free))
            case 2 | 3 if self._urgent:
                self.end(self._chance.choice([*self._urgent]))
            case 4 if self._loses_pods and (running := self.world.running()):
                pod = Key(JOB.namespace, self._chance.choice([*running]))
                self.world.kueue.delete_pod(pod)
            case 5:
                self.world.start_operator()
        await self.world.run(self._chance.choice((10, 20, 60)))
        assert self.world.kueue.used <= QUOTA

    def take(self, pods: int) -> None:
        """Have an urgent job take the quota of so many pods."""
        self._number += 1
        name = f"urgent-{self._number}"
        self._urgent[URGENT._replace(name=name)] = pods
        self.world.preempt(name, pods)

    def end(self, urgent: Key) -> None:
        """End an urgent job."""
        del self._urgent[urgent]
        self.world.kueue.delete_workload(urgent)

    async def settle(self, seconds: float) -> None:
        """End all urgent jobs. The job must be whole after this time."""
        for urgent in [*self._urgent]:
            self.end(urgent)
        await self.world.run(seconds)
        assert len(self.world.running()) == self.size == self.world.kueue.used == QUOTA
        assert self.world.status["phase"] == "Running"
        assert not self.world.errors

    @property
    def size(self) -> int:
        """The size of the job's group."""
        return len(read_slots(self.world.status["world"]["members"]))

    @property
    def group(self) -> Json:
        """The Workload of the pods without which the job does not train."""
        return self.world.workloads["train-u1-0"]


seeds = pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(4, 40))]
)


@seeds
async def test_elastic_job_keeps_its_group_while_others_take_the_rest(seed: int) -> None:
    history = History(seed, largest=QUOTA - LEAST)
    await history.world.run(120)
    since = condition(history.group, "QuotaReserved")["lastTransitionTime"]
    group = {name: history.world.running()[name] for name in ("train-0-0", "train-0-1")}
    sizes = {history.size}
    for _ in range(STEPS):
        await history.step()
        sizes.add(history.size)
        kept = condition(history.group, "QuotaReserved")
        assert (kept["status"], kept["lastTransitionTime"]) == ("True", since)
        assert group.items() <= history.world.running().items()
    await history.settle(seconds=180)
    assert (history.world.status["attempt"], history.world.status["restarts"]) == (0, 0)
    assert "sparesRenewed" not in history.world.status["bookkeeping"], "evictions delay no pod"
    assert sizes >= {LEAST, QUOTA}


@seeds
async def test_elastic_job_returns_after_others_took_all(seed: int) -> None:
    history = History(seed, largest=QUOTA, loses_pods=True)
    await history.world.run(120)
    for _ in range(STEPS):
        await history.step()
    history.take(QUOTA)
    await history.world.run(60)
    await history.settle(seconds=1200)
    assert history.world.status["attempt"] > 0
    assert history.world.status["restarts"] == 0
