"""Two training processes on this machine: under the trainer's launcher, or started by torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.benchmark import BenchmarkError
from tests.ports import free_port
from tests.trainer.support.pods import contract

RANKS = 2
_DEADLINE_SECONDS = 1200.0


def environment() -> dict[str, str]:
    """Return the operator's variables for a pod of two processes, with one thread for each."""
    told = contract(local_world_size=RANKS, port=free_port())
    return {**os.environ, **told, "DDP_STATUS_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}


def run_script(name: str, *arguments: object, log: Path) -> None:
    """Run a script of this folder in ranks of the trainer's launcher, to its end.

    Raises:
        BenchmarkError: it failed, or took too long; with its last words.
    """
    script = [sys.executable, "-m", f"tests.bench.scripts.{name}", *map(str, arguments)]
    command = ["-m", "ddp_trainer.launch", "--", *script]
    with started(command, environment(), log=log) as process:
        wait_until(lambda: process.poll() is not None, process, log)
        if process.returncode != 0:
            raise _trouble(f"ended with {process.returncode}", log)


def results_of(name: str, *arguments: object, file: Path) -> Any:
    """Run a script like `run_script`; return what it wrote to the file of its last argument."""
    run_script(name, *arguments, file, log=file.with_suffix(".log"))
    return json.loads(file.read_text())


def wait_until(
    condition: Callable[[], bool],
    process: subprocess.Popen[bytes],
    log: Path,
    *,
    poll_seconds: float = 0.1,
) -> None:
    """Wait for a condition.

    Raises:
        BenchmarkError: the process ended before, or the deadline passed.
    """
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not condition():
        if process.poll() is not None:
            raise _trouble(f"ended with {process.returncode}", log)
        if time.monotonic() > deadline:
            raise _trouble(f"still ran after {_DEADLINE_SECONDS:.0f} s", log)
        time.sleep(poll_seconds)


@contextmanager
def started(
    command: Sequence[str], variables: dict[str, str], *, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run Python with these arguments for the length of a `with` block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command], env=variables, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _trouble(what: str, log: Path) -> BenchmarkError:
    return BenchmarkError(f"the ranks {what}: {log.read_text(errors='replace')[-1000:]}")
