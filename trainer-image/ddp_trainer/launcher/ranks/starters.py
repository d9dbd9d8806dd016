"""Two ways to start a rank: as a command, or forked from a process that has imported torch.

Ranks are started from one thread, and end when the launcher ends for any reason.
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
"""The module that forks ranks of the bundled trainer. Tests replace it to prepare the ranks."""
SCRIPTS = "ddp_trainer.launcher.ranks.scripts"
"""The module that forks ranks of a script."""


class Starter(Protocol):
    """Starts ranks as children of this process."""

    def warm_up(self) -> None:
        """Begin the preparations for starting ranks, without waiting for them.

        Raises:
            OSError: they cannot begin.
        """

    def is_warm(self) -> bool:
        """Return True if the preparations are done, as of the last call of `started`."""

    def start(
        self, rank: int, variables: Mapping[str, str], *, report_fd: int, streams: Streams
    ) -> None:
        """Begin to start a rank, with `variables` added to those of all ranks.

        The caller may close the file descriptors afterwards.

        Raises:
            OSError: the rank cannot be started.
        """

    def started(self) -> list[tuple[int, int]]:
        """Return (rank, process ID) of the ranks started since the last call."""

    def own_child_ended(self, pid: int) -> bool:
        """Return True if `pid` was the process that starts ranks; pending ranks are lost then."""

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process that starts ranks, which ends it."""


class CommandStarter:
    """Runs a command once for each rank."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = command
        self._environment = environment
        self._started: list[tuple[int, int]] = []

    def warm_up(self) -> None:
        """Do nothing: a command needs no preparation."""

    def is_warm(self) -> bool:
        """Return True."""
        return True

    def start(
        self, rank: int, variables: Mapping[str, str], *, report_fd: int, streams: Streams
    ) -> None:
        """Start the command."""
        process = _popen(
            self._command,
            {**self._environment, **variables, REPORT_FD_VARIABLE: str(report_fd)},
            keep_fd=report_fd,
            streams=streams,
        )
        self._started.append((rank, process))

    def started(self) -> list[tuple[int, int]]:
        """Return the ranks started since the last call."""
        started, self._started = self._started, []
        return started

    def own_child_ended(self, pid: int) -> bool:
        """Return False: a command needs no other process."""
        del pid
        return False

    def send_signal(self, number: signal.Signals) -> None:
        """Do nothing: no other process starts the ranks."""
        del number


class ForkserverStarter:
    """Forks ranks from a server process, which it starts when needed."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        module: str | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """`arguments`: the server's arguments after its socket. `module`: the server's module; by
        default that of the bundled trainer. `options`: options of Python for the server.
        """
        self._command = [sys.executable, *options, "-m", module or FORKSERVER]
        self._arguments = arguments
        self._environment = environment
        self._server: int | None = None
        self._channel: socket.socket | None = None
        self._is_warm = False

    def warm_up(self) -> None:
        """Start the server, which imports the modules that ranks need."""
        if self._channel is None:
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                command = [*self._command, str(theirs.fileno()), *self._arguments]
                self._server = _popen(command, self._environment, keep_fd=theirs.fileno())

    def is_warm(self) -> bool:
        """Return True if the server has reported that it is ready."""
        return self._is_warm

    def start(
        self, rank: int, variables: Mapping[str, str], *, report_fd: int, streams: Streams
    ) -> None:
        """Request the rank from the server; `started` returns it once it runs."""
        self.warm_up()
        assert self._channel is not None
        # If the server is already dead, this rank is lost; `own_child_ended` reports it.
        with contextlib.suppress(ConnectionError):
            send_request(self._channel, rank, variables, report_fd=report_fd, streams=streams)

    def started(self) -> list[tuple[int, int]]:
        """Return the ranks that the server has started since the last call."""
        told = read_started(self._channel) if self._channel is not None else []
        self._is_warm = self._is_warm or any(rank == READY for rank, _ in told)
        return [(rank, pid) for rank, pid in told if rank != READY]

    def own_child_ended(self, pid: int) -> bool:
        """Return True for the server; a new one starts with the next rank."""
        if pid != self._server:
            return False
        if self._channel is not None:
            self._channel.close()
        self._server, self._channel, self._is_warm = None, None, False
        return True

    def send_signal(self, number: signal.Signals) -> None:
        """Send the signal to the server, if it runs."""
        if self._server is not None:
            os.kill(self._server, number)


def _popen(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    keep_fd: int,
    streams: Streams = OWN_STREAMS,
) -> int:
    """Start a child in its own session, with no signals blocked; return its process ID."""
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
        # Ctrl-C reaches only the launcher, which forwards it once.
        start_new_session=True,
        preexec_fn=prepare,  # noqa: PLW1509 - takes no lock that another thread could hold
    )
    # The supervisor waits for all children. For Popen this child must count as already waited for.
    process.returncode = 0
    return process.pid
