"""Runs on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import DEADLINE_SECONDS, Job, Pod, contract, job
from tests.trainer.support.preloaded import GPU
from tests.trainer.support.runs import flags

NCCL = {"DDP_BACKEND": "nccl"}


def pods(folder: Path, *plan: FaultAt, ranks: int = 2) -> AbstractContextManager[Job]:
    """Create a job of pods with a rank each, which share the GPU."""
    folder.mkdir(exist_ok=True)
    variables = fault_injection.environment(list(plan), folder / "faults") if plan else {}
    return job(folder, nodes=ranks, forkserver=GPU, extra_environment={**NCCL, **variables})


def run_to_the_end(of: Job, *more: str) -> list[Pod]:
    """Run a job's pods until they complete; return them."""
    started = of.start_all(*flags(of), "--deterministic", *more)
    for pod in started:
        assert pod.wait() == 0, "\n".join(each.log for each in started)
    return started


def run_script(folder: Path, script: str, *arguments: str) -> Pod:
    """Run a script of this folder as the one rank of a pod, started as in a container."""
    with job(folder, nodes=1, imports_torch=True, extra_environment=NCCL) as started:
        module = f"tests.trainer.gpu.{script}"
        [pod] = started.start_all("--", sys.executable, "-m", module, *arguments)
        pod.wait()
        return pod


def run_alone(script: str, *arguments: str) -> list[dict[str, Any]]:
    """Run a script of this folder as the only rank; return the JSON objects that it prints."""
    variables = {**contract(port=free_port()), **NCCL, "RANK": "0", "LOCAL_RANK": "0"}
    done = subprocess.run(
        [sys.executable, "-m", f"tests.trainer.gpu.{script}", *arguments],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        timeout=4 * DEADLINE_SECONDS,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
