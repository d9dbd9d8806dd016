"""A real Kueue preempts the running job that loses less work.

The operator has only the rights of its installation, and its admission policy is in force.
"""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from ddp_operator.api.constants import KUEUE_BOOST
from ddp_operator.job.status.preemption import EVICTED
from ddp_operator.kube import SERVICES, ApiClient, load_credentials
from ddp_operator.kube.client import MERGE_PATCH
from ddp_operator.ports import ClusterError
from ddp_operator.process.handlers import JOBS

from tests.cluster.kueue import Kueue
from tests.good_manifests import Json
from tests.integration.jobs import Jobs
from tests.integration.operator_process import OperatorProcess, flawless_operator
from tests.integration.queues.queue import new_queue, queued_job, until_ready, until_ungated
from tests.integration.rights import INSTALLED, MANIFESTS, granted, roles_in
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("boosting", "operator", "life")]

_POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
_BINDINGS: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


@pytest.fixture(scope="module")
def boosting(kueue: Kueue) -> Iterator[None]:
    """Kueue with its feature gate for boosts."""
    with kueue.configured(featureGates={"PriorityBoost": True}):
        yield


@pytest.fixture
async def limited(admin: ApiClient, as_operator: Path, jobs: Jobs) -> AsyncIterator[None]:
    """The rights of an installation with priority boosts, limited by the admission policy."""
    component = MANIFESTS / "components/admission-policy/admission-policy.yaml"
    policy, binding = yaml.safe_load_all(component.read_text())
    [condition] = policy["spec"]["matchConditions"]
    condition["expression"] = 'request.userInfo.username == "operator"'
    created = {_POLICIES: policy, _BINDINGS: binding}
    roles = [*INSTALLED, *roles_in("components/priority-boost/rbac.yaml")]
    async with granted(admin, jobs.namespace, roles):
        for path, body in created.items():
            await admin.request("POST", path, body=body)
        try:
            await _until_in_force(as_operator, jobs.namespace)
            yield
        finally:
            for path, body in created.items():
                await admin.request("DELETE", f"{path}/{body['metadata']['name']}")


async def _until_in_force(as_operator: Path, namespace: str) -> None:
    """Wait until the policy refuses a Service of no job."""
    path, dry = SERVICES.path(namespace=namespace), {"dryRun": "All"}
    body: Json = {"metadata": {"name": "other"}, "spec": {"clusterIP": "None"}}
    answer = ""

    async def is_refused() -> bool:
        nonlocal answer
        try:
            await client.request("POST", path, body=body, params=dry)
        except ClusterError as error:
            answer = error.message
        return "touches only what has a DDPJob" in answer

    async with ApiClient(load_credentials(kubeconfig=str(as_operator))) as client:
        await eventually(is_refused, interval_seconds=0.1, describe=lambda: answer)


@pytest.fixture
def operator(
    limited: None, as_operator: Path, jobs: Jobs, tmp_path: Path, shared_operator: OperatorProcess
) -> Iterator[OperatorProcess]:
    """The operator that writes boosts, instead of the shared one."""
    del limited  # the operator checks its rights when it starts
    shared_operator.kill()
    try:
        with flawless_operator(
            as_operator,
            tmp_path / "log",
            namespace=jobs.namespace,
            options=["--priority-boost=10", "--lease-namespace", jobs.namespace],
        ) as process:
            yield process
    finally:
        shared_operator.start()


async def runs_since(admin: ApiClient, jobs: Jobs, name: str, since: str, **status: Any) -> None:
    """Set the time since which a job runs, and other fields of its status."""
    conditions = (await jobs.get(name))["status"]["conditions"]
    [running] = [each for each in conditions if each["type"] == "Running"]
    running["lastTransitionTime"] = since
    path = JOBS.path(namespace=jobs.namespace, name=name, subresource="status")
    body = {"status": {"conditions": conditions, **status}}
    await admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)


def boosts(workloads: dict[str, Any]) -> dict[str, str | None]:
    """Return the boosts of Workloads by job, and by pod for groups of one pod."""
    by_name = {}
    for name, workload in workloads.items():
        job, _, _, *pod = name.split("-", 3)
        annotations = workload["metadata"].get("annotations", {})
        by_name["-".join((job, *pod))] = annotations.get(KUEUE_BOOST)
    return by_name


async def test_job_with_the_fresher_checkpoint_is_preempted(admin: ApiClient, jobs: Jobs) -> None:
    queue = await new_queue(admin, jobs.namespace, chips=4)
    for name in ("fresh", "stale"):  # without boosts, Kueue preempts the last one first
        await jobs.create(queued_job(), name=name)
        await jobs.until_phase("Running", name)
    now = datetime.now(UTC).replace(microsecond=0)
    since = (now - timedelta(hours=1)).isoformat()
    saved = {"step": 5, "time": (now - timedelta(minutes=10)).isoformat()}
    await runs_since(admin, jobs, "fresh", since, checkpoint=saved)
    await runs_since(admin, jobs, "stale", since)
    await queue.until_workloads(lambda all_: boosts(all_) == {"fresh": "1", "stale": "2"})
    await jobs.create(queued_job(urgent=True), name="urgent")
    await jobs.until_phase("Running", "urgent")
    status = await jobs.until(lambda status: status.reason == "Queued", "fresh")
    assert status.failures[-1].reason.startswith(EVICTED)
    assert (status.restarts, status.disruptions) == (0, 1)
    # Without a boost, it queues with the priority of its class.
    await queue.until_workloads(lambda all_: boosts(all_)["fresh"] == "0")
    status = await jobs.status("stale")
    assert (status.phase, status.disruptions) == ("Running", 0)


@pytest.mark.nightly
async def test_pod_that_restarts_all_processes_costs_as_much_as_its_job(
    admin: ApiClient, jobs: Jobs
) -> None:
    queue = await new_queue(admin, jobs.namespace, chips=4)
    await jobs.create(queued_job(replicas=1), name="fresh")
    await jobs.until_phase("Running", "fresh")
    elastic = {"minReplicas": 2, "maxReplicas": 3, "shrinkAfterSeconds": 3600}
    await jobs.create(queued_job(replicas=3, restart={"scope": "InPlace"}, elastic=elastic))
    await jobs.until_phase("Running")
    now = datetime.now(UTC).replace(microsecond=0)
    since = (now - timedelta(hours=1)).isoformat()
    # As if launchers had answered.
    await runs_since(admin, jobs, "job", since, bookkeeping={"launcher": "InPlace"})
    await until_ungated(jobs, "job-0-0", "job-0-1", "job-0-2")  # the last is admitted last
    await until_ready(jobs, "job-0-2")
    grown = {"generation": 2, "members": "0-2"}
    await runs_since(admin, jobs, "job", since, world=grown)
    await jobs.until(lambda status: status.ready_replicas == 3)
    expected = {"fresh": "0", "job": "2", "job-0-2-0": "2"}
    await queue.until_workloads(lambda all_: boosts(all_) == expected)
    await jobs.create(queued_job(replicas=1, urgent=True), name="urgent")
    await jobs.until_phase("Running", "urgent")
    await jobs.until(lambda status: status.reason == "Queued", "fresh")
    status = await jobs.status()
    assert (status.ready_replicas, status.restarts, status.disruptions) == (3, 0, 0)
