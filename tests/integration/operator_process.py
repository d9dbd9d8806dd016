"""The operator as a process of its own, as it runs in production but for the container."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import eventually

_POLL_SECONDS = 0.05


class OperatorProcess:
    """`python -m ddp_operator run`, for one namespace or for all, with further options."""

    def __init__(
        self,
        kubeconfig: Path,
        log: Path,
        *,
        namespace: str | None,
        health_port: int = 0,
        metrics_port: int = 0,
        options: Sequence[str] = (),
    ) -> None:
        self._log = log
        self._arguments = [
            *(sys.executable, "-m", "ddp_operator", "run"),
            *("--kubeconfig", str(kubeconfig)),
            *("--health-port", str(health_port)),
            *("--metrics-port", str(metrics_port)),
            *(("--namespace", namespace) if namespace else ()),
            *("--launcher-image", "ddp-operator"),  # in no pod, it could not tell
            *options,
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self.told_to_end = False

    def start(self) -> None:
        """Start it; returns at once."""
        assert not self.running
        self._starts += 1
        self.told_to_end = False
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._arguments, stdout=log, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"}
            )

    @property
    def log(self) -> str:
        """All that it and its predecessors have written."""
        return self._log.read_text() if self._log.exists() else ""

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def peak_mebibytes(self) -> float:
        """The most memory that it has had so far (VmHWM)."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        [kibibytes] = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
        return int(kibibytes) / 1024

    async def serving(self) -> None:
        """Wait until it says that it serves."""
        await eventually(
            lambda: self.log.count(": serving ") == self._starts,
            interval_seconds=_POLL_SECONDS,
            describe=lambda: self.log,
        )

    def kill(self) -> None:
        """End it as the kernel does when memory is short: at once."""
        assert self._process is not None
        self.told_to_end = True
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Take the CPU away from it, as a paused virtual machine does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen one go on as if nothing had happened."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to end, as the kubelet does."""
        assert self._process is not None
        self.told_to_end = True
        self._process.send_signal(signal.SIGTERM)

    async def exit_code(self) -> int:
        """Wait until it has ended by itself, and return its exit code."""
        process = self._process
        assert process is not None
        await eventually(
            lambda: process.poll() is not None,
            interval_seconds=_POLL_SECONDS,
            describe=lambda: self.log,
        )
        return process.wait()


@contextmanager
def running_operator(
    kubeconfig: Path,
    log: Path,
    *,
    namespace: str | None,
    health_port: int = 0,
    metrics_port: int = 0,
    options: Sequence[str] = (),
) -> Iterator[OperatorProcess]:
    """Start an operator and end it afterwards; what it wrote is shown when the test fails.

    An operator that ends without being told to is a failure; one that is told to must be waited for
    in the test.
    """
    process = OperatorProcess(
        kubeconfig,
        log,
        namespace=namespace,
        health_port=health_port,
        metrics_port=metrics_port,
        options=options,
    )
    process.start()
    try:
        yield process
        assert process.running or process.told_to_end
    finally:
        if process.running:
            process.kill()
        print(process.log)


@contextmanager
def flawless_operator(
    kubeconfig: Path, log: Path, *, namespace: str | None, options: Sequence[str] = ()
) -> Iterator[OperatorProcess]:
    """The same, and no error of the operator's own is in its log afterwards."""
    with running_operator(kubeconfig, log, namespace=namespace, options=options) as process:
        yield process
        assert "Traceback" not in process.log
