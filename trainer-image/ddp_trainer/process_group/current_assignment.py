"""The assignment that a rank follows now; its launcher may receive newer ones while it runs."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

from ddp_trainer.exit_codes import LeftError
from ddp_trainer.process_group.assignment import Assignment, AssignmentFile
from ddp_trainer.settings.environment import Environment, Placement

_logger = logging.getLogger(__name__)


class CurrentAssignment:
    """The assignment from the environment at first, later the newest one from the file."""

    def __init__(self, environment: Environment, file: AssignmentFile | None = None) -> None:
        """`file`: where newer assignments arrive; None: there are none."""
        self.environment = environment
        """Environment of this process in the group that it is in or looks for."""
        self._born = environment.placement.generation
        self._file = file
        self._looks = threading.Lock()
        """Keeps one thread from putting back an older assignment than another has just read."""
        self._seen: tuple[int, int] | None = None
        self._newest: Assignment | None = None

    @property
    def has_moved(self) -> bool:
        """Return whether the group has changed since this process started."""
        return self.environment.placement.generation > self._born

    def copy_order(self) -> str:
        """Return the order of the pods by which copies are placed; costs one `stat` of a file.

        Empty: that of the node ranks, or this pod is not node rank 0, which alone receives it.
        """
        self._look()
        newest, generation = self._newest, self.environment.placement.generation
        return newest.copy_order if newest and newest.generation == generation else ""

    def is_outdated(self) -> bool:
        """Return whether a newer assignment exists; costs one `stat` of a file."""
        self._look()
        newest = self._newest
        return newest is not None and newest.generation > self.environment.placement.generation

    def is_broken(self) -> bool:
        """Return whether a newer assignment exists because the present group has lost a pod."""
        return self.is_outdated() and self._newest is not None and self._newest.broken

    def follow(self) -> None:
        """Switch to the newest assignment.

        Raises:
            LeftError: this pod is no longer in the group.
        """
        self._look()
        assignment, before = self._newest, self.environment.placement
        # The same generation too: it may have been sent again with an address that was unknown.
        if assignment is None or assignment.generation < before.generation:
            return
        if assignment.node_rank is None:
            # It may still be saving: no generation is older than its own.
            placement = replace(before, generation=assignment.generation)
            self.environment = replace(self.environment, placement=placement)
            raise LeftError(
                f"this pod is no longer in the group (generation {assignment.generation})"
            )
        self.environment = assignment.of(self.environment)
        if assignment.generation > before.generation:
            _logger.info("%s", _change(before, self.environment.placement))

    def _look(self) -> None:
        if self._file is None:
            return
        with self._looks:
            stamp = self._file.stamp()
            if stamp == self._seen:
                return
            self._seen = stamp
            found = self._file.read()
            if found is None or not found.concerns(self.environment.placement):
                return
            if self._newest is None or found.generation >= self._newest.generation:
                self._newest = found


def _change(before: Placement, now: Placement) -> str:
    had, has = len(before.pod_sizes.sizes), len(now.pod_sizes.sizes)
    what = (
        f"the group changes from {had} to {has} pods"
        if had != has
        else f"the group of {has} pods has new members"
    )
    place = (
        f": node rank {before.node_rank} becomes {now.node_rank}"
        if before.node_rank != now.node_rank
        else ""
    )
    return f"{what} (generation {now.generation}){place}"
