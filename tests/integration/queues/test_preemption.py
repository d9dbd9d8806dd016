"""Of two running jobs, a real Kueue preempts the one that loses less."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from ddp_operator.api.constants import KUEUE_BOOST
from ddp_operator.handlers import JOBS
from ddp_operator.job.status.preemption import EVICTED
from ddp_operator.kube import ApiClient
from ddp_operator.kube.client import MERGE_PATCH

from tests import cluster
from tests.cluster.kueue import Kueue
from tests.integration.jobs import Jobs
from tests.integration.operator_process import OperatorProcess, flawless_operator
from tests.integration.queues.queue import new_queue, queued_job

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("boosting", "operator", "life")]


@pytest.fixture
def boosting(kueue: Kueue) -> Iterator[None]:
    """Kueue with its feature gate."""
    with kueue.configured(featureGates={"PriorityBoost": True}):
        yield


@pytest.fixture
def operator(
    control_plane: cluster.ControlPlane, jobs: Jobs, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """The operator that writes boosts."""
    with flawless_operator(
        control_plane.kubeconfig,
        tmp_path / "log",
        namespace=jobs.namespace,
        options=["--priority-boost=10"],
    ) as process:
        yield process


async def runs_since(admin: ApiClient, jobs: Jobs, name: str, since: str, **status: Any) -> None:
    """Make a job look as if it had run since then."""
    conditions = (await jobs.get(name))["status"]["conditions"]
    [running] = [each for each in conditions if each["type"] == "Running"]
    running["lastTransitionTime"] = since
    path = JOBS.path(namespace=jobs.namespace, name=name, subresource="status")
    body = {"status": {"conditions": conditions, **status}}
    await admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)


async def test_the_job_with_the_fresher_checkpoint_is_preempted(
    admin: ApiClient, jobs: Jobs
) -> None:
    queue = await new_queue(admin, jobs.namespace, chips=4)
    for name in ("fresh", "stale"):  # without boosts, Kueue preempts the last one first
        await jobs.create(queued_job(), name=name)
        await jobs.until_phase("Running", name)
    now = datetime.now(UTC).replace(microsecond=0)
    since = (now - timedelta(hours=1)).isoformat()
    saved = {"step": 5, "time": (now - timedelta(minutes=10)).isoformat()}
    await runs_since(admin, jobs, "fresh", since, checkpoint=saved)
    await runs_since(admin, jobs, "stale", since)

    def boosts(workloads: dict[str, Any]) -> dict[str, str | None]:
        return {
            name.partition("-")[0]: found["metadata"].get("annotations", {}).get(KUEUE_BOOST)
            for name, found in workloads.items()
        }

    await queue.until_workloads(lambda found: boosts(found) == {"fresh": "1", "stale": "2"})
    await jobs.create(queued_job(urgent=True), name="urgent")
    await jobs.until_phase("Running", "urgent")
    status = await jobs.until(lambda status: status.reason == "Queued", "fresh")
    assert status.failures[-1].reason.startswith(EVICTED)
    assert (status.restarts, status.disruptions) == (0, 1)
    # It queues as its class does.
    await queue.until_workloads(lambda found: boosts(found)["fresh"] == "0")
    status = await jobs.status("stale")
    assert (status.phase, status.disruptions) == ("Running", 0)
