"""Tells what a rank's command has started to end, so that the one that trains can save.

Where the command is a shell's line (`python train.py | tee log`), or a program that starts another
one, the rank's own process does nothing about SIGTERM but die, and takes all others along. As with
torchrun the signal is for its whole process group, with one difference: what handles it gets it
first, and the rest of the group, such as `tee`, once that has ended, for it may still be of use.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ddp_trainer.system.processes import Process, below, read_process, tcp_sockets

LOOK_SECONDS: Final = 0.2
"""How often to look whether those that handle the signal have ended: nothing tells of it."""


@dataclass(kw_only=True)
class _Group:
    """What a rank has started."""

    saving: Sequence[Process]
    """What handles the signal, and got it."""
    rest: Sequence[Process]
    """What gets it later."""
    over_at: float | None = None
    """When the rest gets it, since none of the others runs any more."""


class Stopping:
    """The process groups of ranks in which something saves that was told to end."""

    def __init__(self) -> None:
        self._groups: dict[int, _Group] = {}
        """By the process ID of the rank, which is that of its process group."""

    def tell(self, pid: int) -> None:
        """Have a rank end, by SIGTERM for each of its processes, once."""
        leader = read_process(pid)
        if leader is None:
            return
        tree = below(pid)
        told = list(_handlers(leader, tree))
        saving = [one for one in told if not one.is_shell]
        if saving == [leader]:
            leader.send(signal.SIGTERM)  # what it has started is its own affair
        elif not saving:
            end_group(pid, signal.SIGTERM)
        else:
            everybody = (leader, *(child for children in tree.values() for child in children))
            rest = [one for one in everybody if one not in told]
            self._groups[pid] = _Group(saving=saving, rest=rest)
            for one in told:
                one.send(signal.SIGTERM)

    def look(self) -> None:
        """See who has ended, and have the rest end."""
        now = time.monotonic()
        for pid, group in list(self._groups.items()):
            if group.over_at is None and not any(one.is_there() for one in group.saving):
                group.over_at = now + LOOK_SECONDS  # as a rule the rest ends by itself
            if group.over_at is not None and now >= group.over_at:
                del self._groups[pid]
                for one in group.rest:
                    one.send(signal.SIGTERM)

    def waits_for(self, pid: int) -> bool:
        """Whether something of a rank may still save."""
        return pid in self._groups

    @property
    def is_busy(self) -> bool:
        """Whether to look again soon."""
        return bool(self._groups)


def end_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a rank and all that is left of what it has started."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:  # it has no group of its own yet
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _handlers(process: Process, tree: Mapping[int, Sequence[Process]]) -> Iterator[Process]:
    """Of a tree the first on each branch that handles SIGTERM, for it knows about those below it.

    A shell knows nothing of what it waits for; it gets the signal lest it run its next line.
    """
    children = tree.get(process.pid, ())
    handles = process.handles(signal.SIGTERM)
    if handles and not (process.is_shell and children):
        yield process
        return
    inner = [
        found
        for child in children
        if process.is_shell or not _is_helper(child, process)
        for found in _handlers(child, tree)
    ]
    yield from inner
    if process.is_shell and (inner or handles):
        yield process


def _is_helper(child: Process, parent: Process) -> bool:
    """Whether a process only works for its parent, as those that load data do: without them it
    fails. They handle SIGTERM, too, and talk to nobody else.
    """
    words = child.words
    if "multiprocessing.spawn" in words:
        return not child.has_any(tcp_sockets())
    return words == parent.words or "from multiprocessing." in words
