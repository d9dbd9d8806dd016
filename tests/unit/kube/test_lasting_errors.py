"""The engine and a real client, on a server that fails for a while."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from ddp_operator.engine.engine import Engine
from ddp_operator.job.pods.projection import job_of, project
from ddp_operator.job.pods.state import PodState
from ddp_operator.kube import PODS, ApiClient, Credentials, KubeCluster, Reflector
from ddp_operator.process.handlers import JOBS

from tests.unit.engine.fakes import SETTINGS
from tests.unit.engine.test_reconciler import KEY, job
from tests.unit.fast_loop import loop_now
from tests.unit.kube.fake_api_server import FakeApiServer, Fault
from tests.waiting import eventually

WEBHOOK = 'Internal error occurred: failed calling webhook "mutate.example.com": timed out'


def error_events(server: FakeApiServer) -> list[Mapping[str, Any]]:
    """Return the Events about errors of the API server."""
    events = [stored for (kind, _, _), stored in server.objects.items() if kind == "events"]
    return [event for event in events if event["reason"] == "APIServerError"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault("POST", 500, {"message": WEBHOOK}, path_part="/pods"), "mutate.example.com"),
        (Fault("POST", 504, "upstream timed out\n" * 999, path_part="/pods"), "upstream timed out"),
        (Fault("POST", 429, {"message": "slow down"}, path_part="/pods"), "slow down"),
        (Fault("POST", 410, {"message": "no more"}, path_part="/services"), "no more"),
        (Fault("POST", None, path_part="/pods"), "POST /api/v1/namespaces/default/pods"),
        (Fault("POST", 200, delay_seconds=5, path_part="/pods"), "no answer in 0.2 s"),
    ],
    ids=["webhook", "gateway", "busy", "gone", "connection lost", "silence"],
)
async def test_persistent_error_of_the_server_is_in_the_jobs_status(
    server: FakeApiServer, credentials: Credentials, fault: Fault, words: str
) -> None:
    fault.times = 10_000
    server.faults.append(fault)
    ahead = timedelta()
    # Only silence must reach its timeout.
    timeout_seconds = 0.2 if fault.delay_seconds else 30.0
    async with ApiClient(credentials, timeout_seconds=timeout_seconds) as client:
        pods: Reflector[PodState] = Reflector(
            client,
            PODS.path(),
            label_selector="",
            project=project,
            group=job_of,
            on_change=lambda _: None,
        )
        watching = asyncio.create_task(pods.run())
        cluster = KubeCluster(client, job_resource=JOBS, pods=pods)
        engine = Engine(cluster, settings=SETTINGS, clock=lambda: loop_now() + ahead)
        await pods.wait_synced(timeout_seconds=60)
        engine.start()
        engine.job_changed(server.create("ddpjobs", job()))

        def status() -> Mapping[str, Any]:
            stored: Mapping[str, Any] = server.objects["ddpjobs", *KEY].get("status") or {}
            return stored

        await eventually(lambda: server.count("POST", fault.path_part) > 1)
        assert not status()
        ahead = timedelta(seconds=15)
        await eventually(lambda: status().get("reason") == "APIServerError")
        assert words in status()["message"]
        assert len(status()["message"]) <= 4096
        await eventually(lambda: len(error_events(server)) == 1)
        assert words in error_events(server)[0]["message"]
        server.faults.clear()
        engine.enqueue(KEY)
        await eventually(lambda: status().get("reason") == "PodsStarting")
        await engine.stop()
        watching.cancel()
        await cluster.close()
