"""Queries of dashboards and alerts return data: a real Prometheus scrapes a real operator.

Its jobs run, hang, fail, restart, are suspended and refused.
"""

import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web
from ddp_operator.api.values.bounded import format_time
from ddp_operator.kube import ApiClient

from tests import cluster
from tests.chart.queries import panels, rules
from tests.good_manifests import Json, container, gpus, job, template
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.monitoring.prometheus import Prometheus, scraping
from tests.integration.operator_process import OperatorProcess, running_operator
from tests.ports import free_port
from tests.trainer_server import TrainerServer

VARIABLES: Final = {"$namespace": "ddp-operator", "$__rate_interval": "5m", "$__range": "6h"}
"""Values of the variables in the operator's dashboard."""

ABOVE: Final = {
    "Acting replicas: A": 0,
    "Goodput: A": 0,
    "Hangs: A": 0,
    "Failures, by reason: A": 0,
    "Jobs by phase: A": 0,
    "Where time was spent: A": 0,
    "Restarts an hour, by class of failure: A": 0,
    "Time to recover: A": 0,
    "Failed requests to the API server: A": 0,
}
"""Panels in which these jobs cause values above zero."""

COMPARED: Final = re.compile(r"\s(?:[<>]=?|==)\s\d+")


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def operator(
    control_plane: cluster.ControlPlane, jobs: Jobs, port: int, tmp_path: Path
) -> Iterator[OperatorProcess]:
    with running_operator(
        control_plane.kubeconfig,
        tmp_path / "log",
        namespace=jobs.namespace,
        metrics_port=port,
        options=("--progress-poll-seconds", "0.2"),
    ) as process:
        yield process


@pytest.fixture
async def prometheus(
    programs: Path,
    operator: OperatorProcess,
    port: int,
    tmp_path: Path,
) -> AsyncIterator[Prometheus]:
    """Scrapes the operator from before its first job."""
    await operator.serving()
    async with scraping(programs, tmp_path, target=port) as prometheus:
        await prometheus.until_answered("ddp_operator_leader", above=0)
        yield prometheus


async def begin(jobs: Jobs, kubelet: FakeKubelet, name: str, *, ip: str = "", **spec: Any) -> None:
    """Create a job of one pod and bring it to Running."""
    await jobs.create(job(replicas=1, **spec), name=name)
    await jobs.until_pods(f"{name}-0-0", name=name)
    await kubelet.run(f"{name}-0-0", ip=ip)
    await jobs.until_phase("Running", name)


async def refuse_gpus(admin: ApiClient, namespace: str) -> None:
    """Make the API server refuse only pods that request GPUs."""
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"requests.nvidia.com/gpu": "0"}}}
    await admin.request("POST", f"/api/v1/namespaces/{namespace}/resourcequotas", body=quota)


async def jobs_in_many_states(
    admin: ApiClient, jobs: Jobs, kubelet: FakeKubelet, trainer: TrainerServer
) -> None:
    saved = {"step": 100, "time": format_time(datetime.now(UTC))}
    report = {
        "step": 120,
        "totalSteps": 100_000,
        "loss": 0.5,
        "samplesPerSecond": 8,
        "checkpoint": saved,
    }
    trainer.answer = report
    in_memory = {"step": 115, "time": saved["time"], "copies": 0}
    world = {"number": 1, "generation": 0, "memory": in_memory}
    trainer.world = 200, json.dumps(world).encode()
    port = trainer.port
    await refuse_gpus(admin, jobs.namespace)
    memory = {"sizeLimit": "16Mi", "copies": 0}
    await begin(jobs, kubelet, "runs", ip="127.0.0.1", statusPort=port, memoryCheckpoint=memory)
    await jobs.until(
        lambda status: None not in (status.checkpoint, status.memory_checkpoint), "runs"
    )
    hangs: Json = {"progressDeadlineSeconds": 1, "restart": {"scope": "Gang"}}
    await begin(jobs, kubelet, "hangs", ip="127.0.0.1", statusPort=port, **hangs)
    await jobs.until(lambda status: status.attempt == 1, "hangs")
    steps = itertools.count(121)

    def progressing() -> web.Response:
        step = next(steps)
        pace = {"step": step, "rank": 0, "seconds": 0.8, "othersSeconds": 0.4}
        return web.json_response(report | {"step": step, "pace": pace})

    trainer.answer = progressing
    await begin(jobs, kubelet, "restarts")
    await kubelet.fail("restarts-0-0")
    await jobs.until_pods("restarts-1-0", name="restarts")
    await kubelet.run("restarts-1-0")
    await jobs.until_phase("Running", "restarts")
    await begin(jobs, kubelet, "fails", restart={"maxRestarts": 0})
    await kubelet.fail("fails-0-0")
    await jobs.until_phase("Failed", "fails")
    await jobs.create(job(suspend=True), name="waits")
    await jobs.until_phase("Suspended", "waits")
    with_gpu = template(container(resources=gpus(gpu=1)))
    await jobs.create(job(template=with_gpu), name="refused")
    await jobs.until(lambda status: status.slow_rank is not None, "runs")


def of_panels(uid: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the queries of a dashboard's panels, by title."""
    filled = re.compile("|".join(re.escape(name) for name in variables))
    return {
        title: filled.sub(lambda found: variables[found[0]], expression)
        for title, expression in panels(uid).items()
    }


def of_rules() -> dict[str, str]:
    """Return the left side of each rule's comparison, by the alert's name."""
    return {rule["alert"]: COMPARED.sub("", rule["expr"]) for rule in rules()}


async def test_every_query_has_data_and_only_the_hang_alerts(
    prometheus: Prometheus, admin: ApiClient, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    async with TrainerServer() as trainer:
        await jobs_in_many_states(admin, jobs, kubelet, trainer)
        for title, expression in of_panels("ddp-operator", VARIABLES).items():
            await prometheus.until_answered(expression, above=ABOVE.get(title, -1))
        runs = {"$namespace": jobs.namespace, "$job": "runs"}
        for expression in of_panels("ddp-job", runs).values():
            await prometheus.until_answered(expression)
        for expression in of_rules().values():
            await prometheus.until_answered(expression)
        # All rules are evaluated, and only the alert for the hang fires.
        await prometheus.until_answered('ALERTS{alertstate="firing"}')
        evaluated = await prometheus.rules()
        assert {rule["name"]: rule["health"] for rule in evaluated} == dict.fromkeys(
            of_rules(), "ok"
        )
        firing = {rule["name"] for rule in evaluated if rule["state"] == "firing"}
        assert firing == {"DDPJobStalled"}
