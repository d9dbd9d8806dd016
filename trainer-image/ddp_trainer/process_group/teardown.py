"""Lets go of process groups that were left, from a thread that may wait for theirs.

Whoever lets go of a group last waits for its threads. These may wait for Python's lock, which a
DDP wrapper does not release meanwhile, or for half a message that gloo has forgotten, until the
group's timeout. So that is left to a thread of its own, or to nobody.
"""

from __future__ import annotations

import gc
import sys
import threading
import time

from torch import distributed as dist

from ddp_trainer.system.backoff import Backoff
from ddp_trainer.system.threads import start_thread

_MOURNING_SECONDS = 60.0
"""For whoever else refers to a group: longer than anybody needs who is not stuck."""
_OWN_REFERENCES = 2
"""To a group in a list, while it is counted."""

_pause_after = Backoff(shortest_seconds=0.001, longest_seconds=0.5, per_doubling=4).after
_left_behind: list[object] = []
"""What is left of the last group, to the end of the process if there is no other group."""
_kept: list[object] = []
"""What somebody refers to who never lets go."""


def keep_for_teardown(*remains: object) -> None:
    """Keep what is left of a group until there is another one."""
    _left_behind.extend(remains)


def release_last_group() -> threading.Thread:
    """Let go of what is left of the last group, before there is another one.

    Returns the thread that does it. Python must not end before it: torch would abort the process.
    """
    # The remains of a broken group hang together in cycles. As long as its DDP wrapper lives, it
    # answers to the gradients of the model, which is its successor's part.
    gc.collect()
    groups = [remains for remains in _left_behind if isinstance(remains, dist.ProcessGroup)]
    others = [remains for remains in _left_behind if not isinstance(remains, dist.ProcessGroup)]
    _left_behind.clear()

    def bury() -> None:
        others.clear()
        # A group's own thread may be about to forget a callback that refers to
        # the group. Were it the last to let go, it would wait for itself, and torch would abort.
        if not _has_no_other_references(groups):
            _kept.extend(groups)
        groups.clear()

    return start_thread("burial", bury)


def _has_no_other_references(groups: list[dist.ProcessGroup]) -> bool:
    """Whether nobody else refers to them any more; waits for that."""
    began = time.monotonic()
    while any(sys.getrefcount(groups[i]) > _OWN_REFERENCES for i in range(len(groups))):
        waited = time.monotonic() - began
        if waited > _MOURNING_SECONDS:
            return False
        time.sleep(_pause_after(waited))
    return True
