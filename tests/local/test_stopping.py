"""A run ends in order at the first signal or without a reader, and at once at the second."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local.command import DEADLINE_SECONDS, processes_of, running

MANIFEST = """
apiVersion: ddp-operator.io/v1alpha1
kind: DDPJob
metadata: {name: stubborn}
spec:
  template:
    spec:
      terminationGracePeriodSeconds: 3600
      containers:
        - name: trainer
          image: any
          command: [sh, -c]
          args: ["trap 'echo got SIGTERM; %s' TERM; echo up; while true; do sleep 0.01; done"]
"""


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    return tmp_path / "work"


def manifest(tmp_path: Path, *, on_sigterm: str) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(MANIFEST % on_sigterm)
    return file


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
async def test_a_signal_lets_pods_end_in_order(
    tmp_path: Path, workdir: Path, number: signal.Signals
) -> None:
    async with running(manifest(tmp_path, on_sigterm="exit 143"), workdir) as command:
        await command.read_until("rank 0 | up")
        command.process.send_signal(number)
        assert await command.wait() == 128 + number
    assert f"Stopping: got {number.name}" in command.output
    assert "rank 0 | got SIGTERM" in command.output
    assert "stubborn: Stopped after" in command.output


async def test_a_second_signal_kills(tmp_path: Path, workdir: Path) -> None:
    async with running(manifest(tmp_path, on_sigterm=""), workdir) as command:
        await command.read_until("rank 0 | up")
        command.process.send_signal(signal.SIGINT)
        await command.read_until("rank 0 | got SIGTERM")
        assert len(processes_of(workdir)) > 1
        command.process.send_signal(signal.SIGINT)
        assert await command.wait() == 130
    assert processes_of(workdir) == []


@pytest.mark.parametrize("output", ["pipe", "full disk"])
def test_run_that_cannot_print_ends_its_processes(
    tmp_path: Path, workdir: Path, output: str
) -> None:
    file = manifest(tmp_path, on_sigterm="exit 143")
    run = [sys.executable, "-m", "ddp_client.local", str(file), "--workdir", str(workdir)]
    with Path("/dev/full").open("wb") as full:
        command = subprocess.Popen(
            run,
            stdout=subprocess.PIPE if output == "pipe" else full,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        if command.stdout is not None:
            command.stdout.readline()
            command.stdout.close()
        assert command.stderr is not None
        errors = command.stderr.read()
        code = command.wait(DEADLINE_SECONDS)
    finally:
        command.kill()
    assert processes_of(workdir) == []
    if output == "pipe":
        assert (code, errors) == (128 + signal.SIGPIPE, "")
    else:
        assert (code, errors) == (
            1,
            "error: cannot write to standard output: No space left on device\n",
        )
