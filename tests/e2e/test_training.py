"""Jobs that nothing happens to: they start together, and each trains to its end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ddp_operator.job.status import curve

from tests.e2e.environment import OPERATOR_NAMESPACE, REPOSITORY, Environment, operator_leader
from tests.e2e.jobs import (
    RESTRICTED_CONTAINER,
    RESTRICTED_POD,
    TRAINER_IMAGE,
    Job,
    accuracy,
    digits_job,
    last_words,
    manifests_in,
)
from tests.e2e.kubectl import Kubectl, Manifest, wait_for

EXAMPLES = REPOSITORY / "manifests/examples"
DIGITS = "digits-gloo"
UNEQUAL_PODS = "unequal-pods"
TORCHRUN = "any-script"
LAUNCHER = "any-script-by-launcher"
DRIVER = "driver"


def script_job(name: str, **command: list[str]) -> list[Any]:
    """The example of any script, with an image that is at hand here and allowed to nobody."""
    job, script = manifests_in(EXAMPLES / "any-script.yaml")
    job["metadata"]["name"] = name
    pod = job["spec"]["template"]["spec"]
    pod["securityContext"] = RESTRICTED_POD
    (container,) = pod["containers"]
    container.update(image=TRAINER_IMAGE, securityContext=RESTRICTED_CONTAINER)
    if command:
        del container["command"]
        container.update(command)
    return [job, script]


def with_misleading_name(job: Any) -> Any:
    """The job with a MASTER_ADDR that all its pods take for an address where nobody is.

    So it is for a while where a name server remembers a pod that has been replaced.
    """
    name = job["metadata"]["name"]
    alias = {"ip": "192.0.2.1", "hostnames": [f"{name}-0-0.{name}"]}
    job["spec"]["template"]["spec"]["hostAliases"] = [alias]
    return job


def driver_job() -> Manifest:
    """A pod that needs a driver, which it finds where a GPU node of GKE mounts its own."""
    job = digits_job(DRIVER, replicas=1)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container["volumeMounts"] = [{"name": "driver", "mountPath": "/usr/local/nvidia"}]
    mounts_it = (
        "cd /usr/local/nvidia && mkdir bin lib64 && ln -s /bin/true bin/nvidia-smi"
        " && cp /lib/*-linux-gnu/libz.so.1 lib64/libcuda.so.1"
    )
    pod["initContainers"] = [{**container, "name": "node", "command": ["sh", "-c", mounts_it]}]
    needs_it = "nvidia-smi && python -c 'import ctypes; ctypes.CDLL(\"libcuda.so.1\")'"
    container["command"] = ["sh", "-c", needs_it]
    pod["volumes"] = [{"name": "driver", "emptyDir": {}}]
    return job


@pytest.fixture(scope="module")
def jobs(environment: Environment, shared: Kubectl) -> dict[str, Job]:
    """All jobs of this module, applied at once."""
    environment.make_volume(shared, claim="digits-checkpoints")
    shared.run("apply", "--filename", str(EXAMPLES / "digits-gloo.yaml"))
    shared.apply(
        with_misleading_name(
            digits_job(
                UNEQUAL_PODS,
                "--epochs=6",
                nprocPerNode=2,
                overrides=[{"indexes": ["0"], "nprocPerNode": 1}],
            )
        ),
        *script_job(TORCHRUN),
        *script_job(LAUNCHER, args=["--", "python", "/scripts/train.py"]),
        driver_job(),
    )
    names = (DIGITS, UNEQUAL_PODS, TORCHRUN, LAUNCHER, DRIVER)
    return {name: Job(shared, name) for name in names}


def test_digits_example_learns(jobs: dict[str, Job]) -> None:
    status = jobs[DIGITS].wait_until("Succeeded")

    assert accuracy(status) >= 0.97
    words = last_words(status)
    assert words["step"] == words["totalSteps"] > 0
    assert status.checkpoint is not None
    assert status.checkpoint.step == words["step"]
    kept = curve.rows(status.bookkeeping.curve)
    best = curve.best(kept)
    assert kept[-1].step == words["step"]
    assert best is not None
    assert (best.accuracy or 0) >= 0.97
    assert (status.restarts, status.disruptions, status.attempt) == (0, 0, 0)
    assert status.ready == "2/2"
    assert status.start_time
    assert status.completion_time
    log = jobs[DIGITS].log_with("digits-gloo-0-0", "group of 2 ranks formed")
    assert re.search(r"group of 2 ranks formed in [\d.]+ s: gloo", log)
    phases = {name: pod["status"]["phase"] for name, pod in jobs[DIGITS].ended_pods().items()}
    assert phases == {"digits-gloo-0-0": "Succeeded", "digits-gloo-0-1": "Succeeded"}


def test_kubectl_shows_a_job_in_one_line_and_tells_its_story(jobs: dict[str, Job]) -> None:
    jobs[DIGITS].wait_until("Succeeded")
    kubectl = jobs[DIGITS].kubectl

    header, line = kubectl.run("get", "ddp", DIGITS).splitlines()
    assert header.split() == ["NAME", "PHASE", "READY", "RESTARTS", "STEP", "AGE"]
    assert line.split()[:4] == [DIGITS, "Succeeded", "2/2", "0"]
    assert len(line) <= 80

    story = kubectl.run("describe", "ddp", DIGITS).partition("Events:")[2]
    reasons = re.findall(r"^\s+Normal\s+(\w+)", story, flags=re.MULTILINE)
    assert reasons == ["PodsCreated", "Running", "Succeeded"], story
    assert "ddp-operator" in story


def test_kubectl_ddp_logs_shows_all_ranks_until_the_job_ends(jobs: dict[str, Job]) -> None:
    job = jobs[DIGITS]
    job.log_with("digits-gloo-0-0", "group of 2 ranks formed")
    where = ("--kubeconfig", str(job.kubectl.kubeconfig), "-n", job.kubectl.namespace)

    def logs(*options: str) -> list[str]:
        command = (sys.executable, "-m", "ddp_client.cli", *where, "logs", DIGITS, *options)
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        return shown.stdout.splitlines()

    followed = logs("--follow")
    job.wait_until("Succeeded")
    for lines in (followed, logs()):
        said = [line.partition(" | ") for line in lines]
        assert {who for who, _, _ in said} <= {"0", "1", "[0-1 x2]"}
        for rank in ("0", "1"):
            printed = [text for who, _, text in said if who in (rank, "[0-1 x2]")]
            assert printed == job.log(f"digits-gloo-0-{rank}").splitlines()


def test_unequal_pods_form_one_group_despite_a_stale_name_of_rank_0(
    jobs: dict[str, Job],
) -> None:
    status = jobs[UNEQUAL_PODS].wait_until("Succeeded")

    jobs[UNEQUAL_PODS].log_with(f"{UNEQUAL_PODS}-0-0", "group of 3 ranks formed")
    second = jobs[UNEQUAL_PODS].ended_pods()[f"{UNEQUAL_PODS}-0-1"]
    [container] = second["status"]["containerStatuses"]
    words = json.loads(container["state"]["terminated"]["message"])
    assert (words["exitCode"], words["rank"]) == (0, 1)  # of the first of its ranks, 1 and 2
    assert accuracy(status) >= 0.9  # six epochs instead of twelve


@pytest.mark.parametrize("name", [TORCHRUN, LAUNCHER])
def test_any_script_trains_by_torchrun_and_by_the_launcher(jobs: dict[str, Job], name: str) -> None:
    jobs[name].wait_until("Succeeded")

    log = jobs[name].log_with(f"{name}-0-0", "step 100/100")
    losses = re.findall(r"step (\d+)/100 loss ([\d.]+)", log)
    assert [int(step) for step, _ in losses] == [20, 40, 60, 80, 100]
    first, last = float(losses[0][1]), float(losses[-1][1])
    assert last < first / 10
    assert "step" not in jobs[name].log(f"{name}-0-1"), "a second rank 0"


def test_operator_keeps_the_promises_of_its_manifest(environment: Environment) -> None:
    operator = environment.kubectl.within(OPERATOR_NAMESPACE)
    shell = ("exec", operator_leader(environment.kubectl), "--", "sh", "-c")

    assert operator.run(*shell, "id -u").strip() == "65532"
    write = operator.attempt(*shell, "touch /written")
    assert write.returncode != 0
    assert "Read-only file system" in write.stderr
    status = Path("/proc/1/status")
    capabilities = operator.run(*shell, f"grep -E 'CapEff|NoNewPrivs|Seccomp:' {status}").split()
    assert capabilities[:4] == ["CapEff:", "0" * 16, "NoNewPrivs:", "1"]
    assert capabilities[4:] == ["Seccomp:", "2"], "filtered by the runtime's profile"

    def budget() -> Any:
        return operator.get("poddisruptionbudget", "ddp-operator")["status"]

    wait_for(
        lambda: budget().get("currentHealthy") == 2, what="two ready replicas", describe=budget
    )
    assert budget()["disruptionsAllowed"] == 1


def test_a_driver_is_found_where_gpu_nodes_have_it(jobs: dict[str, Job]) -> None:
    jobs[DRIVER].wait_until("Succeeded")
