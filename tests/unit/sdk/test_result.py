"""Results of jobs on this machine and on a cluster."""

from pathlib import Path

import pytest
from ddp_client import AsyncClient, LocalClient
from ddp_client.report.files import UnreadableError
from ddp_client.sdk import JobResult
from ddp_client.views.result import Score

from tests.unit.cli.jobs import training
from tests.unit.job.builders import NAME
from tests.unit.kube.fake_api_server import FakeApiServer

SCRIPT = "echo step 5 loss 0.5; echo accuracy 0.9; until [ -e {} ]; do sleep 0.1; done"
PATTERN = r"step (?P<step>\d+) loss (?P<loss>\S+)|accuracy (?P<accuracy>\S+)"


def test_result_of_an_ended_local_job(tmp_path: Path) -> None:
    end = tmp_path / "end"
    container = {
        **{"name": "trainer", "image": "local"},
        "command": ["sh", "-c", SCRIPT.format(end)],
    }
    manifest = {
        **{"apiVersion": "ddp-operator.io/v1alpha1", "kind": "DDPJob"},
        "metadata": {"name": "plain"},
        "spec": {
            "progress": {"logPattern": PATTERN},
            "template": {"spec": {"containers": [container]}},
        },
    }
    with LocalClient(workdir=tmp_path / "work") as client:
        job = client.apply(manifest)
        for status in job.watch(timeout=60):
            if status.progress is not None:
                end.touch()
        result = job.result()
    assert isinstance(result, JobResult)
    assert (result.phase, result.step, result.loss, result.accuracy) == ("Succeeded", 5, 0.5, 0.9)
    assert result.best == Score(5, 0.9)


async def test_result_on_a_cluster(
    client: AsyncClient, server: FakeApiServer, tmp_path: Path
) -> None:
    server.create("ddpjobs", training(bookkeeping={"curve": "7:2.5 500:0.25"}))
    job = await client.job(NAME)
    result = await job.result()
    assert [tuple(row) for row in result.rows] == [(7, 2.5, None), (500, 0.25, None)]
    assert result.checkpoint is not None
    assert result.checkpoint.path == "/checkpoints/step-00000450"
    with pytest.raises(UnreadableError, match=r"give a metrics\.jsonl"):
        await job.result(metrics=tmp_path / "missing")
