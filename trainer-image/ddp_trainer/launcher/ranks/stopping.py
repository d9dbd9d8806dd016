"""Sends SIGTERM to the processes of a rank in an order that lets the training process save.

A rank's command can be a shell line (`python train.py | tee log`) or a program that starts another
one. Then the rank's own process just dies on SIGTERM, and all others with it. As with torchrun, the
signal goes to the whole process group, but in two steps. Processes that handle SIGTERM get it
first. The others, such as `tee`, get it once those have ended, since they may still be needed.
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
"""How often to check whether the processes that handle the signal have ended; no event tells it."""


@dataclass(kw_only=True)
class _Group:
    """The processes that a rank has started."""

    saving: Sequence[Process]
    """Processes that handle the signal and have received it."""
    rest: Sequence[Process]
    """Processes that receive it later."""
    over_at: float | None = None
    """When the rest receives it, after all processes in `saving` have ended."""


class Stopping:
    """Process groups of ranks in which a process may still save after SIGTERM."""

    def __init__(self) -> None:
        self._groups: dict[int, _Group] = {}
        """By the process ID of the rank, which is also the ID of its process group."""

    def tell(self, pid: int) -> None:
        """Send SIGTERM once to each process of a rank."""
        leader = read_process(pid)
        if leader is None:
            return
        tree = below(pid)
        told = list(_handlers(leader, tree))
        saving = [one for one in told if not one.is_shell]
        if saving == [leader]:
            leader.send(signal.SIGTERM)  # it stops its own child processes
        elif not saving:
            end_group(pid, signal.SIGTERM)
        else:
            everybody = (leader, *(child for children in tree.values() for child in children))
            rest = [one for one in everybody if one not in told]
            self._groups[pid] = _Group(saving=saving, rest=rest)
            for one in told:
                one.send(signal.SIGTERM)

    def look(self) -> None:
        """Send SIGTERM to the rest of each group in which all saving processes have ended."""
        now = time.monotonic()
        for pid, group in list(self._groups.items()):
            if group.over_at is None and not any(one.is_there() for one in group.saving):
                group.over_at = now + LOOK_SECONDS  # the rest usually ends by itself
            if group.over_at is not None and now >= group.over_at:
                del self._groups[pid]
                for one in group.rest:
                    one.send(signal.SIGTERM)

    def waits_for(self, pid: int) -> bool:
        """Return True if a process of the rank may still save."""
        return pid in self._groups

    @property
    def is_busy(self) -> bool:
        """True: call `look` again soon."""
        return bool(self._groups)


def end_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a rank and the remaining processes that it started."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:  # it does not have its own group yet
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _handlers(process: Process, tree: Mapping[int, Sequence[Process]]) -> Iterator[Process]:
    """Yield the first process on each branch that handles SIGTERM: it stops those below it.

    A shell does not stop its children. It gets the signal so that it does not run its next line.
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
    """Return True for helpers of the parent, such as data loaders; the parent fails without them.

    They handle SIGTERM, too, and have no TCP connections.
    """
    words = child.words
    if "multiprocessing.spawn" in words:
        return not child.has_any(tcp_sockets())
    return words == parent.words or "from multiprocessing." in words
