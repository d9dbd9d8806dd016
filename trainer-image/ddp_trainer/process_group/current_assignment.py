"""Where a process stands in its job now, which its launcher may hear anew while it lives."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

from ddp_trainer.exit_codes import LeftError
from ddp_trainer.process_group.assignment import Assignment, AssignmentFile
from ddp_trainer.settings.environment import Environment, Placement

_logger = logging.getLogger(__name__)


class CurrentAssignment:
    """At first what the environment says; then what is newest."""

    def __init__(self, environment: Environment, file: AssignmentFile | None = None) -> None:
        """`file`: where newer places come in; None: nobody tells of any."""
        self.environment = environment
        """Of this process, in the group that it belongs to or looks for."""
        self._born = environment.placement.generation
        self._file = file
        self._looks = threading.Lock()
        """Of threads, of which one might put back what another one has just found."""
        self._seen: tuple[int, int] | None = None
        self._newest: Assignment | None = None

    @property
    def has_moved(self) -> bool:
        """Whether the group is not the one any more that this process was born into."""
        return self.environment.placement.generation > self._born

    def is_outdated(self) -> bool:
        """Whether there is a newer place than that of `environment`; costs a look at a file."""
        self._look()
        newest = self._newest
        return newest is not None and newest.generation > self.environment.placement.generation

    def is_broken(self) -> bool:
        """Whether there is, and what this process belongs to has lost a pod."""
        return self.is_outdated() and self._newest is not None and self._newest.broken

    def follow(self) -> None:
        """Go to the newest place.

        Raises:
            LeftError: there is none for this pod.
        """
        self._look()
        place, before = self._newest, self.environment.placement
        # The same one too: it may have been told again, with an address that was not known before.
        if place is None or place.generation < before.generation:
            return
        if place.node_rank is None:
            # What this process may still be saving is older than nobody's.
            placement = replace(before, generation=place.generation)
            self.environment = replace(self.environment, placement=placement)
            raise LeftError(
                f"this pod has no place in the group any more (generation {place.generation})"
            )
        self.environment = place.of(self.environment)
        if place.generation > before.generation:
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
        else f"the group of {has} pods is another one"
    )
    place = (
        f": node rank {before.node_rank} becomes {now.node_rank}"
        if before.node_rank != now.node_rank
        else ""
    )
    return f"{what} (generation {now.generation}){place}"
