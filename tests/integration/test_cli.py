"""`kubectl ddp` as its user calls it: a process of its own, with a real operator and API server."""

import asyncio
import json
import os
import sys
import tarfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import cluster
from tests.good_manifests import job
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet, run_all, start
from tools.chart import plugin

pytestmark = pytest.mark.usefixtures("shared_operator")


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Ddp = Callable[..., Coroutine[Any, Any, Ended]]


async def run(*command: str, **environment: str) -> Ended:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    out, err = await process.communicate()
    return Ended(process.returncode or 0, out.decode(), err.decode())


@pytest.fixture
def ddp(control_plane: cluster.ControlPlane, namespace: str) -> Ddp:
    """Runs the program with these arguments, in the test's namespace."""
    program = (sys.executable, "-m", "ddp_operator.cli")
    where = ("--kubeconfig", str(control_plane.kubeconfig), "-n", namespace)
    return lambda *arguments: run(*program, *where, *arguments)


async def test_looking(ddp: Ddp, jobs: Jobs, kubelet: FakeKubelet) -> None:
    await jobs.create(job(replicas=2))
    await jobs.until_pods("job-0-0", "job-0-1")
    await kubelet.run("job-0-0")
    await kubelet.cannot_start("job-0-1", reason="ErrImagePull", message="no such \x1b[31mimage")
    await jobs.until(lambda status: status.reason == "ErrImagePull")

    heading, row = (await ddp("list")).out.splitlines()
    assert heading.split() == ["NAME", "PHASE", "READY", "RESTARTS", "STEP", "LEFT", "AGE"]
    assert row.split()[:6] == ["job", "Starting", "1/2", "0", "-", "-"]
    assert (await ddp("list", "-o", "name")).out == "ddpjob.ddp-operator.io/job\n"
    everywhere = (await ddp("list", "-A", "-o", "wide")).out.splitlines()
    assert [jobs.namespace, "job"] in [line.split()[:2] for line in everywhere]

    screen = (await ddp("status", "job")).out
    assert "R!  1 ready (R), 1 stuck (!)" in screen
    assert "pod job-0-1: ErrImagePull: no such image" in screen
    # There is no kubelet to ask: the server has understood what for, and says so.
    logs = await ddp("logs", "job")
    assert (logs.code, logs.out) == (0, "")
    assert logs.err.startswith("0 ! ")
    assert "node-1" in logs.err
    why = await ddp("why", "job")
    assert (why.code, why.err) == (0, "")
    assert "check the image's name and tag" in why.out
    assert (screen + why.out).replace("\n", "").isprintable()


async def test_what_is_looked_at_beside_the_job(
    ddp: Ddp, jobs: Jobs, kubelet: FakeKubelet, tmp_path: Path
) -> None:
    await start(jobs, kubelet)
    # There is no kubelet to run the program: the server has understood what for, and says so.
    stacks = await ddp("stacks", "job")
    assert stacks.code == 1
    assert stacks.out.startswith("None of 2 ranks answered.")

    found = (await ddp("doctor")).out
    for said in (
        "cluster: Kubernetes v",
        "CRD: DDPJobs are served, release",
        "your rights: you may",
    ):
        assert f"ok         {said}" in found, found
    assert "fail       operator: not installed" in found  # here it is a process of the tests
    assert "not known" not in found

    path = tmp_path / "bundle.tar.gz"
    bundle = await ddp("bundle", "job", "-o", str(path))
    assert bundle.code == 0, bundle.err
    with tarfile.open(path) as tar:
        events = tar.extractfile("job-bundle/events.json")
        assert events is not None
        assert "PodsCreated" in {each["reason"] for each in json.load(events)}


async def test_waiting_for_the_end(ddp: Ddp, jobs: Jobs, kubelet: FakeKubelet) -> None:
    await start(jobs, kubelet, restart={"maxRestarts": 0})
    assert (await ddp("wait", "job", "--for=running")).code == 0
    assert (await ddp("wait", "job", "--for=succeeded", "--timeout=0.1s")).code == 124
    waiting = asyncio.create_task(ddp("wait", "job", "--for=succeeded", "--timeout=3m"))
    await kubelet.fail("job-0-1", message="ValueError: bad batch")
    await jobs.until_phase("Failed")
    assert (await waiting).code == 3
    why = (await ddp("why", "job")).out
    assert why.startswith("job failed ")
    assert "pod job-0-1 (node rank 1) exited with code 1" in why
    assert "last words\n  ValueError: bad batch\n" in why


