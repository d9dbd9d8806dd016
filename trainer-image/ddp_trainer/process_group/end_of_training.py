"""Makes all ranks reach the end of the training together.

A rank may leave the training before the others. Their collectives would then lack it, or meet a
collective that does not match, and gloo may end the process. So a rank that reaches the end says so
in the group's store. It waits there for all others before it begins a collective. The heartbeat of
a rank that is still training objects; the rank that left is then at fault and ends.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable

from torch.distributed.distributed_c10d import Store

from ddp_trainer.exit_codes import BrokenGroupError, LeftEarlyError
from ddp_trainer.process_group.rendezvous.membership import Membership
from ddp_trainer.system.backoff import Backoff

ScriptProgress = tuple[int, ...]
"""Progress of a rank's script; a greater value is further. The last number says whether the script
is inside the loop over batches: it may still leave the loop without another step."""

_ENDED = "ended"
_OBJECTION = "objection"
_FIRST_LOG_SECONDS = 5.0
_LOG_EVERY_SECONDS = 60.0
_pause_after = Backoff(shortest_seconds=0.001, longest_seconds=0.5, per_doubling=16).after

_logger = logging.getLogger(__name__)


def wait_for_all_to_end(
    membership: Membership,
    script_progress: ScriptProgress,
    failure: Callable[[], Exception | None],
    *,
    timeout_seconds: float,
) -> None:
    """Wait until all ranks of a group have reached the end of their training.

    `script_progress`: of this rank. `failure`: returns the error that broke the group, or None.

    Raises:
        LeftEarlyError: another rank continues to train.
        BrokenGroupError: not all ranks arrived within the timeout.
        Exception: the error that broke the group or its store.
    """
    store, size = membership.store, membership.size
    store.set(f"{_ENDED}/{membership.rank}", "")
    store.set(_ENDED, json.dumps([membership.rank, *script_progress]))
    begin = time.monotonic()
    log_at = begin + _FIRST_LOG_SECONDS
    count = store.add(f"{_ENDED}/count", 1)
    while count < size:
        error = failure()
        if error is not None:
            raise error
        if store.check([_OBJECTION]):
            raise LeftEarlyError(
                f"the script of rank {membership.rank} left the training while "
                f"{store.get(_OBJECTION).decode()}: let all ranks leave it at the same step, for "
                "example by job.steps_done, and after the same calls of job.sum() and job.share()"
            )
        now = time.monotonic()
        if now > begin + timeout_seconds:
            raise BrokenGroupError(
                f"{_missing(store, size)} did not reach the end of the training within "
                f"{timeout_seconds:g} s"
            )
        if now > log_at:
            log_at = now + _LOG_EVERY_SECONDS
            _logger.info(
                "end of training: waiting for %s (%.0f of %.0f s)",
                _missing(store, size),
                now - begin,
                timeout_seconds,
            )
        time.sleep(_pause_after(now - begin))
        count = store.add(f"{_ENDED}/count", 0)


class Objection:
    """The objection of a rank that still trains to the end that another rank has reported."""

    def __init__(
        self, rank: int, script_progress: Callable[[], ScriptProgress], *, patience_seconds: float
    ) -> None:
        """`script_progress`: returns the progress of this rank.

        `patience_seconds`: how long this rank may stay in the step in which the other one left.
        """
        self._rank = rank
        self._script_progress = script_progress
        self._patience_seconds = patience_seconds
        self._seen: tuple[ScriptProgress, float] | None = None

    def look(self, store: Store, *, now: float) -> None:
        """Write an objection to the group's `store` if this rank is further than one that ended."""
        if not store.check([_ENDED]):
            return
        other, *numbers = json.loads(store.get(_ENDED))
        theirs, mine = tuple(numbers), self._script_progress()
        if other == self._rank or mine <= theirs:
            return
        if mine[:-1] == theirs[:-1]:
            if self._seen is None or self._seen[0] != mine:
                self._seen = mine, now
            if now - self._seen[1] < self._patience_seconds:
                return
        if store.check([_OBJECTION]):
            return
        text = f"rank {self._rank} continues"
        store.set(_OBJECTION, text)
        _logger.warning("the script of rank %d left the training while %s", other, text)


def _missing(store: Store, size: int) -> str:
    ranks = [rank for rank in range(size) if not store.check([f"{_ENDED}/{rank}"])]
    shown = ", ".join(map(str, ranks[:8]))
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{', …' if len(ranks) > 8 else ''}"
