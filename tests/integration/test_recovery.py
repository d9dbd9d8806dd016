"""Failures and recovery, with a real operator and API server; the tests play user and kubelet."""

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from ddp_operator.api.constants import (
    EXIT_CONFIGURATION,
    EXIT_PEER_LOST,
    LABEL_SERVING,
)
from ddp_operator.kube import NODES, ApiClient
from ddp_operator.kube.client import MERGE_PATCH
from ddp_operator.ports import ClusterError

from tests.good_manifests import container, job, template
from tests.integration.jobs import Jobs
from tests.integration.kubelet import NODE, FakeKubelet, run_all, start
from tests.trainer_server import TrainerServer

pytestmark = pytest.mark.usefixtures("shared_operator")


async def test_failed_pod_restarts_the_gang_after_old_pods_end(
    jobs: Jobs, kubelet: FakeKubelet
) -> None:
    limited = container(resources={"limits": {"memory": "1Gi"}})
    await start(jobs, kubelet, template=template(limited))
    await kubelet.fail("job-0-1", exit_code=137, reason="OOMKilled", message="too much")
    # The survivor still terminates.
    status = await jobs.until(lambda status: status.reason == "WaitingForOldPods")
    assert status.message == "waiting for old pods to end: job-0-0"
    assert (await jobs.pods()).keys() <= {"job-0-0", "job-0-1"}, "the old rank 0 may still save"
    await kubelet.finish_deleted("job-0-0")
    await jobs.until_pods("job-1-0", "job-1-1")
    status = await jobs.until(lambda status: status.is_true("PodsCreated"))
    assert status.phase == "Restarting"
    assert (status.restarts, status.disruptions, status.attempt) == (1, 0, 1)
    [failure] = status.failures
    assert (failure.pod, failure.index, failure.node) == ("job-0-1", 1, NODE)
    assert (failure.rank, failure.container, failure.class_) == (1, "trainer", "Application")
    assert (failure.action, failure.charged) == ("RestartGang", True)
    assert (failure.exit_code, failure.signal, failure.reason) == (137, 9, "OOMKilled")
    assert failure.message == "too much"
    message = await jobs.until_told("Restarting")
    assert "(restart 1 of 3; no launcher answers)" in message
    await run_all(jobs, kubelet)
    status = await jobs.until_phase("Running")
    assert not status.is_true("Restarting")


async def test_first_failure_is_the_cause(jobs: Jobs, kubelet: FakeKubelet) -> None:
    await start(jobs, kubelet, replicas=3, restart={"maxRestarts": 0})
    # Rank 0 lost its peer because rank 2 failed; the operator may see them in any order.
    await kubelet.fail("job-0-2", exit_code=1, message="the cause")
    await kubelet.fail("job-0-0", exit_code=EXIT_PEER_LOST, message="a consequence")
    status = await jobs.until_phase("Failed")
    assert status.failures[-1].pod == "job-0-2"


async def test_job_fails_once_its_restarts_are_used_up(jobs: Jobs, kubelet: FakeKubelet) -> None:
    await start(jobs, kubelet, restart={"maxRestarts": 1})
    await kubelet.fail("job-0-0", message="first")
    await kubelet.finish_deleted("job-0-1")
    await jobs.until_pods("job-1-0", "job-1-1")
    await run_all(jobs, kubelet)
    await kubelet.fail("job-1-1", message="second")
    status = await jobs.until_phase("Failed")
    assert status.reason == "MaxRestartsExceeded"
    assert "spec.restart.maxRestarts (1) is used up" in status.message
    assert "job-1-1" in status.message
    assert "second" in status.message
    assert (status.restarts, status.attempt) == (1, 1)
    assert [failure.message for failure in status.failures] == ["first", "second"]
    await jobs.until_pods("job-1-1")
    await jobs.until_told("MaxRestartsExceeded")


async def test_configuration_error_fails_the_job_at_once(jobs: Jobs, kubelet: FakeKubelet) -> None:
    await start(jobs, kubelet)
    await kubelet.fail("job-0-0", exit_code=EXIT_CONFIGURATION, message="no such data set")
    status = await jobs.until_phase("Failed")
    assert status.reason == "ConfigurationError"
    assert "no such data set" in status.message
    assert status.restarts == 0


async def test_invalid_image_name_fails_the_job_at_once(jobs: Jobs, kubelet: FakeKubelet) -> None:
    await jobs.create(job())
    await jobs.until_pods("job-0-0")
    await kubelet.cannot_start("job-0-0", reason="InvalidImageName", message="bad reference")
    status = await jobs.until_phase("Failed")
    assert status.reason == "InvalidImageName"
    assert "bad reference" in status.message


