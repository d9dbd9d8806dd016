"""Finds ranks that a rank's command starts itself, with torchrun or torch.multiprocessing.

The manifest does not show it when an image's entrypoint or a script does so. Each rank of the pod
then starts more ranks, which are too many for the GPUs and need the same ports.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final

from ddp_trainer.launcher.ranks.early_check import EarlyCheck
from ddp_trainer.system.processes import Process, below, tcp_sockets

LOOKS_AT: Final = (3.0, 10.0, 30.0, 120.0)
"""Seconds after the start of the ranks. torchrun takes a few to import torch, a script more."""
_ELASTIC: Final = "TORCHELASTIC_RUN_ID"
"""Set by torchrun, and tools built on it, in all their ranks."""
_OWN: Final = ("RANK", "LOCAL_RANK")


class NestedRanks(EarlyCheck):
    """Looks a few times for nested ranks, until it finds some."""

    def __init__(self) -> None:
        super().__init__(LOOKS_AT)

    def find(self, ranks: Mapping[int, int], variables: Mapping[int, Mapping[str, str]]) -> str:
        """Return which rank's command started ranks of its own; empty: none."""
        for rank, pid in ranks.items():
            if found := list(_started_below(pid, variables.get(rank, {}))):
                return _sentence(rank, found, among=len(ranks))
        return ""


def _started_below(pid: int, variables: Mapping[str, str]) -> Iterator[Process]:
    sockets: set[str] | None = None
    for children in below(pid).values():
        for child in children:
            env = child.environment()
            if _ELASTIC in env and _ELASTIC not in os.environ:
                if "LOCAL_RANK" in env:
                    yield child
            elif any(env.get(name, value) != value for name, value in _given(variables)):
                yield child
            elif "multiprocessing.spawn" in child.words:  # data loaders, too, but without a socket
                sockets = tcp_sockets() if sockets is None else sockets
                if child.has_any(sockets):
                    yield child


def _given(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((name, variables[name]) for name in _OWN if name in variables)


def _sentence(rank: int, found: list[Process], *, among: int) -> str:
    what = f"rank {rank}'s command starts ranks of its own: {len(found)} so far, such as {found[0]}"
    if among == 1:
        return what
    return (
        f"{what}, and so may each of this pod's {among}: set spec.nprocPerNode to 1, or start the "
        "script with plain python"
    )
