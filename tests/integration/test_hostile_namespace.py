"""A hostile user of one namespace does not disturb jobs in others, with a real operator and API
server.
"""

import asyncio
from collections.abc import Sequence

import pytest
from ddp_operator.kube import LEASES, ApiClient

from tests import cluster
from tests.good_manifests import Json
from tests.integration.conftest import new_namespace
from tests.integration.hostile import Hostile
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet, run_job
from tests.integration.operator_process import running_operator
from tests.trainer_server import ENDLESS, TrainerServer

LEASE = "hostile-test"
MEMORY_MEBIBYTES = 512
"""The container's limit (manifests/install/deployment.yaml)."""


@pytest.mark.parametrize(
    ("ordinary", "churned"), [(10, 1), pytest.param(50, 3, marks=pytest.mark.nightly)]
)
async def test_hostile_namespace_does_not_disturb_other_jobs(
    ordinary: int,
    churned: int,
    control_plane: cluster.ControlPlane,
    admin: ApiClient,
    jobs: Jobs,
    kubelet: FakeKubelet,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    log = tmp_path_factory.mktemp("operator") / "log"
    options = ["--leader-elect", "--lease-name", LEASE, "--lease-namespace", jobs.namespace]
    options += ["--progress-poll-seconds", "0.5"]
    async with new_namespace(admin) as theirs, TrainerServer() as trainer:
        trainer.answer = ENDLESS
        hostile = Hostile(admin, theirs, trainer=trainer.port)
        with running_operator(
            control_plane.kubeconfig, log, namespace=None, options=options
        ) as operator:
            await operator.serving()
            await hostile.store()
            await train(jobs, kubelet, ["before"])
            # After a restart the operator finds all of that at once.
            operator.terminate()
            await operator.exit_code()
            await hostile.fail()
            operator.start()
            await operator.serving()
            lease = await lease_of(admin, jobs.namespace)
            async with asyncio.TaskGroup() as tasks:
                churning = [
                    tasks.create_task(hostile.churn(f"churned-{i}")) for i in range(churned)
                ]
                tasks.create_task(hostile.keep_asked())
                await train(jobs, kubelet, [f"ordinary-{i}" for i in range(ordinary)])
                for task in churning:
                    task.cancel()
            assert operator.running
            assert operator.peak_mebibytes < MEMORY_MEBIBYTES
            now = await lease_of(admin, jobs.namespace)
            assert (now["holderIdentity"], now["leaseTransitions"]) == (
                lease["holderIdentity"],
                lease["leaseTransitions"],
            )
            assert "Traceback" not in operator.log
            for name in ("before", *(f"ordinary-{i}" for i in range(ordinary))):
                status = await jobs.status(name)
                assert (status.phase, status.attempt, status.failures) == ("Running", 0, ())
        assert "status" in trainer.asked


async def train(jobs: Jobs, kubelet: FakeKubelet, names: Sequence[str]) -> None:
    """Bring jobs to Running, all at the same time."""
    await asyncio.gather(*(run_job(jobs, kubelet, name) for name in names))


async def lease_of(admin: ApiClient, namespace: str) -> Json:
    """Return the spec of the Lease."""
    path = LEASES.path(namespace=namespace, name=LEASE)
    spec: Json = (await admin.request("GET", path))["spec"]
    return spec
