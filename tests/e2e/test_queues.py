"""Jobs that keep their place in a queue of Kueue while they lose ranks and pods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pytest
import yaml

from tests.cluster import Cluster
from tests.cluster.node import Node
from tests.e2e import test_code
from tests.e2e.environment import Environment
from tests.e2e.jobs import (
    SLOW_STEPS,
    TRAINER_IMAGE,
    Job,
    digits_job,
    force_delete,
    last_words,
)
from tests.e2e.kubectl import Kubectl, Manifest, wait_for
from tests.e2e.lending import (
    LENDER,
    borrower,
    ends_without_a_repeated_step,
    grows_lends_and_grows_again,
    lender,
)
from tests.e2e.losses import (
    KINDS,
    STEP_LOG,
    StepLog,
    assert_no_step_is_lost,
    disturb,
    running_pod,
)
from tests.e2e.queues import Queue, queued
from tests.e2e.test_elastic import has_size
from tests.e2e.test_kubectl_ddp import Ddp, ddp
from tests.integration.queues.queue import CHIP, installed

__all__ = ["ddp"]

pytestmark = pytest.mark.usefixtures("node")

SEED = 7
EDITS = 50
PATIENT = {"maxRestarts": 100, "backoff": {"initialSeconds": 0}}
"""Losses follow each other sooner than the job's progress allows them again."""
_SURELY_TOGETHER = 5
"""Steps: a group that has lost a rank may end the one under way, but never so many."""


@pytest.fixture(scope="module")
def node(environment: Environment, running: Cluster) -> Iterator[Node]:
    """The node with chips and, while this module's tests run, with Kueue beside it."""
    if not isinstance(running, Node):
        pytest.skip("Kueue runs beside a bare node alone")
    running.set_capacity(CHIP, 16)
    kueue = installed(running)
    yield running
    environment.wait_until_namespaces_are_gone()  # Kueue releases their pods
    kueue.uninstall()


def training(environment: Environment, kubectl: Kubectl, name: str, **spec: Any) -> Manifest:
    """A job in the queue that notes the steps of its ranks."""
    manifest = digits_job(
        name,
        f"--epochs={spec.pop('epochs')}",
        "--checkpoint-every-steps=1000",  # it must continue from memory
        f"--trace-samples=/checkpoints/{STEP_LOG}",
        *SLOW_STEPS,
        checkpoint={"persistentVolumeClaim": environment.make_claim(kubectl, name)},
        restart={"scope": "Auto", **PATIENT},
        **spec,
    )
    return queued(manifest)


def wait_behind(kubectl: Kubectl, queue: Queue, chips: int) -> Job:
    """Start a job that waits for the quota of another one."""
    kubectl.apply(queued(digits_job("other", "--epochs=1", replicas=chips)))
    job = Job(kubectl, "other")
    queue.until_queued(job)
    return job


def wait_for_steps(job: Job, log: StepLog) -> None:
    """Wait until all ranks train together."""
    goal = max(log.last()) + _SURELY_TOGETHER
    wait_for(lambda: min(log.last()) > goal, what=f"step {goal} of all ranks", describe=job.status)


def wait_until_whole(job: Job, ready: str) -> None:
    wait_for(
        lambda: job.status().phase == "Running" and job.status().ready == ready,
        what=f"{job.name} to be whole",
        describe=job.status,
    )


def leaves_no_pod(job: Job) -> None:
    """Of a job that succeeded, the pods that did so are left, and nothing keeps another."""

    def left() -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in job.pods()
            if pod["status"]["phase"] != "Succeeded" or "deletionTimestamp" in pod["metadata"]
        ]

    wait_for(lambda: not left(), what=f"the end of all other pods of {job.name}", describe=left)


def test_job_keeps_its_place_through_losses_of_each_kind(
    environment: Environment, kubectl: Kubectl, node: Node
) -> None:
    random = Random(SEED)
    kinds = [*KINDS]
    random.shuffle(kinds)
    queue = Queue.made(kubectl, chips=2)
    kubectl.apply(training(environment, kubectl, "lossy", epochs=4))
    job, log = Job(kubectl, "lossy"), StepLog(environment.volume_path(kubectl, "lossy"), 2)
    place = queue.place(job)
    other = wait_behind(kubectl, queue, chips=2)
    job.wait_until_launcher_answers("Pod")
    for kind in kinds:
        wait_for_steps(job, log)
        disturb(node, job, kind, running_pod(job, random.randrange(2)))
        assert queue.place(job) == place, kind
        assert other.status().reason == "Queued", kind
    wait_for_steps(job, log)
    assert queue.place(job) == place
    assert other.status().reason == "Queued"
    status = job.wait_until("Succeeded")
    assert status.attempt == 0
    assert_no_step_is_lost(log.all(), total=last_words(status)["totalSteps"])
    leaves_no_pod(job)
    assert queue.uids(job) == [place[0]]
    done = other.wait_until("Succeeded")
    assert (done.restarts, done.disruptions) == (0, 0)


