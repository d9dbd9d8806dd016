"""The same on a node: what its scheduler and its kubelet do to the pods of a queue."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests import cluster
from tests.cluster.kueue import Kueue
from tests.cluster.node import Node
from tests.good_manifests import Json
from tests.integration.jobs import Jobs
from tests.integration.operator_process import OperatorProcess
from tests.integration.queues.queue import CHIP, Queue, installed, queued_job, was_let_go
from tests.skipping import skip_or_fail
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("kueue", "operator")]


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Node]:
    """A node of its own, in which every pod asks Kueue."""
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(cluster.cluster("queues"))
            if not isinstance(running, Node):
                raise cluster.ClusterUnavailableError("Kueue runs beside a bare node alone")
        except cluster.ClusterUnavailableError as reason:
            skip_or_fail("TEST CLUSTER", reason)
        running.set_capacity(CHIP, 2)
        yield running


@pytest.fixture(scope="session")
def kueue(control_plane: Node) -> Kueue:
    """The Kueue in its network."""
    return installed(control_plane)


def real_job(*, urgent: bool = False, **spec: Any) -> Json:
    """A job whose first attempt runs until it is told to end, unless it is urgent, and whose next
    one ends by itself.
    """
    script = 'trap "exit 143" TERM; if [ $DDP_ATTEMPT$0 = 0 ]; then sleep 600 & wait; fi; sleep 1'
    manifest = queued_job(urgent=urgent, **spec)
    [container] = manifest["spec"]["template"]["spec"]["containers"]
    container["image"] = "ddp-busybox:dev"
    container["imagePullPolicy"] = "IfNotPresent"
    container["command"] = ["sh", "-c", script, "urgent" if urgent else ""]
    return manifest


async def test_a_job_runs_to_its_end(jobs: Jobs, queue: Queue) -> None:
    await jobs.create(real_job(urgent=True))
    await jobs.until_phase("Succeeded")
    await queue.until_used(0)
    status = await jobs.status()
    assert (status.attempt, status.restarts, status.disruptions) == (0, 0, 0)


async def test_what_is_preempted_ends_and_returns_uncharged(jobs: Jobs, queue: Queue) -> None:
    await jobs.create(real_job())
    await jobs.until_phase("Running")
    await jobs.create(real_job(urgent=True), name="urgent")
    await jobs.until_phase("Succeeded", "urgent")
    status = await jobs.until_phase("Succeeded")
    assert (status.attempt, status.restarts, status.disruptions) == (1, 0, 1)
    await queue.until_used(0)


async def test_a_deletion_that_nobody_saw_is_uncharged(
    jobs: Jobs, queue: Queue, kueue: Kueue, operator: OperatorProcess
) -> None:
    await jobs.create(real_job())
    await jobs.until_phase("Running")
    operator.kill()
    with kueue.away():
        await jobs.delete_pod("job-0-0")

        async def ended() -> bool:
            return was_let_go((await jobs.pods())["job-0-0"])

        await eventually(ended, interval_seconds=0.2)
        operator.start()
        await jobs.until(lambda status: status.attempt == 1)
    status = await jobs.until_phase("Succeeded")
    assert (status.restarts, status.disruptions) == (0, 1)
    await queue.until_used(0)
