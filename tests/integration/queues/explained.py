"""The client's explanation of a wait."""

from collections.abc import Callable
from datetime import UTC, datetime

from ddp_operator.client.cluster import Cluster
from ddp_operator.client.queues import queue_state
from ddp_operator.kube import ApiClient
from ddp_operator.views.job.queueing import UNKNOWN, QueueState
from ddp_operator.views.job.snapshot import JobSnapshot

from tests.integration.jobs import Jobs
from tests.waiting import eventually


async def explained(
    admin: ApiClient, jobs: Jobs, condition: Callable[[QueueState], bool], name: str = "job"
) -> QueueState:
    """Wait until the client explains the wait of a job as it should, and return that."""
    found = UNKNOWN

    async def holds() -> bool:
        nonlocal found
        job = JobSnapshot.read(await jobs.get(name))
        found = await queue_state(Cluster(admin), job, datetime.now(UTC))
        return condition(found)

    await eventually(holds, interval_seconds=0.1, describe=lambda: f"the state is {found}")
    return found
