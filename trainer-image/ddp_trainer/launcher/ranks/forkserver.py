"""A process that imports torch once and forks ranks, so that they start at once.

    python -m ddp_trainer.launcher.ranks.forkserver SOCKET [flags of the trainer]

`scripts` does the same for ranks that run a user's script.

Importing torch takes longer than everything else that a new rank does before its first step. The
launcher requests one rank at a time over a socket. Each rank is forked twice, so it becomes a child
of the launcher. The launcher waits for it, learns its exit code, and takes it down when it dies.

Nothing here may touch CUDA: a process that uses CUDA cannot be forked.
"""

from __future__ import annotations

import array
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ddp_trainer.exit_codes import ExitCode
from ddp_trainer.launcher.output.rank_output import Streams
from ddp_trainer.system.deathsignal import die_with_parent
from ddp_trainer.system.logs import end_process, flush_streams

STARTED_SIGNAL = signal.SIGUSR1
"""Signal to the launcher that it can read the process ID of a rank from the socket."""
READY = -1
"""Sent instead of a rank: the server can now fork ranks."""
_MESSAGE_BYTES = 65536
PRELOADED = (
    "torch",
    "torch._dynamo",  # every first optimizer of a process imports it
    "torch.distributed",
    "ddp_trainer.__main__",
    "ddp_trainer.loop.rank",
)
"""Modules that are imported before ranks are forked."""


def send_request(
    channel: socket.socket,
    rank: int,
    variables: Mapping[str, str],
    *,
    report_fd: int,
    streams: Streams,
) -> None:
    """Request a rank with these variables added to the server's own; called by the launcher."""
    request = json.dumps({"rank": rank, "variables": dict(variables)}).encode()
    fds = array.array("i", [report_fd, *streams])
    channel.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])


def read_started(channel: socket.socket) -> list[tuple[int, int]]:
    """Return (rank, process ID) of the ranks started since the last call, without waiting.

    The first entry is `READY` with the server's own process ID.
    """
    started: list[tuple[int, int]] = []
    while True:
        try:
            message = channel.recv(_MESSAGE_BYTES, socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionError):
            return started
        if not message:
            return started
        rank, pid = json.loads(message)
        started.append((rank, pid))


def serve(channel: socket.socket, arguments: Sequence[str]) -> None:
    """Fork a rank of the bundled trainer for each request until the launcher closes the socket."""
    gc.disable()  # an import leaves nothing to collect, and takes a fifth longer with it
    for module in PRELOADED:
        importlib.import_module(module)
    if fork_ranks(channel):
        _train(arguments)


def fork_ranks(channel: socket.socket) -> bool:
    """Fork a rank for each request.

    Returns:
        True in each rank, which the caller then runs; false when the launcher closed the socket.
    """
    launcher = os.getppid()
    # The ranks share the memory of these objects until something writes to it. The garbage
    # collector would write.
    gc.collect()
    gc.freeze()
    gc.enable()
    flush_streams()  # otherwise each rank prints the buffered output again
    _tell(channel, launcher, READY, os.getpid())
    while True:
        request, fds, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 3)
        if not request:
            return False
        between = os.fork()
        if between == 0 and _fork_rank(channel, json.loads(request), fds, launcher):
            return True
        for fd in fds:
            os.close(fd)
        _, status = os.waitpid(between, 0)
        if status != 0:
            sys.exit("cannot fork a rank")  # so that the launcher does not wait for it


def _fork_rank(
    channel: socket.socket, request: Mapping[str, object], fds: Sequence[int], launcher: int
) -> bool:
    """Fork the rank from the process in between, announce it to the launcher, and exit.

    Returns in the rank only.
    """
    code = ExitCode.FAILURE
    try:
        between = os.getpid()
        rank = os.fork()
        if rank == 0:
            _become_rank(channel, request, fds, between, launcher)
            return True
        try:
            # The launcher must hear of the rank before it can see it die.
            _tell(channel, launcher, request["rank"], rank)
        except OSError:  # the launcher dropped this server, and starts the rank from another one
            os.kill(rank, signal.SIGKILL)
        code = ExitCode.DONE
    except OSError:
        traceback.print_exc()
    os._exit(code)


def _tell(channel: socket.socket, launcher: int, rank: object, pid: int) -> None:
    channel.send(json.dumps([rank, pid]).encode())
    os.kill(launcher, STARTED_SIGNAL)


def _become_rank(
    channel: socket.socket,
    request: Mapping[str, object],
    fds: Sequence[int],
    between: int,
    launcher: int,
) -> None:
    try:
        report_fd, *streams = fds
        for number, stream in enumerate(streams, start=1):
            os.dup2(stream, number)
            os.close(stream)
        while os.getppid() == between:
            time.sleep(0.0005)
        die_with_parent(launcher)
        channel.close()
        os.setsid()  # Ctrl-C reaches only the launcher, which forwards it once
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        variables = request["variables"]
        assert isinstance(variables, dict)
        os.environ |= variables
        os.environ["DDP_REPORT_FD"] = str(report_fd)
        # Shown by ps and top; the command line is still the server's.
        with open("/proc/self/comm", "w") as name:
            name.write(f"ddp-rank-{request['rank']}")
    except Exception:
        traceback.print_exc()
        end_process(ExitCode.FAILURE)


def _train(arguments: Sequence[str]) -> NoReturn:
    code: int = ExitCode.FAILURE
    try:
        code = importlib.import_module("ddp_trainer.__main__").main(arguments)
    except Exception:
        traceback.print_exc()
    finally:
        end_process(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
