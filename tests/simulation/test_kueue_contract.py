"""The model of Kueue passes the scenarios of Kueue's contract.

`tests/integration/queues/test_contract.py` runs the same scenarios against the real Kueue.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods import multikueue
from ddp_operator.ports import Key, Manifest

from tests.mergepatch import merged
from tests.simulation import kueue_contract, kueue_multikueue_contract
from tests.simulation.kueue import Json, Kueue
from tests.simulation.kueue_multikueue import CHECK, Cluster, MultiKueue
from tests.simulation.kueue_world import JOB, Clock
from tests.unit.engine.test_delegation import elsewhere

_NAMESPACE = "default"


class Model:
    """Implements `kueue_contract.Subject` in virtual time."""

    def __init__(self, clock: Clock, *, check: str | None = None) -> None:
        self.kueue = Kueue(clock, check=check)
        self.settle = self.kueue.settle
        self._clock = clock

    async def create_workload(self, manifest: Manifest) -> None:
        self.kueue.create_workload(self._placed(manifest))
        self._settle()

    async def workload(self, name: str) -> Manifest | None:
        return self.kueue.workloads.get(Key(_NAMESPACE, name))

    async def change(self, name: str, **spec: Any) -> None:
        self.kueue.update_workload(Key(_NAMESPACE, name), spec)
        self._settle()

    async def patch_status(self, name: str, status: Manifest) -> None:
        self.kueue.patch_status(Key(_NAMESPACE, name), status)
        self._settle()

    async def delete_workload(self, name: str) -> None:
        self.kueue.delete_workload(Key(_NAMESPACE, name))
        self._settle()

    async def create_pod(self, manifest: Manifest) -> None:
        self.kueue.create_pod(self._placed(manifest))
        self._settle()

    async def pods(self) -> dict[str, Manifest]:
        return {key.name: pod for key, pod in self.kueue.pods.items()}

    async def end_pod(self, name: str, *, exit_code: int) -> None:
        self.kueue.end_pod(Key(_NAMESPACE, name), exit_code=exit_code)
        self._settle()

    async def mark_pod(self, name: str, **annotations: str) -> None:
        metadata = self.kueue.pods[Key(_NAMESPACE, name)]["metadata"]
        metadata["annotations"] = merged(metadata["annotations"], annotations)
        self._settle()

    async def eventually(self, holds: Callable[[], Awaitable[object]]) -> None:
        assert await holds(), (self.kueue.workloads, self.kueue.pods)

    async def pass_time(self) -> None:
        self._settle()

    def _placed(self, manifest: Manifest) -> Manifest:
        return {**manifest, "metadata": {**manifest["metadata"], "namespace": _NAMESPACE}}

    def _settle(self) -> None:
        self.settle()
        self._clock.now += timedelta(seconds=1)


class ModelClusters:
    """Implements `kueue_multikueue_contract.Clusters` in virtual time."""

    def __init__(self) -> None:
        clock = Clock()
        self.manager, self.worker = Model(clock, check=CHECK), Model(clock)
        self._jobs: dict[int, dict[Key, Json]] = {id(self.manager): {}, id(self.worker): {}}
        sides = (Cluster(each.kueue, self._jobs[id(each)]) for each in (self.manager, self.worker))
        self.manager.settle = self.worker.settle = MultiKueue(*sides).settle
        self.workload = ""

    async def create_job(self, name: str, *, priority: int = 0) -> str:
        manifest = elsewhere()
        manifest["metadata"] |= {"name": name, "uid": f"uid-{name}"}
        self._jobs[id(self.manager)][JOB._replace(name=name)] = manifest
        made = multikueue.workload(DDPJob.parse(manifest), None)
        made["spec"]["priority"] = priority
        self.manager.kueue.create_workload(made)
        self.manager.settle()
        return str(made["metadata"]["name"])

    async def job(self, cluster: kueue_contract.Subject) -> Manifest | None:
        return self._jobs[id(cluster)].get(JOB)

    async def set_status(self, cluster: kueue_contract.Subject, status: Manifest) -> None:
        self._jobs[id(cluster)][JOB]["status"] = status
        self.manager.settle()


@pytest.mark.parametrize("scenario", kueue_contract.SCENARIOS, ids=lambda one: one.__name__)
async def test_model_of_kueue(scenario: kueue_contract.Scenario) -> None:
    await scenario(Model(Clock()))


@pytest.mark.parametrize(
    "scenario", kueue_multikueue_contract.SCENARIOS, ids=lambda one: one.__name__
)
async def test_model_of_multikueue(scenario: kueue_multikueue_contract.Scenario) -> None:
    clusters = ModelClusters()
    clusters.workload = await clusters.create_job(JOB.name)
    await scenario(clusters)
