"""Queues and gangs on a real API server; the tests play the schedulers."""

from pathlib import Path

import pytest
from ddp_operator.kube import ApiClient, Resource

from tests.good_manifests import Json, job
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.operator_process import OperatorProcess, running_operator
from tests.integration.pod_groups import COSCHEDULING, KAI, group_of, served
from tests.integration.rights import INSTALLED, granted, roles_in, until_checks_report


def version(manifest: Json) -> int:
    """Return the server's count of writes when this one was made."""
    return int(manifest["metadata"]["resourceVersion"])


@pytest.mark.parametrize(("gang", "resource"), [("coscheduling", COSCHEDULING), ("kai", KAI)])
@pytest.mark.usefixtures("shared_operator")
async def test_gang_has_its_group_before_its_pods_and_keeps_it(
    admin: ApiClient, jobs: Jobs, kubelet: FakeKubelet, gang: str, resource: Resource
) -> None:
    async with served(admin, resource):
        stored = await jobs.create(job(replicas=2, scheduling={"gang": gang}))
        pods = await jobs.until_pods("job-0-0", "job-0-1")
        first = await group_of(admin, resource, jobs.namespace)
        assert first is not None
        assert first["spec"]["minMember"] == 2
        [owner] = first["metadata"]["ownerReferences"]
        assert owner["uid"] == stored["metadata"]["uid"]
        assert all(version(first) < version(pod) for pod in pods.values())
        await jobs.until(lambda status: status.is_true("PodsCreated"))
        await jobs.set_spec(suspend=True)
        await jobs.until_phase("Suspended")
        await jobs.until_gone("job-0-0", "job-0-1")
        await jobs.set_spec(replicas=3, suspend=False)
        await jobs.until_pods("job-1-0", "job-1-1", "job-1-2")
        resized = await group_of(admin, resource, jobs.namespace)
        assert resized is not None
        assert resized["metadata"]["uid"] == first["metadata"]["uid"]
        assert resized["spec"]["minMember"] == 3
        for pod in await jobs.live_pods():
            await kubelet.run(pod)
        await jobs.until_phase("Running")


async def test_queued_job_waits_and_restarts_uncharged_after_eviction(
    jobs: Jobs, kubelet: FakeKubelet, shared_operator: OperatorProcess
) -> None:
    await jobs.create(job(replicas=2, scheduling={"queueName": "team-a"}))
    pods = await jobs.until_pods("job-0-0", "job-0-1")
    [first] = {pod["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] for pod in pods.values()}
    for pod in pods:
        await kubelet.gate(pod)
    waiting = "pods wait in spec.scheduling.queueName (team-a) for quota"
    status = await jobs.until(lambda status: status.message.startswith(f"2 of 2 {waiting}"))
    assert first in status.message
    assert (status.phase, status.reason) == ("Pending", "Queued")
    assert waiting in await jobs.until_told("Queued")
    for pod in pods:
        await kubelet.run(pod)
    await jobs.until_phase("Running")
    assert "(team-a): 2 of 2 pods run outside the queue" in await jobs.until_told("NotQueued")
    for pod in pods:
        await kubelet.evict_for_quota(pod, message="Preempted to accommodate a workload")
        await jobs.delete_pod(pod)
    await jobs.until(lambda status: status.disruptions == 1)
    for pod in pods:
        await kubelet.finish(pod)
    pods = await jobs.until_pods("job-1-0", "job-1-1")
    [again] = {
        pods[pod]["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"]
        for pod in ("job-1-0", "job-1-1")
    }
    assert first == again, "Kueue keeps the job's position in the queue"
    status = await jobs.status()
    assert (status.restarts, status.disruptions) == (0, 1)
    assert "Preempted to accommodate a workload" in status.failures[-1].message
    assert "Traceback" not in shared_operator.log


async def test_gang_names_its_missing_parts_until_they_are_there(
    admin: ApiClient, as_operator: Path, jobs: Jobs, tmp_path: Path
) -> None:
    own = jobs.namespace
    options = ["--leader-elect", "--lease-namespace", own]
    async with granted(admin, own, INSTALLED):
        await until_checks_report(as_operator, own, "")
        log = tmp_path / "log"
        with running_operator(as_operator, log, namespace=own, options=options) as process:
            await jobs.create(job(replicas=2, scheduling={"gang": "kai"}))
            needs = "spec.scheduling.gang: kai needs the PodGroups of KAI Scheduler"
            await until_message(jobs, "is forbidden", needs, "manifests/components/gangs")
            async with granted(admin, own, roles_in("components/gangs/rbac.yaml")):
                missing = f"the API server does not serve {KAI} {KAI.version}: {needs}"
                await until_message(jobs, missing)
                status = await jobs.status()
                assert (status.phase, status.reason) == ("Pending", "PodsForbidden")
                assert await jobs.pods() == {}
                async with served(admin, KAI):
                    await jobs.until_pods("job-0-0", "job-0-1")
                    await jobs.discard()
            assert "Traceback" not in process.log


async def until_message(jobs: Jobs, *parts: str) -> None:
    """Wait until the job's message contains all parts."""
    await jobs.until(lambda status: all(part in status.message for part in parts))
