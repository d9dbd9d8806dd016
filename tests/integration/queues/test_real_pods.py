"""Jobs in a queue of a real Kueue on a node with a scheduler and a kubelet."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import cluster
from tests.cluster.kueue import Kueue
from tests.cluster.node import Node
from tests.good_manifests import Json
from tests.integration.jobs import Jobs
from tests.integration.operator_process import OperatorProcess, flawless_operator
from tests.integration.queues.queue import CHIP, Queue, installed, queued_job, was_let_go
from tests.skipping import skip_or_fail
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("kueue", "operator")]


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Node]:
    """A node for these tests, because Kueue's webhook sees every pod in it."""
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(cluster.cluster("queues"))
            if not isinstance(running, Node):
                raise cluster.ClusterUnavailableError("Kueue runs only beside a bare node")
        except cluster.ClusterUnavailableError as reason:
            skip_or_fail("TEST CLUSTER", reason)
        running.set_capacity(CHIP, 2)
        yield running


@pytest.fixture(scope="session")
def kueue(control_plane: Node) -> Kueue:
    """Kueue in the node's network."""
    return installed(control_plane)


@pytest.fixture
def operator(control_plane: Node, jobs: Jobs, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator for the test's namespace; the shared one belongs to another control plane."""
    log = tmp_path / "log"
    with flawless_operator(control_plane.kubeconfig, log, namespace=jobs.namespace) as process:
        yield process


def real_job(*, urgent: bool = False, **spec: Any) -> Json:
    """Return a job that runs until SIGTERM; urgent jobs and next attempts end by themselves."""
    script = 'trap "exit 143" TERM; if [ $DDP_ATTEMPT$0 = 0 ]; then sleep 600 & wait; fi; sleep 1'
    manifest = queued_job(urgent=urgent, **spec)
    [container] = manifest["spec"]["template"]["spec"]["containers"]
    container["image"] = "ddp-busybox:dev"
    container["imagePullPolicy"] = "IfNotPresent"
    container["command"] = ["sh", "-c", script, "urgent" if urgent else ""]
    return manifest


async def test_preempted_job_returns_uncharged(jobs: Jobs, queue: Queue) -> None:
    await jobs.create(real_job())
    await jobs.until_phase("Running")
    await jobs.create(real_job(urgent=True), name="urgent")
    urgent = await jobs.until_phase("Succeeded", "urgent")
    assert (urgent.attempt, urgent.restarts, urgent.disruptions) == (0, 0, 0)
    status = await jobs.until_phase("Succeeded")
    assert (status.attempt, status.restarts, status.disruptions) == (1, 0, 1)
    await queue.until_used(0)


@pytest.mark.nightly
async def test_pod_deleted_while_operator_and_kueue_are_away_is_uncharged(
    jobs: Jobs, queue: Queue, kueue: Kueue, operator: OperatorProcess
) -> None:
    await jobs.create(real_job())
    await jobs.until_phase("Running")
    operator.kill()
    with kueue.away():
        await jobs.delete_pod("job-0-0")

        async def has_ended() -> bool:
            return was_let_go((await jobs.pods())["job-0-0"])

        await eventually(has_ended, interval_seconds=0.2)
        operator.start()
        await jobs.until(lambda status: status.attempt == 1)
    status = await jobs.until_phase("Succeeded")
    assert (status.restarts, status.disruptions) == (0, 1)
    await queue.until_used(0)
