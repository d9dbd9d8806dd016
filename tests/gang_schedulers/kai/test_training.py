"""Real pods that train in gangs of KAI Scheduler, on one node with four chips."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from ddp_operator.api.schema.crd import custom_resource_definition

from tests.cluster import ClusterUnavailableError, cluster
from tests.cluster.node import Node
from tests.cluster.preparation import images
from tests.e2e.jobs import (
    TRAINER_IMAGE,
    UNTIL_TOLD,
    Job,
    doubles_job,
    force_delete,
    last_words,
    tell_to_end,
)
from tests.e2e.kubectl import Kubectl, Manifest, wait_for
from tests.e2e.losses import STEP_LOG, StepLog, assert_no_step_is_lost
from tests.e2e.test_elastic import has_size
from tests.gang_schedulers.kai import scheduler
from tests.integration.queues.queue import CHIP
from tests.skipping import skip_or_fail

_CHIPS: Final = 4
_DEADLINE_SECONDS: Final = 900
_CYCLES: Final = 4
"""One takes a second."""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A node with KAI Scheduler and the operator as processes beside it."""
    with ExitStack() as stack:
        programs = scheduler.find()
        try:
            running = stack.enter_context(cluster("kai"))
        except ClusterUnavailableError as reason:
            skip_or_fail("TEST CLUSTER", reason)
        if not isinstance(running, Node):
            pytest.skip("KAI Scheduler runs beside a bare node alone")
        [trainer] = [image for image in images.ALL if image.name in TRAINER_IMAGE]
        images.load(images.find(trainer), running)
        running.offer_volumes(1)
        scheduler.start(programs, running)
        start_operator(running)
        yield running


def start_operator(beside: Node) -> None:
    """Run the operator of this checkout for all namespaces."""
    kubectl = Kubectl(beside.kubeconfig)
    kubectl.apply(custom_resource_definition())
    options = ("--health-port=0", "--metrics-port=0", "--launcher-image=unused")
    words = [sys.executable, "-m", "ddp_operator", "run", f"--kubeconfig={beside.kubeconfig}"]
    beside.spawn_beside("operator", [*words, *options])


@pytest.fixture
def kubectl(node: Node) -> Kubectl:
    """kubectl in a namespace with a claim."""
    everywhere = Kubectl(node.kubeconfig)
    everywhere.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kai"}})
    kubectl = everywhere.within("kai")
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": "volume-0",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "checkpoints"},
            "spec": spec,
        }
    )
    everywhere.apply(*scheduler.queues("default-parent-queue", {"default-queue": 0}))
    return kubectl


def training(name: str, *arguments: str, priority: str = "low", **spec: Any) -> Manifest:
    """A gang in KAI's default queue. Its pods request one chip each."""
    job: dict[str, Any] = dict(doubles_job(name, *arguments, **spec))
    job["spec"]["scheduling"] = {"gang": "kai"}
    template = job["spec"]["template"]["spec"]
    template["priorityClassName"] = priority
    (container,) = template["containers"]
    container["resources"] = {"limits": {CHIP: 1}}
    return job


def noted(name: str, **spec: Any) -> Manifest:
    """A training that notes its steps and lasts until `tell_to_end`."""
    return training(
        name,
        *("--epochs=80", "--checkpoint-every-steps=1000", UNTIL_TOLD),
        f"--trace-samples=/checkpoints/{STEP_LOG}",
        checkpoint={"persistentVolumeClaim": "checkpoints"},
        **spec,
    )


def until(job: Job, reason: str) -> None:
    """Wait until the status of a job has a reason."""
    wait_for(
        lambda: job.status().reason == reason,
        what=f"{job.name} {reason}",
        deadline_seconds=_DEADLINE_SECONDS,
        describe=job.status,
    )


def until_trained(job: Job, log: StepLog) -> None:
    """Wait until all ranks train some steps together."""
    goal = max(log.last()) + 5
    wait_for(
        lambda: min(log.last()) > goal,
        what=f"step {goal} of all ranks",
        deadline_seconds=_DEADLINE_SECONDS,
        describe=job.status,
    )


