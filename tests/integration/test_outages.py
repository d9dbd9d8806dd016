"""Jobs while the API server refuses, forgets or dies, or the operator does.

A real operator process reaches the API server through a proxy.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.cluster import ControlPlane
from tests.good_manifests import job
from tests.integration.http_proxy import HttpProxy, any_write, http_proxy, write
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet, start
from tests.integration.operator_process import OperatorProcess, running_operator

REPLICAS = 3
CREATED = {"secrets": 1, "services": 1, "pods": REPLICAS}
"""Creations for each job."""


@pytest.fixture
async def proxy(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[HttpProxy]:
    async with http_proxy(control_plane.kubeconfig, tmp_path / "proxied") as running:
        yield running


@pytest.fixture
async def operator(
    proxy: HttpProxy,  # noqa: ARG001 - writes the kubeconfig
    jobs: Jobs,
    tmp_path: Path,
) -> AsyncIterator[OperatorProcess]:
    """An operator process that reaches the API server through the proxy."""
    with running_operator(
        tmp_path / "proxied", tmp_path / "operator.log", namespace=jobs.namespace
    ) as process:
        await process.serving()
        yield process


async def live(jobs: Jobs, kubelet: FakeKubelet, name: str = "job") -> None:
    """Bring a job to Running and to its end."""
    pods = tuple(f"{name}-0-{index}" for index in range(REPLICAS))
    await jobs.until_pods(*pods, name=name)
    await jobs.until(lambda status: status.is_true("PodsCreated"), name)
    for pod in pods:
        await kubelet.run(pod)
    await jobs.until_phase("Running", name)
    for pod in pods:
        await kubelet.succeed(pod)
    status = await jobs.until_phase("Succeeded", name)
    assert (status.restarts, status.disruptions, status.attempt) == (0, 0, 0)


async def run_one(jobs: Jobs, kubelet: FakeKubelet, name: str) -> None:
    """Bring a job of one pod to Running."""
    await jobs.create(job(name))
    await jobs.until_pods(f"{name}-0-0", name=name)
    await kubelet.run(f"{name}-0-0")
    await jobs.until_phase("Running", name)


def creations(proxy: HttpProxy) -> Counter[str]:
    """Return how many creations of each kind the server has accepted, with a lost answer or not."""
    return Counter(
        seen.path.rsplit("/", 1)[1]
        for seen in proxy.seen
        if any_write(seen) and seen.method == "POST" and seen.status == 201
    )


@pytest.mark.usefixtures("operator")
async def test_job_that_succeeds_costs_few_writes_and_no_reads(
    proxy: HttpProxy, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    # The watch on jobs is open as soon as the operator has seen a job.
    await jobs.create(job("first", suspend=True))
    await jobs.until_phase("Suspended", "first")
    proxy.seen.clear()
    await jobs.create(job(replicas=REPLICAS))
    await live(jobs, kubelet)
    requests = [seen for seen in proxy.seen if not seen.about_event and not seen.watch]
    assert [seen for seen in requests if not seen.is_write] == []
    writes = Counter((seen.method, seen.path.rsplit("/", 1)[1]) for seen in requests)
    patches = writes.pop(("PATCH", "status"))
    assert writes == {("POST", kind): count for kind, count in CREATED.items()}
    # Created, Running, Succeeded; and the counts of ready pods in between, when that takes long.
    assert 2 <= patches <= 3 + REPLICAS


def refuse_conflicts(proxy: HttpProxy) -> None:
    """Refuse writes as quotas and concurrent writers cause it."""
    proxy.refuse(write("POST", "/pods"), times=3, status=409)
    proxy.refuse(write("PATCH", "/status"), times=3, status=409)


def lose_answers(proxy: HttpProxy) -> None:
    proxy.lose_answers(write("POST", "/services"), times=1)
    proxy.lose_answers(write("POST", "/pods"), times=2)
    proxy.lose_answers(write("PATCH", "/status"), times=2)


FAULTS: dict[str, Callable[[HttpProxy], None]] = {
    "slow-down": lambda proxy: proxy.refuse(
        any_write, times=7, status=429, headers={"Retry-After": "1"}
    ),
    "error": lambda proxy: proxy.refuse(any_write, times=7, status=500),
    "busy": lambda proxy: proxy.refuse(any_write, times=7, status=503),
    "conflicts": refuse_conflicts,
    "lost-answers": lose_answers,
}


@pytest.mark.usefixtures("operator")
async def test_refusals_and_lost_answers_lose_and_repeat_nothing(
    proxy: HttpProxy, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    for name, add_faults in FAULTS.items():
        proxy.seen.clear()
        add_faults(proxy)
        await jobs.create(job(name, replicas=REPLICAS))
        await live(jobs, kubelet, name)
        assert proxy.faults_left == 0
        assert creations(proxy) == CREATED, name
    reads = {seen.path for seen in proxy.seen if seen.method == "GET"}
    assert any(path.endswith("services/lost-answers") for path in reads)


@pytest.mark.usefixtures("operator")
async def test_lost_answer_to_a_counted_restart_counts_once(
    proxy: HttpProxy, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    await run_one(jobs, kubelet, "job")
    proxy.lose_answers(write("PATCH", "/status"), times=1)
    await kubelet.fail("job-0-0")
    await jobs.until_pods("job-1-0")
    status = await jobs.until(lambda status: status.is_true("PodsCreated"))
    assert (status.restarts, status.attempt) == (1, 1)
    assert proxy.faults_left == 0


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize("expired", [False, True])
async def test_changes_during_cut_watches_are_noticed(
    proxy: HttpProxy,
    jobs: Jobs,
    kubelet: FakeKubelet,
    *,
    expired: bool,
) -> None:
    for name in ("job", "deleted", "recreated"):
        await run_one(jobs, kubelet, name)
    proxy.open = False
    proxy.cut()
    await jobs.create(job("new"))
    await kubelet.finish("job-0-0")
    for name in ("deleted", "recreated"):
        await jobs.discard(name)
    await jobs.create(job("recreated", replicas=2))
    if expired:
        proxy.expire_watches(times=2)
    proxy.open = True
    await jobs.until_pods("new-0-0", name="new")
    await jobs.until_pods("job-1-0")
    await jobs.until_pods("recreated-0-0", "recreated-0-1", name="recreated")
    assert await jobs.pods("deleted") == {}
    assert proxy.faults_left == 0


async def test_job_restarts_after_the_api_server_did(
    control_plane: ControlPlane, operator: OperatorProcess, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    await start(jobs, kubelet)
    await asyncio.to_thread(control_plane.restart_apiserver)
    await kubelet.fail("job-0-1")
    await kubelet.finish_deleted("job-0-0")
    await jobs.until_pods("job-1-0", "job-1-1")
    await jobs.create(job("next"))
    await jobs.until_pods("next-0-0", name="next")
    assert operator.running


async def test_changes_without_an_operator_are_handled_by_the_next_one(
    operator: OperatorProcess, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    for name in ("job", "lost", "done"):
        await run_one(jobs, kubelet, name)
    operator.kill()
    await kubelet.fail("job-0-0")
    await kubelet.finish("lost-0-0")
    await kubelet.succeed("done-0-0")
    await jobs.create(job("new"))
    operator.start()
    await jobs.until_pods("job-1-0")
    assert (await jobs.status()).restarts == 1
    await jobs.until_pods("lost-1-0", name="lost")
    assert (await jobs.status("lost")).disruptions == 1
    await jobs.until_phase("Succeeded", "done")
    await jobs.until_pods("new-0-0", name="new")
    operator.terminate()
    assert await operator.exit_code() == 0
    assert "Traceback" not in operator.log
