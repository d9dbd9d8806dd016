"""`kubectl ddp` with a real operator on a real API server.

The program runs in this process, and once as kubectl's plugin. There is no kubelet that could
answer for a pod: commands that ask one show that the server understood the request.
"""

import asyncio
import json
import os
import sys
import tarfile
from pathlib import Path

import pytest

from tests import cluster
from tests.good_manifests import job
from tests.integration.conftest import Ddp
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet, run_all, start

pytestmark = pytest.mark.usefixtures("shared_operator")


async def test_commands_show_a_job_from_start_to_failure(
    ddp: Ddp, jobs: Jobs, kubelet: FakeKubelet, tmp_path: Path
) -> None:
    await jobs.create(job(replicas=2, restart={"maxRestarts": 1}))
    await jobs.until_pods("job-0-0", "job-0-1")
    await kubelet.run("job-0-0")
    await kubelet.cannot_start("job-0-1", reason="ErrImagePull", message="no such \x1b[31mimage")
    await jobs.until(lambda status: status.reason == "ErrImagePull")
    await shows_a_stuck_pod(ddp, jobs.namespace)

    await run_all(jobs, kubelet)
    assert (await ddp("wait", "job", "--for=running")).exit_code == 0
    assert (await ddp("wait", "job", "--for=succeeded", "--timeout=0.1s")).exit_code == 124
    await shows_stacks_installation_and_bundle(ddp, tmp_path / "bundle.tar.gz")

    await kubelet.fail("job-0-1", message="ValueError: bad <b>batch</b>")
    await kubelet.finish_deleted("job-0-0")
    await jobs.until_pods("job-1-0", "job-1-1")
    await run_all(jobs, kubelet)
    await jobs.until(lambda status: status.restarts == 1 and status.phase == "Running")
    await reports_the_recovery(ddp)

    waiting = asyncio.create_task(ddp("wait", "job", "--for=succeeded", "--timeout=3m"))
    await kubelet.fail("job-1-1", message="ValueError: bad batch")
    await jobs.until_phase("Failed")
    assert (await waiting).exit_code == 3
    why = (await ddp("why", "job")).stdout
    assert why.startswith("job failed ")
    assert "pod job-1-1 (node rank 1) exited with code 1" in why
    assert "last words\n  ValueError: bad batch\n" in why


async def shows_a_stuck_pod(ddp: Ddp, namespace: str) -> None:
    heading, row = (await ddp("list")).stdout.splitlines()
    assert heading.split() == ["NAME", "PHASE", "READY", "RESTARTS", "STEP", "LEFT", "AGE"]
    assert row.split()[:6] == ["job", "Starting", "1/2", "0", "-", "-"]
    assert (await ddp("list", "-o", "name")).stdout == "ddpjob.ddp-operator.io/job\n"
    everywhere = (await ddp("list", "-A", "-o", "wide")).stdout.splitlines()
    assert [namespace, "job"] in [line.split()[:2] for line in everywhere]

    screen = (await ddp("status", "job")).stdout
    assert "R!  1 ready (R), 1 stuck (!)" in screen
    assert "pod job-0-1: ErrImagePull: no such image" in screen
    logs = await ddp("logs", "job")
    assert (logs.exit_code, logs.stdout) == (0, "")
    assert logs.stderr.startswith("0 ! ")
    assert "node-1" in logs.stderr
    why = await ddp("why", "job")
    assert (why.exit_code, why.stderr) == (0, "")
    assert "check the image's name and tag" in why.stdout
    assert (screen + why.stdout).replace("\n", "").isprintable()


