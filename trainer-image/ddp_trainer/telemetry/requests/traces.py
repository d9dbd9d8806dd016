"""Collects what a pod's ranks wait in: their last collectives, and where they are.

torch's flight recorder knows the collectives. A thread of each rank reads it on request, so it
works while the main thread waits. That thread needs Python's lock and the stacks do not: a rank
with stacks but without an answer of the thread is in a call that holds the lock.

Ranks may write anything, so it is reduced here, in their own pod, to a few kilobytes of plain JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ddp_trainer.flight_recorder.dump import MAX_BYTES, DumpError, reduce_dump
from ddp_trainer.system.processes import Process, all_children
from ddp_trainer.telemetry.hook.sitecustomize import trace_files
from ddp_trainer.telemetry.requests import dumps
from ddp_trainer.telemetry.requests.files import open_regular
from ddp_trainer.telemetry.requests.frames import Frame
from ddp_trainer.telemetry.requests.stacks import read_stacks, tree

PATH = "/traces"
HOLDS_GIL = "a call in C holds its GIL"
_ANSWER_SECONDS = 5.0
"""Time for the stacks, and then for the collectives."""
_REDUCE_SECONDS = 3.0
"""Time to reduce the dumps: those of 16 ranks with torch's 2,000 operations take two."""
_LOOK_SECONDS = 0.02
_MOST_BYTES = 62 * 1024
"""Limit of an answer; the operator refuses more than 64 KB."""
_MOST_OTHER = 700
"""Most bytes of a rank without its dump."""
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ")
_WAITS = "/torch/distributed/"
_BACKWARD = "_engine_run_backward"
"""DDP waits for its collectives inside of the backward pass."""
_TEXT = 80
"""Most characters of a name."""


@dataclass(frozen=True)
class RankTrace:
    """What a rank waits in, and where it is."""

    rank: int
    process: int | None
    """None: it has ended."""
    stack: Sequence[Frame] = ()
    """The innermost frame of the main thread, and the innermost one outside of libraries."""
    waits: bool = False
    """The main thread waits for other ranks."""
    trace: Mapping[str, Any] | None = None
    """The flight recorder's newest operations; see `reduce_dump`."""
    timed_out: bool = False
    """They are from the time when a collective timed out."""
    problem: str = ""
    """Why the rank did not answer."""
    cause: str = ""
    """The problem as one word: `gil`, `ended`, or as of the stacks; empty: another one."""

    def to_json(self) -> dict[str, object]:
        """Return the JSON object to serve."""
        values = asdict(self)
        timed_out = values.pop("timed_out")
        return {**values, "timedOut": timed_out}


def of_ended(ends: Mapping[int, int]) -> list[RankTrace]:
    """Return what there is to say about ranks that have ended, from their exit codes by rank."""
    return [
        RankTrace(rank, None, problem=f"its process has ended with exit code {code}", cause="ended")
        for rank, code in sorted(ends.items())
    ]


def with_dumps(found: Sequence[RankTrace], status_file: Path) -> list[RankTrace]:
    """Add the dumps that the ranks, all of the pod, wrote when a collective timed out."""
    written = dict(_reduced(dumps.read(status_file, {each.rank for each in found}), len(found)))
    return [
        replace(each, trace=written[each.rank], timed_out=True) if each.rank in written else each
        for each in found
    ]


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
    answered = _answers(waiting)
    texts = ((rank, _content(waiting[rank])) for rank in answered)
    traces = dict(_reduced(texts, len(ranks)))
    found = []
    for each in stacks:
        problem, cause = each.problem, each.cause
        if each.rank in waiting and each.rank not in answered:
            problem, cause = HOLDS_GIL, "gil"
        trace, where = traces.get(each.rank), place(each.threads[0] if each.threads else ())
        shown = RankTrace(each.rank, each.process, trace=trace, problem=problem, cause=cause)
        found.append(replace(shown, **where))
    return found


def _reduced(
    written: Iterable[tuple[int, bytes]], ranks: int
) -> Iterable[tuple[int, Mapping[str, Any]]]:
    """Yield the reduced dumps of ranks; without those that are invalid, too large or too late."""
    until = time.monotonic() + _REDUCE_SECONDS
    for rank, content in written:
        with contextlib.suppress(DumpError):
            reduced = reduce_dump(content) if content else {}
            if reduced and len(json.dumps(reduced)) <= _MOST_BYTES // ranks - _MOST_OTHER:
                yield rank, reduced
        if time.monotonic() > until:
            return


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


def _answers(waiting: Mapping[int, Path]) -> list[int]:
    """Return the ranks that write their dumps in time."""
    until = time.monotonic() + _ANSWER_SECONDS
    found: list[int] = []
    while len(found) < len(waiting) and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
        found += [rank for rank, path in waiting.items() if rank not in found and path.exists()]
    return found


def _content(path: Path) -> bytes:
    """Return the content of a file, and remove it; empty if it cannot be read."""
    with contextlib.suppress(OSError), open_regular(path) as file:
        os.unlink(path)
        return file.read(MAX_BYTES + 1)
    return b""


def place(frames: Sequence[Frame]) -> dict[str, Any]:
    """Return the innermost frame, the innermost one outside of libraries, and whether they wait."""
    own = next((each for each in frames if not any(part in each[0] for part in _LIBRARIES)), None)
    stack = [*frames[:1], *([own] if own and own != frames[0] else [])]
    return {
        "stack": [
            (file.rpartition("/")[2][-_TEXT:], line, name[:_TEXT]) for file, line, name in stack
        ],
        "waits": any(_WAITS in file or name == _BACKWARD for file, _, name in frames),
    }
