"""A tenant, or any pod, cannot stop a real operator with the limits of its container."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from ddp_operator.kube import ApiClient

from tests import cluster
from tests.integration.attacks import Attacker, Probes, repeated, unfinished_requests
from tests.integration.conftest import new_namespace
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet, run_job
from tests.integration.operator_process import OperatorProcess, flawless_operator
from tests.ports import free_port
from tests.trainer_server import TrainerServer
from tests.waiting import eventually

MEMORY_MEBIBYTES = 200
"""Its container's limit is 512 (manifests/install/deployment.yaml)."""
ATTACKS = ("paths", "connections", "suspended", "hang", "edits")


@asynccontextmanager
async def attacked(
    control_plane: cluster.ControlPlane, log_folder: pytest.TempPathFactory, jobs: Jobs
) -> AsyncIterator[tuple[OperatorProcess, Probes, int]]:
    """Run an operator, with its metrics port; check its health and memory after the block."""
    health, metrics = free_port(), free_port()
    lease = ("--lease-name", jobs.namespace, "--lease-namespace", jobs.namespace)
    with flawless_operator(
        control_plane.kubeconfig,
        log_folder.mktemp("operator") / "log",
        namespace=None,
        health_port=health,
        metrics_port=metrics,
        options=("--leader-elect", *lease, "--progress-poll-seconds", "0.5"),
    ) as operator:
        await operator.serving()
        probes = Probes(health)
        asking = asyncio.create_task(probes.keep_asking())
        try:
            yield operator, probes, metrics
        finally:
            asking.cancel()
        assert operator.running
        peak, slowest = operator.peak_mebibytes, max(probes.seconds)
        print(f"peak {peak:.0f} MiB; slowest of {len(probes.seconds)} probes {slowest:.2f} s")
        assert probes.failures == []
        assert peak < MEMORY_MEBIBYTES


@pytest.mark.parametrize("attack", ATTACKS)
async def test_operator_survives(
    attack: str,
    control_plane: cluster.ControlPlane,
    admin: ApiClient,
    jobs: Jobs,
    kubelet: FakeKubelet,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async with (
        new_namespace(admin) as theirs,
        TrainerServer() as trainer,
        attacked(control_plane, tmp_path_factory, jobs) as (_, probes, metrics),
    ):
        attacker = Attacker(admin, theirs, trainer)
        async with AsyncExitStack() as lasting:
            if attack == "connections":
                lasting.enter_context(unfinished_requests(metrics))
            elif attack == "edits":
                edits = repeated(attacker.edit_shell_line, pause_seconds=0.5)
                await lasting.enter_async_context(edits)
            elif attack == "paths":
                await attacker.name_long_paths()
            elif attack == "suspended":
                await attacker.suspend_jobs(80)
            else:
                await attacker.hang_with_shared_lists()
                await eventually(lambda: "traces" in trainer.asked)
            await run_job(jobs, kubelet, "honest")
            await until_probed(probes, 10)


@pytest.mark.parametrize("seconds", [20, pytest.param(300, marks=pytest.mark.nightly)])
async def test_no_honest_job_notices_a_storm_of_attacks(
    seconds: int,
    control_plane: cluster.ControlPlane,
    admin: ApiClient,
    jobs: Jobs,
    kubelet: FakeKubelet,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    names = [f"honest-{number}" for number in range(10)]
    async with (
        new_namespace(admin) as theirs,
        TrainerServer() as hostile,
        TrainerServer() as honest,
        attacked(control_plane, tmp_path_factory, jobs) as (operator, _, metrics),
    ):
        port = honest.port
        await asyncio.gather(
            *(run_job(jobs, kubelet, name, ip="127.0.0.1", statusPort=port) for name in names)
        )
        attacker = Attacker(admin, theirs, hostile)
        await attacker.suspend_jobs(40)
        started = asyncio.get_running_loop().time()
        rounds = (attacker.name_long_paths, attacker.hang_with_shared_lists)
        with unfinished_requests(metrics):
            async with (
                repeated(*rounds, pause_seconds=1),
                repeated(attacker.edit_shell_line, pause_seconds=2),
            ):
                step = 1
                while asyncio.get_running_loop().time() < started + seconds:
                    step += 1
                    honest.answer = {"step": step, "totalSteps": 10**6}
                    for name in names:
                        await until_step(jobs, name, step)
        assert operator.log.count(": serving ") == 1
        for name in names:
            status = await jobs.status(name)
            assert (status.phase, status.attempt, status.failures) == ("Running", 0, ())


async def until_step(jobs: Jobs, name: str, step: int) -> None:
    """Wait until a job's status shows at least this step."""
    await jobs.until(
        lambda status: status.progress is not None and (status.progress.step or 0) >= step, name
    )


async def until_probed(probes: Probes, times: int) -> None:
    """Wait for some more answers of /healthz."""
    wanted = len(probes.seconds) + times
    await eventually(lambda: len(probes.seconds) >= wanted, interval_seconds=0.1)
