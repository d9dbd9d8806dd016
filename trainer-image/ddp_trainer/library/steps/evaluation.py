"""Divides an evaluation among ranks, so that each sample counts once although ranks come and go.

The test set has as many parts as there are ranks when the evaluation begins. A part stays with the
rank that began it, because the script holds its results. If a rank is lost or leaves, other ranks
take its parts and start them again.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader

from ddp_trainer.data.loading import Loading
from ddp_trainer.exit_codes import LostPeerError, MovedError
from ddp_trainer.library.answers import Answers
from ddp_trainer.library.checks.calls import Call
from ddp_trainer.library.session import Session
from ddp_trainer.run.seeds import seed_step
from ddp_trainer.run.stop import is_carried

_ASK_SECONDS = 0.25
"""Time between votes on whether to stop."""


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


def shared(session: Session, answers: Answers, loader: DataLoader[Any]) -> Iterator[Any]:
    """Yield this rank's batches of an evaluation; see `Job.share`."""
    run, seed = session.run, session.options.seed
    loading = Loading(loader, seed=seed)
    seed_step(seed, rank=session.rank, step=run.position.step, purpose="evaluation")
    [count], begins_here = answers.sum(Call.SHARE, 1, data=loading.fingerprint)
    parts = Parts(loading, int(count))
    if begins_here:
        parts.take(session.rank)
    are_in_place = True
    """True while each part is with the rank of its number, as at the beginning."""
    # What each rank does depends only on these answers, so all ranks ask for the same ones.
    while True:
        yield from parts.batches(seconds=_ASK_SECONDS)
        (votes, leave, unfinished, held), is_new = answers.sum(
            Call.SHARE,
            lambda: session.stop.vote(session.world_size),
            session.world.current_assignment.is_outdated,
            not parts.are_done,
            len(parts.held),
        )
        stop = is_carried(votes)
        are_in_place = are_in_place and not leave
        if stop and is_new:
            session.or_form(session.save_and_stop)
        elif leave and is_new:
            session.form(MovedError("the group changes"))
        if held < count:
            are_in_place = False
            holds = [part in parts.held for part in range(int(count))]
            answer, is_new = answers.sum(Call.SHARE, *holds)
            rank, size = session.rank if is_new else None, session.world_size
            parts.share_out(answer, rank=rank, size=size)
        elif not (stop or leave or unfinished):
            break
    if not parts.held and are_in_place and count == session.world_size and answers.are_complete:
        # The others were done before this rank joined. The results of the rank that it replaces
        # are lost, and the others wait for them in their sum.
        parts.take(session.rank)
        yield from parts.batches(seconds=math.inf)
