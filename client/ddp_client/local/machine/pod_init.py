"""Process 1 of a local pod: runs the container's command and makes the pod end as a whole.

A container's processes cannot outlive its process 1, in any group or session, and a pod does not
outlive its node. This script gives both properties to ordinary processes. It adopts orphans,
forwards SIGTERM, and kills everything at once on SIGUSR1. The kernel sends it that signal when the
process that started it dies, even by SIGKILL.

    python pod_init.py PARENT_PID COMMAND [ARGUMENT ...]

Its exit code is the command's, or 128 + n for a death by signal n, as container runtimes report it.
It is started as a file and imports only the standard library, so that it runs within milliseconds.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

KILL_POD = signal.SIGUSR1
"""Order to kill every process of the pod now."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
"""Options of prctl(2), from linux/prctl.h."""
_WATCHED = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, KILL_POD})
_KILLED = 128 + signal.SIGKILL

_libc = ctypes.CDLL(None, use_errno=True)


def main(parent: int, command: Sequence[str]) -> int:
    """Run the command and everything that it starts; return the exit code to end with."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _libc.prctl(_PR_SET_PDEATHSIG, int(KILL_POD), 0, 0, 0)
    if os.getppid() != parent:
        return _KILLED  # it died before the kernel knew about prctl
    process = subprocess.Popen(
        command,
        start_new_session=True,
        preexec_fn=_prepare,  # noqa: PLW1509 - this process has one thread
    )
    while True:
        arrived = signal.sigwait(_WATCHED)
        if arrived == KILL_POD:
            _kill_all()
            return _KILLED
        if arrived in (signal.SIGTERM, signal.SIGINT):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for pid, status in _reap():
            if pid == process.pid:
                process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode is not None:
            _kill_all()
            code = process.returncode
            return code if code >= 0 else 128 - code


def _prepare() -> None:
    # If this process itself is killed, at least the command dies with it.
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)


def _reap() -> Iterator[tuple[int, int]]:
    """Collect all dead children, including adopted ones: (pid, wait status)."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def _kill_all() -> None:
    """Kill children until none is left. Each death makes the dead one's children ours."""
    while True:
        for pid in _children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> Iterator[int]:
    own = str(os.getpid())
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with suppress(OSError), open(f"/proc/{entry.name}/stat", encoding="latin-1") as stat:
                # The command's name, in parentheses, may itself contain spaces and parentheses.
                _, parent = stat.read().rpartition(")")[2].split()[:2]
                if parent == own:
                    yield int(entry.name)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
