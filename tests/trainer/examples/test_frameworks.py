"""The code on the page about frameworks runs."""

from __future__ import annotations

import json
import re
import sys
import textwrap
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from ddp_operator.api.job import DDPJob
from ddp_operator.engine.trainers.log_progress import read

from tests.ports import free_port
from tests.trainer.support.pods import job, until

_DOCS = Path(__file__).parents[3] / "docs/how-to"
PAGE = (_DOCS / "frameworks.md").read_text()
MEMORY_PAGE = (_DOCS / "memory-checkpoints.md").read_text()
HOLD = """
import pathlib, sys, time
held = pathlib.Path(sys.argv[1])
def hold():
    held.touch()
    while held.exists():
        time.sleep(0.01)
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
{begin}
assert accelerator.num_processes == 2
layer = torch.nn.Linear(4, 1)
net, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.01))
total = 6
for step in range(1, total + 1):
    loss = net(torch.randn(4, 4)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    {end}
    if step == 4 and accelerator.is_main_process:
        hold()
accelerator.end_training()
"""


def block(containing: str, language: str = "python", page: str = PAGE) -> str:
    """Return the block of the page with these words."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    [found] = [text for text in blocks if containing in text]
    return str(found)


def status_at_step_4(folder: Path, script: str) -> dict[str, Any]:
    """Return the status of two processes of a pod at step 4; then they run to their end."""
    train, held, port = folder / "train.py", folder / "held", free_port()
    train.write_text(HOLD + script)
    settings = {"DDP_STATUS_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    with job(folder / "job", nodes=1, local_world_size=2, extra_environment=settings) as one:
        pod = one.start(0, "--", sys.executable, str(train), str(held))
        until(lambda: held.exists() or pod.process.poll() is not None, "step 4")
        assert held.exists(), pod.log
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=30) as answer:
            status: dict[str, Any] = json.load(answer)
        held.unlink()
        assert pod.wait() == 0, pod.log
    return status


def test_accelerate_reports_by_the_pages_tracker(tmp_path: Path) -> None:
    begin, end = block("log_with=Report()").split("...\n")
    training = ACCELERATE.format(begin=begin, end=textwrap.indent(end, " " * 4).strip())
    status = status_at_step_4(tmp_path, block("class Report(GeneralTracker)") + training)
    assert (status["step"], status["totalSteps"]) == (4, 6)
    assert status["loss"] > 0


def test_the_pages_job_reads_what_its_script_prints() -> None:
    manifest = yaml.safe_load(block("kind: DDPJob", "yaml"))
    now = "2026-11-21T03:00:00Z"
    manifest["metadata"] |= {"namespace": "default", "uid": "1", "creationTimestamp": now}
    source = DDPJob.parse(manifest).spec.progress
    assert source is not None
    progress = read(source.log_pattern, b"step 3/9 loss=0.5\nstep 4/9 loss: 1.2e-3\n")
    assert progress is not None
    assert (progress.step, progress.total_steps, progress.loss) == (4, 9, 0.0012)
