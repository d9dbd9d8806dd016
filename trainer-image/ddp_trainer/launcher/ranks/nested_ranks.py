"""Finds ranks that a rank's command starts by itself, by torchrun or torch.multiprocessing.

No manifest tells of it where an image's entrypoint or a script does it. Then each of the pod's
ranks starts some more: they are too many for the GPUs, and want the same ports.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Final

from ddp_trainer.system.processes import Process, below, tcp_sockets

LOOKS_AT: Final = (3.0, 10.0, 30.0, 120.0)
"""Seconds after ranks were started; torchrun takes a few to import torch, and a script more."""
_ELASTIC: Final = "TORCHELASTIC_RUN_ID"
"""What torchrun and those built on it set in all their ranks."""
_OWN: Final = ("RANK", "LOCAL_RANK")


class NestedRanks:
    """Looks for them a few times, until some are found."""

    def __init__(self) -> None:
        self.remark = ""
        """What was found, in words."""
        self._looks: list[float] = []

    def begin(self) -> None:
        """Ranks have been started."""
        now = time.monotonic()
        self._looks = [now + seconds for seconds in LOOKS_AT]

    @property
    def due_in_seconds(self) -> float | None:
        """When to look next; None: not again."""
        return max(self._looks[0] - time.monotonic(), 0.0) if self._looks else None

    def look(self, ranks: Mapping[int, int], variables: Mapping[int, Mapping[str, str]]) -> bool:
        """Look, if it is time to; whether some are found now.

        `ranks`: process IDs by rank. `variables`: what each was started with.
        """
        if not self._looks or time.monotonic() < self._looks[0]:
            return False
        del self._looks[0]
        for rank, pid in ranks.items():
            found = list(_started_below(pid, variables.get(rank, {})))
            if found:
                self._looks.clear()
                self.remark = _sentence(rank, found, among=len(ranks))
                return True
        return False


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
            elif "multiprocessing.spawn" in child.words:  # so are loaders of data, without a port
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
        "script by python alone"
    )
