"""The client's view of a wait in a queue."""

from collections.abc import Callable

from ddp_client.remote.cluster import Cluster
from ddp_client.remote.queues import queue_state
from ddp_client.views.job.queueing import UNKNOWN, QueueState
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_operator.kube import ApiClient

from tests.integration.jobs import Jobs
from tests.waiting import eventually


async def explained(
    admin: ApiClient, jobs: Jobs, condition: Callable[[QueueState], bool], name: str = "job"
) -> QueueState:
    """Wait until the client's view of a wait fulfils a condition, and return it."""
    state = UNKNOWN

    async def holds() -> bool:
        nonlocal state
        job = JobSnapshot.read(await jobs.get(name))
        state = await queue_state(Cluster(admin), job)
        return condition(state)

    await eventually(holds, interval_seconds=0.1, describe=lambda: f"the state is {state}")
    return state
