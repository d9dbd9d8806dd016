"""A flood of connections to all launchers does not turn a restart in place into one of all pods."""

import asyncio
import contextlib
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.flood import flood
from tests.local.command import running

MANIFEST = """
apiVersion: ddp-operator.io/v1alpha1
kind: DDPJob
metadata: {name: flooded}
spec:
  replicas: 2
  restart: {scope: InPlace}
  template:
    spec:
      containers:
        - name: trainer
          image: any
          command: [python, -m, ddp_trainer.launch, --no-preload, --]
          args: [python, SCRIPT]
"""
SCRIPT = """
import os, pathlib, sys, time
fails = pathlib.Path(sys.argv[0]).with_name("fails")
generation = os.environ.get("DDP_GENERATION", "0")
print("up", generation, flush=True)
if generation == "0":
    while not fails.exists():
        time.sleep(0.1)
    if os.environ["RANK"] == "1":
        sys.exit(3)
    time.sleep(3600)
"""


def status_ports(workdir: Path) -> set[int]:
    """Return the status ports of the launchers of all pods in this directory."""
    mark, variable = str(workdir).encode(), b"DDP_STATUS_PORT="
    ports = set()
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended
            variables = file.read_bytes().split(b"\0")
            if any(mark in each for each in variables):
                found = (each for each in variables if each.startswith(variable))
                ports |= {int(each.removeprefix(variable)) for each in found}
    return ports


@pytest.mark.nightly
async def test_ranks_restart_in_place_during_a_flood(tmp_path: Path) -> None:
    script, file, workdir = tmp_path / "script.py", tmp_path / "job.yaml", tmp_path / "work"
    script.write_text(SCRIPT)
    file.write_text(MANIFEST.replace("SCRIPT", str(script)))
    async with running(file, workdir) as command:
        for rank in (0, 1):
            await command.read_until(f"rank {rank} | up 0")
        with ExitStack() as floods:
            ports = status_ports(workdir)
            assert len(ports) == 2
            for port in ports:
                floods.enter_context(flood(port, clients=20))
            await asyncio.sleep(20)  # longer than an operator needs to begin polling
            (tmp_path / "fails").touch()
            assert await command.wait() == 0, command.output
    assert "restart in place" in command.output
    assert "restarting all 2 pods" not in command.output
