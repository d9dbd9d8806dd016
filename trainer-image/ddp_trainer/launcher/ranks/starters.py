"""Two ways to start a rank: as a command of its own, or forked from a process that has torch.

Both are started from one thread and end with the launcher, whatever ends it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

from ddp_trainer.launcher.output.rank_output import OWN_STREAMS, Streams
from ddp_trainer.launcher.ranks.forkserver import READY, read_started, send_request
from ddp_trainer.system.deathsignal import die_with_parent
from ddp_trainer.telemetry.termination import REPORT_FD_VARIABLE

FORKSERVER = "ddp_trainer.launcher.ranks.forkserver"
"""The module that forks ranks of the bundled trainer; another one may prepare them otherwise before
it serves.
"""
SCRIPTS = "ddp_trainer.launcher.ranks.scripts"
"""The module that forks ranks of a script."""


class Starter(Protocol):
    """Starts ranks as children of this process."""

    def warm_up(self) -> None:
        """Do beforehand, without waiting for it, what can be done before any rank is to start.

        Raises:
            OSError: it cannot be done.
        """

    def is_warm(self) -> bool:
        """Whether that is done, as far as `started` has told."""

    def start(
        self, rank: int, variables: Mapping[str, str], *, report_fd: int, streams: Streams
    ) -> None:
        """Begin to start a rank, with `variables` on top of what all ranks have.

        The file descriptors may be closed when this returns.

        Raises:
            OSError: it cannot be started.
        """

    def started(self) -> list[tuple[int, int]]:
        """(rank, process ID) of those started since the last call."""

    def own_child_ended(self, pid: int) -> bool:
        """Whether `pid` was a process that starting needs; ranks not yet started are lost then."""

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to what starts ranks, which ends it."""


class CommandStarter:
    """Runs a command once for each rank."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = command
        self._environment = environment
        self._started: list[tuple[int, int]] = []

    def warm_up(self) -> None:
        """There is nothing to do."""

    def is_warm(self) -> bool:
        """It always is."""
        return True

    def start(
        self, rank: int, variables: Mapping[str, str], *, report_fd: int, streams: Streams
    ) -> None:
        """Start it at once."""
        process = _popen(
            self._command,
            {**self._environment, **variables, REPORT_FD_VARIABLE: str(report_fd)},
            keep_fd=report_fd,
            streams=streams,
        )
        self._started.append((rank, process))

    def started(self) -> list[tuple[int, int]]:
        """Those started since the last call."""
        started, self._started = self._started, []
        return started

    def own_child_ended(self, pid: int) -> bool:
        """A command needs no other process."""
        del pid
        return False

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing is ever being started."""
        del number


class ForkserverStarter:
    """Forks ranks from a server, which is started when it is needed."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        module: str | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """`arguments`: of the server, after its socket. `module`: the server; by default the one
        of the bundled trainer. `options`: Python's, for it.
        """
        self._command = [sys.executable, *options, "-m", module or FORKSERVER]
        self._arguments = arguments
        self._environment = environment
        self._server: int | None = None
        self._channel: socket.socket | None = None
        self._is_warm = False

    def warm_up(self) -> None:
        """Start the server, which imports what ranks need."""
        if self._channel is None:
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                command = [*self._command, str(theirs.fileno()), *self._arguments]
                self._server = _popen(command, self._environment, keep_fd=theirs.fileno())

    def is_warm(self) -> bool:
        """Whether the server has said that it is ready."""
        return self._is_warm

    def start(
        self, rank: int, variables: Mapping[str, str], *, report_fd: int, streams: Streams
    ) -> None:
        """Ask for it; `started` tells when it is there."""
        self.warm_up()
        assert self._channel is not None
        # A server that is dead already takes this rank along: its end is still to be seen.
        with contextlib.suppress(ConnectionError):
            send_request(self._channel, rank, variables, report_fd=report_fd, streams=streams)

    def started(self) -> list[tuple[int, int]]:
        """Those that the server has started since the last call."""
        told = read_started(self._channel) if self._channel is not None else []
        self._is_warm = self._is_warm or any(rank == READY for rank, _ in told)
        return [(rank, pid) for rank, pid in told if rank != READY]

    def own_child_ended(self, pid: int) -> bool:
        """The server: another one takes its place when the next rank is to start."""
        if pid != self._server:
            return False
        if self._channel is not None:
            self._channel.close()
        self._server, self._channel, self._is_warm = None, None, False
        return True

    def send_signal(self, number: signal.Signals) -> None:
        """Send it to the server, if that is there."""
        if self._server is not None:
            os.kill(self._server, number)


def _popen(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    keep_fd: int,
    streams: Streams = OWN_STREAMS,
) -> int:
    """Process ID of a new child in a session of its own, with no signals blocked."""
    parent = os.getpid()

    def prepare() -> None:
        die_with_parent(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    process = subprocess.Popen(
        command,
        env=environment,
        pass_fds=[keep_fd],
        stdout=streams.stdout,
        stderr=streams.stderr,
        # Ctrl-C reaches the launcher alone, which forwards it once.
        start_new_session=True,
        preexec_fn=prepare,  # noqa: PLW1509 - takes no lock that another thread could hold
    )
    # It is the caller who waits for all children: to Popen this one counts as waited for.
    process.returncode = 0
    return process.pid
