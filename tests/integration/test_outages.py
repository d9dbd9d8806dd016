"""What happens to jobs while the API server refuses, forgets or dies, or the operator does: a real
operator process behind a proxy.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cluster import ControlPlane
from tests.good_manifests import job
from tests.integration.http_proxy import HttpProxy, Seen, any_write, http_proxy, write
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.operator_process import OperatorProcess, running_operator
from tests.waiting import eventually

REPLICAS = 3
PODS_OF_ATTEMPT_0 = tuple(f"job-0-{index}" for index in range(REPLICAS))


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


async def live(jobs: Jobs, kubelet: FakeKubelet) -> None:
    """Bring a job to Running and to its end."""
    await jobs.until_pods(*PODS_OF_ATTEMPT_0)
    await jobs.until(lambda status: status.is_true("PodsCreated"))
    for pod in PODS_OF_ATTEMPT_0:
        await kubelet.run(pod)
    await jobs.until_phase("Running")
    for pod in PODS_OF_ATTEMPT_0:
        await kubelet.succeed(pod)
    status = await jobs.until_phase("Succeeded")
    assert (status.restarts, status.disruptions, status.attempt) == (0, 0, 0)


def creations(proxy: HttpProxy) -> Counter[str]:
    """How many creations of each kind the server has accepted."""
    return Counter(
        seen.path.rsplit("/", 1)[1]
        for seen in proxy.seen
        if any_write(seen) and seen.method == "POST" and seen.status == 201
    )


@pytest.mark.usefixtures("operator")
async def test_a_job_that_succeeds_costs_few_writes_and_no_reads(
    proxy: HttpProxy, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    # The watch on jobs is open once it has told of a job.
    await jobs.create(job("first", suspend=True))
    await jobs.until_phase("Suspended", "first")
    proxy.seen.clear()
    await jobs.create(job(replicas=REPLICAS))
    await live(jobs, kubelet)
    requests = [seen for seen in proxy.seen if not seen.about_event and not seen.watch]
    assert [seen for seen in requests if not seen.is_write] == []
    writes = Counter((seen.method, seen.path.rsplit("/", 1)[1]) for seen in requests)
    patches = writes.pop(("PATCH", "status"))
    made = {"secrets": 1, "services": 1, "pods": REPLICAS}  # the Secret once for the namespace
    assert writes == {("POST", kind): count for kind, count in made.items()}
    # Created, Running, Succeeded; and the counts of ready pods in between, when that takes long.
    assert 2 <= patches <= 3 + REPLICAS


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_server_that_is_busy_for_a_while(
    proxy: HttpProxy, jobs: Jobs, kubelet: FakeKubelet, status: int
) -> None:
    headers = {"Retry-After": "1"} if status == 429 else None
    proxy.refuse(any_write, times=7, status=status, headers=headers)
    await jobs.create(job(replicas=REPLICAS))
    await live(jobs, kubelet)
    assert proxy.faults_left == 0
    assert creations(proxy) == {"secrets": 1, "services": 1, "pods": REPLICAS}


@pytest.mark.usefixtures("operator")
async def test_a_conflict_is_no_creation_and_no_status(
    proxy: HttpProxy, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    """As quotas and concurrent writers cause them."""
    proxy.refuse(write("POST", "/pods"), times=3, status=409)
    proxy.refuse(write("PATCH", "/status"), times=3, status=409)
    await jobs.create(job(replicas=REPLICAS))
    await live(jobs, kubelet)
    assert proxy.faults_left == 0
    assert creations(proxy) == {"secrets": 1, "services": 1, "pods": REPLICAS}


@pytest.mark.usefixtures("operator")
async def test_lost_answers_are_found_out(
    proxy: HttpProxy, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    proxy.lose_answers(write("POST", "/services"), times=1)
    proxy.lose_answers(write("POST", "/pods"), times=2)
    proxy.lose_answers(write("PATCH", "/status"), times=2)
    await jobs.create(job(replicas=REPLICAS))
    await live(jobs, kubelet)
    assert proxy.faults_left == 0
    assert "services/job" in _read(proxy.seen)


def _read(seen: list[Seen]) -> set[str]:
    return {"/".join(one.path.split("/")[-2:]) for one in seen if one.method == "GET"}


@pytest.mark.usefixtures("operator")
async def test_a_lost_answer_to_a_counted_restart_counts_once(
    proxy: HttpProxy, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    await jobs.create(job(replicas=1))
    await jobs.until_pods("job-0-0")
    await kubelet.run("job-0-0")
    await jobs.until_phase("Running")
    proxy.lose_answers(write("PATCH", "/status"), times=1)
    await kubelet.fail("job-0-0")
    await jobs.until_pods("job-1-0")
    status = await jobs.until(lambda status: status.is_true("PodsCreated"))
    assert (status.restarts, status.attempt) == (1, 1)
    assert proxy.faults_left == 0


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize("expired", [False, True])
async def test_nothing_is_missed_while_the_watches_are_cut(
    proxy: HttpProxy,
    jobs: Jobs,
    kubelet: FakeKubelet,
    *,
    expired: bool,
) -> None:
    for name in ("job", "doomed", "reborn"):
        await jobs.create(job(name))
        await jobs.until_pods(f"{name}-0-0", name=name)
        await kubelet.run(f"{name}-0-0")
        await jobs.until_phase("Running", name)
    proxy.open = False
    proxy.cut_watches()
    await jobs.create(job("new"))
    await kubelet.finish("job-0-0")
    for name in ("doomed", "reborn"):
        await jobs.discard(name)
    await jobs.create(job("reborn", replicas=2))
    if expired:
        proxy.expire_watches(times=2)
    proxy.open = True
    await jobs.until_pods("new-0-0", name="new")
    await jobs.until_pods("job-1-0")
    await jobs.until_pods("reborn-0-0", "reborn-0-1", name="reborn")
    assert await jobs.pods("doomed") == {}
    assert proxy.faults_left == 0


async def test_the_api_server_is_restarted(
    control_plane: ControlPlane, operator: OperatorProcess, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    await jobs.create(job(replicas=2))
    await jobs.until_pods("job-0-0", "job-0-1")
    for pod in ("job-0-0", "job-0-1"):
        await kubelet.run(pod)
    await jobs.until_phase("Running")
    await asyncio.to_thread(control_plane.restart_apiserver)
    await kubelet.fail("job-0-1")
    await kubelet.let_go("job-0-0")
    await jobs.until_pods("job-1-0", "job-1-1")
    await jobs.create(job("next"))
    await jobs.until_pods("next-0-0", name="next")
    assert operator.running


@pytest.mark.parametrize("written", [1, 3, 5])
async def test_the_operator_is_killed_in_the_middle_of_a_start(
    proxy: HttpProxy, operator: OperatorProcess, jobs: Jobs, kubelet: FakeKubelet, written: int
) -> None:
    """With SIGKILL, right after one of its writes; `test_crashes` goes through all of them."""
    count = 0

    def kill(seen: Seen) -> None:
        nonlocal count
        count += any_write(seen)
        if count == written and proxy.open:
            proxy.open = False  # what it has sent but not heard of is lost
            operator.kill()

    proxy.on_write = kill
    await jobs.create(job(replicas=REPLICAS))
    await eventually(lambda: not operator.running)
    proxy.open = True
    operator.start()
    await live(jobs, kubelet)
    assert creations(proxy) == {"secrets": 1, "services": 1, "pods": REPLICAS}


async def test_what_happened_while_no_operator_ran_is_made_up_for(
    operator: OperatorProcess, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    for name in ("job", "lost", "done"):
        await jobs.create(job(name))
        await jobs.until_pods(f"{name}-0-0", name=name)
        await kubelet.run(f"{name}-0-0")
        await jobs.until_phase("Running", name)
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


async def test_sigterm_ends_it_in_order(operator: OperatorProcess, jobs: Jobs) -> None:
    await jobs.create(job())
    await jobs.until_pods("job-0-0")
    operator.terminate()
    assert await operator.exit_code() == 0
    assert "Traceback" not in operator.log
