"""Pods as processes: launchers with the environment that the operator sets."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.ports import free_port
from tests.trainer.support.preloaded import CPU, Launcher, preloaded_process

DEADLINE_SECONDS = 300.0
"""Generous: a loaded machine takes many seconds to import torch in every rank."""


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE_SECONDS} s for {what}"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Return True if the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # before it was opened, or read
        return False


TOKEN = "0123456789abcdef"
"""The job's token."""
JOB_UID = f"7d1f-{secrets.token_hex(4)}"
"""The UID of all jobs of this process. If another process runs tests on the same machine, and a job
of it gets the same port, ranks refuse those of the other job."""


def contract(
    *, node_rank: int = 0, nodes: int = 1, local_world_size: int = 1, port: int = 29500
) -> dict[str, str]:
    """Return the variables that the operator sets in a pod."""
    return {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(nodes * local_world_size),
        "NODE_RANK": str(node_rank),
        "GROUP_RANK": str(node_rank),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "GROUP_WORLD_SIZE": str(nodes),
        "DDP_BACKEND": "gloo",
        "DDP_JOB_NAME": "digits",
        "DDP_JOB_UID": "7d1f",
        "DDP_ATTEMPT": "0",
        "DDP_TOKEN": TOKEN,
    }


class Pod:
    """One launcher process with its ranks."""

    def __init__(self, job: Job, node_rank: int, arguments: list[str], number: int) -> None:
        name = f"pod-{node_rank}.{number}"
        self._log_path = job.folder / f"{name}.log"
        self._termination_log = job.folder / f"{name}.termination"
        environment = {
            **os.environ,
            **contract(
                node_rank=node_rank,
                nodes=job.nodes,
                local_world_size=job.local_world_size,
                port=job.port,
            ),
            "DDP_JOB_UID": JOB_UID,
            "DDP_CHECKPOINT_DIR": str(job.checkpoints),
            "DDP_TERMINATION_LOG": str(self._termination_log),
            "OMP_NUM_THREADS": "1",
            **job.extra_environment,
        }
        self.process: subprocess.Popen[bytes] | Launcher
        with self._log_path.open("w") as log:
            if job.imports_torch or job.command_prefix:
                self.process = subprocess.Popen(
                    [*job.command_prefix, sys.executable, "-m", "ddp_trainer.launch", *arguments],
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            else:
                self.process = preloaded_process().start(
                    job.forkserver, arguments, environment, log.fileno()
                )

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    @property
    def message(self) -> dict[str, Any]:
        """Return the termination message: exactly one JSON line."""
        text = self._termination_log.read_text()
        assert text.endswith("\n")
        assert text.count("\n") == 1
        message: dict[str, Any] = json.loads(text)
        return message

    def child_pids(self) -> list[int]:
        pid, children = self.process.pid, ""
        if self.process.poll() is None:
            with contextlib.suppress(FileNotFoundError):  # it has ended just now
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in children.split()]

    def pids_of_ranks(self) -> dict[int, int]:
        """Return the process IDs of forked ranks that run, by rank."""
        found = {}
        for child in self.child_pids():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                name = Path(f"/proc/{child}/comm").read_text().strip()
                if name.startswith("ddp-rank-"):
                    found[int(name.removeprefix("ddp-rank-"))] = child
        return found

    def rank_pids(self) -> list[int]:
        """Return the process IDs in the order of ranks."""
        return [pid for _, pid in sorted(self.pids_of_ranks().items())]

    def wait(self) -> int:
        """Return the launcher's exit code."""
        try:
            return self.process.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the pod still runs:\n{self.log}") from None

    def assert_keeps_its_ranks(self) -> None:
        """Check that the launcher completes without a restarted rank."""
        assert self.wait() == 0, self.log
        assert "restarting it" not in self.log, self.log

    def wait_for_log(self, text: str) -> None:
        def logged() -> bool:
            assert self.process.poll() is None or text in self.log, (
                f"the pod ended before it said {text!r}:\n{self.log}"
            )
            return text in self.log

        until(logged, f"{text!r} in the log")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Job:
    """Pods that belong together."""

    folder: Path
    nodes: int = 2
    local_world_size: int = 1
    extra_environment: Mapping[str, str] = field(default_factory=dict)
    command_prefix: list[str] = field(default_factory=list)
    forkserver: str = CPU
    imports_torch: bool = False
    """Start pods as containers do; by default they have torch from the beginning."""
    port: int = field(default_factory=free_port)
    pods: list[Pod] = field(default_factory=list)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def traces(self) -> Path:
        return self.folder / "samples"

    def start(self, node_rank: int, *arguments: str) -> Pod:
        pod = Pod(self, node_rank, list(arguments), len(self.pods))
        self.pods.append(pod)
        return pod

    def start_all(self, *arguments: str) -> list[Pod]:
        return [self.start(node_rank, *arguments) for node_rank in range(self.nodes)]

    def begun_by(self, rank: int) -> list[tuple[int, list[int]]]:
        """Return the steps that a rank began, in order, each with its samples."""
        return [(entry["step"], entry["samples"]) for entry in self._trace(rank)]

    def begun_steps_of(self, rank: int) -> list[int]:
        """Return the steps that the processes of a rank began, in order."""
        return [entry["step"] for entry in self._trace(rank)]

    def steps_of(self, rank: int) -> dict[int, list[int]]:
        """Return a rank's samples by step; a step that began twice had the same samples."""
        steps: dict[int, list[int]] = {}
        for entry in self._trace(rank):
            assert steps.setdefault(entry["step"], entry["samples"]) == entry["samples"]
        return steps

    def _trace(self, rank: int) -> list[dict[str, Any]]:
        path = self.traces.with_name(f"{self.traces.name}.rank{rank}")
        if not path.exists():
            return []
        # A rank may be in the midst of writing its last line.
        *lines, _ = path.read_text().split("\n")
        return [json.loads(line) for line in lines]

    def wait_for_step(self, step: int, *, rank: int = 0) -> None:
        def reached() -> bool:
            ended = [pod for pod in self.pods if pod.process.poll() not in (None, -signal.SIGKILL)]
            found = step in self.steps_of(rank)  # after that: it may be the last thing they did
            assert found or not ended, ended[0].log
            return found

        until(reached, f"step {step}")

    def state(self, step: int) -> Any:
        """Return the state in a step's checkpoint; a dead rank may have left half of another."""
        return self._newest(f"step-{step:08d}*")

    @property
    def last_state(self) -> Any:
        """Return the state in the newest checkpoint."""
        return self._newest("step-*")

    def _newest(self, pattern: str) -> Any:
        """Return the newest state in these folders, without its training time."""
        whole = max(self.checkpoints.glob(f"{pattern}/manifest.json"))
        state = torch.load(whole.with_name("state.pt"), weights_only=True)
        assert state.pop("trained_seconds") >= 0
        return state


@contextmanager
def job(folder: Path, **settings: Any) -> Iterator[Job]:
    """Create a job; its pods are killed at the end in any case."""
    folder.mkdir(parents=True, exist_ok=True)
    new = Job(folder, **settings)
    try:
        yield new
    finally:
        for pod in new.pods:
            if pod.process.poll() is None:
                pod.kill()  # and the kernel kills its ranks


def assert_same(actual: Any, expected: Any) -> None:
    """Check that two states are equal to the bit, in all parts."""
    assert type(actual) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert torch.equal(actual, expected)
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            assert_same(actual[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)
    else:
        assert actual == expected
