"""The operator as a process, as in production but without a container."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NotRequired, TypedDict, Unpack

from tests.waiting import eventually

_POLL_SECONDS = 0.05
_SERVING = ": serving "


class Options(TypedDict):
    """How to run the operator."""

    namespace: str | None
    """None: it serves all namespaces."""
    health_port: NotRequired[int]
    metrics_port: NotRequired[int]
    options: NotRequired[Sequence[str]]
    """Further options of its command line."""


class OperatorProcess:
    """`python -m ddp_operator run` for one namespace or for all."""

    def __init__(self, kubeconfig: Path, log: Path, **options: Unpack[Options]) -> None:
        namespace = options["namespace"]
        self._log = log
        self._arguments = [
            *(sys.executable, "-m", "ddp_operator", "run"),
            *("--kubeconfig", str(kubeconfig)),
            *("--health-port", str(options.get("health_port", 0))),
            *("--metrics-port", str(options.get("metrics_port", 0))),
            *(("--namespace", namespace) if namespace else ()),
            *("--launcher-image", "ddp-operator"),  # outside a pod it does not know its own
            *options.get("options", ()),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._served = 0
        """How often earlier starts served."""
        self.may_end = False

    def start(self) -> None:
        """Start it without waiting."""
        assert not self.running
        self._served = self.log.count(_SERVING)
        self.may_end = False
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._arguments, stdout=log, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"}
            )

    @property
    def log(self) -> str:
        """Return the output of all its starts."""
        return self._log.read_text() if self._log.exists() else ""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def peak_mebibytes(self) -> float:
        """Return its peak memory so far (VmHWM)."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        [kibibytes] = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
        return int(kibibytes) / 1024

    async def serving(self) -> None:
        """Wait until it serves."""
        await eventually(
            lambda: self.log.count(_SERVING) > self._served,
            interval_seconds=_POLL_SECONDS,
            describe=lambda: self.log,
        )

    def kill(self) -> None:
        """Kill it, as the kernel does when memory is short."""
        assert self._process is not None
        self.may_end = True
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Freeze it, as in a paused virtual machine."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume the frozen process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to end, as the kubelet does."""
        assert self._process is not None
        self.may_end = True
        self._process.send_signal(signal.SIGTERM)

    async def exit_code(self) -> int:
        """Wait for its end and return its exit code."""
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
    kubeconfig: Path, log: Path, **options: Unpack[Options]
) -> Iterator[OperatorProcess]:
    """Start an operator, kill it afterwards, and print its log.

    The test fails if the operator ends without a request. After `terminate`, the test waits for
    the end itself.
    """
    process = OperatorProcess(kubeconfig, log, **options)
    process.start()
    try:
        yield process
        assert process.running or process.may_end
    finally:
        if process.running:
            process.kill()
        print(process.log)


@contextmanager
def flawless_operator(
    kubeconfig: Path, log: Path, **options: Unpack[Options]
) -> Iterator[OperatorProcess]:
    """Run an operator; the test fails if its log has a traceback."""
    with running_operator(kubeconfig, log, **options) as process:
        yield process
        assert "Traceback" not in process.log