async def shows_stacks_installation_and_bundle(ddp: Ddp, path: Path) -> None:
    stacks = await ddp("stacks", "job")
    assert stacks.exit_code == 1
    assert stacks.stdout.startswith("None of 2 ranks answered.")

    checks = (await ddp("doctor")).stdout
    for passed in (
        "cluster: Kubernetes v",
        "CRD: DDPJobs are served, release",
        "your rights: you may",
    ):
        assert f"ok         {passed}" in checks, checks
    assert "fail       operator: not installed" in checks  # here it is a process of the tests
    assert "not known" not in checks

    bundle = await ddp("bundle", "job", "-o", str(path))
    assert bundle.exit_code == 0, bundle.stderr
    with tarfile.open(path) as tar:
        events = tar.extractfile("job-bundle/events.json")
        assert events is not None
        assert "PodsCreated" in {event["reason"] for event in json.load(events)}


async def reports_the_recovery(ddp: Ddp) -> None:
    answer = await ddp("report", "job", "-o", "json", "--file", "-")
    assert (answer.exit_code, answer.stderr) == (0, "")
    report = json.loads(answer.stdout)
    [recovery] = report["recoveries"]
    assert (recovery["pod"], recovery["rank"], recovery["charged"]) == ("job-0-1", 1, True)
    replaced, scheduled, started, formed, first_step = recovery["parts"]
    assert None not in (replaced, scheduled, started)
    assert (formed, first_step) == (None, None), "no trainer reports them"
    assert {pod["name"] for pod in report["pods"]} >= {"job-0-1", "job-1-0", "job-1-1"}
    assert any(reason == "Restarting" for _, reason, _ in report["events"]), report["events"]
    assert any("metrics.jsonl could not be read in pod job-1-0" in gap for gap in report["gaps"])
    page = (await ddp("report", "job", "--file", "-")).stdout
    assert "bad &lt;b&gt;batch&lt;/b&gt;" in page
    assert page.count("<svg") == 3


async def test_commands_stop_scale_resume_restart_and_delete_a_job(
    ddp: Ddp, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    await start(jobs, kubelet)
    refused = await ddp("stop", "job")
    assert refused.exit_code == 2
    assert "deletes its 2 pods" in refused.stderr
    assert (await jobs.status()).phase == "Running"

    stopped = await ddp("stop", "job", "--yes")
    assert (stopped.exit_code, stopped.stdout) == (0, "ddpjob.ddp-operator.io/job stopped\n")
    assert (await ddp("wait", "job", "--for=suspended", "--timeout=3m")).exit_code == 0
    assert (await ddp("scale", "job", "--replicas=3", "--yes")).exit_code == 0
    await kubelet.finish_deleted("job-0-0", "job-0-1")
    assert (await ddp("resume", "job", "--yes")).exit_code == 0
    await jobs.until_pods("job-1-0", "job-1-1", "job-1-2")
    await jobs.until(lambda status: status.is_true("PodsCreated"))
    await run_all(jobs, kubelet)

    assert "kubectl ddp stop job" in (await ddp("scale", "job", "--replicas=2", "--yes")).stderr
    assert (await ddp("restart", "job", "--yes")).exit_code == 0
    await kubelet.finish_deleted("job-1-0", "job-1-1", "job-1-2")
    await jobs.until_pods("job-2-0", "job-2-1", "job-2-2")
    status = await jobs.until(lambda status: status.attempt == 2)
    assert status.restarts == 0

    assert (await ddp("delete", "job", "--yes")).exit_code == 0
    assert (await ddp("wait", "job", "--for=deleted", "--timeout=3m")).exit_code == 0
    gone = await ddp("status", "job")
    assert gone.exit_code == 1
    assert gone.stderr.startswith(f"Error: there is no job job in namespace {jobs.namespace}")


async def test_kubectl_runs_the_installed_program_as_its_plugin(
    jobs: Jobs, control_plane: cluster.ControlPlane, kubectl_program: str, tmp_path: Path
) -> None:
    await jobs.create(job(replicas=2))
    process = await asyncio.create_subprocess_exec(
        *(kubectl_program, "ddp", "list", "-n", jobs.namespace, "-o", "name"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}",
            "HOME": str(tmp_path),
            "KUBECONFIG": str(control_plane.kubeconfig),
        },
    )
    out, err = await process.communicate()
    assert out.decode() == "ddpjob.ddp-operator.io/job\n", err.decode()
