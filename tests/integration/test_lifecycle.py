"""A job's life as its user sees it, with a real operator and API server.

The tests play user and kubelet.
"""

import pytest
from ddp_operator.api.constants import LABEL_JOB_NAME, LABEL_SERVING
from ddp_operator.kube import NETWORK_POLICIES, SERVICES, ApiClient
from ddp_operator.ports import InvalidError

from tests.good_manifests import container, job, template
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet, run_all, start
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("shared_operator")


async def test_job_runs_from_pending_to_succeeded(jobs: Jobs, kubelet: FakeKubelet) -> None:
    stored = await jobs.create(job(replicas=2))
    status = await jobs.until_phase("Pending")
    assert status.start_time is not None
    assert status.observed_generation == stored["metadata"]["generation"]
    assert (status.ready, status.reason) == ("0/2", "PodsStarting")
    assert (await jobs.until_pods("job-0-0", "job-0-1")).keys() == {"job-0-0", "job-0-1"}

    for pod in ("job-0-0", "job-0-1"):
        await kubelet.schedule(pod)
    await jobs.until_phase("Starting")

    await kubelet.run("job-0-0")
    await jobs.until(lambda status: status.ready == "1/2")
    await kubelet.run("job-0-1")
    status = await jobs.until_phase("Running")
    assert (status.ready, status.ready_replicas) == ("2/2", 2)
    assert status.message == "all 2 pods are ready"

    await kubelet.succeed("job-0-0", message='{"accuracy": 0.98}')
    assert (await jobs.status()).phase == "Running"
    await kubelet.succeed("job-0-1")
    status = await jobs.until_phase("Succeeded")
    assert status.is_true("Succeeded")
    assert not status.is_true("Running")
    assert "accuracy" in status.message
    assert (status.restarts, status.disruptions, status.attempt) == (0, 0, 0)
    assert status.completion_time is not None
    assert status.start_time is not None
    assert status.start_time <= status.completion_time
    assert await jobs.live_pods() == {"job-0-0", "job-0-1"}, "finished pods keep their logs"

    assert await jobs.until_told("PodsCreated") == "created 2 of 2 pods"
    assert await jobs.until_told("Running") == "all 2 pods are ready"
    assert "accuracy" in await jobs.until_told("Succeeded")


async def test_wrong_image_is_named_and_changed_until_a_pod_has_run(
    jobs: Jobs, kubelet: FakeKubelet
) -> None:
    await jobs.create(job(replicas=2))
    await jobs.until_pods("job-0-0", "job-0-1")
    for pod in ("job-0-0", "job-0-1"):
        await kubelet.cannot_start(pod, reason="ErrImagePull", message="no such image")
    status = await jobs.until(lambda status: status.reason == "ErrImagePull")
    assert "pod job-0-0 cannot start: ErrImagePull: no such image" in status.message
    assert "no such image" in await jobs.until_told("ErrImagePull")
    await jobs.set_spec(template=template(container(image="registry.example/trainer:2")))
    await kubelet.finish_deleted("job-0-0", "job-0-1")
    pods = await jobs.until_pods("job-1-0", "job-1-1")
    assert pods["job-1-0"]["spec"]["containers"][0]["image"] == "registry.example/trainer:2"
    status = await jobs.until_phase("Restarting")
    assert status.condition("Restarting").reason == "SpecChanged"  # type: ignore[union-attr]
    assert (status.attempt, status.restarts, status.disruptions) == (1, 0, 0)

    await kubelet.run("job-1-0")
    await jobs.until(lambda status: status.first_pod_start_time is not None)
    with pytest.raises(InvalidError) as refusal:
        await jobs.set_spec(template=template(container(image="registry.example/trainer:3")))
    assert "spec.template: immutable once a pod has run" in refusal.value.message
    assert "set spec.suspend to true" in refusal.value.message


