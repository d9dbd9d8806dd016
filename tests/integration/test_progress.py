"""Progress, hangs and goodput, with a real operator and API server.

The address of all pods is loopback, where an HTTP server answers the operator's requests.
"""

import base64
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from itertools import count

import pytest
from aiohttp import web
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.job.status.goodput import KINDS
from ddp_operator.kube import SECRETS, ApiClient

from tests import cluster
from tests.good_manifests import Json, job
from tests.integration.jobs import Jobs
from tests.integration.kubelet import NODE, FakeKubelet
from tests.integration.operator_process import OperatorProcess, flawless_operator
from tests.trainer_server import TrainerServer


@pytest.fixture
def operator(
    control_plane: cluster.ControlPlane,
    namespace: str,
    jobs: Jobs,  # noqa: ARG001 - the CRD is there
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OperatorProcess]:
    log = tmp_path_factory.mktemp("operator") / "log"
    with flawless_operator(
        control_plane.kubeconfig,
        log,
        namespace=namespace,
        options=("--progress-poll-seconds", "0.2"),
    ) as process:
        yield process


@pytest.fixture
async def trainer() -> AsyncIterator[TrainerServer]:
    async with TrainerServer() as server:
        yield server


async def token_of(client: ApiClient, pod: Json) -> str:
    """Return the token in the Secret that the pod's environment names."""
    variables = pod["spec"]["containers"][0]["env"]
    [variable] = [v for v in variables if v["name"] == "DDP_TOKEN"]
    assert "value" not in variable
    reference = variable["valueFrom"]["secretKeyRef"]
    path = SECRETS.path(namespace=pod["metadata"]["namespace"], name=reference["name"])
    secret = await client.request("GET", path)
    return base64.b64decode(secret["data"][reference["key"]]).decode()


def reported_step(status: DDPJobStatus) -> int | None:
    return status.progress.step if status.progress else None


async def test_progress_is_shown_and_a_hang_ends_at_the_deadline(
    operator: OperatorProcess,
    jobs: Jobs,
    kubelet: FakeKubelet,
    trainer: TrainerServer,
    admin: ApiClient,
) -> None:
    trainer.answer = {
        "step": 120,
        "totalSteps": 960,
        "loss": 0.5,
        "checkpoint": {"step": 100, "path": "/checkpoints/step-100"},
    }
    port = trainer.port
    created = await jobs.create(job(replicas=2, statusPort=port))
    await jobs.until(lambda status: status.is_true("PodsCreated"))
    for pod in await jobs.live_pods():
        await kubelet.run(pod, ip="127.0.0.1")
    status = await jobs.until(lambda status: reported_step(status) == 120)
    assert status.progress is not None
    assert (status.progress.total_steps, status.progress.loss) == (960, 0.5)
    assert status.checkpoint is not None
    assert (status.checkpoint.step, status.checkpoint.path) == (100, "/checkpoints/step-100")
    # No step follows.
    await jobs.set_spec(progressDeadlineSeconds=2)
    status = await jobs.until(lambda status: status.attempt == 1)
    [failure] = status.failures
    assert (failure.reason, failure.rank, failure.class_) == ("NoProgress", None, "Application")
    assert status.restarts == 1
    await kubelet.finish_deleted("job-0-0", "job-0-1")
    await jobs.until_pods("job-1-0", "job-1-1")
    assert trainer.asked.count("dump-stacks") == 2
    # The operator signs with the token of the pods and never sends it.
    [token] = {await token_of(admin, pod) for pod in (await jobs.pods()).values()}
    assert all(header.startswith("DDP-HMAC-SHA256 ") for header in trainer.tokens)
    assert not any(token in header for header in trainer.tokens)
    assert len(trainer.tokens) >= 2
    assert "stuck at step 120" in await jobs.until_told("Restarting")
    assert status.goodput is not None
    assert status.goodput.steps_lost == 0
    # Training resumes from its checkpoint. Steps count as lost when they are trained again, and
    # every second is accounted for.
    resumed = {"step": 100, "time": datetime.now(UTC).isoformat()}
    trainer.answer = {**trainer.answer, "step": 101, "resumed": resumed}
    for pod in ("job-1-0", "job-1-1"):
        await kubelet.run(pod, ip="127.0.0.1")
    status = await jobs.until(lambda status: reported_step(status) == 101)
    goodput, watch = status.goodput, status.bookkeeping.stopwatch
    assert goodput is not None
    assert watch is not None
    assert goodput.steps_lost == 20
    seconds = goodput.model_dump(include={f"{kind}_seconds" for kind in KINDS})
    begin = DDPJobStatus.model_validate(
        {"startTime": created["metadata"]["creationTimestamp"]}
    ).start_time
    assert begin is not None
    assert sum(seconds.values()) == (watch.accounted_until - begin).total_seconds()
    assert operator.running