async def test_restart_rules_decide_about_failures(jobs: Jobs, kubelet: FakeKubelet) -> None:
    requeue = {"exitCodes": [42], "action": "RestartPod", "charged": False}
    ignore = {"ranks": [2], "classes": ["Application"], "action": "Ignore"}
    restart = {"maxRestarts": 0, "rules": [requeue, ignore]}
    await start(jobs, kubelet, replicas=3, restart=restart)
    await kubelet.fail("job-0-2")
    assert "spec.restart.rules[1]" in await jobs.until_told("FailureIgnored")
    await kubelet.fail("job-0-0", exit_code=42)
    # A replacement would miss pod 2, so RestartPod restarts the gang.
    await kubelet.finish_deleted("job-0-1")
    await jobs.until_pods("job-1-0", "job-1-1", "job-1-2")
    await run_all(jobs, kubelet)
    await kubelet.fail("job-1-0", exit_code=42)
    await jobs.until_pods("job-1-0-r1", "job-1-1", "job-1-2")
    status = await jobs.until(lambda status: status.is_true("PodsCreated"))
    assert (status.restarts, status.disruptions) == (0, 2)
    assert [failure.action for failure in status.failures] == [
        "Ignore",
        "RestartGang",
        "RestartPod",
    ]


async def test_pod_scope_replaces_only_the_failed_pod(jobs: Jobs, kubelet: FakeKubelet) -> None:
    await start(jobs, kubelet, replicas=3, restart={"scope": "Pod"})
    before = await jobs.pods()
    await kubelet.fail("job-0-1")
    after = await jobs.until_pods("job-0-0", "job-0-1-r1", "job-0-2")
    for pod in ("job-0-0", "job-0-2"):
        assert after[pod]["metadata"]["uid"] == before[pod]["metadata"]["uid"]
    assert after["job-0-1-r1"]["spec"]["hostname"] == "job-0-1"
    status = await jobs.until(lambda status: status.is_true("PodsCreated"))
    assert status.bookkeeping.replacements == {"1": 1}
    assert (status.restarts, status.disruptions, status.attempt) == (1, 0, 0)
    await run_all(jobs, kubelet)
    await kubelet.fail("job-0-1-r1")
    await jobs.until_pods("job-0-0", "job-0-1-r2", "job-0-2")


@pytest.mark.parametrize("lose", [FakeKubelet.evict, FakeKubelet.finish], ids=["evict", "vanish"])
@pytest.mark.parametrize(
    ("scope", "expected"),
    [("Gang", ("job-1-0", "job-1-1")), ("Pod", ("job-0-0", "job-0-1-r1"))],
)
async def test_lost_pod_is_replaced_uncharged(
    jobs: Jobs,
    kubelet: FakeKubelet,
    scope: str,
    expected: tuple[str, str],
    lose: Callable[[FakeKubelet, str], Awaitable[None]],
) -> None:
    await start(jobs, kubelet, restart={"scope": scope, "maxRestarts": 0})
    await lose(kubelet, "job-0-1")
    if scope == "Gang":
        await kubelet.finish_deleted("job-0-0")
    await jobs.until_pods(*expected)
    status = await jobs.until(lambda status: status.is_true("PodsCreated"))
    assert (status.restarts, status.disruptions) == (0, 1)
    [failure] = status.failures
    assert failure.pod == "job-0-1"
    assert failure.disruption
    if lose is FakeKubelet.evict:
        assert failure.reason == "EvictionByEvictionAPI"
    await run_all(jobs, kubelet)


async def test_pod_deleted_from_outside_is_replaced_and_fenced(
    jobs: Jobs, kubelet: FakeKubelet
) -> None:
    await start(jobs, kubelet, restart={"scope": "Pod", "maxRestarts": 0})
    await jobs.delete_pod("job-0-1")
    pods = await jobs.until_pods("job-0-0", "job-0-1-r1")
    # The old pod terminates under the same host name, so it must leave the Service.
    assert pods["job-0-1"]["spec"]["hostname"] == pods["job-0-1-r1"]["spec"]["hostname"]
    assert LABEL_SERVING not in pods["job-0-1"]["metadata"]["labels"]
    assert pods["job-0-1-r1"]["metadata"]["labels"][LABEL_SERVING] == "true"
    await kubelet.finish("job-0-1")
    await run_all(jobs, kubelet)
    status = await jobs.until_phase("Running")
    assert (status.restarts, status.disruptions) == (0, 1)


@pytest.fixture
async def nodes(admin: ApiClient) -> AsyncIterator[None]:
    """Four nodes. All pods are on one; no kubelet runs, so the nodes are tainted."""
    names = [NODE, "node-2", "node-3", "node-4"]
    for name in names:
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        await admin.request("POST", NODES.path(), body=body)
    yield
    for name in names:
        with contextlib.suppress(ClusterError):
            await admin.request("DELETE", NODES.path(name=name))