async def test_replicas_changed_while_suspended_apply_on_resume(
    jobs: Jobs, kubelet: FakeKubelet
) -> None:
    await start(jobs, kubelet)
    await jobs.set_spec(suspend=True)
    await jobs.until_phase("Suspended")
    await jobs.until_pods()
    await kubelet.finish("job-0-0")
    await jobs.set_spec(replicas=3)
    await jobs.until(lambda status: status.ready.endswith("/3"))
    await jobs.set_spec(suspend=False)
    # The other old pod still terminates.
    await jobs.until(lambda status: status.reason == "WaitingForOldPods")
    assert (await jobs.pods()).keys() == {"job-0-1"}
    await kubelet.finish("job-0-1")
    pods = await jobs.until_pods("job-1-0", "job-1-1", "job-1-2")
    environment = pods["job-1-2"]["spec"]["containers"][0]["env"]
    assert {"name": "WORLD_SIZE", "value": "3"} in environment
    await run_all(jobs, kubelet)
    status = await jobs.until(lambda status: status.ready == "3/3")
    assert (status.attempt, status.restarts, status.disruptions) == (1, 0, 0)
    for reason in ("Suspended", "Resumed"):
        await jobs.until_told(reason)


async def test_requested_restart_is_not_charged(jobs: Jobs, kubelet: FakeKubelet) -> None:
    await start(jobs, kubelet, restart={"maxRestarts": 0})
    await jobs.annotate(restart_requested="2026-11-22")
    await kubelet.finish_deleted("job-0-0", "job-0-1")
    await jobs.until_pods("job-1-0", "job-1-1")
    status = await jobs.until(lambda status: status.is_true("PodsCreated"))
    assert (status.phase, status.attempt, status.restarts) == ("Restarting", 1, 0)
    assert status.bookkeeping.restart_requested == "2026-11-22"


@pytest.mark.parametrize(
    ("policy", "left"), [("Running", {"job-0-0"}), ("All", set()), ("None", {"job-0-0", "job-0-1"})]
)
async def test_failed_job_keeps_pods_of_its_clean_pod_policy(
    jobs: Jobs, kubelet: FakeKubelet, policy: str, left: set[str]
) -> None:
    await start(jobs, kubelet, cleanPodPolicy=policy, restart={"maxRestarts": 0})
    await kubelet.fail("job-0-0")
    await jobs.until_phase("Failed")
    await jobs.until_pods(*left)
    assert await jobs.service(), "it is deleted with the job"


async def test_finished_job_is_deleted_after_its_ttl(jobs: Jobs, kubelet: FakeKubelet) -> None:
    await start(jobs, kubelet, replicas=1, ttlSecondsAfterFinished=1)
    await kubelet.succeed("job-0-0")

    async def gone() -> bool:
        return not await jobs.exists()

    await eventually(gone, interval_seconds=0.1)


async def test_job_fails_at_its_active_deadline(jobs: Jobs, kubelet: FakeKubelet) -> None:
    await start(jobs, kubelet, activeDeadlineSeconds=2)
    status = await jobs.until_phase("Failed")
    assert status.reason == "DeadlineExceeded"
    assert "spec.activeDeadlineSeconds (2)" in status.message
    await jobs.until_pods()


async def test_job_that_is_being_deleted_is_left_alone(jobs: Jobs, kubelet: FakeKubelet) -> None:
    """Another controller holds the deleted job back with a finalizer."""
    manifest = job(replicas=2)
    manifest["metadata"]["finalizers"] = ["example.com/hold"]
    await jobs.create(manifest)
    await jobs.until_pods("job-0-0", "job-0-1")
    await jobs.until(lambda status: status.is_true("PodsCreated"))
    await jobs.delete()
    for pod in ("job-0-0", "job-0-1"):
        await kubelet.finish(pod)
    # The operator handles the lost pods before the new job.
    await jobs.create(job("witness"))
    await jobs.until_pods("witness-0-0", name="witness")
    assert "deletionTimestamp" in (await jobs.get())["metadata"]
    assert await jobs.pods() == {}
    assert "Restarting" not in await jobs.events()
    await jobs.release()


