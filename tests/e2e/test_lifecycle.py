"""A user suspends, resumes and deletes a job that trains, and the operator itself ends."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ddp_operator.api.constants import LABEL_JOB_NAME

from tests.e2e.environment import (
    OPERATOR_NAMESPACE,
    Environment,
    operator_leader,
    operator_pods,
)
from tests.e2e.jobs import (
    SHORT_RUN,
    SLOW_STEPS,
    Job,
    digits_job,
    force_delete,
    is_training,
    resumed_step,
)
from tests.e2e.kubectl import Kubectl, wait_for


def _in_training(kubectl: Kubectl, *arguments: str, **spec: Any) -> Job:
    kubectl.apply(digits_job("train", *arguments, *SLOW_STEPS, **spec))
    job = Job(kubectl, "train")
    wait_for(lambda: is_training(job), what="a checkpoint", describe=job.status)
    return job


@pytest.fixture
def job(kubectl: Kubectl, claim: Callable[[str], str]) -> Job:
    """A job in the midst of training."""
    return _in_training(
        kubectl,
        *SHORT_RUN,
        restart={"scope": "Gang"},
        checkpoint={"persistentVolumeClaim": claim("checkpoints")},
    )


@pytest.fixture
def long_job(kubectl: Kubectl) -> Job:
    """A job that trains for longer than any machine takes to look at it."""
    return _in_training(kubectl, "--epochs=1000", "--checkpoint-every-steps=10")


def _suspend(job: Job, value: bool) -> None:
    patch = f'{{"spec": {{"suspend": {str(value).lower()}}}}}'
    job.kubectl.run("patch", "ddpjob", job.name, "--type=merge", "--patch", patch)


def test_suspended_job_saves_and_resumes_from_that_step(job: Job, tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    with job.kubectl.following(log, "logs", "--follow", "train-0-0"):
        _suspend(job, True)
        status = job.wait_until("Suspended")
        wait_for(lambda: not job.pods(), what="end of the pods", describe=job.pods)
        stopped = wait_for(
            lambda: re.search(r"told to stop at step (\d+) of 92", log.read_text()),
            what="last step of rank 0",
            describe=log.read_text,
        )
    assert status.restarts == 0
    # The pods' end and the status that counts them are two writes of two programs.
    wait_for(lambda: job.status().ready == "0/2", what="no ready pod", describe=job.status)
    assert job.status().phase == "Suspended"
    step = int(stopped[1])
    assert 10 <= step < 92

    _suspend(job, False)
    status = job.wait_until("Succeeded")
    assert resumed_step(job.log("train-1-0")) == step
    assert (status.attempt, status.restarts, status.disruptions) == (1, 0, 0)
    assert not status.failures


def _ddp(job: Job, *words: str) -> str:
    where = ("--kubeconfig", str(job.kubectl.kubeconfig), "-n", job.kubectl.namespace)
    command = (sys.executable, "-m", "ddp_client.cli", *where, *words)
    shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert shown.returncode == 0, shown
    return shown.stdout


def test_job_shows_stacks_and_profiles_and_leaves_nothing_when_deleted(
    long_job: Job, tmp_path: Path
) -> None:
    job = long_job
    ranks = json.loads(_ddp(job, "stacks", job.name, "-o", "json"))["ranks"]
    for number, rank in enumerate(ranks):
        assert (rank["rank"], rank["pod"]) == (number, f"train-0-{number}")
        assert "train" in {frame["function"] for frame in rank["threads"][0]}, rank
    assert len(ranks) == 2
    _ddp(job, "profile", job.name, "--rank=1", "--steps=2", "-o", str(tmp_path))
    with gzip.open(tmp_path / "train-rank-1.json.gz") as file:
        steps = {e["name"] for e in json.load(file)["traceEvents"] if "Step#" in e.get("name", "")}
    assert len(steps) == 2
    assert "operator: ddp-operator/ddp-operator has 2 ready pods" in _ddp(job, "doctor")

    selector = ("--selector", f"{LABEL_JOB_NAME}={job.name}")
    assert len(job.kubectl.items("pods,services", *selector)) == 3

    job.kubectl.run("delete", "ddp", job.name)

    def left() -> list[str]:
        # Endpoints bear their Service's labels.
        found = job.kubectl.items("pods,services,endpoints", *selector)
        return [f"{item['kind']} {item['metadata']['name']}" for item in found]

    wait_for(lambda: not left(), what="nothing left of the job", describe=left)
    assert job.kubectl.attempt("get", "ddp", job.name).returncode != 0


TELL = """
import hashlib, hmac, http.client, os, sys, time
ip, owner = sys.argv[1:]
token = os.environ["DDP_TOKEN"] if owner == "own" else "0" * 64
at = int(time.time())
digest = hashlib.sha256().hexdigest()
text = f"POST\\n/dump-stacks\\n{at}\\n{digest}"
signature = hmac.digest(token.encode(), text.encode(), "sha256").hex()
signed = f"DDP-HMAC-SHA256 {at}:{digest}:{signature}"
pod = http.client.HTTPConnection(ip, int(os.environ["DDP_STATUS_PORT"]), timeout=10)
pod.request("POST", "/dump-stacks", headers={"Authorization": signed})
print(pod.getresponse().status)
"""


def test_pod_accepts_only_its_jobs_token_and_can_be_isolated(
    job: Job, environment: Environment
) -> None:
    pod = job.kubectl.get("pod", "train-0-0")
    ip: str = pod["status"]["podIP"]
    variables = {each["name"]: each for each in pod["spec"]["containers"][0]["env"]}
    assert "value" not in variables["DDP_TOKEN"], "readable for all who may read pods"

    def status_with_token(owner: str) -> int:
        command = ("exec", "train-0-1", "--", "python", "-c", TELL, ip, owner)
        return int(job.kubectl.run(*command))

    assert (status_with_token("another"), status_with_token("own")) == (403, 202)
    tokens = job.kubectl.get("secret", variables["DDP_TOKEN"]["valueFrom"]["secretKeyRef"]["name"])
    assert tokens["immutable"] is True
    assert [owner["kind"] for owner in tokens["metadata"]["ownerReferences"]] == ["DDPJob"]
    operator = environment.kubectl.within(OPERATOR_NAMESPACE)

    assert job.status().bookkeeping.isolation == "Job"
    policy = job.kubectl.get("networkpolicy", job.name)
    _, let_in = policy["spec"]["ingress"]
    (peer,) = let_in["from"]
    namespaces, pods = (
        [f"{name}={value}" for name, value in peer[selector]["matchLabels"].items()]
        for selector in ("namespaceSelector", "podSelector")
    )
    # What is let in is the operator, by the cluster's own word.
    found = environment.kubectl.items("namespaces", "--selector", ",".join(namespaces))
    assert [namespace["metadata"]["name"] for namespace in found] == [OPERATOR_NAMESPACE]
    names = {pod["metadata"]["name"] for pod in operator.items("pods", "-l", ",".join(pods))}
    assert operator_leader(environment.kubectl) in names
    uids = job.uids()
    patch = '{"spec": {"isolation": "None"}}'
    job.kubectl.run("patch", "ddpjob", job.name, "--type=merge", "--patch", patch)
    wait_for(
        lambda: job.status().bookkeeping.isolation == "", what="no isolation", describe=job.status
    )
    assert job.uids() == uids


def test_training_does_not_notice_the_loss_of_the_operator(
    job: Job, environment: Environment, tmp_path: Path
) -> None:
    uids = job.uids()
    seen = tmp_path / "pods"
    template = 'jsonpath={.metadata.name} {.metadata.uid}{"\\n"}'
    watch = ("get", "pods", "--watch", "--selector", f"{LABEL_JOB_NAME}={job.name}")
    with job.kubectl.following(seen, *watch, "--output", template):
        wait_for(lambda: len(seen.read_text().split()) >= 4, what="watch of the pods")
        leader = operator_leader(environment.kubectl)
        operator = environment.kubectl.within(OPERATOR_NAMESPACE)
        operator.run(*("delete", "pod", "--force", "--grace-period=0", leader))
        status = job.wait_until("Succeeded")
    assert operator_leader(environment.kubectl) != leader
    assert (status.attempt, status.restarts, status.disruptions) == (0, 0, 0)
    assert job.uids() == uids
    assert {tuple(line.split()) for line in seen.read_text().splitlines()} == set(uids.items())


def test_new_operator_replaces_what_was_lost_in_its_absence_once(
    job: Job, environment: Environment, tmp_path: Path
) -> None:
    seen = tmp_path / "pods"
    template = 'jsonpath={.metadata.name} {.metadata.uid}{"\\n"}'
    watch = ("get", "pods", "--watch", "--selector", f"{LABEL_JOB_NAME}={job.name}")
    operator = environment.kubectl.within(OPERATOR_NAMESPACE)
    with job.kubectl.following(seen, *watch, "--output", template):
        operator.run("scale", "deployment/ddp-operator", "--replicas=0")
        try:
            wait_for(lambda: not operator_pods(environment.kubectl), what="end of the operator")
            force_delete(job, "train-0-1")
        finally:
            operator.run("scale", "deployment/ddp-operator", "--replicas=2")
        status = job.wait_until("Succeeded")
    assert (status.attempt, status.restarts, status.disruptions) == (1, 0, 1)
    assert resumed_step(job.log("train-1-0")) >= 10
    pods = {(line.split()[0], line.split()[1]) for line in seen.read_text().splitlines()}
    assert sorted(name for name, _ in pods) == ["train-0-0", "train-0-1", "train-1-0", "train-1-1"]
