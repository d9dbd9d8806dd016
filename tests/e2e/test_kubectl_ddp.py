"""A researcher with a script and the command line: nothing else of this repository is needed."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.environment import Environment
from tests.e2e.jobs import SLOW_STEPS, TRAINER_IMAGE, Job, digits_job, is_training, kill_rank
from tests.e2e.kubectl import Kubectl, wait_for

SCRIPT = """\
import http.server, pathlib, sys, threading, time
import torch.distributed as dist

dist.init_process_group("gloo")
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {sys.argv[1:]}", flush=True)
if dist.get_rank() == 0:
    server = http.server.HTTPServer(("", 8000), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
else:
    while not pathlib.Path("/tmp/go").exists():
        time.sleep(0.1)
dist.barrier()
dist.destroy_process_group()
"""

Ddp = Callable[..., subprocess.CompletedProcess[str]]


def program(kubectl: Kubectl, *words: str) -> list[str]:
    where = ("--kubeconfig", str(kubectl.kubeconfig), "-n", kubectl.namespace)
    return [sys.executable, "-m", "ddp_client.cli", *where, *words]


@pytest.fixture
def ddp(kubectl: Kubectl) -> Ddp:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            program(kubectl, *words), capture_output=True, text=True, check=False, timeout=300
        )

    return run


@contextlib.contextmanager
def forwarded(kubectl: Kubectl, *words: str) -> Iterator[str]:
    """The address here of a port there."""
    command = program(kubectl, "port-forward", *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split(" ")[0]
        finally:
            process.terminate()


def test_a_script_is_submitted_looked_into_and_shown(
    kubectl: Kubectl, ddp: Ddp, tmp_path: Path
) -> None:
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)
    made = ddp(
        *("run", "hello", "--image", TRAINER_IMAGE, "--replicas", "2", "--script", str(script)),
        *("--yes", "--detach", "--", "python", str(script), "--lr", "1"),
    )
    assert made.returncode == 0, made.stderr
    job = Job(kubectl, "hello")
    job.wait_until("Running")
    job.log_with("hello-0-0", "rank 0 of 2: ['--lr', '1']")

    with (
        forwarded(kubectl, "hello", ":8000") as address,
        urllib.request.urlopen(f"http://{address}/", timeout=60) as answer,
    ):
        assert b"Directory listing" in answer.read()

    asked = ddp(
        "exec", "hello", "--rank", "1", "--", "sh", "-c", "touch /tmp/go; echo $RANK; exit 9"
    )
    assert (asked.returncode, asked.stdout) == (9, "1\n"), asked.stderr

    ended = ddp("wait", "hello", "--timeout", "5m")
    assert ended.returncode == 0, ended.stderr
    shown = ddp("logs", "hello").stdout
    assert re.findall(r"^(\d) \| rank (\d) of 2", shown, flags=re.M) in (
        [("0", "0"), ("1", "1")],
        [("1", "1"), ("0", "0")],
    )
    [scripts] = kubectl.items("configmaps", "-l", "ddp-operator.io/job-name=hello")
    assert (
        scripts["metadata"]["ownerReferences"][0]["uid"]
        == kubectl.get("ddp", "hello")["metadata"]["uid"]
    )
    assert ddp("delete", "hello", "--yes").returncode == 0


def test_report_of_a_job_that_lost_a_rank(
    environment: Environment, kubectl: Kubectl, ddp: Ddp
) -> None:
    claim = environment.make_claim(kubectl, "reported")
    kubectl.apply(
        digits_job(
            "reported",
            *SLOW_STEPS,
            "--checkpoint-every-steps=20",
            "--max-restarts=0",
            checkpoint={"persistentVolumeClaim": claim},
            restart={"scope": "Pod"},
        )
    )
    job = Job(kubectl, "reported")
    wait_for(lambda: is_training(job), what="training")
    kill_rank(job, "reported-0-1")
    told: dict[str, Any] = {}

    def has_recovered() -> bool:
        made = ddp("report", "reported", "-o", "json", "--file", "-")
        assert made.returncode == 0, made.stderr
        told.update(json.loads(made.stdout))
        return any(recovery["seconds"] is not None for recovery in told["recoveries"])

    wait_for(has_recovered, what="the first step after the loss", describe=lambda: told)
    [recovery] = told["recoveries"]
    assert (recovery["pod"], recovery["rank"]) == ("reported-0-1", 1)
    assert None not in recovery["parts"], "all of it is known while the pods are there"
    assert told["gaps"] == []
    assert told["points"][0]["loss"] > 0
    assert told["starts"]
    assert ddp("delete", "reported", "--yes").returncode == 0