async def test_job_waits_while_the_name_of_its_service_is_taken(
    jobs: Jobs, admin: ApiClient, namespace: str
) -> None:
    path = SERVICES.path(namespace=namespace)
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "job"},
        "spec": {"ports": [{"port": 80}]},
    }
    await admin.request("POST", path, body=theirs)
    await jobs.create(job(replicas=2))
    status = await jobs.until(lambda status: status.reason == "NameTaken")
    assert "services " in status.message
    assert "/job already exists and has no owner" in status.message
    assert status.phase == "Pending"
    await jobs.until_told("NameTaken")
    assert await jobs.pods() == {}, "pods that cannot find each other would waste their nodes"
    await admin.request("DELETE", f"{path}/job")
    await jobs.until_pods("job-0-0", "job-0-1")
    # The pods are created before this status is written.
    status = await jobs.until(lambda status: status.reason == "PodsStarting")
    assert status.phase == "Pending"
    selector = (await jobs.service())["spec"]["selector"]
    assert selector == {LABEL_JOB_NAME: "job", LABEL_SERVING: "true"}


async def test_job_names_an_exceeded_quota_and_waits(
    jobs: Jobs, admin: ApiClient, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    await admin.request("POST", path, body=quota)

    async def counted() -> bool:
        status = (await admin.request("GET", f"{path}/few")).get("status") or {}
        return "used" in status

    await eventually(counted, interval_seconds=0.1)
    await jobs.create(job(replicas=2))
    status = await jobs.until(lambda status: status.reason == "PodsForbidden")
    assert status.phase == "Pending"
    assert "exceeded quota: few" in status.message
    assert len(await jobs.live_pods()) == 1
    assert "exceeded quota: few" in await jobs.until_told("PodsForbidden")
    await admin.request("DELETE", f"{path}/few")
    await jobs.until_pods("job-0-0", "job-0-1")
    assert (await jobs.until(lambda status: status.reason == "PodsStarting")).phase == "Pending"


async def test_isolation_adds_and_removes_a_network_policy(
    jobs: Jobs, kubelet: FakeKubelet
) -> None:
    await start(jobs, kubelet, isolation="Job")
    pods = await jobs.pods()
    policy = await jobs.network_policy()
    assert policy is not None
    [owner] = policy["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("DDPJob", (await jobs.get())["metadata"]["uid"])
    # This operator runs outside of the cluster, so the policy admits no pod of it.
    own = {LABEL_JOB_NAME: "job"}
    assert policy["spec"] == {
        "podSelector": {"matchLabels": own},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": own}}]}],
    }
    assert all(own.items() <= pod["metadata"]["labels"].items() for pod in pods.values())

    await jobs.set_spec(isolation="None")
    await jobs.until(lambda status: status.bookkeeping.isolation == "")
    assert await jobs.network_policy() is None
    await jobs.set_spec(isolation="Job")
    await jobs.until(lambda status: status.bookkeeping.isolation == "Job")
    assert await jobs.network_policy() is not None
    status = await jobs.status()
    assert (status.phase, status.attempt, status.restarts) == ("Running", 0, 0)
    uids = {name: pod["metadata"]["uid"] for name, pod in pods.items()}
    assert {name: pod["metadata"]["uid"] for name, pod in (await jobs.pods()).items()} == uids

    await jobs.delete()

    async def gone() -> bool:
        return await jobs.network_policy() is None

    await eventually(gone, interval_seconds=0.05)


async def test_foreign_network_policy_is_left_alone(
    jobs: Jobs, kubelet: FakeKubelet, admin: ApiClient
) -> None:
    path = NETWORK_POLICIES.path(namespace=jobs.namespace)
    theirs = {"metadata": {"name": "job"}, "spec": {"podSelector": {}}}
    await admin.request("POST", path, body=theirs)
    await start(jobs, kubelet)
    await jobs.set_spec(isolation="Job")
    status = await jobs.until(lambda status: status.reason == "NameTaken")
    assert "networkpolicies.networking.k8s.io" in status.message
    assert (status.phase, status.bookkeeping.isolation) == ("Running", "Changing")
    await jobs.set_spec(isolation="None")
    await jobs.until(
        lambda status: status.bookkeeping.isolation == "" and status.reason == "PodsReady"
    )
    stored = await jobs.network_policy()
    assert stored is not None
    assert "ownerReferences" not in stored["metadata"]
