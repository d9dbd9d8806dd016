"""The operator, and other controllers, as users run them: processes, watched from outside."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.bench.benchmark import BenchmarkError

_STOP_SECONDS = 30.0


def memory_mb(pid: int, field: str, *, file: str = "status") -> float:
    """A field of /proc/PID/status, or of another file there, in MB (10^6 bytes).

    Raises:
        BenchmarkError: the kernel does not tell it.
    """
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise BenchmarkError(f"the kernel tells no {field} of process {pid}")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, in user and kernel mode, but for threads that
    have ended. The kernel counts it in nanoseconds here, and in ticks of 10 ms elsewhere.
    """
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads) / 1e9


class ControllerProcess:
    """A running controller; made by `running_program`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def check_alive(self) -> None:
        """Raise `BenchmarkError`, with its last words, if it has ended."""
        if self._process.poll() is not None:
            last = self._log.read_text(errors="replace").strip().splitlines()[-3:]
            name = self._log.name
            raise BenchmarkError(f"{name}: it ended ({self._process.returncode}): {last}")

    def memory_mb(self) -> float:
        """Return the memory that is resident now, in MB (10^6 bytes)."""
        return memory_mb(self._process.pid, "VmRSS")

    def cpu_seconds(self) -> float:
        """Return the CPU time that it has used, in user and kernel mode."""
        return cpu_seconds(self._process.pid)


@contextmanager
def running_operator(kubeconfig: Path, *, log: Path) -> Iterator[ControllerProcess]:
    """Run the operator for the length of a `with` block."""
    command = [sys.executable, "-m", "ddp_operator", "run"]
    command += ["--kubeconfig", str(kubeconfig), "--health-port", "0", "--metrics-port", "0"]
    with running_program(command, log=log) as process:
        yield process


@contextmanager
def running_program(command: Sequence[str | Path], *, log: Path) -> Iterator[ControllerProcess]:
    """Run a controller for the length of a `with` block."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield ControllerProcess(process, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def descendants(pid: int) -> list[int]:
    """Return the children of a process, and theirs."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return []
    return [one for child in map(int, children) for one in (child, *descendants(child))]