@pytest.mark.usefixtures("nodes")
async def test_pod_leaves_a_node_once_another_can_take_its_place(
    jobs: Jobs, kubelet: FakeKubelet, admin: ApiClient
) -> None:
    async with TrainerServer() as trainer:
        await _leave(jobs, kubelet, admin, trainer)


async def _leave(
    jobs: Jobs, kubelet: FakeKubelet, admin: ApiClient, trainer: TrainerServer
) -> None:
    trainer.world = 200, b'{"number": 1, "generation": 1, "ended": true, "scope": "Pod"}'
    port = trainer.port
    tolerant = template(tolerations=[{"operator": "Exists"}])
    restart = {"scope": "Pod"}
    await jobs.create(job(replicas=2, template=tolerant, statusPort=port, restart=restart))
    await jobs.until_pods("job-0-0", "job-0-1")
    await kubelet.run("job-0-0", ip="127.0.0.1", node="node-2")
    await kubelet.run("job-0-1", ip="127.0.0.1")
    await jobs.until_phase("Running")
    body = {"metadata": {"labels": {"cloud.google.com/active-node-maintenance": "ONGOING"}}}
    await admin.request("PATCH", NODES.path(name=NODE), body=body, content_type=MERGE_PATCH)
    message = await jobs.until_told("SuccessorWanted")
    assert f"node {NODE} is about to be terminated (label cloud.google.com/active-node-" in message
    pods = await jobs.until_pods("job-0-0", "job-0-1", "job-0-2")
    assert f"'values': ['{NODE}']" in str(pods["job-0-2"]["spec"]["affinity"])
    assert (await jobs.status()).failures == ()
    await kubelet.run("job-0-2", ip="127.0.0.1", node="node-3")
    await kubelet.finish_deleted("job-0-1")
    status = await jobs.until(lambda status: bool(status.failures))
    [failure] = status.failures
    assert (failure.reason, failure.node, failure.charged) == ("NodeLeaving", NODE, False)
    assert (status.restarts, status.disruptions) == (0, 1)
    assert status.world is not None
    assert status.world.members == "0,2"
    assert status.bookkeeping.left_nodes == (NODE,)


class PausingLauncher:
    """The launchers of a script that keeps snapshots in memory; rank 0 pauses once it is asked."""

    def __init__(self) -> None:
        self.generation = 0
        self.asked: list[bool] = []
        """For each request for another state of the pause: whether it wants one."""

    def answer(self, document: bytes) -> bytes:
        sent = json.loads(document or b"{}")
        self.generation = max(self.generation, sent.get("generation", 0))
        if document and sent["nodeRank"] == 0:
            self.asked.append(sent.get("pause", False))
        is_paused = self.asked[-1:] == [True] and self.generation == 0
        memory = {"step": 40, "copies": 1}
        status = {"number": len(self.asked) + 1, "scope": "InPlace", "memory": memory}
        status |= {"pause": "Paused" if is_paused else "", "ended": True}
        return json.dumps(status | {"generation": self.generation}).encode()


@pytest.mark.usefixtures("nodes")
async def test_pod_leaves_a_node_while_rank_0_pauses(
    jobs: Jobs, kubelet: FakeKubelet, admin: ApiClient
) -> None:
    async with TrainerServer() as trainer:
        launcher = PausingLauncher()
        trainer.world = launcher.answer
        restart, memory = {"scope": "InPlace"}, {"sizeLimit": "64Mi"}
        await jobs.create(
            job(replicas=2, statusPort=trainer.port, restart=restart, memoryCheckpoint=memory)
        )
        await jobs.until_pods("job-0-0", "job-0-1")
        await kubelet.run("job-0-0", ip="127.0.0.1", node="node-2")
        await kubelet.run("job-0-1", ip="127.0.0.1")
        await jobs.until_phase("Running")
        await jobs.until(lambda status: bool(status.bookkeeping.launcher))
        body = {"metadata": {"labels": {"cloud.google.com/active-node-maintenance": "ONGOING"}}}
        await admin.request("PATCH", NODES.path(name=NODE), body=body, content_type=MERGE_PATCH)
        await jobs.until_pods("job-0-0", "job-0-1", "job-0-2")
        assert launcher.asked == [], "no other pod is ready yet"
        await kubelet.run("job-0-2", ip="127.0.0.1", node="node-3")
        message = await jobs.until_told("PausedToMove")
        assert message == "training pauses after step 40, from which all ranks continue"
        status = await jobs.until(lambda status: bool(status.failures))
        assert [failure.action for failure in status.failures] == ["RestartInPlace"]
        assert status.world is not None
        assert status.world.members == "0,2"
        await kubelet.finish_deleted("job-0-1")
        await jobs.until(lambda _: launcher.generation == 1)
        assert launcher.asked[0] is True