def test_a_spare_takes_over_within_the_quota(environment: Environment, kubectl: Kubectl) -> None:
    queue = Queue.made(kubectl, chips=3)
    kubectl.apply(training(environment, kubectl, "spared", epochs=5, spares=1))
    job, log = Job(kubectl, "spared"), StepLog(environment.volume_path(kubectl, "spared"), 2)
    wait_until_whole(job, "2/2 +1")
    place = queue.place(job)
    other = wait_behind(kubectl, queue, chips=2)
    job.wait_until_launcher_answers("Pod")
    wait_for_steps(job, log)
    force_delete(job, "spared-0-1")
    job.log_with("spared-0-2", "continuing from memory at step")
    wait_for_steps(job, log)
    wait_until_whole(job, "2/2 +1")
    assert queue.place(job) == place
    assert other.status().reason == "Queued"
    status = job.wait_until("Succeeded")
    assert (status.attempt, status.restarts, status.disruptions) == (0, 0, 1)
    assert status.world is not None
    assert status.world.members == "0,2"
    assert_no_step_is_lost(log.all(), total=last_words(status)["totalSteps"])
    assert queue.uids(job)[0] == place[0]
    # Its namespace goes while the other job runs.


def test_an_urgent_job_gets_one_pod_of_an_elastic_job(
    environment: Environment, kubectl: Kubectl
) -> None:
    elastic = {"minReplicas": 1, "maxReplicas": 3, "shrinkAfterSeconds": 0, "growAfterSeconds": 1}
    queue = Queue.made(kubectl, chips=3)
    kubectl.apply(training(environment, kubectl, "elastic", epochs=14, elastic=elastic))
    job, log = Job(kubectl, "elastic"), StepLog(environment.volume_path(kubectl, "elastic"), 3)
    place = queue.place(job)
    generation = has_size(job, 3, after=0)
    assert len(queue.workloads(job)) == 3
    kubectl.apply(queued(digits_job("urgent", "--epochs=1", replicas=1), urgent=True))
    generation = has_size(job, 2, after=generation)
    assert queue.place(job) == place
    Job(kubectl, "urgent").wait_until("Succeeded")
    has_size(job, 3, after=generation)
    status = job.wait_until("Succeeded")
    assert (status.attempt, status.restarts, status.disruptions) == (0, 0, 1)
    assert queue.uids(job)[0] == place[0]
    assert_no_step_is_lost(log.all(), total=last_words(status)["totalSteps"], elastic=True)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_gang_of_two_to_six_lends_four_pods_and_repeats_no_step(
    environment: Environment, kubectl: Kubectl
) -> None:
    queue = Queue.made(kubectl, chips=2)
    kubectl.apply(queued(lender(environment, kubectl)))
    job = Job(kubectl, LENDER)
    place = queue.place(job)
    grows_lends_and_grows_again(
        kubectl, queued(borrower(), urgent=True), lambda chips: Queue.made(kubectl, chips)
    )
    assert queue.place(job) == place
    ends_without_a_repeated_step(environment, kubectl)
    assert queue.uids(job)[0] == place[0]


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_fifty_edits_of_a_job_cost_it_no_pod_and_no_quota(
    kubectl: Kubectl, ddp: Ddp, tmp_path: Path
) -> None:
    queue = Queue.made(kubectl, chips=test_code.PODS)
    project = tmp_path / "project"
    test_code.write(project, 1)
    manifests = ddp(
        *("run", "edited", "--image", TRAINER_IMAGE, "--replicas", str(test_code.PODS)),
        *("--launcher", "bundled", "--workdir", str(project), "--dry-run=server"),
        *("--", "python", "train.py"),
    )
    assert manifests.returncode == 0, manifests.stderr
    *config_maps, made = yaml.safe_load_all(manifests.stdout)
    kubectl.apply(*config_maps, queued(made))
    job = Job(kubectl, "edited")
    place = queue.place(job)
    test_code.trains(job, 1, *(f"edited-0-{index}" for index in range(test_code.PODS)))
    job.wait_until_launcher_answers()
    before = job.uids()
    seconds = test_code.edit(job, ddp, project, range(2, EDITS + 2))
    low, middle, high = min(seconds), median(seconds), max(seconds)
    print(f"from the command to the first step: {middle:.1f} s ({low:.1f} to {high:.1f})")
    assert job.uids() == before
    assert queue.place(job) == place
    status = job.wait_until("Running")
    assert (status.attempt, status.restarts, status.disruptions) == (0, 0, 0)
    assert status.world is not None
    assert status.world.generation == EDITS
    assert len(test_code.stored_code(job)) == 3
    assert kubectl.items("events", "--field-selector", "reason=FailedMount") == []