def lacks_a_pod(kubectl: Kubectl) -> bool:
    """Return whether KAI noted in some cycles that a gang lacks a pod: longer than it waits."""
    events = kubectl.items("events", "--field-selector", "reason=StaleJob")
    cycles: int = sum(event["count"] for event in events)
    return cycles > _CYCLES


def placed(job: Job) -> list[str]:
    """Return the pods of a job that have a node and are not deleted."""
    return [
        pod["metadata"]["name"]
        for pod in job.pods()
        if "nodeName" in pod["spec"] and "deletionTimestamp" not in pod["metadata"]
    ]


@pytest.mark.timeout(3000)
def test_gang_of_four_waits_loses_a_pod_is_preempted_and_ends(
    node: Node, kubectl: Kubectl, volume: Path
) -> None:
    node.set_capacity(CHIP, _CHIPS - 1)
    kubectl.apply(noted("job", replicas=_CHIPS))
    job, log = Job(kubectl, "job"), StepLog(volume, _CHIPS)
    until(job, "Unschedulable")
    assert placed(job) == []
    node.set_capacity(CHIP, _CHIPS)
    until_trained(job, log)
    job.wait_until_launcher_answers("Pod")

    before = job.uids()
    node.set_capacity(CHIP, _CHIPS - 1)
    force_delete(job, "job-0-1")
    wait_for(lambda: lacks_a_pod(kubectl), what="notice of the lost pod", describe=job.status)
    node.set_capacity(CHIP, _CHIPS)
    until_trained(job, log)
    now = job.uids()
    assert all(now[pod] == before[pod] for pod in ("job-0-0", "job-0-2", "job-0-3"))
    assert "continuing from memory at step" in job.log("job-0-0")

    kubectl.apply(training("urgent", "--epochs=1", priority="high", replicas=2))
    urgent = Job(kubectl, "urgent")
    until(job, "Unschedulable")
    assert placed(job) == []
    done = urgent.wait_until("Succeeded", deadline_seconds=_DEADLINE_SECONDS)
    assert (done.restarts, done.disruptions) == (0, 0)
    until_trained(job, log)
    tell_to_end(job, placed(job)[0])
    status = job.wait_until("Succeeded", deadline_seconds=_DEADLINE_SECONDS)
    assert status.restarts == 0
    assert 2 <= status.disruptions <= 1 + _CHIPS, "pods that are lost together count once"
    assert_no_step_is_lost(log.all(), total=last_words(status)["totalSteps"])
    kubectl.run("delete", "ddpjob", "job", "urgent")


@pytest.mark.timeout(3000)
def test_elastic_gang_lends_a_chip_and_gets_it_back(
    node: Node, kubectl: Kubectl, volume: Path
) -> None:
    elastic = {"minReplicas": 1, "shrinkAfterSeconds": 0, "growAfterSeconds": 1}
    node.set_capacity(CHIP, 3)
    kubectl.apply(noted("job", replicas=3, elastic=elastic))
    job, log = Job(kubectl, "job"), StepLog(volume, 3)
    generation = has_size(job, 3, after=0)
    until_trained(job, log)
    kubectl.apply(training("urgent", "--epochs=1", priority="high", replicas=1))
    generation = has_size(job, 2, after=generation)
    Job(kubectl, "urgent").wait_until("Succeeded", deadline_seconds=_DEADLINE_SECONDS)
    has_size(job, 3, after=generation)
    until_trained(job, log)
    tell_to_end(job, placed(job)[0])
    status = job.wait_until("Succeeded", deadline_seconds=_DEADLINE_SECONDS)
    assert (status.attempt, status.restarts, status.disruptions) == (0, 0, 1)
    steps = log.all()
    assert_no_step_is_lost(steps, total=last_words(status)["totalSteps"], elastic=True)


@pytest.fixture
def volume(node: Node) -> Path:
    """The folder of the claim's volume, without what an earlier training has left."""
    folder = node.logs.parent / "volumes/0"
    for path in folder.iterdir():
        path.rename(folder.parent / f"earlier-{path.name}")
    return folder
