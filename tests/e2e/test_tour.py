"""The first hour of a person with a cluster, by the pages alone: install, run, edit, lose a pod,
read why, take the result, uninstall.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests import stranger
from tests.e2e.environment import OPERATOR_NAMESPACE, REPOSITORY, Environment, install_operator
from tests.e2e.jobs import TRAINER_IMAGE, Job, force_delete
from tests.e2e.kubectl import Kubectl, wait_for
from tests.stranger import Stranger

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

SCRIPT = """\
import json
import os
import pathlib
import time

import torch
from torch import distributed as dist
from settings import RATE, STEPS

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
for step in range(1, STEPS + 1):
    optimizer.zero_grad()
    loss = model(torch.ones(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    time.sleep(0.1)
    if step == 1:
        print(f"rank {rank} of {size} trains at rate {RATE}", flush=True)
    if rank == 0:
        new = pathlib.Path(os.environ["DDP_STATUS_FILE"] + ".new")
        new.write_text(json.dumps({"step": step, "totalSteps": STEPS, "loss": loss.item()}))
        os.replace(new, os.environ["DDP_STATUS_FILE"])
dist.destroy_process_group()
"""
ENDLESS = 1_000_000
STEPS = 300
"""Of the last version: in its 30 s the operator reads its numbers, which begin anew."""


def typed(page: str, heading: str) -> list[list[str]]:
    """Return the kubectl commands of a page's section, without `kubectl`."""
    text = (REPOSITORY / "docs" / page).read_text()
    _, found, rest = text.partition(f"\n## {heading}\n")
    assert found, f"{page} has no section {heading}"
    section = re.split(r"\n## ", rest)[0].replace("\\\n", " ")
    blocks = re.findall(r"^```console\n(.*?)^```", section, re.M | re.S)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines]
    return [words[1:] for words in commands if words[:1] == ["kubectl"]]


def follow(kubectl: Kubectl, commands: list[list[str]]) -> None:
    """Run commands in a clone of the repository."""
    assert commands
    for words in commands:
        ran = subprocess.run(
            kubectl.within("").argv(*words),
            env=kubectl.environment(),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert ran.returncode == 0, f"kubectl {shlex.join(words)}: {ran.stderr}"


def save(person: Stranger, *, rate: float, steps: int) -> None:
    (person.project / "train.py").write_text(SCRIPT)
    (person.project / "settings.py").write_text(f"RATE, STEPS = {rate}, {steps}\n")


@pytest.fixture
def person(environment: Environment, kubectl: Kubectl, tmp_path: Path) -> Iterator[Stranger]:
    """A person with the installed command line and a project; the operator is back at the end."""
    project = tmp_path / "project"
    project.mkdir()
    programs = stranger.install(tmp_path)
    person = Stranger(programs, project, {"KUBECONFIG": str(kubectl.kubeconfig)})
    save(person, rate=0.01, steps=ENDLESS)
    try:
        yield person
    finally:
        install_operator(environment.kubectl)


def test_pages_lead_from_the_installation_to_its_end(kubectl: Kubectl, person: Stranger) -> None:
    def ddp(*words: str) -> str:
        ran = person.run("-n", kubectl.namespace, *words)
        assert ran.returncode == 0, f"ddp {shlex.join(words)}: {ran.stdout}{ran.stderr}"
        return ran.stdout

    install = typed("install.md", "To install it for a team")
    assert install[0] == ["apply", "-k", "manifests/install"]
    follow(kubectl, install)
    assert "operator" in ddp("doctor")

    words = ("--image", TRAINER_IMAGE, "--replicas", "2", "--launcher", "inject")
    code = ("--workdir", ".", "--yes", "--detach")
    ddp("run", "tour", *words, *code, "--", "python", "train.py")
    job = Job(kubectl, "tour")
    for rank in (0, 1):
        job.log_with(f"tour-0-{rank}", f"rank {rank} of 2 trains at rate 0.01")
    job.wait_until_launcher_answers()
    before = job.uids()

    save(person, rate=0.02, steps=ENDLESS)
    ddp("run", "--into", "tour", *code)
    for rank in (0, 1):
        job.log_with(f"tour-0-{rank}", f"rank {rank} of 2 trains at rate 0.02")
    assert job.uids() == before

    force_delete(job, "tour-0-1")
    job.log_with("tour-0-1-r1", "rank 1 of 2 trains at rate 0.02")
    assert "tour is training" in " ".join(wait_for(partial(trains, ddp), what="training").split())
    why = ddp("why", "tour")
    assert "tour-0-1" in why, why

    save(person, rate=0.02, steps=STEPS)
    ddp("run", "--into", "tour", *code)
    ddp("wait", "tour", "--timeout", "5m")
    status = job.status()
    assert (status.phase, status.restarts, status.disruptions) == ("Succeeded", 0, 1)
    result = json.loads(ddp("result", "tour", "-o", "json"))
    assert result["step"] == result["total_steps"] == STEPS
    assert result["loss"] >= 0
    kubectl.run("delete", "pods", "--all")
    assert json.loads(ddp("result", "tour", "-o", "json"))["loss"] == result["loss"]
    ddp("delete", "tour", "--yes")
    assert kubectl.items("pods") == []

    for heading in ("3. Remove the operator", "4. Remove the rest"):
        follow(kubectl, typed("how-to/uninstall.md", heading))
    installed = str(REPOSITORY / "manifests/install")
    left = kubectl.within("").run("get", "-k", installed, "--ignore-not-found")
    assert left == ""
    assert kubectl.within("").attempt("get", "ns", OPERATOR_NAMESPACE).returncode == 1
    ran = person.run("-n", kubectl.namespace, "list")
    assert ran.returncode == 1
    assert "the DDPJob CRD is not installed" in ran.stderr


def trains(ddp: object) -> str | None:
    assert callable(ddp)
    why: str = ddp("why", "tour")
    return why if "is training" in why else None