async def test_report_of_a_failure(ddp: Ddp, jobs: Jobs, kubelet: FakeKubelet) -> None:
    await start(jobs, kubelet)
    await kubelet.fail("job-0-1", message="ValueError: bad <b>batch</b>")
    await jobs.until_pods("job-1-0", "job-1-1")
    await run_all(jobs, kubelet)
    await jobs.until(lambda status: status.restarts == 1 and status.phase == "Running")

    told = await ddp("report", "job", "-o", "json", "--file", "-")
    assert (told.code, told.err) == (0, "")
    report = json.loads(told.out)
    [recovery] = report["recoveries"]
    assert (recovery["pod"], recovery["rank"], recovery["charged"]) == ("job-0-1", 1, True)
    replaced, scheduled, started, formed, first_step = recovery["parts"]
    assert None not in (replaced, scheduled, started)
    assert (formed, first_step) == (None, None), "no trainer has told"
    assert {pod["name"] for pod in report["pods"]} >= {"job-0-1", "job-1-0", "job-1-1"}
    assert any(reason == "Restarting" for _, reason, _ in report["events"]), report["events"]
    # There is no kubelet to run anything in a pod.
    assert any("metrics.jsonl could not be read in pod job-1-0" in gap for gap in report["gaps"])
    page = (await ddp("report", "job", "--file", "-")).out
    assert "bad &lt;b&gt;batch&lt;/b&gt;" in page
    assert page.count("<svg") == 3


async def test_stop_scale_resume_restart_delete(ddp: Ddp, jobs: Jobs, kubelet: FakeKubelet) -> None:
    await start(jobs, kubelet)
    refused = await ddp("stop", "job")
    assert refused.code == 2
    assert "deletes its 2 pods" in refused.err
    assert (await jobs.status()).phase == "Running"

    stopped = await ddp("stop", "job", "--yes")
    assert (stopped.code, stopped.out) == (0, "ddpjob.ddp-operator.io/job stopped\n")
    assert (await ddp("wait", "job", "--for=suspended", "--timeout=3m")).code == 0
    assert (await ddp("scale", "job", "--replicas=3", "--yes")).code == 0
    await kubelet.let_go("job-0-0", "job-0-1")
    assert (await ddp("resume", "job", "--yes")).code == 0
    await jobs.until_pods("job-1-0", "job-1-1", "job-1-2")
    await jobs.until(lambda status: status.is_true("PodsCreated"))
    await run_all(jobs, kubelet)

    assert "kubectl ddp stop job" in (await ddp("scale", "job", "--replicas=2", "--yes")).err
    assert (await ddp("restart", "job", "--yes")).code == 0
    await kubelet.let_go("job-1-0", "job-1-1", "job-1-2")
    await jobs.until_pods("job-2-0", "job-2-1", "job-2-2")
    status = await jobs.until(lambda status: status.attempt == 2)
    assert status.restarts == 0

    assert (await ddp("delete", "job", "--yes")).code == 0
    assert (await ddp("wait", "job", "--for=deleted", "--timeout=3m")).code == 0
    gone = await ddp("status", "job")
    assert gone.code == 1
    assert gone.err.startswith(f"Error: there is no job job in namespace {jobs.namespace}")


async def test_as_a_plugin_of_kubectl(
    jobs: Jobs, control_plane: cluster.ControlPlane, kubectl_program: str, tmp_path: Path
) -> None:
    """The file that a release has, as kubectl finds it on the PATH."""
    await jobs.create(job(replicas=2))
    await asyncio.to_thread(plugin.build, tmp_path)
    path = f"{tmp_path}{os.pathsep}{sys.base_prefix}/bin{os.pathsep}{os.environ['PATH']}"
    given = {"PATH": path, "HOME": str(tmp_path), "KUBECONFIG": str(control_plane.kubeconfig)}
    ended = await run(kubectl_program, "ddp", "list", "-n", jobs.namespace, "-o", "name", **given)
    assert ended.out == "ddpjob.ddp-operator.io/job\n", ended.err
