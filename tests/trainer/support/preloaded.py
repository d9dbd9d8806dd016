"""Launchers whose ranks are forked from one process that has torch, for all tests of a session.

Importing torch takes seconds of a core, and a pod of a test lasts as long. A launcher starts here
as a fork of a process that has imported all there is, and so does the process that forks its
ranks; from there on everything is the trainer's own. That launchers start by themselves as well,
as in a container, is for `test_launch`, the examples, and the tests with real pods.
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
"""What torch reads when it is imported, as launchers set it for ranks."""
CPU = "tests.trainer.support.forkserver"
"""Forks ranks of the bundled trainer, which die where a test has planned it."""
STREAM = "tests.trainer.stream_device.forkserver"
"""The same, but they compute on a device with a stream."""
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
        """Start a launcher whose ranks `forkserver`, the name of a module, forks.

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

    def hear_of(self, launcher: Launcher, *, within_seconds: float) -> None:
        """Wait until it has ended, if it does so in that time."""
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
        if code is None:  # the process ID may have been an earlier one's, which has ended
            self._running[pid] = Launcher(self, pid)
            self._started.append(self._running[pid])
        else:
            self._running.pop(pid).returncode = code


class Launcher:
    """One that was forked, to be handled like subprocess.Popen."""

    def __init__(self, process: PreloadedProcess, pid: int) -> None:
        self._process = process
        self.pid = pid
        self.returncode: int | None = None
        """Below 0: by a signal. None: it runs, as far as anybody has asked."""

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        self._process.hear_of(self, within_seconds=0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when it has ended."""
        seconds = timeout if timeout is not None else _START_SECONDS
        self._process.hear_of(self, within_seconds=seconds)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a launcher", seconds)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it, if it still lives."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


@cache
def preloaded_process() -> PreloadedProcess:
    """The one of this session; it ends with this process."""
    return PreloadedProcess()


def serve(channel: socket.socket) -> None:
    """Fork launchers until the tests have ended."""
    for module in (*PRELOADED, *_FORKSERVERS):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests decide what ends when
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([channel.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_who_has_ended(channel)
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


def _tell_who_has_ended(channel: socket.socket) -> None:
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
        _begin_anew(parent, environment)
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
    """What the launcher calls to start its forkserver, or a command once for each rank."""
    if command[0] != sys.executable:
        return _popen(command, environment, keep_fd=keep_fd, streams=streams)
    parent, pid = os.getpid(), os.fork()
    if pid != 0:
        return pid

    def run() -> None:
        os.setsid()
        os.dup2(streams.stdout, 1)
        os.dup2(streams.stderr, 2)
        _begin_anew(parent, environment, keep_fd=keep_fd)
        _run(command[1:])

    code = _code_of(run)
    if command[2] not in _FORKSERVERS:  # as after any script, which may be the end of it
        ctypes.pythonapi.Py_Exit(code)
    end_process(code)


def _code_of(run: Callable[[], None]) -> int:
    """The exit code of a program that was forked, which must not come back into its parent's."""
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
    """What Python would do with these words."""
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


def _begin_anew(parent: int, environment: Mapping[str, str], *, keep_fd: int | None = None) -> None:
    """Have no more of the parent than a program has that was just started."""
    die_with_parent(parent)
    # What the parent's objects remove at its end, such as the launcher's status, is still in use.
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # Otherwise ranks of scripts would log as the launcher, whose handlers they inherit.
    logging.basicConfig(level=logging.WARNING, handlers=(), force=True)
    # Objects of the parent's that hold them live as long as this process, and close nothing.
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