async def test_job_without_reports_is_left_alone_and_says_so(
    operator: OperatorProcess, jobs: Jobs, kubelet: FakeKubelet, trainer: TrainerServer
) -> None:
    port = trainer.port
    await trainer.close()
    await jobs.create(job(replicas=1, statusPort=port, progressDeadlineSeconds=1))
    await jobs.until(lambda status: status.is_true("PodsCreated"))
    await kubelet.run("job-0-0", ip="127.0.0.1")
    assert f"port {port}" in await jobs.until_told("NoProgressReports")
    status = await jobs.until(lambda status: status.reason == "NoProgressReports")
    assert (status.phase, status.attempt) == ("Running", 0)
    assert operator.running


async def test_spare_replaces_a_slow_rank_once(
    operator: OperatorProcess,
    jobs: Jobs,
    kubelet: FakeKubelet,
    trainer: TrainerServer,
) -> None:
    steps = count(1)

    def answer() -> web.Response:
        step = next(steps)
        pace = {"step": step, "rank": 1, "seconds": 0.7, "othersSeconds": 0.4}
        return web.json_response({"step": step, "pace": pace})

    trainer.answer = answer
    trainer.world = 200, b'{"number": 1, "generation": 1, "ended": true, "scope": "Pod"}'
    slow_rank = {"forSeconds": 1, "action": "Replace"}
    port = trainer.port
    restart = {"scope": "Pod", "slowRank": slow_rank}
    await jobs.create(job(replicas=2, spares=1, statusPort=port, restart=restart))
    for pod in await jobs.until_pods("job-0-0", "job-0-1"):
        await kubelet.run(pod, ip="127.0.0.1")
    await jobs.until_pods("job-0-0", "job-0-1", "job-0-2")
    await kubelet.run("job-0-2", ip="127.0.0.1", node="node-2")
    status = await jobs.until(lambda status: bool(status.failures))
    [failure] = status.failures
    assert (failure.reason, failure.class_, failure.charged) == (
        "SlowRank",
        "Infrastructure",
        False,
    )
    assert (failure.rank, failure.pod, failure.node) == (1, "job-0-1", NODE)
    assert status.world is not None
    assert (status.world.members, status.excluded_nodes) == ("0,2", (NODE,))
    assert "is slow: its own time per step is 1.75 times" in await jobs.until_told("SlowRank")
    assert "spare job-0-2 becomes node rank 1 (not charged)" in await jobs.until_told("Restarting")
    await kubelet.finish_deleted("job-0-1")
    # The successor is slow too, so the node was not the cause.
    status = await jobs.until(
        lambda status: status.slow_rank is not None and bool(status.slow_rank.not_replaced)
    )
    assert status.slow_rank is not None
    assert (status.slow_rank.pod, status.slow_rank.node) == ("job-0-2", "node-2")
    assert "slow on another node too" in status.slow_rank.not_replaced
    assert (len(status.failures), status.disruptions, status.restarts) == (1, 1, 0)
    assert operator.running
