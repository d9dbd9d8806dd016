"""What `kubectl` shows of a job, and how it applies one, on a real API server."""

import asyncio
import os
import subprocess
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import yaml

from tests import cluster
from tests.good_manifests import DEFAULTS, job
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet

Kubectl = Callable[..., Coroutine[Any, Any, str]]


@pytest.fixture
def kubectl(kubectl_program: str, control_plane: cluster.ControlPlane, namespace: str) -> Kubectl:
    """Runs kubectl in the test's namespace and returns what it prints."""
    environment = {**os.environ, "KUBECONFIG": str(control_plane.kubeconfig)}

    async def run(*words: str, stdin: str = "") -> str:
        result = await asyncio.to_thread(
            subprocess.run,
            [kubectl_program, "--namespace", namespace, *words],
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return str(result.stdout)

    return run


async def test_defaults_are_shown(jobs: Jobs, kubectl: Kubectl) -> None:
    await jobs.create(job())
    shown = yaml.safe_load(await kubectl("get", "ddpjob", "job", "--output", "yaml"))
    spec = shown["spec"]
    del spec["template"]
    assert spec == DEFAULTS


@pytest.mark.usefixtures("shared_operator")
async def test_kubectl_shows_how_a_job_is(
    jobs: Jobs, kubelet: FakeKubelet, kubectl: Kubectl
) -> None:
    await jobs.create(job(replicas=2, accelerator={"type": "nvidia-l4"}))
    await jobs.until_pods("job-0-0", "job-0-1")
    await jobs.until(lambda status: status.is_true("PodsCreated"))
    for pod in ("job-0-0", "job-0-1"):
        await kubelet.run(pod)
    await jobs.until_phase("Running")

    heads, values = (await kubectl("get", "ddp")).splitlines()
    assert heads.split() == ["NAME", "PHASE", "READY", "RESTARTS", "STEP", "AGE"]
    assert values.split()[:4] == ["job", "Running", "2/2", "0"]

    heads, values = (await kubectl("get", "ddp", "--output", "wide")).splitlines()
    assert heads.split() == [
        *("NAME", "PHASE", "READY", "RESTARTS", "STEP", "AGE"),
        *("LOSS", "DISRUPTIONS", "REASON", "ACCELERATOR"),
    ]
    assert values.split()[-2:] == ["PodsReady", "nvidia-l4"]

    await jobs.until_told("Running")
    described = await kubectl("describe", "ddpjob", "job")
    events = described.partition("Events:")[2]
    assert "created 2 of 2 pods" in events
    assert "all 2 pods are ready" in events
    assert "ddp-operator" in events


@pytest.mark.usefixtures("shared_operator")
async def test_kubectl_shows_a_restart(jobs: Jobs, kubelet: FakeKubelet, kubectl: Kubectl) -> None:
    await jobs.create(job())
    await jobs.until_pods("job-0-0")
    await kubelet.fail("job-0-0", exit_code=3, message="lost the data set")
    await jobs.until_pods("job-1-0")
    await jobs.until_told("Restarting")
    _, values = (await kubectl("get", "ddp", "job")).splitlines()
    assert values.split()[:4] == ["job", "Restarting", "0/1", "1"]
    described = await kubectl("describe", "ddp", "job")
    assert "exited with code 3 (Error) on node node-1: lost the data set" in described
    assert "Warning" in described.partition("Events:")[2]


async def test_kubectl_applies_what_the_documentation_shows(jobs: Jobs, kubectl: Kubectl) -> None:
    """A job that is applied twice, as people do, is changed and not replaced."""
    text = yaml.safe_dump(job(suspend=True))
    assert "created" in await kubectl("apply", "--filename", "-", stdin=text)
    uid = (await jobs.get())["metadata"]["uid"]
    assert "unchanged" in await kubectl("apply", "--filename", "-", stdin=text)
    changed = yaml.safe_dump(job(suspend=True, replicas=2))
    assert "configured" in await kubectl("apply", "--filename", "-", stdin=changed)
    stored = await jobs.get()
    assert stored["metadata"]["uid"] == uid
    assert stored["spec"]["replicas"] == 2
