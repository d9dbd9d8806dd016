"""Shows where the ranks of a pod stand: their Python stacks, on request.

The interpreter's own handler writes them, and needs nothing of the thread that hangs: at SIGUSR1 to
the pod's log, and at another signal to a file of each process, for who asks to be answered.
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

from ddp_trainer.system.processes import Process, all_children, handles
from ddp_trainer.telemetry.hook import sitecustomize
from ddp_trainer.telemetry.hook.sitecustomize import answer_with_stacks, stacks_file

HOOK = Path(sitecustomize.__file__).parent
"""On the PYTHONPATH of a script it makes its processes answer."""
SIGNAL = signal.SIGUSR1
_BETWEEN_RANKS_SECONDS = 0.1
"""Enough to write a stack, so that those of one rank stand together in the log."""
_QUIET_SECONDS = 0.1
"""A process that has written nothing more for so long has written all its stacks."""
_ANSWER_SECONDS = 2.0
_LOOK_SECONDS = 0.01
_MOST_BYTES = 128 * 1024
"""Of a rank's stacks: about a thousand frames."""

_logger = logging.getLogger(__name__)


def dump_on_signal() -> None:
    """From here on the signal makes this process write the stacks of all threads to stderr,
    and another one to its file.
    """
    faulthandler.register(SIGNAL, file=sys.stderr, all_threads=True)
    answer_with_stacks()


def listening(ranks: Mapping[int, int]) -> dict[int, int]:
    """Those of the processes, by rank, that the signal would not kill."""
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
    """Where one rank stands, or why that cannot be told."""

    rank: int
    process: int
    stacks: str = ""
    problem: str = ""

    def to_json(self) -> dict[str, object]:
        """As it is served."""
        return asdict(self)


def read_stacks(ranks: Mapping[int, int], status_file: Path) -> list[RankStacks]:
    """Ask the processes, by rank, all at once; it takes two seconds at most.

    A rank that is no Python process, such as a shell, is asked by the nearest one below it.
    """
    children = all_children()
    asked: dict[int, tuple[int, Path]] = {}
    for rank, pid in sorted(ranks.items()):
        for each in _tree(pid, children):
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
    _wait_until_quiet([asked[rank][1] for rank in told])
    return [
        _answer(rank, *asked[rank])
        if rank in asked
        else RankStacks(rank, pid, problem="it is no Python process that has started by now")
        for rank, pid in sorted(ranks.items())
    ]


def _wait_until_quiet(paths: list[Path]) -> None:
    now = time.monotonic()
    until = now + _ANSWER_SECONDS
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


def _answer(rank: int, pid: int, path: Path) -> RankStacks:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode(errors="replace")
    except OSError as error:
        return RankStacks(rank, pid, problem=f"its stacks cannot be read: {error.strerror}")
    if not text:
        said = f"it did not answer in {_ANSWER_SECONDS:g} s: it is stopped, or stuck in the kernel"
        return RankStacks(rank, pid, problem=said)
    return RankStacks(rank, pid, text)


def _tree(pid: int, children: Mapping[int, Sequence[Process]]) -> Iterator[int]:
    """A process and those below it, the nearest first."""
    level = [pid]
    while level:
        yield from level
        level = sorted(child.pid for parent in level for child in children.get(parent, ()))
