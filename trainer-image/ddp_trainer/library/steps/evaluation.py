"""Divides an evaluation among ranks, so that each sample counts once although ranks come and go.

The test set has as many parts as there are ranks when the evaluation begins. A part stays with the
rank that began it, because the script holds its results. If a rank is lost or leaves, other ranks
take its parts and start them again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ddp_trainer.data.loading import Loading
from ddp_trainer.exit_codes import LostPeerError


class Parts:
    """The parts of one rank."""

    def __init__(self, loading: Loading, count: int) -> None:
        """`count`: number of parts over all ranks."""
        self._loading = loading
        self._count = count
        self._held: set[int] = set()
        self._unfinished: deque[int] = deque()
        self._reading: Iterator[Any] | None = None
        """The remaining batches of the first unfinished part."""

    @property
    def held(self) -> Collection[int]:
        """Return all parts that this rank has begun or will begin."""
        return self._held

    @property
    def are_done(self) -> bool:
        """Return whether the script has received all batches of these parts."""
        return not self._unfinished

    def take(self, part: int) -> None:
        """Add a part."""
        self._held.add(part)
        self._unfinished.append(part)

    def share_out(self, holders: Sequence[float], *, rank: int | None, size: int) -> None:
        """Take some of the parts that no rank holds; all ranks together take each once.

        `holders`: number of ranks that hold each part. `rank`: None if the others divided the parts
        before this rank joined.

        Raises:
            LostPeerError: the others evaluated this rank's part while it was away.
        """
        missing = [part for part, held_by in enumerate(holders) if held_by == 0]
        if not self._held.isdisjoint(missing):
            raise LostPeerError("the others have evaluated this rank's part without it")
        for part in missing[rank::size] if rank is not None else []:
            self.take(part)

    def batches(self, *, seconds: float) -> Iterator[Any]:
        """Yield batches for this time, at least one if there are any."""
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
