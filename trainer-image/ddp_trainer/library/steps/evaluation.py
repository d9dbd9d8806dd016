"""How ranks share out what they evaluate, so that each sample counts once whoever comes or goes.

A test set has as many parts as there are ranks when its evaluation begins. A part stays with the
rank that has begun it, for what it adds up is the script's; those of a rank that is lost, or
leaves, go to others, which begin them anew.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ddp_trainer.data.loading import Loading
from ddp_trainer.exit_codes import LostPeerError


class Parts:
    """Those of one rank."""

    def __init__(self, loading: Loading, count: int) -> None:
        """`count`: of the parts of all ranks."""
        self._loading = loading
        self._count = count
        self._held: set[int] = set()
        self._unfinished: deque[int] = deque()
        self._reading: Iterator[Any] | None = None
        """The rest of the first of those."""

    @property
    def held(self) -> Collection[int]:
        """All that this rank has ever begun, or is to begin."""
        return self._held

    @property
    def are_done(self) -> bool:
        """Whether the script has all batches of these."""
        return not self._unfinished

    def take(self, part: int) -> None:
        """Have another one."""
        self._held.add(part)
        self._unfinished.append(part)

    def share_out(self, holders: Sequence[float], *, rank: int | None, size: int) -> None:
        """Take some of the parts that nobody holds any more: all ranks together take each once.

        `holders`: of each part, how many. `rank`: None where others have asked for that before this
        one was among them.

        Raises:
            LostPeerError: this rank's own are evaluated without it, after it was away.
        """
        missing = [part for part, held_by in enumerate(holders) if held_by == 0]
        if not self._held.isdisjoint(missing):
            raise LostPeerError("the others have evaluated this rank's part without it")
        for part in missing[rank::size] if rank is not None else []:
            self.take(part)

    def batches(self, *, seconds: float) -> Iterator[Any]:
        """Those of so much time, one at least if there are any."""
        until = time.monotonic() + seconds
        while self._unfinished:
            if self._reading is None:
                part = self._unfinished[0]
                self._reading = self._loading.share(rank=part, world_size=self._count)
            for batch in self._reading:
                yield batch
                if time.monotonic() >= until:
                    return
            self._reading = None
            self._unfinished.popleft()
