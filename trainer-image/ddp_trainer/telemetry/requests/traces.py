"""Collects what a pod's ranks wait in: their last collectives, and where they are.

torch's flight recorder knows the collectives. A thread of each rank reads it on request, so it
works while the main thread waits. That thread needs Python's lock and the stacks do not: a rank
with stacks but without an answer of the thread is in a call that holds the lock.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ddp_trainer.system.processes import Process, all_children
from ddp_trainer.telemetry.hook.sitecustomize import trace_files
from ddp_trainer.telemetry.requests import dumps
from ddp_trainer.telemetry.requests.files import open_regular
from ddp_trainer.telemetry.requests.stacks import read_stacks, tree

PATH = "/traces"
HOLDS_GIL = "a call in C holds its GIL"
_ANSWER_SECONDS = 5.0
"""Time for the stacks, and then for the collectives."""
_LOOK_SECONDS = 0.02
_MOST_BYTES = 128 * 1024
"""Limit of a rank's dump: about 300 operations."""
_MOST_STACK = 8 * 1024
_MAIN_THREAD = "Current thread "
"""How the stack of the thread begins that receives the signal."""


@dataclass(frozen=True)
class RankTrace:
    """What a rank waits in, and where it is."""

    rank: int
    process: int | None
    """None: it has ended."""
    stack: str = ""
    """Of the main thread."""
    trace: str = ""
    """The flight recorder's dump as JSON; empty if there is none."""
    problem: str = ""
    """Why the rank did not answer."""
    cause: str = ""
    """The problem as one word: `gil`, `ended`, or as of the stacks; empty: another one."""
    dump: str = ""
    """The dump that torch wrote when a collective timed out; see `dumps.read`."""

    def to_json(self) -> dict[str, object]:
        """Return the JSON object to serve."""
        return asdict(self)


def of_ended(ends: Mapping[int, int]) -> list[RankTrace]:
    """Return what there is to say about ranks that have ended, from their exit codes by rank."""
    return [
        RankTrace(rank, None, problem=f"its process has ended with exit code {code}", cause="ended")
        for rank, code in sorted(ends.items())
    ]


def with_dumps(found: Sequence[RankTrace], status_file: Path) -> list[RankTrace]:
    """Add the dumps that the ranks, all of the pod, wrote before their end, or their coming one."""
    written = dumps.read(status_file, {each.rank for each in found})
    return [replace(each, dump=written.get(each.rank, "")) for each in found]


def read_traces(ranks: Mapping[int, int], status_file: Path) -> list[RankTrace]:
    """Ask all processes at once, and return their answers by rank, within ten seconds.

    Of the processes of a rank, the nearest one that uses torch.distributed is asked.
    """
    children = all_children()
    asked = {rank: _user_of_torch(pid, children, status_file) for rank, pid in ranks.items()}
    stacks = read_stacks(asked, status_file, seconds=_ANSWER_SECONDS, children=children)
    silent = {each.rank for each in stacks if each.problem}
    waiting: dict[int, Path] = {}
    for rank, pid in asked.items():
        pipe, path = trace_files(str(status_file), pid)
        if rank not in silent and _ask(pipe, path):
            waiting[rank] = Path(path)
    traces = _answers(waiting)
    found = []
    for each in stacks:
        trace, problem, cause = traces.get(each.rank), each.problem, each.cause
        if each.rank in waiting and trace is None:
            problem, cause = HOLDS_GIL, "gil"
        stack = _main(each.stacks)
        found.append(RankTrace(each.rank, each.process, stack, trace or "", problem, cause))
    return found


def _user_of_torch(pid: int, children: Mapping[int, Sequence[Process]], status_file: Path) -> int:
    below = tree(pid, children)
    found = (each for each in below if os.path.exists(trace_files(str(status_file), each)[0]))
    return next(found, pid)


def _ask(pipe: str, path: str) -> bool:
    """Wake the thread that waits at a pipe; return False if there is none."""
    with contextlib.suppress(OSError):
        os.unlink(path)
    try:
        # Fails without a reader, and does not wait for one.
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW))
    except OSError:
        return False
    return True


def _answers(waiting: Mapping[int, Path]) -> dict[int, str]:
    """Return the dumps that are written in time; a dump that is too large is empty."""
    until = time.monotonic() + _ANSWER_SECONDS
    found: dict[int, str] = {}
    while len(found) < len(waiting) and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
        for rank, path in waiting.items():
            if rank not in found and path.exists():
                found[rank] = _content(path)
    return found


def _content(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read or is too large."""
    with contextlib.suppress(OSError), open_regular(path) as file:
        content = file.read(_MOST_BYTES + 1)
        if len(content) <= _MOST_BYTES:
            return content.decode(errors="replace")
    return ""


def _main(stacks: str) -> str:
    """Return the main thread's part of all stacks."""
    at = stacks.find(_MAIN_THREAD)
    return stacks[at:].partition("\n\n")[0][:_MOST_STACK] if at >= 0 else ""
