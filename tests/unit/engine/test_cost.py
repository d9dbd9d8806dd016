"""Writes and plans of a large job, which must not grow with what happens to each pod.

In virtual time, with a watch that lags behind the writes as a real one does.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import pytest
from ddp_operator.ports import Key, Manifest

from tests.simulation.clock import Clock
from tests.simulation.world.cluster import RequestFaults
from tests.simulation.world.process import OperatorProcess
from tests.simulation.world.server import JOB, ApiServer
from tests.unit.engine.fakes import FakeTrainers
from tests.unit.engine.test_reconciler import CRASHED, READY

PODS: Final = 200
SECONDS: Final = 4.0
"""How long it takes until all pods are ready."""
NOBODY: Final[Any] = SimpleNamespace(
    **dict.fromkeys(
        ("pod_created", "pod_changed", "pod_deleted", "pod_removed", "status_written"),
        lambda *_: None,
    )
)


class LargeJob:
    """A large job after the creation of its pods, and the operator."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.server = ApiServer(self.clock)
        self.server.judge = NOBODY
        self.operator = OperatorProcess(self.server, self.clock, RequestFaults(), FakeTrainers())
        restart = {"scope": "Gang", "replaceWhen": "Terminating"}
        self.server.create_job({"replicas": PODS, "restart": restart})
        self.run(10.0)

    @property
    def status(self) -> Manifest:
        status: Manifest = self.server.found_job()["status"]
        return status

    @property
    def alive(self) -> set[str]:
        """Names of the pods that nobody has deleted."""
        pods = (pod["metadata"] for pod in self.server.pods.values())
        return {pod["name"] for pod in pods if "deletionTimestamp" not in pod}

    def run(self, seconds: float) -> None:
        self.operator.loop.run_until(self.clock.seconds + seconds)

    def counts(self) -> tuple[int, int]:
        """Return how many writes and plans the operator has made."""
        return self.operator.cluster.writes, self.operator.plans

    def report(self, pod: Key, status: Manifest) -> None:
        """Report the status of a pod, as its kubelet does."""
        stored = self.server.pods[pod]
        spec = {**stored["spec"], "nodeName": f"node-{pod.name}"}
        self.server.change_pod(pod, {**stored, "spec": spec, "status": status})

    def make_ready(self) -> None:
        """Let the pods become ready one after the other."""
        for pod in list(self.server.pods):
            self.report(pod, READY)
            self.run(SECONDS / PODS)
        self.run(3.0)
        assert self.status["phase"] == "Running"


@pytest.fixture
def job() -> Iterator[LargeJob]:
    job = LargeJob()
    yield job
    job.operator.kill()


def test_new_job_costs_one_write_a_pod(job: LargeJob) -> None:
    writes, plans = job.counts()
    assert len(job.server.pods) == PODS
    assert writes <= PODS + 6
    assert plans <= 12


def test_pods_that_become_ready_cost_few_plans(job: LargeJob) -> None:
    writes, plans = job.counts()
    job.make_ready()
    assert job.operator.plans - plans <= 4 * SECONDS + 8
    assert job.operator.cluster.writes - writes <= 8


def test_restart_of_all_pods_costs_little_more_than_their_creation(job: LargeJob) -> None:
    job.make_ready()
    writes, plans = job.counts()
    old = job.alive
    job.report(Key(JOB.namespace, min(old)), CRASHED)
    job.run(5.0)
    assert len(job.alive) == PODS
    assert not job.alive & old
    assert job.operator.cluster.writes - writes <= 1.2 * PODS
    assert job.operator.plans - plans <= 20
