"""Kueue's webhook for pods fails: the user learns of it from the job."""

import asyncio
import sys

import pytest

from tests import cluster
from tests.cluster.kueue import Kueue
from tests.integration.jobs import Jobs
from tests.integration.queues.queue import Queue, queued_job

pytestmark = pytest.mark.usefixtures("operator", "life")

_FAILURE = 'failed calling webhook "mpod.kb.io"'


async def why(control_plane: cluster.ControlPlane, namespace: str) -> str:
    """Return the output of `kubectl ddp why job`, with its lines joined."""
    where = ("--kubeconfig", str(control_plane.kubeconfig), "-n", namespace)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ddp_operator.cli", *where, "why", "job"),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return " ".join(out.decode().split())


async def test_a_job_reports_that_its_pods_cannot_be_created(
    jobs: Jobs, queue: Queue, kueue: Kueue, control_plane: cluster.ControlPlane
) -> None:
    with kueue.away():
        await jobs.create(queued_job())
        status = await jobs.until(lambda status: status.reason == "APIServerError")
        assert _FAILURE in status.message
        assert _FAILURE in await jobs.until_told("APIServerError")
        explanation = await why(control_plane, jobs.namespace)
    assert _FAILURE in explanation
    assert "pods start" not in explanation
    status = await jobs.until_phase("Running")
    assert (status.restarts, status.disruptions) == (0, 0)
    await queue.until_used(2)
