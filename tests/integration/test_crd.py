"""`kubectl` shows and applies jobs of a real API server."""

import pytest
import yaml

from tests.good_manifests import job
from tests.integration.conftest import Kubectl
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet, start


@pytest.mark.usefixtures("shared_operator")
async def test_kubectl_shows_a_running_job_and_its_restart(
    jobs: Jobs, kubelet: FakeKubelet, kubectl: Kubectl
) -> None:
    await start(jobs, kubelet, accelerator={"type": "nvidia-l4"})
    heads, values = (await kubectl("get", "ddp", "--output", "wide")).splitlines()
    assert heads.split() == [
        *("NAME", "PHASE", "READY", "RESTARTS", "STEP", "AGE"),
        *("LOSS", "DISRUPTIONS", "REASON", "ACCELERATOR"),
    ]
    assert values.split()[:4] == ["job", "Running", "2/2", "0"]
    assert values.split()[-2:] == ["PodsReady", "nvidia-l4"]

    await kubelet.fail("job-0-1", exit_code=3, message="lost the data set")
    await kubelet.finish_deleted("job-0-0")
    await jobs.until_pods("job-1-0", "job-1-1")
    await jobs.until_told("Restarting")
    heads, values = (await kubectl("get", "ddp", "job")).splitlines()
    assert heads.split() == ["NAME", "PHASE", "READY", "RESTARTS", "STEP", "AGE"]
    assert values.split()[:4] == ["job", "Restarting", "0/2", "1"]
    described = await kubectl("describe", "ddp", "job")
    assert "exited with code 3 (Error) on node node-1: lost the data set" in described
    events = described.partition("Events:")[2]
    for expected in ("Warning", "created 2 of 2 pods", "all 2 pods are ready", "ddp-operator"):
        assert expected in events


async def test_kubectl_applies_a_job_twice_and_changes_it(jobs: Jobs, kubectl: Kubectl) -> None:
    manifest = yaml.safe_dump(job(suspend=True))
    assert "created" in await kubectl("apply", "--filename", "-", stdin=manifest)
    uid = (await jobs.get())["metadata"]["uid"]
    assert "unchanged" in await kubectl("apply", "--filename", "-", stdin=manifest)
    changed = yaml.safe_dump(job(suspend=True, replicas=2))
    assert "configured" in await kubectl("apply", "--filename", "-", stdin=changed)
    stored = await jobs.get()
    assert stored["metadata"]["uid"] == uid
    assert stored["spec"]["replicas"] == 2
