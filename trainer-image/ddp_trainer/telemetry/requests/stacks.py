"""Shows the Python stacks of a pod's ranks on request.

The interpreter's own handler writes them, so it works even if a thread hangs. SIGUSR1 writes them
to the pod's log. Another signal writes them to a file of each process, for the answer to a request.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ddp_trainer.system.processes import Process, all_children, handles, state
from ddp_trainer.telemetry.hook import sitecustomize
from ddp_trainer.telemetry.hook.sitecustomize import (
    answer_with_stacks,
    answer_with_traces,
    stacks_file,
)
from ddp_trainer.telemetry.requests.files import open_regular
from ddp_trainer.telemetry.requests.frames import Frame, parse

HOOK = Path(sitecustomize.__file__).parent
"""On the PYTHONPATH of a script, it lets the script's processes answer."""
SIGNAL = signal.SIGUSR1
_BETWEEN_RANKS_SECONDS = 0.1
"""Time to write a stack, so that the stacks of one rank stay together in the log."""
_QUIET_SECONDS = 0.1
"""A process that writes nothing for this long has written all its stacks."""
_ANSWER_SECONDS = 2.0
_LOOK_SECONDS = 0.01
_MOST_BYTES = 128 * 1024
"""Limit of a rank's stacks: about a thousand frames."""

_REASONS = {
    "T": ("stopped", "it is stopped (SIGSTOP)"),
    "t": ("stopped", "a debugger has stopped it"),
    "D": ("kernel", "it waits in the kernel for storage or a device"),
    "": ("", "it is stopped, or stuck in the kernel"),
}
"""Why a process does not answer a signal, by its state in proc(5): for programs, and in words.
Empty: any other state."""

_logger = logging.getLogger(__name__)


def dump_on_signal() -> None:
    """Make SIGUSR1 write the stacks of all threads to stderr, and another signal to a file.

    The process answers requests for its collectives, too. An earlier handler of the script is
    called after the stacks.
    """
    was_handled = callable(signal.getsignal(SIGNAL))  # its default action would end the process
    faulthandler.register(SIGNAL, file=sys.stderr, all_threads=True, chain=was_handled)
    answer_with_stacks()
    answer_with_traces()


def listening(ranks: Mapping[int, int]) -> dict[int, int]:
    """Return the processes, by rank, that handle SIGUSR1, which kills others."""
    return {rank: pid for rank, pid in sorted(ranks.items()) if handles(pid, SIGNAL)}


def ask_for_stacks(ranks: Mapping[int, int]) -> None:
    """Send the signal to processes that are `listening`, one after another."""
    for rank, pid in ranks.items():
        _logger.info("asking rank %d (process %d) for its stacks", rank, pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, SIGNAL)
        time.sleep(_BETWEEN_RANKS_SECONDS)


@dataclass(frozen=True)
class RankStacks:
    """The stacks of a rank, or why there are none."""

    rank: int
    process: int
    threads: Sequence[Sequence[Frame]] = ()
    """The main thread first; of each the innermost frame first."""
    problem: str = ""
    cause: str = ""
    """The problem as one word: `stopped`, `kernel`; empty: another one."""

    def to_json(self) -> dict[str, object]:
        """Return the JSON object to serve."""
        return asdict(self)


def read_stacks(
    ranks: Mapping[int, int],
    status_file: Path,
    *,
    seconds: float = _ANSWER_SECONDS,
    children: Mapping[int, Sequence[Process]] | None = None,
) -> list[RankStacks]:
    """Ask all processes at once, and return their stacks by rank, within `seconds`.

    For a rank that is not a Python process, such as a shell, the nearest one below it is asked.
    `children`: as `all_children` returns them; None: list them.
    """
    children = all_children() if children is None else children
    asked: dict[int, tuple[int, Path]] = {}
    for rank, pid in sorted(ranks.items()):
        for each in tree(pid, children):
            path = Path(stacks_file(str(status_file), each))
            if path.exists() and handles(each, sitecustomize.SIGNAL):
                asked[rank] = each, path
                break
    told = []
    for rank, (pid, path) in asked.items():
        with contextlib.suppress(OSError):
            os.truncate(path, 0)
            os.kill(pid, sitecustomize.SIGNAL)
            told.append(rank)
    _wait_until_quiet([asked[rank][1] for rank in told], seconds)
    return [
        _answer(rank, *asked[rank], seconds)
        if rank in asked
        else RankStacks(rank, pid, problem="it is not a Python process, or is still starting")
        for rank, pid in sorted(ranks.items())
    ]


def _wait_until_quiet(paths: list[Path], seconds: float) -> None:
    now = time.monotonic()
    until = now + seconds
    sizes = dict.fromkeys(paths, 0)
    changed = dict.fromkeys(paths, now)
    while now < until and any(
        sizes[path] == 0 or now - changed[path] < _QUIET_SECONDS for path in paths
    ):
        time.sleep(_LOOK_SECONDS)
        now = time.monotonic()
        for path in paths:
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                if size != sizes[path]:
                    sizes[path], changed[path] = size, now


def _answer(rank: int, pid: int, path: Path, seconds: float) -> RankStacks:
    try:
        with open_regular(path) as file:
            text = file.read(_MOST_BYTES).decode(errors="replace")
    except OSError as error:
        return RankStacks(rank, pid, problem=f"its stacks cannot be read: {error.strerror}")
    if not text:
        cause, why = _REASONS.get(state(pid), _REASONS[""])
        said = f"no answer within {seconds:g} s: {why}"
        return RankStacks(rank, pid, problem=said, cause=cause)
    return RankStacks(rank, pid, parse(text))


def tree(pid: int, children: Mapping[int, Sequence[Process]]) -> Iterator[int]:
    """Yield a process and those below it, the nearest first."""
    level = [pid]
    while level:
        yield from level
        level = sorted(child.pid for parent in level for child in children.get(parent, ()))
