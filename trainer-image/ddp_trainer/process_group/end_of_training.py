"""The end of a training, to which all ranks come together.

A rank whose script leaves its training before the others do would be missed in their collectives,
or meet them with one that does not fit, at which gloo may end the process. So a rank that comes to
the end says so in the group's store, and waits there for all others before it begins a collective.
The heartbeat of a rank that trains on objects: then the one that has left is at fault, and ends.
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
"""How far a rank's script has come: what is greater is further. The last number says whether it is
inside the loop over batches: it may yet leave the loop without another step."""

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
    """Wait until all ranks of a group have come to the end of their training.

    `script_progress` of this rank. `failure`: what has broken the group meanwhile, or None.

    Raises:
        LeftEarlyError: another rank trains on.
        BrokenGroupError: not all have come in that time.
        Exception: what broke the group, or its store.
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
                f"the script of rank {membership.rank} has left the training, and "
                f"{store.get(_OBJECTION).decode()}: let all ranks leave it at the same step, for "
                "example by job.steps_done"
            )
        now = time.monotonic()
        if now > begin + timeout_seconds:
            raise BrokenGroupError(
                f"{_missing(store, size)} did not come to the end of the training within "
                f"{timeout_seconds:g} s"
            )
        if now > log_at:
            log_at = now + _LOG_EVERY_SECONDS
            _logger.info(
                "at the end of the training: waiting for %s, %.0f of %.0f s",
                _missing(store, size),
                now - begin,
                timeout_seconds,
            )
        time.sleep(_pause_after(now - begin))
        count = store.add(f"{_ENDED}/count", 0)


class Objection:
    """That of one rank to another one's end, where it trains on itself."""

    def __init__(
        self, rank: int, script_progress: Callable[[], ScriptProgress], *, patience_seconds: float
    ) -> None:
        """`script_progress`: of the rank, at any time.

        `patience_seconds`: how long it may be within the step in which the other one has left.
        """
        self._rank = rank
        self._script_progress = script_progress
        self._patience_seconds = patience_seconds
        self._seen: tuple[ScriptProgress, float] | None = None

    def look(self, store: Store, *, now: float) -> None:
        """Object if there is a reason to; `store`: of the group."""
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
        text = f"rank {self._rank} trains on"
        store.set(_OBJECTION, text)
        _logger.warning("the script of rank %d has left the training, and %s", other, text)


def _missing(store: Store, size: int) -> str:
    ranks = [rank for rank in range(size) if not store.check([f"{_ENDED}/{rank}"])]
    shown = ", ".join(map(str, ranks[:8]))
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{', …' if len(ranks) > 8 else ''}"
