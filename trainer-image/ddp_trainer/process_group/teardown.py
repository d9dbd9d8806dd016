"""Releases process groups that this rank has left, in a thread of its own.

The thread that drops the last reference to a group waits for the group's threads. These may wait
for Python's lock, which a DDP wrapper does not release meanwhile. Or they wait, until the group's
timeout, for half a message that gloo has forgotten. So a separate thread drops it, or none does.
"""

from __future__ import annotations

import gc
import sys
import threading
import time

from torch import distributed as dist

from ddp_trainer.system.backoff import Backoff
from ddp_trainer.system.threads import start_thread

_REFERENCES_SECONDS = 60.0
"""Wait for other references to a group to go; longer than any holder needs that is not stuck."""
_OWN_REFERENCES = 2
"""References to a group that is in a list while they are counted."""

_pause_after = Backoff(shortest_seconds=0.001, longest_seconds=0.5, per_doubling=4).after
_left_behind: list[object] = []
"""The rest of the last group; kept until the process ends if no other group forms."""
_kept: list[object] = []
"""Groups to which another reference remains for ever."""


def keep_for_teardown(*remains: object) -> None:
    """Keep the rest of a group until `release_last_group`."""
    _left_behind.extend(remains)


def release_last_group() -> threading.Thread:
    """Release the rest of the last group, before the next one forms.

    Returns the thread that does it. Python must not end before the thread does, because torch would
    abort the process.
    """
    # Reference cycles hold the rest of a broken group. Until its DDP wrapper is collected, it still
    # handles the model's gradients, which the next wrapper must do.
    gc.collect()
    groups = [remains for remains in _left_behind if isinstance(remains, dist.ProcessGroup)]
    others = [remains for remains in _left_behind if not isinstance(remains, dist.ProcessGroup)]
    _left_behind.clear()

    def release() -> None:
        others.clear()
        # A thread of the group may hold a callback that refers to the group. If it dropped the last
        # reference, it would wait for itself, and torch would abort.
        if not _has_no_other_references(groups):
            _kept.extend(groups)
        # torch 2.7 ends a group while it holds Python's lock, for which the group's threads may
        # wait. It ends a backend without the lock, so the backends are dropped last.
        backends = [backend for group in groups for backend in _backends_of(group)]
        groups.clear()
        backends.clear()

    return start_thread("ddp: ends the old group", release)


def _backends_of(group: dist.ProcessGroup) -> list[object]:
    if type(group) is not dist.ProcessGroup:
        return []  # a script's group, which has no backend of its own
    return [group._get_backend(device) for device in group._device_types]


def _has_no_other_references(groups: list[dist.ProcessGroup]) -> bool:
    """Wait until nothing else refers to the groups; return whether that happened."""
    began = time.monotonic()
    while any(sys.getrefcount(groups[i]) > _OWN_REFERENCES for i in range(len(groups))):
        waited = time.monotonic() - began
        if waited > _REFERENCES_SECONDS:
            return False
        time.sleep(_pause_after(waited))
    return True
