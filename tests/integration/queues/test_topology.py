"""Jobs whose topology a real Kueue cannot give them."""

import pytest
from ddp_operator.kube import ApiClient

from tests.integration.jobs import Jobs
from tests.integration.kubelet import HOSTNAME
from tests.integration.queues.explained import explained
from tests.integration.queues.nodes import BLOCK, new_topology_queue
from tests.integration.queues.queue import NAME, Queue, queued_job

pytestmark = pytest.mark.usefixtures("kueue", "operator", "life", "queue")


@pytest.fixture
async def queue(admin: ApiClient, namespace: str) -> Queue:
    """A queue with quota for nodes in blocks, of which there is none."""
    return await new_topology_queue(admin, namespace, levels=(BLOCK, HOSTNAME))


@pytest.mark.parametrize(
    ("level", "cause"),
    [
        ("block", "no node of the queue has the level of spec.scheduling.topology"),
        ("sub-block", "the queue's nodes lack the level of spec.scheduling.topology"),
    ],
)
async def test_a_required_topology_is_the_cause_of_a_wait(
    admin: ApiClient, jobs: Jobs, level: str, cause: str
) -> None:
    topology = {"level": level, "required": True}
    await jobs.create(queued_job(scheduling={"queueName": NAME, "topology": topology}))
    found = await explained(admin, jobs, lambda state: state.cause.startswith(cause))
    assert "choose another spec.scheduling.topology.level" in found.remedies[0]
    assert found.position == ""
