"""Launchers and ranks that are forked from one process with torch, for all tests of a session.

An import of torch takes seconds of a core, as long as a test's pod lives. So a launcher and its
forkserver start as forks of a process that has imported everything. From there on, all code is the
trainer's own. `test_launch`, the examples and the tests with real pods start launchers as
containers do.
"""

from __future__ import annotations

import array
import ctypes
import gc
import importlib
import json
import logging
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NoReturn

from ddp_trainer import launch
from ddp_trainer.launcher.output.rank_output import OWN_STREAMS, Streams
from ddp_trainer.launcher.ranks import starters
from ddp_trainer.launcher.ranks.forkserver import PRELOADED
from ddp_trainer.system.deathsignal import die_with_parent
from ddp_trainer.system.logs import end_process

_MESSAGE_BYTES = 1 << 17
_START_SECONDS = 300.0
"""More than a loaded machine takes to import torch from a cold disk."""
_BEFORE_TORCH = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
"""Variables that torch reads at its import, as launchers set them for ranks."""
CPU = "tests.trainer.support.forkserver"
"""Forks ranks of the bundled trainer, with the faults that a test has planned."""
STREAM = "tests.trainer.stream_device.forkserver"
"""The same for ranks on a device with a stream."""
SCRIPT = "tests.trainer.library.forkserver"
"""Forks ranks that run a script."""
GPU = "tests.trainer.gpu.forkserver"
"""Forks ranks of the bundled trainer in pods that share one GPU."""
_FORKSERVERS = (CPU, STREAM, SCRIPT, GPU)
_popen = starters._popen


class PreloadedProcess:
    """The process that launchers are forked from."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.trainer.support.preloaded", str(theirs.fileno())],
                env={**os.environ, **_BEFORE_TORCH},
                pass_fds=[theirs.fileno()],
            )
        self._started: list[Launcher] = []
        self._running: dict[int, Launcher] = {}

    def start(
        self, forkserver: str, arguments: Sequence[str], environment: Mapping[str, str], log: int
    ) -> Launcher:
        """Start a launcher; `forkserver` is the module that forks its ranks.

        `log`: a file descriptor for all that it prints.
        """
        request = json.dumps([forkserver, list(arguments), dict(environment)]).encode()
        fds = array.array("i", [log])
        self._channel.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        until = time.monotonic() + _START_SECONDS
        while not self._started:
            left = until - time.monotonic()
            assert left > 0, "the process that launchers are forked from hangs"
            self._read(left)
        return self._started.pop()

    def wait_for(self, launcher: Launcher, *, within_seconds: float) -> None:
        """Wait until the launcher has ended, at most this long."""
        until = time.monotonic() + within_seconds
        while launcher.returncode is None:
            left = until - time.monotonic()
            if left <= 0 and not select.select([self._channel], [], [], 0)[0]:
                return
            self._read(max(left, 0))

    def _read(self, seconds: float) -> None:
        if not select.select([self._channel], [], [], seconds)[0]:
            return
        message = self._channel.recv(_MESSAGE_BYTES)
        assert message, "the process that launchers are forked from has ended"
        pid, code = json.loads(message)
        if code is None:  # an earlier process may have had the same ID
            self._running[pid] = Launcher(self, pid)
            self._started.append(self._running[pid])
        else:
            self._running.pop(pid).returncode = code


class Launcher:
    """A forked launcher with the methods of `subprocess.Popen`."""

    def __init__(self, process: PreloadedProcess, pid: int) -> None:
        self._process = process
        self.pid = pid
        self.returncode: int | None = None
        """Below 0: killed by a signal. None: it ran at the last `poll`."""

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        self._process.wait_for(self, within_seconds=0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return the exit code."""
        seconds = timeout if timeout is not None else _START_SECONDS
        self._process.wait_for(self, within_seconds=seconds)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a launcher", seconds)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal if the process still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


@cache
def preloaded_process() -> PreloadedProcess:
    """Return the session's process; it ends with this one."""
    return PreloadedProcess()


def serve(channel: socket.socket) -> None:
    """Fork launchers until the tests have ended."""
    for module in (*PRELOADED, *_FORKSERVERS):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests end the launchers
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([channel.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report_ended(channel)
        if channel.fileno() in ready:
            message, fds, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 1)
            if not message:
                return
            [log] = fds
            parent, pid = os.getpid(), os.fork()
            if pid == 0:
                _become_launcher(parent, log, *json.loads(message))
            os.close(log)
            channel.send(json.dumps([pid, None]).encode())


def _report_ended(channel: socket.socket) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
            pid, status = ended
            channel.send(json.dumps([pid, os.waitstatus_to_exitcode(status)]).encode())


def _become_launcher(
    parent: int, log: int, forkserver: str, arguments: list[str], environment: dict[str, str]
) -> NoReturn:
    def run() -> NoReturn:
        os.dup2(log, 1)
        os.dup2(log, 2)
        _reset_process(parent, environment)
        starters.FORKSERVER = forkserver
        starters._popen = _fork
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        sys.exit(launch.main(arguments, os.environ))

    end_process(_code_of(run))


def _fork(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    keep_fd: int,
    streams: Streams = OWN_STREAMS,
) -> int:
    """Start a launcher's forkserver, or a command for a rank, in place of `_popen`."""
    if command[0] != sys.executable:
        return _popen(command, environment, keep_fd=keep_fd, streams=streams)
    parent, pid = os.getpid(), os.fork()
    if pid != 0:
        return pid

    def run() -> None:
        os.setsid()
        os.dup2(streams.stdout, 1)
        os.dup2(streams.stderr, 2)
        _reset_process(parent, environment, keep_fd=keep_fd)
        _run(command[1:])

    code = _code_of(run)
    if command[2] not in _FORKSERVERS:  # a script may die in Python's shutdown
        ctypes.pythonapi.Py_Exit(code)
    end_process(code)


def _code_of(run: Callable[[], None]) -> int:
    """Run a forked program and return its exit code; it must not return to the parent's code."""
    try:
        run()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # as Python itself ends a program: with a traceback and code 1
        traceback.print_exc()
        return 1
    return 0


def _run(command: Sequence[str]) -> None:
    """Run Python with these arguments."""
    if command[0] != "-m":
        sys.argv = list(command)
        sys.path.insert(0, str(Path(command[0]).parent))
        runpy.run_path(command[0], run_name="__main__")
        return
    sys.argv = list(command[1:])
    if command[1] in _FORKSERVERS:
        importlib.import_module(command[1]).main()
    else:
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)


def _reset_process(
    parent: int, environment: Mapping[str, str], *, keep_fd: int | None = None
) -> None:
    """Reset this process to the state of a program that has just started."""
    die_with_parent(parent)
    # The parent still uses files that its finalizers remove, such as the launcher's status.
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # Scripts must not log with the handlers that they inherit from the launcher.
    logging.basicConfig(level=logging.WARNING, handlers=(), force=True)
    # The parent's objects that hold them live as long as this process, so nothing closes them.
    for fd in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if fd > 2 and fd != keep_fd:
            with suppress(OSError):
                os.close(fd)
    os.environ.clear()
    os.environ.update(environment)
    folders = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder for folder in folders if folder and folder not in sys.path]


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
